"""Binding of dimensions and initialisers, opaque calls, and the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from fusion_search.errors import FeedError, UsageError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.frontends.onnx.opaque import ReferenceCall
from fusion_search.frontends.onnx.source import OnnxSource
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import run_passes
from tests.frontends.modeling import info, model, node, random, run_onnxruntime

SYMBOLIC = model([node("Relu", ["x"])], [info("x", ["batch", "seq", 4])])


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        (None, "dimension 'batch' of input 'x' ['batch', 'seq', 4] is not bound (pass dims={'batch': 1, 'seq': 1})"),
        ({"batch": 2}, "dimension 'seq'"),
        ({"batch": 2, "seq": 3, "more": 1}, "no symbolic dimension 'more' (it has 'batch', 'seq')"),
        ({"batch": -1, "seq": 3}, "must be an integer of at least 0, got -1"),
        ({"batch": 1.5, "seq": 3}, "got 1.5"),
        ({"batch": True, "seq": 3}, "got True"),
        ({"batch": "2", "seq": 3}, "got '2'"),
    ],
)
def test_dims_are_checked(dims: Mapping[str, Any] | None, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_onnx(SYMBOLIC, dims)
    assert text in str(caught.value)


def test_a_fixed_model_has_no_dims() -> None:
    with pytest.raises(UsageError, match="all its extents are fixed"):
        load_onnx(model([node("Relu", ["x"])], [info("x", [2])]), {"batch": 1})


def test_nameless_dimensions_have_names_of_their_own() -> None:
    graph = load_onnx(model([node("Relu", ["x"])], [info("x", [None, 3])]), {"x_dim0": 5})
    assert graph.inputs[0].shape == (5, 3)


def test_bind_builds_other_extents_from_the_same_weights() -> None:
    proto = model([node("MatMul", ["x", "w"])], [info("x", ["n", 3])], constants={"w": random((3, 4))})
    graph = load_onnx(proto, {"n": np.int64(2)})
    assert graph.source is not None
    other = graph.source.bind({"n": 7}, {})
    assert (graph.outputs[0].shape, other.outputs[0].shape) == ((2, 4), (7, 4))
    assert np.shares_memory(graph.constants["w"], other.constants["w"])
    assert dict(other.source.dims if other.source else {}) == {"n": 7}
    assert dict(graph.source.symbolic_inputs) == {"x": ("n", 3)}
    x = random((7, 3))
    np.testing.assert_allclose(other.source.reference({"x": x})["y"], x @ random((3, 4)), rtol=1e-5)  # type: ignore[union-attr]


def test_initialisers_among_the_inputs_may_be_overridden() -> None:
    w = random((3, 4))
    inputs = [info("x", [2, 3]), info("w", [3, 4])]
    proto = model([node("MatMul", ["x", "w"])], inputs, constants={"w": w})
    graph = load_onnx(proto)
    source = graph.source
    assert source is not None
    assert [value.name for value in graph.inputs] == ["x"]
    assert list(source.overridable) == ["w"]
    assert graph.overridable == {"w"}
    x = random((2, 3))
    bound = source.bind({}, {"w": w + 1})
    np.testing.assert_allclose(evaluate(bound, {"x": x})["y"], x @ (w + 1), rtol=1e-5)
    np.testing.assert_allclose(source.reference({"x": x, "w": w + 1})["y"], x @ (w + 1), rtol=1e-5)
    for name, array in (("v", w), ("w", w[:2]), ("w", w.astype(np.float64))):
        with pytest.raises(FeedError):
            source.bind({}, {name: array})


def test_before_ir_version_4_listed_initialisers_are_constants() -> None:
    inputs = [info("x", [2, 3]), info("w", [3, 4])]
    graph = load_onnx(model([node("MatMul", ["x", "w"])], inputs, constants={"w": random((3, 4))}, ir_version=3, opset=9))
    assert graph.source is not None
    assert not graph.source.overridable
    assert [value.name for value in graph.inputs] == ["x"]


def test_what_overridable_values_fold_into_is_overridable() -> None:
    inputs = [info("x", [2, 3]), info("w", [4, 3])]
    graph = load_onnx(model([node("Gemm", ["x", "w"], transB=1)], inputs, constants={"w": random((4, 3))}))
    used = {name for n in graph.nodes for name in n.inputs} & set(graph.constants)
    assert used
    assert used <= graph.overridable


def test_large_weights_that_are_turned_are_kept_once() -> None:
    """By the graph and by the model behind it, whatever is bound next and whoever else reads them."""
    square = random((600, 600))  # a row of it is as long as a row of the product
    nodes = [node("Gemm", ["x", "w"], ["m"], transB=1), node("Gather", ["w", "i"], ["g"]), node("Add", ["m", "g"], ["y"])]
    inputs = [info("x", ["batch", 600]), info("i", ["batch"], TensorProto.INT64)]
    graph = load_onnx(model(nodes, inputs, constants={"w": square}), {"batch": 2})
    feeds = {"x": random((3, 600), 1), "i": np.array([4, 0, 499])}
    for bound in (graph, graph.source.bind({"batch": 3}) if graph.source else graph):
        assert isinstance(bound.source, OnnxSource)
        kept, used = bound.source.model.constants["w"], [array for array in bound.constants.values() if array.shape == (600, 600)]
        np.testing.assert_array_equal(kept, square)
        assert len(used) == 2
        assert all(np.shares_memory(array, kept) for array in used)
    np.testing.assert_allclose(evaluate(bound, feeds)["y"], feeds["x"] @ square.T + square[feeds["i"]], rtol=1e-4, atol=1e-4)


def test_readers_of_values_known_at_run_time_are_opaque() -> None:
    x = np.array([[0, 1, 2], [3, 0, 0]], np.float32)
    nodes = [
        node("NonZero", ["x"], ["i"]),
        node("Transpose", ["i"], ["t"]),
        node("Relu", ["x"], ["r"]),
        node("GatherND", ["r", "t"], ["y"]),
    ]
    proto = model(nodes, {"x": x})
    graph = run_passes(load_onnx(proto))
    assert [n.op for n in graph.nodes] == ["Opaque", "Opaque", "Relu", "Opaque"]
    assert graph.outputs[0].dtype == RUNTIME
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], [1, 2, 3])


def test_opaque_results_of_known_type_are_read_by_core_operators() -> None:
    x = random((3, 4))
    proto = model([node("TopK", ["x", "a"], ["c", "i"]), node("Neg", ["c"])], {"x": x}, constants={"a": np.array([2])})
    graph = load_onnx(proto)
    verify_graph(graph)
    assert [n.op for n in graph.nodes] == ["Opaque", "Neg"]
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], run_onnxruntime(proto, {"x": x})["y"], rtol=1e-5)


def test_equal_calls_have_equal_digests() -> None:
    x = random((4, 4))
    nodes = [
        node("TopK", ["x", "a"], ["p", "i"]),
        node("TopK", ["p", "a"], ["q", "j"]),
        node("TopK", ["q", "a"], ["y", "k"], axis=0),
    ]
    first, second, third = (n.attr("call") for n in load_onnx(model(nodes, {"x": x}, constants={"a": np.array([4])})).nodes)
    assert first == second != third
    assert isinstance(first.function, ReferenceCall)


def loop() -> Any:
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "x"], ["v2"]), helper.make_node("Identity", ["c"], ["c2"])],
        "body",
        [info("k", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("v", [2])],
        [info("c2", [], TensorProto.BOOL), info("v2", [2])],
    )
    return node("Loop", ["n", "", "x"], ["y"], body=body)


def test_subgraphs_see_outer_values() -> None:
    x = random((2,))
    proto = model([loop()], {"x": x}, constants={"n": np.int64(3)})
    graph = load_onnx(proto)
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], 4 * x, rtol=1e-6)


@pytest.mark.parametrize("known", [True, False])
def test_an_if_with_a_known_condition_is_its_branch(known: bool) -> None:
    x = random((2,))
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], ["r"])], name, [], [info("r", [2])])
        for name, op in (("then", "Neg"), ("else", "Abs"))
    }
    feeds = {"x": x} if known else {"x": x, "c": np.array(True)}
    graph = load_onnx(model([node("If", ["c"], **branches)], feeds, constants={"c": np.array(True)} if known else {}))
    assert [n.op for n in graph.nodes] == (["Neg"] if known else ["Opaque"])
    np.testing.assert_array_equal(evaluate(graph, feeds)["y"], -x)


def test_an_operator_with_a_definition_of_its_own_is_lowered_by_it() -> None:
    feeds = {name: random((1, 2, 3, 4), k) for k, name in enumerate("qkv")}
    proto = model([node("Attention", ["q", "k", "v"])], feeds, opset=23)
    graph = run_passes(load_onnx(proto))
    assert "Opaque" not in {n.op for n in graph.nodes}
    assert {n.origin_op for n in graph.nodes} == {"Attention"}
    q, k, v = feeds.values()
    scores = np.exp(q @ k.swapaxes(2, 3) / 2)
    np.testing.assert_allclose(evaluate(graph, feeds)["y"], scores / scores.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_outputs_may_repeat_and_may_be_inputs_or_constants() -> None:
    x = random((3,))
    nodes = [node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["y"]), node("Identity", ["r"], ["z"])]
    proto = model(nodes, {"x": x}, ["y", "z", "x", "w", "y"], {"w": np.float32(3)})
    for graph in (load_onnx(proto), run_passes(load_onnx(proto))):
        got = evaluate(graph, {"x": x})
        assert set(got) == {"y", "z", "x", "w"}
        np.testing.assert_array_equal(got["y"], np.maximum(x, 0))
        np.testing.assert_array_equal(got["z"], got["y"])
        np.testing.assert_array_equal(got["x"], x)
        assert got["w"] == 3


def test_random_numbers_are_never_folded() -> None:
    graph = load_onnx(model([node("RandomUniform", [], shape=[3])], {}))
    assert [n.op for n in graph.nodes] == ["Opaque"]


def test_inputs_that_decide_shapes_are_asked_for_and_bound_by_value() -> None:
    axes = info("axes", ["n"], TensorProto.INT64)
    proto = model([node("ReduceSum", ["x", "axes"], keepdims=0)], [info("x", ["b", 3, 4]), axes])
    plain = load_onnx(proto, {"b": 2, "n": 1})
    assert [n.op for n in plain.nodes] == ["Opaque"]
    assert plain.source is not None
    assert set(plain.source.asked) == {"axes"}
    bound = load_onnx(proto, {"b": 2, "n": 1}, values={"axes": [-1]})
    assert [n.op for n in bound.nodes] == ["ReduceSum"]
    assert bound.source is not None
    assert not bound.source.asked
    assert [value.name for value in bound.inputs] == ["x", "axes"]
    other = bound.source.bind({"b": 5, "n": 1}, {})
    assert other.outputs[0].shape == (5, 3)
    both = bound.source.bind({"b": 5, "n": 2}, {}, {"axes": np.array([0, 1])})
    assert both.outputs[0].shape == (4,)
    x = random((2, 3, 4))
    np.testing.assert_allclose(bound.source.reference({"x": x})["y"], x.sum(-1), rtol=1e-5)
    assert bound.source.generic is not None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"axis": [1]}, "no input 'axis'"),
        ({"axes": [1, 2]}, "must be int64[1]"),
        ({"axes": [0.5]}, "must be int64[1]"),
        ({"axes": ["a"]}, "must be int64[1]"),
    ],
)
def test_bound_values_are_checked(values: Mapping[str, Any], text: str) -> None:
    axes = info("axes", [1], TensorProto.INT64)
    proto = model([node("ReduceSum", ["x", "axes"])], [info("x", [3, 4]), axes])
    with pytest.raises(UsageError) as caught:
        load_onnx(proto, values=values)
    assert text in str(caught.value)
