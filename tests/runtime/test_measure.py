"""Verification and measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.errors import FeedError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.measure import example_feeds
from tests.frontends.modeling import random
from tests.runtime.plans import classifier, planned


def plan_of(method: str = "exact") -> fs.Plan:
    return planned(fs.load(classifier(), dims={"batch": 8}), method)  # type: ignore[arg-type]


def test_verify_compares_with_the_model_itself() -> None:
    found = fs.verify(plan_of())
    assert found.ok
    assert found.reference == "onnx.reference"
    assert 0 <= found.max_abs < 1e-5
    assert 0 <= found.max_rel < 1e-5
    assert [report.name for report in found.outputs] == ["y"]


def test_verify_with_feeds_of_another_batch() -> None:
    assert fs.verify(plan_of(), {"x": random((3, 24))}).ok


def test_verify_sees_weights_that_were_tampered_with() -> None:
    plan = plan_of()
    constants = {name: array + 0.5 if array.ndim == 2 else array for name, array in plan.graph.constants.items()}
    assert any(array.ndim == 2 for array in constants.values())
    found = fs.verify(replace(plan, graph=replace(plan.graph, constants=constants)))
    assert not found.ok
    assert found.max_abs > 1e-2


def test_verify_without_a_model_uses_numpy() -> None:
    b = GraphBuilder("core")
    b.output("y", b.op("Tanh", b.op("Exp", b.input("x", np.float32, (8, 8)))))
    found = fs.verify(planned(b.build()))
    assert found.ok
    assert found.reference == "core graph in NumPy"


def test_verify_tells_infinities_and_nan_apart() -> None:
    b = GraphBuilder("core")
    b.output("y", b.op("Reciprocal", b.input("x", np.float32, (4,))))
    plan = planned(b.build())
    assert fs.verify(plan, {"x": np.array([0.0, -0.0, np.nan, np.inf], np.float32)}).ok


def test_verify_refuses_wrong_feeds() -> None:
    with pytest.raises(FeedError, match="missing x"):
        fs.verify(plan_of(), {})


@pytest.mark.parametrize("method", ["exact", "unfused"])
def test_measure(method: str) -> None:
    plan = plan_of(method)
    found = fs.measure(plan)
    assert 0 < found.median_s < 1
    assert 3 <= found.runs <= 15
    assert len(found.groups) == len(plan.groups) == plan.launches
    assert all(0 < seconds < 1 for seconds in found.groups)
    result = 8 * 10 * 4
    assert found.peak_bytes >= result
    assert found.peak_bytes == fs.compile(plan).peak_bytes


def test_buffers_of_values_that_die_are_used_again() -> None:
    b = GraphBuilder("chain")
    x = b.input("x", np.float32, (64, 1000))
    for _ in range(8):
        x = b.op("Tanh", x)
    b.output("y", x)
    run = fs.compile(planned(b.build(), "unfused"))
    assert len(run.plan.groups) == 8
    assert run.planned.memory.arena_bytes == 2 * 64 * 1000 * 4


def test_example_feeds_fit_the_inputs_and_repeat() -> None:
    b = GraphBuilder("inputs")
    for name, dtype in (("f", np.float32), ("h", np.float16), ("i", np.int64), ("c", np.bool_), ("attention_mask", np.int64)):
        b.output(f"{name}_out", b.input(name, dtype, (3, 2)))
    graph = b.build()
    feeds, again = example_feeds(graph, 4), example_feeds(graph, 4)
    assert {name: (a.dtype, a.shape) for name, a in feeds.items()} == {v.name: (v.dtype, v.shape) for v in graph.inputs}
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
    assert not np.array_equal(feeds["f"], example_feeds(graph, 5)["f"])
    assert np.all(feeds["attention_mask"] == 1)
    assert np.all(feeds["i"] >= 0)
