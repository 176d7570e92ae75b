"""Values that wait for a reduction lie in the place of a result that is made from them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import Choice, KernelStep
from fusion_search.testing.agreement import same_bits
from fusion_search.testing.interpreter import Interpreter

F16, F32, F64 = np.float16, np.float32, np.float64


def softmax(shape: tuple[int, ...], dtype: Any, axis: int = -1) -> Graph:
    b = GraphBuilder("softmax")
    t = b.op("Neg", b.input("x", np.dtype(dtype), shape))
    axes = (axis % len(shape),)
    e = b.op("Exp", b.op("Sub", t, b.op("ReduceMax", t, axes=axes)))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=axes)))
    return b.build()


def normal(shape: tuple[int, ...], dtype: Any, axis: int = -1) -> Graph:
    b = GraphBuilder("normal")
    x, bias = b.input("x", np.dtype(dtype), shape), b.input("bias", np.dtype(dtype), shape)
    h, axes = b.op("Add", x, bias), (axis % len(shape),)
    d = b.op("Sub", h, b.op("ReduceMean", h, axes=axes))
    b.output("y", b.op("Mul", b.op("Div", d, b.op("Sqrt", b.op("ReduceMean", b.op("Mul", d, d), axes=axes))), bias))
    return b.build()


def read_again(shape: tuple[int, ...], dtype: Any, axis: int = -1) -> Graph:
    """A value that is read behind the reduction twice: once in time, and once more after a second one."""
    b = GraphBuilder("again")
    x, axes = b.op("Neg", b.input("x", np.dtype(dtype), shape)), (axis % len(shape),)
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=axes))
    b.output("y", d)
    b.output("z", b.op("Add", x, b.op("ReduceSum", d, axes=axes)))
    return b.build()


def reduced_again(shape: tuple[int, ...], dtype: Any, axis: int = -1) -> Graph:
    """A value that the next stage reduces itself, beside the map that is made from it."""
    b = GraphBuilder("reduced")
    x, axes = b.op("Neg", b.input("x", np.dtype(dtype), shape)), (axis % len(shape),)
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=axes))
    b.output("y", b.op("Mul", d, x))
    b.output("z", b.op("ReduceMax", b.op("Abs", d), axes=axes))
    b.output("w", b.op("ReduceMin", x, axes=axes))
    return b.build()


def widened(shape: tuple[int, ...], dtype: Any, axis: int = -1) -> Graph:
    """A result of another dtype is no place for a value."""
    b = GraphBuilder("widened")
    x, axes = b.op("Neg", b.input("x", np.dtype(dtype), shape)), (axis % len(shape),)
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=axes))
    b.output("y", b.op("Cast", d, to=np.dtype(F64 if dtype != F64 else F32)))
    return b.build()


GRAPHS = [softmax, normal, read_again, reduced_again, widened]


def together(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(node.name for node in graph.nodes)]


def apart(graph: Graph) -> list[tuple[str, ...]]:
    return [(node.name,) for node in graph.nodes]


def feeds_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {value.name: rng.normal(0.1, 1, value.shape).astype(value.dtype) for value in graph.inputs}


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize(("shape", "axis"), [((7, 2500), 1), ((3, 4, 70), 2), ((300, 50), 0), ((5000,), 0)])
def test_every_plan_and_thread_count_gives_the_same_bits(make: Any, shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    graph = make(shape, dtype, axis)
    feeds, results = feeds_of(graph), []
    before = numba.get_num_threads()
    try:
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            results += [BoundPlan(graph, groups(graph))(feeds) for groups in (apart, together)]
    finally:
        numba.set_num_threads(before)
    for name, first in results[0].items():
        assert all(same_bits(result[name], first) for result in results), name
    for name, wide in evaluate(graph, feeds).items():
        np.testing.assert_allclose(results[0][name], wide, rtol=2e-2 if dtype == F16 else 2e-4, atol=2e-2 if dtype == F16 else 1e-4)


@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize(("shape", "axis"), [((3, 40), 1), ((40, 3), 0)])
def test_blocks_in_any_order_touch_what_is_theirs(make: Any, shape: tuple[int, ...], axis: int) -> None:
    graph = make(shape, F32, axis)
    interpreter, feeds = Interpreter(graph, together(graph)), feeds_of(graph)
    results = [interpreter.outputs(interpreter(feeds, seed)) for seed in range(3)]
    assert all(same_bits(result[name], array) for result in results for name, array in results[0].items())


@pytest.mark.parametrize("make", [softmax, normal])
def test_a_row_has_one_copy_less(make: Any) -> None:
    """Two values wait for a reduction; the one that the result is made from needs no scratch."""
    graph = make((4, 30_000), F32)
    (step,) = BoundPlan(graph, together(graph)).steps
    assert isinstance(step, KernelStep)
    assert 4 * 30_000 <= step.kernel.scratch_bytes < 5 * 30_000


@pytest.mark.parametrize("direct", [False, True])
def test_a_place_holds_one_value(direct: bool) -> None:
    """A product and a value that waits for a reduction, of which one result is made."""
    b = GraphBuilder("both")
    x, left = b.input("x", np.dtype(F32), (12, 40)), b.input("left", np.dtype(F32), (12, 8))
    e = b.op("Exp", x)
    scaled = b.op("Div", e, b.op("ReduceSum", e, axes=(1,)))
    b.output("y", b.op("Add", b.op("MatMul", left, b.input("right", np.dtype(F32), (8, 40))), scaled))
    graph = b.build()
    feeds = feeds_of(graph)
    interpreter = Interpreter(graph, together(graph), choose=lambda step: Choice({}, 0, direct))
    (got,) = interpreter.outputs(interpreter(feeds)).values()
    np.testing.assert_allclose(got, evaluate(graph, feeds)["y"], rtol=1e-5, atol=1e-6)
