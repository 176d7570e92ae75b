"""Public fault cases A01 to A07: folding affine maps, values with several consumers, outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import fusion_search as fs
from tests.cases.harness import check, load, model, node, outputs, plans, profile

rng = np.random.default_rng(1)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def conv(x: Any, w: Any, b: Any = None, group: int = 1, pad: int = 0) -> Any:
    """Direct convolution with stride 1, in float64."""
    x, w = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pad, pad), (pad, pad)]), w.astype(np.float64)
    n, _, height, width = x.shape
    m, c, kh, kw = w.shape
    y = np.zeros((n, m, height - kh + 1, width - kw + 1))
    for f in range(m):
        part = x[:, f // (m // group) * c :][:, :c]
        for i in range(kh):
            for j in range(kw):
                y[:, f] += np.einsum("nchw,c->nhw", part[:, :, i : i + y.shape[2], j : j + y.shape[3]], w[f, :, i, j])
    return y if b is None else y + np.asarray(b, np.float64).reshape(1, -1, 1, 1)


@pytest.mark.parametrize("shape", [(1, 4, 3, 3), (1, 4, 1, 1), (4, 1, 1), (1, 1, 3, 3), (1, 4, 1, 3), (1, 1, 1, 1), (3,), ()])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a01_map_after_grouped_conv_is_no_bias(shape: tuple[int, ...], op: str) -> None:
    x, w, b, k = normal(1, 4, 3, 3), normal(4, 2, 1, 1), normal(4), normal(*shape) if shape else np.float32(1.5)
    proto = model([node("Conv", "x w b", "c", group=2), node(op, "c k")], {"x": x}, constants={"w": w, "b": b, "k": k})
    c = conv(x, w, b, group=2)
    check(proto, {"x": x}, {"y": (c + k if op == "Add" else c * k).astype(np.float32)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("listed", [(), ("w",), ("w", "s")])
@pytest.mark.parametrize("first_only", [True, False])
def test_a02_shared_or_fed_weights_survive_folding(listed: tuple[str, ...], first_only: bool) -> None:
    x, w = normal(1, 4, 5, 5), normal(4, 1, 3, 3)
    bn = {"s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + np.float32(0.1)}
    nodes = [node("Conv", "x w", "c1", group=4), node("Conv", "x w" if first_only else "c1 w", "c2", group=4, pads=[1, 1, 1, 1])]
    nodes.append(node("BatchNormalization", "c1 s b m v", "y"))
    proto = model(nodes, {"x": x}, "y c2", {"w": w, **bn}, listed=listed)

    def right(w: Any, s: Any) -> dict[str, Any]:
        c1 = conv(x, w, group=4)
        shape = (1, 4, 1, 1)
        y = (c1 - bn["m"].reshape(shape)) / np.sqrt(bn["v"].reshape(shape) + 1e-5) * s.reshape(shape) + bn["b"].reshape(shape)
        return {"y": y.astype(np.float32), "c2": conv(x if first_only else c1, w, group=4, pad=1).astype(np.float32)}

    check(proto, {"x": x}, right(w, bn["s"]), rtol=1e-4, atol=1e-4)
    if listed:
        fed = {name: normal(*{"w": w, **bn}[name].shape) for name in listed}
        check(proto, {"x": x, **fed}, right(fed["w"], fed.get("s", bn["s"])), rtol=1e-4, atol=1e-4)
        check(proto, {"x": x}, right(w, bn["s"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epsilon", [None, 1e-3])
@pytest.mark.parametrize("bias", [True, False])
def test_a03_default_epsilon_and_missing_bias(epsilon: float | None, bias: bool) -> None:
    x, w, b = normal(1, 4, 4, 4), normal(4, 1, 3, 3), normal(4)
    v = np.array([1e-6, 1e-5, 1, 4], np.float32)
    attrs = {} if epsilon is None else {"epsilon": epsilon}
    nodes = [node("Conv", "x w b" if bias else "x w", "c", group=4), node("BatchNormalization", "c s t m v", "y", **attrs)]
    s, t, m = normal(4), normal(4), normal(4)
    proto = model(nodes, {"x": x}, constants={"w": w, "b": b, "s": s, "t": t, "m": m, "v": v})
    shape = (1, 4, 1, 1)
    c = conv(x, w, b if bias else None, group=4)
    y = (c - m.reshape(shape)) / np.sqrt(v.reshape(shape).astype(np.float64) + (epsilon or 1e-5)) * s.reshape(shape) + t.reshape(shape)
    check(proto, {"x": x}, {"y": y.astype(np.float32)}, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("names", ["y a b", "b a y", "y b", "a", "y"])
def test_a04_inner_values_may_be_outputs(names: str) -> None:
    x = np.array([-3, -0.5, 0, 1, 4], np.float32)
    nodes = [node("Mul", "x k", "a"), node("Sigmoid", "a", "b"), node("Mul", "x b", "y")]
    a = x * np.float32(1.702)
    b = special.expit(a.astype(np.float64)).astype(np.float32)
    want = {"a": a, "b": b, "y": x * b}
    check(model(nodes, {"x": x}, names, {"k": 1.702}), {"x": x}, {n: want[n] for n in names.split()}, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(32, 48, 40), (256, 1472, 3584)])
@pytest.mark.parametrize("second", ["Erf", "Tanh", "Identity"])
def test_a05_a_product_is_computed_once(second: str, rows: int, depth: int, columns: int) -> None:
    x, w = normal(rows, depth), normal(depth, columns)
    tail = [node("Mul", "m half", "h"), node("Erf", "h", "e"), node("Add", "e one", "f"), node("Mul", "h f", "y2")]
    tail = tail if second == "Erf" else [node(second, "m", "y2")]
    constants = {"w": w, "c": 0.5, "half": 0.7, "one": 1.0}
    proto = model([node("MatMul", "x w", "m"), node("Mul", "m c", "y1"), *tail], {"x": x}, "y1 y2", constants)
    graph = load(proto)
    (product,) = (n.name for n in graph.nodes if n.op == "MatMul")
    for name, plan in plans(graph):
        products = [n for group in plan.groups for n in group.nodes if n == product]
        assert len(products) == 1, name
        assert plan.terms["recompute"] == 0.0, name
    # one product with both of its readers; and never one for each reader, which would cost as many operations again
    rest = [n.name for n in graph.nodes if n.name != product]
    assert isinstance(fs.price(graph, [[product, *rest]], profile()), fs.Plan)
    first = [name for name in rest if "y1" in graph.nodes[[n.name for n in graph.nodes].index(name)].outputs]
    twice = fs.price(graph, [[product, *first], [product, *(name for name in rest if name not in first)]], profile())
    assert not isinstance(twice, fs.Plan)
    assert any(product in reason.nodes for reason in twice)
    m = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    h = m * np.float32(0.7)
    y2 = {"Erf": h * (special.erf(h) + np.float32(1)), "Tanh": np.tanh(m), "Identity": m}[second]
    scale = float(np.sqrt(depth))
    check(proto, {"x": x}, {"y1": m * np.float32(0.5), "y2": y2.astype(np.float32)}, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize("first", ["Identity", "Cast", "Dropout", "Reshape"])
@pytest.mark.parametrize("order", [0, 1])
def test_a06_rewrites_leave_no_name_without_a_producer(first: str, order: int) -> None:
    x = np.array([-0.0, np.inf, 3.25], np.float32)
    head = {
        "Identity": node("Identity", "x", "mid"),
        "Cast": node("Cast", "x", "mid", to=1),
        "Dropout": node("Dropout", "x", "mid"),
        "Reshape": node("Reshape", "x shape", "mid"),
    }[first]
    nodes = [head, node("Div", "c1 c1", "one"), node("Mul", "mid one" if order else "one mid", "w"), node("Add", "w zero", "y")]
    constants = {"c1": 1.0, "zero": -0.0, "shape": np.array([3])}
    check(model(nodes, {"x": x}, "y", constants), {"x": x}, {"y": x})


@pytest.mark.parametrize("copies", ["Identity Identity", "Identity Relu", "Cast Identity", "Relu Relu"])
def test_a07_one_value_under_several_output_names(copies: str) -> None:
    x = np.array([-1, 0, 2], np.float32)
    a, b = (node(op, "r", out, **({"to": 1} if op == "Cast" else {})) for op, out in zip(copies.split(), "yz", strict=True))
    r = np.maximum(x, 0)
    check(model([node("Relu", "x", "r"), a, b], {"x": x}, "y z r"), {"x": x}, {"y": r, "z": r, "r": r})
    for got in outputs(model([node("Relu", "x", "r"), a, b], {"x": x}, "y z"), {"x": x}).values():
        assert not np.shares_memory(got["y"], got["z"])
        got["y"][:] = 7
        np.testing.assert_array_equal(got["z"], r)


def test_a07_the_same_output_twice_and_an_input_as_output() -> None:
    x = np.array([-1, 0, 2], np.float32)
    twice = model([node("Relu", "x", "r")], {"x": x}, "r r")
    np.testing.assert_array_equal(fs.compile(fs.search(load(twice), profile()))({"x": x})["r"], np.maximum(x, 0))
    for got in outputs(model([node("Identity", "x", "y")], {"x": x}), {"x": x}).values():
        assert not np.shares_memory(got["y"], x)
