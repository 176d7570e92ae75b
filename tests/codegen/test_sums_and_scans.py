"""Sums of many terms stay close and have one order of additions; running totals are one pass that no block cuts."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.agreement import same_bits
from fusion_search.testing.fuzz import small_blocks
from fusion_search.testing.interpreter import interpret

F16, F32, F64 = np.float16, np.float32, np.float64


def column_sum(shape: tuple[int, ...], axes: tuple[int, ...], dtype: Any = F32, op: str = "ReduceSum") -> Graph:
    b = GraphBuilder("columns")
    x = b.op("Abs", b.input("x", np.dtype(dtype), shape))
    b.output("y", b.op(op, x, axes=axes))
    return b.build()


def apart(graph: Graph) -> list[tuple[str, ...]]:
    return [(node.name,) for node in graph.nodes]


def together(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(node.name for node in graph.nodes)]


@pytest.mark.parametrize(("shape", "axes"), [((2_000_000, 3), (0,)), ((3, 700_000, 2), (1,)), ((1000, 2000, 2), (0, 1))])
def test_a_sum_of_millions_of_rows_does_not_drift(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    graph = column_sum(shape, axes)
    x = np.full(shape, 0.1, F32)
    exact = x.astype(F64).sum(axis=axes)
    got = BoundPlan(graph, together(graph))({"x": x})["y"]
    assert np.abs(got / exact - 1).max() < 3e-5  # one accumulator: 7e-3


@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((67, 40), (0,)), ((5, 31, 2), (1,)), ((6, 7, 3), (0, 1)), ((4, 6, 5, 3), (0, 2)), ((2, 5), (0,))]
)
def test_chunks_give_the_same_bits_in_every_plan(shape: tuple[int, ...], axes: tuple[int, ...], op: str, dtype: type) -> None:
    graph = column_sum(shape, axes, dtype, op)
    feeds = {"x": np.random.default_rng(0).normal(0, 30, shape).astype(dtype)}
    results = []
    for elements in (16, 96, 4096):
        with small_blocks(elements):
            results += [interpret(graph, groups(graph), feeds)["y"] for groups in (apart, together)]
    with small_blocks(96):
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            results += [BoundPlan(graph, groups(graph))(feeds)["y"] for groups in (apart, together)]
    assert all(same_bits(result, results[0]) for result in results)


def scan(op: str, dtype: Any, shape: tuple[int, ...], axis: int, exclusive: bool) -> Graph:
    b = GraphBuilder("scan")
    x = b.op("Abs" if np.dtype(dtype).kind == "u" else "Neg", b.input("x", np.dtype(dtype), shape))
    total = b.op(op, x, axis=axis, exclusive=exclusive)
    b.output("y", b.op("Add", total, total))
    return b.build()


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", [F16, F32, F64, np.int32, np.uint8])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_running_totals_have_the_reference_bits(op: str, dtype: Any, exclusive: bool) -> None:
    for shape in ((4, 5, 6), (1, 3), (3, 1), (7,), (0, 4), (4, 0)):
        for axis in range(len(shape)):
            graph = scan(op, dtype, shape, axis, exclusive)
            x = np.random.default_rng(axis).integers(-3, 3, shape).astype(dtype)
            x[x == 0] = 0 if np.dtype(dtype).kind in "iu" else 0.0  # Neg makes it -0.0, which a total keeps
            want = evaluate(graph, {"x": x})["y"]
            for groups in (apart, together):
                with small_blocks(16):
                    assert same_bits(interpret(graph, groups(graph), {"x": x})["y"], want), (shape, axis)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_running_totals_compiled(axis: int) -> None:
    graph = scan("CumSum", F32, (5, 70, 9), axis, False)
    x = np.random.default_rng(0).normal(0, 1, (5, 70, 9)).astype(F32)
    want = evaluate(graph, {"x": x})["y"]
    for groups in (apart, together):
        assert same_bits(BoundPlan(graph, groups(graph))({"x": x})["y"], want)


def test_a_running_total_is_linear_and_its_axis_is_never_cut() -> None:
    graph = scan("CumSum", F32, (8, 100_000), 1, False)
    program = Program(graph)
    analysis = analyse(program, 0b111, 64)
    assert analysis.features.flops.simple == 3 * 8 * 100_000
    assert analysis.features.blocks == 8
    (lone,) = (p for p, member in enumerate(program.members) if member.node.op == "CumSum")
    assert analyse(program, 1 << lone, 64).features.blocks == 8
