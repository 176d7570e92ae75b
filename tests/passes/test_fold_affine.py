"""Folding of affine chains into convolutions, and every reason not to."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.passes import PIPELINE, run_passes
from tests.frontends.modeling import Array, info, model, node, random, run_onnxruntime

X = random((2, 4, 5, 5))
W, B = random((6, 4, 3, 3), 1), random((6,), 2)
CONV = node("Conv", ["x", "w", "b"], ["c"])
CHANNEL = random((6, 1, 1), 3)
STATISTICS = {"s": random((6,), 4), "t": random((6,), 5), "m": random((6,), 6), "v": np.abs(random((6,), 7)) + 0.1}


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def detail(graph: Graph) -> str:
    return next(record.detail for record in graph.log if record.name == "fold_affine")


def check(proto: onnx.ModelProto, feeds: dict[str, Array], expected: list[str]) -> Graph:
    graph = run_passes(load_onnx(proto))
    assert ops(graph) == expected
    got, want = evaluate(graph, feeds), run_onnxruntime(proto, feeds)
    assert set(got) == set(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
    return graph


def test_batch_normalization_is_folded_with_its_own_epsilon() -> None:
    # the default of 1e-5 dominates the small variances; without a bias one is made
    x = random((1, 4, 3, 3))
    known = {"w": random((4, 1, 1, 1), 1), "s": np.ones(4, np.float32), "t": random((4,), 2), "m": random((4,), 3)}
    known["v"] = np.array([1e-6, 1e-5, 1, 4], np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"], group=4), node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"])]
    graph = check(model(nodes, {"x": x}, constants=known), {"x": x}, ["Conv"])
    assert len(graph.nodes[0].inputs) == 3
    factor = graph.constants[graph.base(graph.nodes[0].inputs[1])].reshape(4) / known["w"].reshape(4)
    np.testing.assert_allclose(factor, 1 / np.sqrt(known["v"].astype(np.float64) + 1e-5), rtol=1e-6)
    assert "n_c + 2 (4 channels, largest relative change" in detail(graph)
    assert graph.outputs[0].name == "y"


def test_batch_normalization_that_an_exporter_has_split_is_folded() -> None:
    steps = [("Sub", "k0"), ("Mul", "k1"), ("Mul", "k2"), ("Add", "k3")]
    nodes, at = [CONV], "c"
    for k, (op, name) in enumerate(steps):
        nodes.append(node(op, [at, name] if k != 2 else [name, at], [f"v{k}"]))
        at = f"v{k}"
    nodes.append(node("Relu", [at], ["y"]))
    known = {"w": W, "b": B, **{f"k{k}": random((1, 6, 1, 1), 10 + k) for k in range(4)}}
    check(model(nodes, {"x": X}, constants=known), {"x": X}, ["Conv", "Relu"])


@pytest.mark.parametrize(
    ("op", "inputs"), [("Mul", "ck"), ("Mul", "kc"), ("Add", "ck"), ("Sub", "ck"), ("Sub", "kc"), ("Div", "ck")], ids=str
)
@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (), (1,), (1, 1, 1, 1)], ids=str)
def test_every_affine_operator_is_folded(op: str, inputs: str, shape: tuple[int, ...]) -> None:
    known = {"w": W, "b": B, "k": random(shape, 3) + np.float32(2)}
    check(model([CONV, node(op, list(inputs))], {"x": X}, constants=known), {"x": X}, ["Conv"])


@pytest.mark.parametrize("shape", [(1, 6, 3, 3), (6, 3, 1), (3,), (2, 6, 1, 1), (1, 6, 1, 3)], ids=str)
def test_constants_that_vary_over_batch_or_space_stay(shape: tuple[int, ...]) -> None:
    check(model([CONV, node("Add", ["c", "k"])], {"x": X}, constants={"w": W, "b": B, "k": random(shape, 3)}), {"x": X}, ["Conv", "Add"])


def test_a_full_map_after_a_grouped_convolution_is_no_bias() -> None:
    x = random((1, 4, 3, 3))
    known = {"w": random((4, 2, 1, 1), 1), "b": random((4,), 2), "k": random((1, 4, 3, 3), 3)}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], group=2), node("Add", ["c", "k"])]
    check(model(nodes, {"x": x}, constants=known), {"x": x}, ["Conv", "Add"])
    known["k"] = random((4, 1, 1), 3)
    check(model(nodes, {"x": x}, constants=known), {"x": x}, ["Conv"])


def test_a_constant_divided_by_the_result_stays() -> None:
    check(model([CONV, node("Div", ["k", "c"])], {"x": X}, constants={"w": W, "b": B, "k": CHANNEL}), {"x": X}, ["Conv", "Div"])


def test_a_shared_weight_keeps_its_values_for_the_others() -> None:
    x = random((1, 4, 5, 5))
    known = {"w": random((4, 1, 3, 3), 1), **{name: array[:4] for name, array in STATISTICS.items()}}
    nodes = [
        node("Conv", ["x", "w"], ["c"], group=4),
        node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"]),
        node("Conv", ["x", "w"], ["z"], group=4),
    ]
    graph = check(model(nodes, {"x": x}, ["y", "z"], known), {"x": x}, ["Conv", "Conv"])
    np.testing.assert_array_equal(graph.constants[graph.base(graph.nodes[1].inputs[1])].reshape(-1), known["w"].reshape(-1))


@pytest.mark.parametrize("listed", ["w", "s", "m"])
def test_what_a_caller_may_override_is_not_folded(listed: str) -> None:
    known = {"w": W, **STATISTICS}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"])]
    inputs = [info("x", X.shape), info(listed, known[listed].shape)]
    graph = run_passes(load_onnx(model(nodes, inputs, constants=known)))
    assert ops(graph) == ["Conv", "Mul", "Add"]
    assert "may be overridden" in detail(graph)


def test_a_value_that_someone_else_gets_is_not_folded_away() -> None:
    known = {"w": W, "b": B, "k": CHANNEL}
    check(model([CONV, node("Mul", ["c", "k"])], {"x": X}, ["y", "c"], known), {"x": X}, ["Conv", "Mul"])
    both = [CONV, node("Mul", ["c", "k"], ["p"]), node("Add", ["c", "p"], ["y"])]
    check(model(both, {"x": X}, constants=known), {"x": X}, ["Conv", "Mul", "Add"])
    # the first step may be folded when only its result is used twice
    chain = [CONV, node("Mul", ["c", "k"], ["p"]), node("Add", ["p", "k"], ["q"]), node("Mul", ["p", "q"], ["y"])]
    check(model(chain, {"x": X}, constants=known), {"x": X}, ["Conv", "Add", "Mul"])


def test_a_result_multiplied_by_itself_stays() -> None:
    check(model([CONV, node("Mul", ["c", "c"])], {"x": X}, constants={"w": W, "b": B}), {"x": X}, ["Conv", "Mul"])


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_weights_that_would_not_be_finite_are_refused(value: float) -> None:
    k = CHANNEL.copy()
    k[2] = value
    nodes = [CONV, node("Add", ["c", "b1"], ["a"]), node("Mul", ["a", "k"])]
    graph = run_passes(load_onnx(model(nodes, {"x": X}, constants={"w": W * 10, "b": B, "k": k, "b1": CHANNEL})))
    assert ops(graph) == ["Conv", "Mul"]  # what comes before is folded
    assert "refused: n_c with n_y: a folded weight is not finite" in detail(graph)


def test_weights_fed_at_run_time_are_not_folded() -> None:
    feeds = {"x": X, "w": W}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "k"])]
    check(model(nodes, feeds, constants={"k": CHANNEL}), feeds, ["Conv", "Mul"])


def test_16_bit_batch_normalization_is_folded_through_its_casts() -> None:
    known: dict[str, Any] = {name: array.astype(np.float16) for name, array in {"w": W, **STATISTICS}.items()}
    nodes = [node("Conv", ["x", "w"], ["c"]), node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"])]
    x = X.astype(np.float16)
    plain = load_onnx(model(nodes, {"x": x}, constants=known))
    graph = run_passes(plain)
    assert ops(graph) == ["Conv"]
    want = evaluate(plain, {"x": x})["y"].astype(np.float32)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"].astype(np.float32), want, rtol=1e-2, atol=4e-2)
    open_end = [node("Conv", ["x", "w"], ["c"]), node("Cast", ["c"], ["f"], to=1), node("Mul", ["f", "k"], ["y"])]
    kept = run_passes(load_onnx(model(open_end, {"x": x}, constants={"w": known["w"], "k": CHANNEL})))
    assert ops(kept) == ["Conv", "Cast", "Mul"]  # float32 results must not be rounded to the weights' 16 bits


def test_folding_is_repeatable() -> None:
    nodes = [CONV, node("BatchNormalization", ["c", "s", "t", "m", "v"], ["y"])]
    once = run_passes(load_onnx(model(nodes, {"x": X}, constants={"w": W, "b": B, **STATISTICS})))
    again = run_passes(once)
    assert again.nodes == once.nodes
    assert [record.changes for record in again.log[len(PIPELINE) :]] == [0] * len(PIPELINE)
