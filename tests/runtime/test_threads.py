"""One compiled plan in several threads at once: every run has a workspace of its own."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest

from fusion_search.errors import FeedError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime import program
from fusion_search.runtime.program import BoundPlan
from tests.frontends.modeling import random
from tests.runtime.plans import classifier, classify, compiled, planned
from tests.runtime.test_memory import attention


def test_runs_of_other_shapes_side_by_side() -> None:
    run = compiled(classifier(), {"batch": 8})
    wrong: list[int] = []
    gate = threading.Barrier(6)

    def work(seed: int) -> None:
        gate.wait()
        for k in range(40):
            batch = 1 + (seed * 7 + k) % 13  # more bindings than are kept
            x = random((batch, 24), seed * 100 + k)
            y = np.empty((batch, 10), np.float32)
            got = run({"x": x}, out={"y": y} if k % 2 else None)["y"]
            if not np.allclose(got, classify(x), rtol=1e-5, atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("method", ["exact", "unfused"])
def test_kernels_with_scratch_and_several_tasks_side_by_side(method: str) -> None:
    plan = planned(attention(128, 128), method)
    run = BoundPlan(plan.graph, [group.nodes for group in plan.groups])
    feeds = [{"x": random((128, 128), seed)} for seed in range(8)]
    want = [run(fed)["y"].copy() for fed in feeds]

    def work(k: int) -> bool:
        return all(np.array_equal(run(feeds[k % 8])["y"], want[k % 8]) for _ in range(10))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
    assert 1 <= len(run.spaces.idle) <= (os.cpu_count() or 1)


def test_runs_overlap_in_time_and_do_not_wait_for_each_other() -> None:
    """Two runs are inside their called node at once: were there one arena behind a lock, the barrier would time out."""
    b = GraphBuilder("called")
    b.output("y", b.op("Not", b.op("ReduceMax", b.input("x", np.bool_, (8, 8)), axes=(1,))))
    run = BoundPlan(b.build(), [["ReduceMax_0"], ["Not_1"]])
    meeting = threading.Barrier(2)
    called = next(k for k, segment in enumerate(run.segments) if not isinstance(segment, tuple))
    step = run.segments[called]
    function = step.function  # type: ignore[union-attr]

    def meet(arrays: object) -> object:
        meeting.wait(timeout=60)
        return function(arrays)

    run.segments[called] = program.CallStep(step.node, meet)  # type: ignore[union-attr, arg-type]
    feeds = [random((8, 8), k) > 1 for k in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda x: run({"x": x})["y"], feeds))
    for x, y in zip(feeds, found, strict=True):
        np.testing.assert_array_equal(y, ~x.any(1, keepdims=True))


def test_an_error_in_one_thread_leaves_the_others_alone() -> None:
    b = GraphBuilder("gather")
    b.output("y", b.op("Exp", b.op("Gather", b.input("x", np.float32, (40, 8)), b.input("i", np.int64, (16,)), axis=0)))
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    x, good = random((40, 8)), np.arange(16)
    bad = good + 30

    def work(k: int) -> bool:
        if k % 3 == 0:
            with pytest.raises(FeedError, match="an index is outside"):
                run({"x": x, "i": bad})
            return True
        return np.allclose(run({"x": x, "i": good})["y"], np.exp(x[:16]), rtol=1e-6)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(120)))


def test_a_threading_layer_that_is_not_safe_runs_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(classifier(), {"batch": 8}).planned
    monkeypatch.setattr(numba.config, "THREADING_LAYER", "workqueue")
    other = threading.Event()

    def enter() -> None:
        with run.workspace():
            other.set()

    with run.workspace():
        thread = threading.Thread(target=enter)
        thread.start()
        assert not other.wait(0.2)
    thread.join()
    assert other.is_set()
