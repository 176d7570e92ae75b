"""Reductions of whole tensors are cut into shares of one size: items of one kernel, with the bits of one walk over everything."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numba
import numpy as np
import pytest

from fusion_search.codegen import blocks, caches, shares
from fusion_search.codegen.rt.kernel import STRIP, STRIPS
from fusion_search.codegen.shares import FEWEST_CHUNKS
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep
from fusion_search.testing.agreement import same_bits
from fusion_search.testing.interpreter import Interpreter

F16, F32, F64 = np.float16, np.float32, np.float64
THREADS = (1, min(2, numba.config.NUMBA_NUM_THREADS))


def reduced(op: str, shape: tuple[int, ...], dtype: Any) -> Graph:
    """A map that leaves the kernel, a reduction of all of it, and a map of the result."""
    b = GraphBuilder("whole")
    y = b.op("Neg", b.input("x", np.dtype(dtype), shape))
    b.output("y", y)
    b.output("z", b.op("Abs", b.op(op, y, axes=tuple(range(len(shape))))))
    return b.build()


def spread(shape: tuple[int, ...], dtype: Any) -> Graph:
    """The sum of squares around the mean."""
    b = GraphBuilder("spread")
    x = b.input("x", np.dtype(dtype), shape)
    axes = tuple(range(len(shape)))
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=axes, keepdims=True))
    b.output("y", b.op("ReduceSum", b.op("Mul", d, d), axes=axes))
    return b.build()


def columns(shape: tuple[int, int], op: str, dtype: Any, stored: bool = False) -> Graph:
    """Two reductions of the columns of one matrix, with maps before and behind them."""
    b = GraphBuilder("columns")
    x, bias = b.input("x", np.dtype(dtype), shape), b.input("bias", np.dtype(dtype), shape[1:])
    y = b.op("Relu", b.op("Sub", x, bias))
    if stored:
        b.output("y", y)
    b.output("z", b.op("Neg", b.op(op, y, axes=(0,))))
    b.output("w", b.op(op, b.op("Abs", y), axes=(0,)))
    return b.build()


def kept(shape: tuple[int, ...], dtype: Any) -> Graph:
    """The same of a value that is computed once, and lies nowhere outside the kernel."""
    b = GraphBuilder("kept")
    x = b.op("Neg", b.input("x", np.dtype(dtype), shape))
    axes = tuple(range(len(shape)))
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=axes, keepdims=True))
    b.output("y", b.op("ReduceSum", b.op("Mul", d, d), axes=axes))
    return b.build()


def together(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(node.name for node in graph.nodes)]


def apart(graph: Graph) -> list[tuple[str, ...]]:
    return [(node.name,) for node in graph.nodes]


def items(plan: Any) -> list[int]:
    return [step.kernel.items for step in plan.steps if isinstance(step, KernelStep)]


def runs(graph: Graph, feeds: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of two plans with one thread and two."""
    results = []
    before = numba.get_num_threads()
    try:
        for threads in THREADS:
            numba.set_num_threads(threads)
            results += [BoundPlan(graph, groups(graph))(feeds) for groups in (together, apart)]
    finally:
        numba.set_num_threads(before)
    return results


def test_a_share_is_what_kernels_sum_before_they_start_anew() -> None:
    assert blocks.SHARE == STRIP * STRIPS


@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("shape", [(3 * blocks.SHARE + 77,), (2 * blocks.SHARE,), (513, 1000), (blocks.SHARE + 1, 1), (5,)])
def test_every_plan_and_thread_count_gives_the_same_bits(shape: tuple[int, ...], op: str, dtype: Any) -> None:
    graph = reduced(op, shape, dtype)
    feeds = {"x": np.random.default_rng(0).normal(0.01, 1, shape).astype(dtype)}
    results = runs(graph, feeds)
    for name in ("y", "z"):
        assert all(same_bits(result[name], results[0][name]) for result in results)
    wide = evaluate(reduced(op, shape, F64), {"x": feeds["x"].astype(F64)})["z"]
    np.testing.assert_allclose(results[0]["z"], wide, rtol={F16: 2e-3, F32: 1e-5, F64: 1e-12}[dtype], atol=1e-3 if dtype == F16 else 1e-7)
    assert max(items(BoundPlan(graph, together(graph)))) == -(-int(np.prod(shape)) // blocks.SHARE)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_share_of_a_first_reduction_has_the_bits_of_the_walk_of_a_second_one(dtype: Any) -> None:
    graph = spread((5, blocks.SHARE - 11), dtype)
    feeds = {"x": np.random.default_rng(1).normal(3, 1, (5, blocks.SHARE - 11)).astype(dtype)}
    results = runs(graph, feeds)
    assert all(same_bits(result["y"], results[0]["y"]) for result in results)
    np.testing.assert_allclose(results[0]["y"], np.var(feeds["x"].astype(F64)) * feeds["x"].size, rtol=1e-5)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMin"])
def test_special_values_survive_in_every_share(op: str, special: float) -> None:
    graph = reduced(op, (3 * blocks.SHARE,), F32)
    for at in (0, blocks.SHARE, 3 * blocks.SHARE - 1):
        x = np.ones(3 * blocks.SHARE, F32)
        x[at] = special
        np.testing.assert_array_equal(BoundPlan(graph, together(graph))({"x": x})["z"], evaluate(graph, {"x": x})["z"])


def test_nothing_is_one_share() -> None:
    graph = reduced("ReduceSum", (0,), F32)
    results = runs(graph, {"x": np.zeros(0, F32)})
    assert [result["z"].tolist() for result in results] == [evaluate(graph, {"x": np.zeros(0, F32)})["z"].tolist()] * len(results)


def test_a_plan_can_run_again_and_again() -> None:
    graph = reduced("ReduceSum", (4 * blocks.SHARE,), F32)
    plan = BoundPlan(graph, together(graph))
    x = np.random.default_rng(2).normal(size=4 * blocks.SHARE).astype(F32)
    assert len({plan({"x": x})["z"].tobytes() for _ in range(20)}) == 1
    assert plan.memory.shared


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("extent", [1, 128, 300, 1000])
def test_shares_in_any_order_touch_what_is_theirs(op: str, extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SHARE", 128)
    graph = reduced(op, (extent,), F32)
    x = np.random.default_rng(3).normal(size=extent).astype(F32)
    interpreter = Interpreter(graph, together(graph))
    assert items(interpreter) == [-(-extent // 128)]
    results = [interpreter.outputs(interpreter({"x": x}, seed)) for seed in range(3)]
    assert all(same_bits(result["z"], results[0]["z"]) for result in results)
    np.testing.assert_allclose(results[0]["z"], evaluate(graph, {"x": x})["z"], rtol=1e-5)


@pytest.mark.usefixtures("eager_threads")
def test_what_waits_for_a_reduction_is_not_left_in_the_scratch_of_many_threads() -> None:
    shape = (3 * blocks.SHARE + 5,)
    graph = kept(shape, F32)
    feeds = {"x": np.random.default_rng(4).normal(3, 1, shape).astype(F32)}
    results = [result for _ in range(5) for result in runs(graph, feeds)]
    assert all(same_bits(result["y"], results[0]["y"]) for result in results)
    np.testing.assert_allclose(results[0]["y"], np.var(feeds["x"].astype(F64)) * feeds["x"].size, rtol=1e-5)


TALL = FEWEST_CHUNKS * blocks.CHUNK_TERMS


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("shape", [(TALL + 77, 300), (TALL, 5), (TALL + 3, 1030)])
def test_rows_in_shares_have_the_bits_of_columns_in_blocks(
    shape: tuple[int, int], op: str, dtype: Any, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = columns(shape, op, dtype, stored)
    rng = np.random.default_rng(5)
    feeds = {"x": rng.normal(0, 1, shape).astype(dtype), "bias": rng.normal(0, 1, shape[1:]).astype(dtype)}
    results = runs(graph, feeds)
    assert max(items(BoundPlan(graph, together(graph)))) == -(-shape[0] // blocks.CHUNK_TERMS)
    monkeypatch.setattr(shares, "FEWEST_CHUNKS", shape[0])
    results += runs(graph, feeds)
    for name in results[0]:
        assert all(same_bits(result[name], results[0][name]) for result in results), name
    wide = evaluate(columns(shape, op, F64), {name: array.astype(F64) for name, array in feeds.items()})
    if dtype == F32:
        np.testing.assert_allclose(results[0]["w"], wide["w"], rtol=1e-5)


@pytest.mark.parametrize(("terms", "extent"), [(8, 32), (8, 71), (4, 70), (2, 13)])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize(("width", "stored", "held"), [(9, True, 1 << 40), (37, False, 1 << 40), (37, False, 0), (16, False, 0)])
def test_rows_in_shares_in_any_order_touch_what_is_theirs(
    width: int, stored: bool, held: int, op: str, terms: int, extent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "CHUNK_TERMS", terms)
    monkeypatch.setattr(caches, "last_level_bytes", lambda: held)
    graph = columns((extent, width), op, F32, stored)
    rng = np.random.default_rng(6)
    feeds = {"x": rng.normal(size=(extent, width)).astype(F32), "bias": rng.normal(size=width).astype(F32)}
    interpreter = Interpreter(graph, together(graph))
    assert items(interpreter) == [-(-extent // terms)]
    results = [interpreter.outputs(interpreter(feeds, seed)) for seed in range(3)]
    monkeypatch.setattr(shares, "FEWEST_CHUNKS", extent)
    blocked = Interpreter(graph, together(graph))
    assert not any(step.kernel.shared_bytes for step in blocked.steps if isinstance(step, KernelStep))
    results.append(blocked.outputs(blocked(feeds)))
    assert all(same_bits(result[name], results[0][name]) for result in results for name in result)


def test_the_next_rows_are_fetched_where_no_cache_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text, and a number that says it; what is fetched behind the last row is nobody's."""
    graph = columns((TALL + 5, 100), "ReduceSum", F32)
    rng = np.random.default_rng(7)
    feeds = {"x": rng.normal(size=(TALL + 5, 100)).astype(F32), "bias": rng.normal(size=100).astype(F32)}
    made, results = [], []
    for held in (1 << 40, 0):
        monkeypatch.setattr(caches, "last_level_bytes", lambda held=held: held)
        plan = BoundPlan(graph, together(graph))
        made += [step.kernel for step in plan.steps if isinstance(step, KernelStep)]
        results.append(plan(feeds))
    assert made[0].source == made[1].source
    (number,) = {lines[0].split()[1] for lines in pairwise(made[0].source.splitlines()) if "fetch(" in lines[1] and "if" in lines[0]}
    assert [kernel.slots[int(number[1:])].number for kernel in made] == [0, 1]
    assert all(same_bits(results[0][name], results[1][name]) for name in results[0])


def test_rows_stay_uncut_where_what_follows_has_them_too() -> None:
    b = GraphBuilder("centred")
    x = b.input("x", np.dtype(F32), (TALL, 64))
    b.output("y", b.op("Sub", x, b.op("ReduceMean", x, axes=(0,))))
    graph = b.build()
    (step,) = BoundPlan(graph, together(graph)).steps
    assert isinstance(step, KernelStep)
    assert not step.kernel.shared_bytes
