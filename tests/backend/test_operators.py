"""Operators over values at the edges of every dtype: kernels against the reference evaluator, many operators in one kernel."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from fusion_search import api
from fusion_search.frontends.onnx import load_onnx
from fusion_search.passes import run_passes
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.steps import CallStep

Array = np.ndarray[Any, Any]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64", "float16", "bfloat16"]
COMPARED = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def edges(name: str) -> tuple[Array, Array]:
    """Every pair of values at the edges of a dtype."""
    dtype = dtype_of(name)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = {int(info.min), int(info.min) + 1, -7, -2, -1} if dtype.kind == "i" else set()
        values = np.array(sorted(low | {0, 1, 2, 3, 7, 8, 31, 63, 100, int(info.max) - 1, int(info.max)}), dtype)
    else:
        info_f = ml_dtypes.finfo(dtype)
        odd = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 7.25, -7.25, 88.0, -88.0, np.inf, -np.inf, np.nan]
        values = np.array([*odd, float(info_f.max), float(info_f.min), float(info_f.smallest_subnormal), float(info_f.tiny)]).astype(dtype)
    x, y = np.meshgrid(values, values)
    return np.ascontiguousarray(x.reshape(-1)), np.ascontiguousarray(y.reshape(-1))


def compare(nodes: list[onnx.NodeProto], feeds: dict[str, Array], wanted: dict[str, Array] | None = None, ulps: float = 0) -> list[str]:
    """Run the nodes as one plan, each output against the reference evaluator; return what differs."""
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(node.output[0]) for node in nodes]
    proto = helper.make_model(
        helper.make_graph(nodes, "edges", inputs, outputs), opset_imports=[helper.make_opsetid("", 22)], ir_version=10
    )
    graph = run_passes(load_onnx(proto))
    run = CompiledPlan(api.search(graph, api.load_profile("local"), method="fuse-all"))
    found = [f"{step.node.origin_op} is called" for step in run.planned.steps if isinstance(step, CallStep)]
    got = run(feeds)
    with np.errstate(all="ignore"):
        if wanted is None:
            wanted = dict(zip([n.output[0] for n in nodes], ReferenceEvaluator(proto).run(None, feeds), strict=True))
    for node in nodes:
        name = node.output[0]
        a, b = got[name], np.asarray(wanted[name])
        if a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"{name}: {a.dtype}{a.shape} instead of {b.dtype}{b.shape}")
            continue
        same = (a == b) | ((a != a) & (b != b))
        if ulps:
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(all="ignore"):
                same |= abs(wide_a - wide_b) <= ulps * np.maximum(abs(wide_b) * float(ml_dtypes.finfo(b.dtype).eps), 1e-300)
        for k in np.flatnonzero(~same.reshape(-1))[:3]:
            given = [v.reshape(-1)[k] for v in feeds.values() if v.size == a.size]
            found.append(f"{name}({', '.join(map(str, given))}) = {a.reshape(-1)[k]} instead of {b.reshape(-1)[k]}")
    return found


def binary(ops: tuple[str, ...]) -> list[onnx.NodeProto]:
    return [helper.make_node(op, ["x", "y"], [op], name=op) for op in ops]


def unary(ops: tuple[str, ...]) -> list[onnx.NodeProto]:
    return [helper.make_node(op, ["x"], [op], name=op) for op in ops]


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    x, y = edges(name)
    nodes = binary(("Add", "Sub", "Mul", "Max", "Min", *COMPARED, "BitwiseAnd", "BitwiseOr", "BitwiseXor"))
    nodes += unary(("Abs", "Sign", "BitwiseNot", *(("Neg",) if name[0] == "i" else ())))
    if name in ("int8", "int32"):
        nodes += unary(("Relu",))
    assert compare(nodes, {"x": x, "y": y}) == []


@pytest.mark.parametrize("name", INTEGERS)
def test_division_of_integers(name: str) -> None:
    x, y = edges(name)
    bits = 8 * x.itemsize

    def wrapped(value: int) -> int:
        value &= (1 << bits) - 1
        return value - (1 << bits) if name[0] == "i" and value >> (bits - 1) else value

    def results(a: int, b: int) -> tuple[int, int, int]:
        if b == 0:
            return 0, 0, 0
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient, a % b, a - quotient * b

    rows = np.array([[wrapped(v) for v in results(int(a), int(b))] for a, b in zip(x, y, strict=True)], x.dtype)
    nodes = [*binary(("Div", "Mod")), helper.make_node("Mod", ["x", "y"], ["Fmod"], name="Fmod", fmod=1)]
    assert compare(nodes, {"x": x, "y": y}, dict(zip(("Div", "Mod", "Fmod"), rows.T, strict=True))) == []


@pytest.mark.parametrize("name", INTEGERS)
def test_shifts(name: str) -> None:
    x, _ = edges(name)
    shifts = np.arange(8 * x.itemsize + 2, dtype=x.dtype)
    a, n = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(x[:20], shifts))
    nodes = [helper.make_node("BitShift", ["x", "y"], [d], name=d, direction=d) for d in ("LEFT", "RIGHT")]
    with np.errstate(all="ignore"):
        wanted = {"LEFT": np.left_shift(a, n), "RIGHT": np.right_shift(a, n)}
    assert compare(nodes, {"x": a, "y": n}, wanted) == []


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    x, y = edges(name)
    nodes = binary(("Add", "Sub", "Mul", "Div", "Max", "Min", *COMPARED))
    nodes += unary(("Abs", "Neg", "Sign", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "IsNaN", "Relu"))
    nodes += [helper.make_node("Mod", ["x", "y"], ["Fmod"], name="Fmod", fmod=1)]
    if name == "bfloat16":
        dtype = dtype_of(name)
        pairs = {"Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt}
        nodes = [n for n in nodes if n.output[0] not in ("Fmod", "Sign", "Reciprocal", "Round", *pairs)]
        assert dtype.itemsize == 2
    assert compare(nodes, {"x": x, "y": y}) == []


@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
def test_functions(name: str) -> None:
    x, _ = edges(name)
    nodes = unary(("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"))
    x = np.unique(np.concatenate([x, np.linspace(-4, 4, 57).astype(x.dtype)]))
    assert compare(nodes, {"x": x}, ulps=3) == []


def in_range(x: Array, to: np.dtype[Any]) -> Array:
    """What does not fit an integer type is undefined in C: leave it out."""
    if x.dtype.kind in "iub" or to.kind not in "iu":
        return x
    wide = x.astype(np.float64)
    info = np.iinfo(to)
    with np.errstate(invalid="ignore"):
        fits = (wide > float(info.min) - 1) & (wide < float(info.max) + (1 if to.itemsize < 8 else 0))
    return np.where(fits, x, np.ones((), x.dtype))


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "bool"])
def test_casts(name: str) -> None:
    x = np.array([True, False]) if name == "bool" else np.unique(edges(name)[0])
    if name in ("float32", "float64"):
        halves = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.99, 65520.0, 2**-25, 1.5 * 2**-24, 1 + 2**-8, 1 + 3 * 2**-9]).astype(x.dtype)
        x = np.concatenate([x, halves])
    feeds, nodes, wanted = {}, [], {}
    for to in [*INTEGERS, *FLOATS, "bool"]:
        if to == name:
            continue
        feeds[f"x_{to}"] = in_range(x, dtype_of(to))
        code = helper.np_dtype_to_tensor_dtype(dtype_of(to))
        nodes.append(helper.make_node("Cast", [f"x_{to}"], [to], name=to, to=code))
        with np.errstate(all="ignore"):
            wanted[to] = feeds[f"x_{to}"].astype(dtype_of(to))
    assert compare(nodes, feeds, wanted) == []


@pytest.mark.parametrize("name", ["int32", "float32", "float16", "int64"])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_totals(name: str, op: str) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(-3, 4, (3, 5, 7)).astype(name)
    for axis in (0, 1, 2):
        for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
            flipped = np.flip(x, axis) if reverse else x
            total = (np.cumsum if op == "CumSum" else np.cumprod)(flipped, axis=axis, dtype=x.dtype)
            if exclusive:
                first = np.full_like(np.take(total, [0], axis), 0 if op == "CumSum" else 1)
                total = np.concatenate([first, np.delete(total, -1, axis)], axis)
            node = helper.make_node(op, ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)
            graph = helper.make_graph(
                [node],
                "g",
                [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
                [helper.make_empty_tensor_value_info("y")],
                [helper.make_tensor("axis", TensorProto.INT64, [], [axis])],
            )
            proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14 if op == "CumSum" else 26)], ir_version=10)
            loaded = run_passes(load_onnx(proto))
            run = CompiledPlan(api.search(loaded, api.load_profile("local")))
            assert not any(isinstance(step, CallStep) for step in run.planned.steps)
            np.testing.assert_array_equal(run({"x": x})["y"], np.flip(total, axis) if reverse else total)


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "bij,bjk->bik", "ii->i", "iji->j", "ij->ji", "ij->", "i,i", "i,j->ij", "...ij,...jk->...ik", "ij,ik,il->jkl"]
)
def test_einsum(equation: str) -> None:
    sizes = dict(zip("bijkl", (2, 3, 4, 5, 2), strict=True))
    rng = np.random.default_rng(1)
    arrays = []
    for term in equation.split("->")[0].split(","):
        lead = (2, 3) if "..." in term else ()
        arrays.append(rng.integers(-4, 5, (*lead, *(sizes[c] for c in term.replace("...", "")))).astype(np.float32))
    feeds = {f"x{k}": a for k, a in enumerate(arrays)}
    node = helper.make_node("Einsum", list(feeds), ["y"], equation=equation)
    assert compare([node], feeds, {"y": np.einsum(equation, *arrays)}) == []
