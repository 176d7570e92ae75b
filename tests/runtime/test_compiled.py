"""Compiled plans: shapes, errors, who owns which array, opaque nodes, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import fusion_search as fs
from fusion_search.errors import FeedError, FusionSearchError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import CallStep
from tests.frontends.modeling import info, model, node, random
from tests.runtime.plans import Array, classifier, classify, compiled, planned


def close(got: Array, want: Array) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- other shapes


def test_other_batches_need_no_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = compiled(classifier(), {"batch": 8})
    first = run.compilations
    assert first > 0
    for batch in (8, 3, 64, 7, 33, 8):
        x = random((batch, 24), batch)
        close(run({"x": x})["y"], classify(x))
        assert run.compilations == first


@pytest.mark.parametrize("batch", [1, 0])
def test_a_batch_of_one_and_an_empty_one(batch: int) -> None:
    run = compiled(classifier(), {"batch": 8})
    x = random((batch, 24), 3)
    got = run({"x": x})["y"]
    assert got.shape == (batch, 10)
    if batch:
        close(got, classify(x))


def test_planned_for_one_and_run_for_many() -> None:
    run = compiled(classifier(), {"batch": 1})
    for batch in (1, 5, 40):
        x = random((batch, 24), batch)
        close(run({"x": x})["y"], classify(x))


@pytest.mark.parametrize("method", ["exact", "unfused", "per-operator", "fuse-all"])
def test_every_method_s_plan_runs(method: str) -> None:
    run = compiled(classifier(), {"batch": 6}, method)
    x = random((6, 24), 9)
    close(run({"x": x})["y"], classify(x))


def test_two_symbols_must_agree_with_themselves() -> None:
    proto = model([node("Add", ["x", "z"])], [info("x", ["n", 4]), info("z", ["n", 4])])
    run = compiled(proto, {"n": 2})
    x = random((5, 4))
    close(run({"x": x, "z": x})["y"], x + x)
    with pytest.raises(FeedError, match=r"input 'z': has shape \[3, 4\], expected \[n, 4\]"):
        run({"x": x, "z": random((3, 4))})


def test_an_initialiser_that_is_an_input_may_be_fed() -> None:
    constants = {"w": random((4, 4), 1)}
    run = compiled(model([node("MatMul", ["x", "w"])], [info("x", [3, 4]), info("w", [4, 4])], constants=constants))
    x, other = random((3, 4)), random((4, 4), 7)
    close(run({"x": x})["y"], x @ constants["w"])
    close(run({"x": x, "w": other})["y"], x @ other)
    close(run({"x": x})["y"], x @ constants["w"])


# ---------------------------------------------------------------------- wrong feeds

X = random((8, 24))


@pytest.mark.parametrize(
    ("feeds", "line"),
    [
        ({}, "feeds: missing x (the inputs are x)"),
        ({"x": X, "z": X}, "feeds: unknown name z (the inputs are x)"),
        ({"x": X.astype(np.float64)}, "input 'x': has dtype float64, expected float32 (convert it with .astype('float32'))"),
        ({"x": X[:, :5]}, "input 'x': has shape [8, 5], expected [batch, 24]"),
        ({"x": X[0]}, "input 'x': has shape [24], expected [batch, 24]"),
        ({"x": X[None]}, "input 'x': has shape [1, 8, 24], expected [batch, 24]"),
        ({"x": None}, "input 'x': has dtype object, expected float32 (convert it with .astype('float32'))"),
    ],
)
def test_wrong_feeds_are_named(feeds: dict[str, Array], line: str) -> None:
    run = compiled(classifier(), {"batch": 8})
    with pytest.raises(FeedError) as caught:
        run(feeds)
    assert str(caught.value) == line
    close(run({"x": X})["y"], classify(X))


@pytest.mark.parametrize("index", [5, -6, 2**40])
@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND"])
def test_an_index_outside_is_refused(op: str, index: int) -> None:
    shape = {"Gather": (2,), "GatherElements": (2, 3), "GatherND": (4, 1)}[op]
    proto = model([node(op, ["t", "i"])], [info("t", [5, 3]), info("i", shape, TensorProto.INT64)])
    run = compiled(proto)
    table, good = random((5, 3)), np.zeros(shape, np.int64)
    bad = good.copy()
    bad.flat[-1] = index
    before = run({"t": table, "i": good})["y"]
    with pytest.raises(FeedError, match="an index is outside its tensor"):
        run({"t": table, "i": bad})
    np.testing.assert_array_equal(run({"t": table, "i": good})["y"], before)


def test_an_index_outside_is_refused_where_only_one_is_left() -> None:
    b = GraphBuilder("one")
    x = b.op("Exp", b.input("x", np.float32, (40, 1)))
    b.output("y", b.op("Tanh", b.op("Gather", x, b.input("i", np.int64, (1,)), axis=1)))
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    x = random((40, 1))
    close(run({"x": x, "i": np.array([-1])})["y"], np.tanh(np.exp(x)))
    with pytest.raises(FeedError):
        run({"x": x, "i": np.array([1])})


# ---------------------------------------------------------------------- who owns which array


def test_an_earlier_result_is_not_overwritten() -> None:
    run = compiled(classifier(), {"batch": 8})
    results = [(x, run({"x": x})["y"]) for x in (random((8, 24), seed) for seed in range(5))]
    for x, y in results:
        close(y, classify(x))
        y[:] = -1  # the caller's to write


def test_inputs_are_not_written_and_may_be_read_only_or_strided() -> None:
    run = compiled(classifier(), {"batch": 8})
    wide = random((8, 48))
    x = wide[:, ::2]
    kept = wide.copy()
    close(run({"x": x})["y"], classify(np.ascontiguousarray(x)))
    np.testing.assert_array_equal(wide, kept)
    x = random((8, 24))
    x.flags.writeable = False
    close(run({"x": x})["y"], classify(x))
    close(run({"x": x.tolist() and np.asfortranarray(x)})["y"], classify(x))


def test_outputs_that_are_inputs_constants_or_the_same_value_are_the_caller_s_own() -> None:
    b = GraphBuilder("owned")
    x = b.input("x", np.float32, (4, 4))
    c = b.constant(random((4, 4), 1))
    r = b.op("Relu", x)
    for name, value in (("same", x), ("flat", b.reshape(x, (16,))), ("weight", c), ("r1", r), ("r2", r), ("r3", b.reshape(r, (2, 8)))):
        b.output(name, value)
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    fed = random((4, 4))
    kept, weight = fed.copy(), graph.constants[c].copy()
    got = run({"x": fed})
    assert list(got) == ["same", "flat", "weight", "r1", "r2", "r3"]
    arrays = [fed, graph.constants[c], *got.values()]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[k + 1 :])
    for array in got.values():
        array[...] = 7
    np.testing.assert_array_equal(fed, kept)
    np.testing.assert_array_equal(graph.constants[c], weight)
    again = run({"x": fed})
    np.testing.assert_array_equal(again["weight"], weight)
    np.testing.assert_array_equal(again["r3"], np.maximum(fed, 0).reshape(2, 8))
    np.testing.assert_array_equal(again["flat"], fed.reshape(16))


def test_a_graph_without_nodes() -> None:
    b = GraphBuilder("empty")
    b.output("y", b.input("x", np.float32, (3,)))
    run = BoundPlan(b.build(), [])
    x = random((3,))
    np.testing.assert_array_equal(run({"x": x})["y"], x)


# ---------------------------------------------------------------------- nodes that are called


def test_opaque_nodes_run_between_kernels() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("NonZero", ["r"], ["at"]),
        node("Transpose", ["at"], ["points"], perm=[1, 0]),
        node("GatherND", ["r", "points"], ["values"]),
        node("Exp", ["r"], ["e"]),
        node("CumSum", ["e", "axis"], ["sums"]),
        node("Tanh", ["sums"], ["y"]),
    ]
    proto = model(nodes, [info("x", [5, 6])], ["points", "values", "y"], {"axis": np.array(1)})
    run = compiled(proto)
    assert any(isinstance(step, CallStep) for step in run.planned.steps)
    x = random((5, 6))
    r = np.maximum(x, 0)
    for _ in range(2):
        got = run({"x": x})
        np.testing.assert_array_equal(got["points"], np.argwhere(r))
        np.testing.assert_array_equal(got["values"], r[r > 0])
        close(got["y"], np.tanh(np.cumsum(np.exp(r), 1)))
        x = random((5, 6), 1)
        r = np.maximum(x, 0)


def test_a_group_that_cannot_be_emitted_is_evaluated() -> None:
    b = GraphBuilder("truth")
    b.output("y", b.op("Not", b.op("ReduceMax", b.input("x", np.bool_, (8, 8)), axes=(1,))))
    run = BoundPlan(b.build(), [["ReduceMax_0"], ["Not_1"]])
    assert [type(step).__name__ for step in run.steps] == ["CallStep", "KernelStep"]
    x = random((8, 8)) > 1
    np.testing.assert_array_equal(run({"x": x})["y"], ~x.any(1, keepdims=True))


# ---------------------------------------------------------------------- threads


def test_threads_may_call_one_compiled_plan() -> None:
    run = compiled(classifier(), {"batch": 8})

    def work(seed: int) -> float:
        x = random((1 + seed % 5 * 4, 24), seed)
        return float(np.abs(run({"x": x})["y"] - classify(x)).max())

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(60))) < 1e-5


def test_compiling_a_plan_twice_gives_one_object() -> None:
    plan = planned(fs.load(classifier(), dims={"batch": 2}))  # type: ignore[arg-type]
    run = fs.compile(plan)
    assert fs.compile(plan) is run
    assert fs.compile(planned(plan.graph, "unfused")) is not run


# ---------------------------------------------------------------------- inputs whose elements decide shapes


def windowed() -> onnx.ModelProto:
    """x [batch, 12] cut from `start` to `end`, summed over `axes`, times two; all three are inputs."""
    nodes = [
        node("Slice", ["x", "start", "end", "one"], ["s"]),
        node("ReduceSum", ["s", "axes"], ["r"], keepdims=0),
        node("Add", ["r", "r"]),
    ]
    places = [info(name, [1], TensorProto.INT64) for name in ("start", "end", "axes")]
    return model(nodes, [info("x", ["batch", 12]), *places], constants={"one": np.array([1])})


def window(x: Array, start: int, end: int, axes: int) -> dict[str, Array]:
    return {"x": x, "start": np.array([start]), "end": np.array([end]), "axes": np.array([axes])}


def calls(bound: BoundPlan) -> list[str]:
    return [step.node.origin_op for step in bound.steps if isinstance(step, CallStep)]


def test_a_run_binds_them_by_value() -> None:
    run = compiled(windowed(), {"batch": 4})
    assert "Slice" in calls(run.planned)  # nothing is known of it when it is planned
    for batch, start, end, axes in ((4, 2, 9, 1), (4, 0, 12, 0), (5, 2, 9, 1), (4, 2, 9, 1), (1, -3, 2**40, -1)):
        feeds = window(random((batch, 12), batch), start, end, axes)
        close(run(feeds)["y"], 2 * feeds["x"][:, start:end].sum(axes))
        assert calls(run.for_feeds(run.checked(feeds))) == []
    before = run.compilations
    close(run(window(random((4, 12)), 2, 9, 1))["y"], 2 * random((4, 12))[:, 2:9].sum(1))
    assert run.compilations == before


def test_bound_when_loaded_they_are_planned_and_may_still_change() -> None:
    graph = fs.load(windowed(), dims={"batch": 4}, values={"start": [2], "end": [9], "axes": [1]})  # type: ignore[arg-type]
    plan = planned(graph)
    assert fs.check(graph, plan) == []
    assert len(plan.groups) == 1
    assert fs.verify(plan).ok
    run = fs.compile(plan)
    x = random((4, 12))
    close(run(window(x, 2, 9, 1))["y"], 2 * x[:, 2:9].sum(1))
    before = run.compilations
    close(run(window(x, 3, 8, 1))["y"], 2 * x[:, 3:8].sum(1))
    close(run(window(random((7, 12)), 3, 8, 1))["y"], 2 * random((7, 12))[:, 3:8].sum(1))
    assert run.compilations == before  # other numbers in the argument table, the same kernels
    close(run(window(x, 2, 9, 0))["y"], 2 * x[:, 2:9].sum(0))


def test_a_plan_for_the_latest_elements() -> None:
    run = compiled(windowed(), {"batch": 4})
    feeds = window(random((4, 12)), 2, 9, 1)
    run(feeds)
    again = fs.compile(run.replan())
    assert len(again.plan.groups) == 1
    close(again(feeds)["y"], 2 * feeds["x"][:, 2:9].sum(1))


def test_examples_are_made_only_where_elements_decide_nothing() -> None:
    plan = planned(fs.load(windowed(), dims={"batch": 4}))  # type: ignore[arg-type]
    with pytest.raises(FusionSearchError, match="decide shapes or places"):
        fs.verify(plan)


def test_wrong_elements_are_one_line() -> None:
    run = compiled(windowed(), {"batch": 4})
    with pytest.raises(FusionSearchError, match="axis 3 is outside of 2 dimensions"):
        run(window(random((4, 12)), 2, 9, 3))


def test_compiling_tells_which_of_how_many_kernels_it_is_at() -> None:
    told: list[str] = []
    fs.compile(planned(fs.load(classifier(), dims={"batch": 8}), "unfused"), progress=told.append)  # type: ignore[arg-type]
    kernels = [line for line in told if line.startswith("kernel ")]
    assert [line for line in told if line not in kernels] == ["library function gemm_packed_f32"]
    assert kernels == [f"kernel {k} of {len(kernels)}" for k in range(1, len(kernels) + 1)]
    assert len(kernels) > 3
