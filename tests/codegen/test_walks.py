"""Stages behind a product go over its rows together: a row passes through the cache once, and what waits is one row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion_search.codegen.emit import Emitter
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep
from fusion_search.testing.agreement import same_bits
from fusion_search.testing.interpreter import Interpreter

F32, F64 = np.float32, np.float64
#: Operators whose results may differ between plans in their last bits.
PRODUCTS = ("MatMul",)


def scores(b: GraphBuilder, rows: int, columns: int, dtype: Any, batch: tuple[int, ...] = ()) -> str:
    left = b.input("left", np.dtype(dtype), (*batch, rows, 8))
    return b.op("MatMul", left, b.input("right", np.dtype(dtype), (*batch, 8, columns)))


def softmax(b: GraphBuilder, x: str) -> str:
    axes = (len(b.values[x].shape) - 1,)
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=axes)))
    return b.op("Div", e, b.op("ReduceSum", e, axes=axes))


def normal(b: GraphBuilder, x: str) -> str:
    axes = (len(b.values[x].shape) - 1,)
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=axes))
    return b.op("Div", d, b.op("Sqrt", b.op("ReduceMean", b.op("Mul", d, d), axes=axes)))


def attention(rows: int, columns: int, dtype: Any) -> Graph:
    b = GraphBuilder("attention")
    mixed = b.op("MatMul", softmax(b, scores(b, rows, columns, dtype)), b.input("v", np.dtype(dtype), (columns, 5)))
    b.output("y", mixed)
    return b.build()


def normalised(rows: int, columns: int, dtype: Any) -> Graph:
    """A norm of a sum that is an output as well, with a scale that all rows read."""
    b = GraphBuilder("normalised")
    total = b.op("Add", scores(b, rows, columns, dtype), b.input("rest", np.dtype(dtype), (rows, columns)))
    b.output("sum", total)
    b.output("y", b.op("Mul", normal(b, total), b.input("scale", np.dtype(dtype), (columns,))))
    return b.build()


def twice(rows: int, columns: int, dtype: Any) -> Graph:
    """Two walks with a product between them; the first one's values are read by both."""
    b = GraphBuilder("twice")
    first = softmax(b, scores(b, rows, columns, dtype))
    second = b.op("MatMul", first, b.input("square", np.dtype(dtype), (columns, columns)))
    b.output("y", b.op("Add", normal(b, second), first))
    return b.build()


def shifted(rows: int, columns: int, dtype: Any) -> Graph:
    """What comes after the softmax reads the row before its own as well."""
    b = GraphBuilder("shifted")
    p = softmax(b, scores(b, rows, columns, dtype))
    upper = b.op("Slice", p, starts=(0, 0), sizes=(rows - 1, columns), steps=(1, 1))
    lower = b.op("Slice", p, starts=(1, 0), sizes=(rows - 1, columns), steps=(1, 1))
    b.output("y", softmax(b, b.op("Sub", upper, lower)))
    return b.build()


def shifted_product(rows: int, columns: int, dtype: Any) -> Graph:
    """A product whose rows are each read twice, for the row itself and for the one before it."""
    b = GraphBuilder("shifted product")
    x = scores(b, rows, columns, dtype)
    upper = b.op("Slice", x, starts=(0, 0), sizes=(rows - 1, columns), steps=(1, 1))
    lower = b.op("Slice", x, starts=(1, 0), sizes=(rows - 1, columns), steps=(1, 1))
    square = b.input("square", np.dtype(dtype), (columns, columns))
    b.output("y", b.op("MatMul", softmax(b, b.op("Sub", upper, lower)), square))
    return b.build()


def statistic(rows: int, columns: int, dtype: Any) -> Graph:
    """A row that all rows read again, computed by a walk of none of them."""
    b = GraphBuilder("statistic")
    scale = softmax(b, b.input("w", np.dtype(dtype), (1, columns)))
    x = scores(b, rows, columns, dtype)
    b.output("y", softmax(b, b.op("Mul", x, scale)))
    return b.build()


def batched(rows: int, columns: int, dtype: Any) -> Graph:
    b = GraphBuilder("batched")
    x = scores(b, rows, columns, dtype, (2, 3))
    b.output("y", softmax(b, b.op("Add", x, b.input("mask", np.dtype(dtype), (2, 1, 1, columns)))))
    return b.build()


def turned(rows: int, columns: int, dtype: Any) -> Graph:
    """A tensor that is read across its rows."""
    b = GraphBuilder("turned")
    x = scores(b, rows, columns, dtype)
    b.output("y", softmax(b, b.op("Add", x, b.op("Transpose", b.input("t", np.dtype(dtype), (columns, rows)), perm=(1, 0)))))
    return b.build()


def overwritten(rows: int, columns: int, dtype: Any) -> Graph:
    """The product is read by the last stage once more, beside what could lie in its place."""
    b = GraphBuilder("overwritten")
    x = scores(b, rows, columns, dtype)
    p = softmax(b, x)
    again = b.op("MatMul", p, b.input("v", np.dtype(dtype), (columns, 5)))
    b.output("y", again)
    b.output("z", b.op("ReduceSum", b.op("Mul", b.op("Abs", x), b.op("Neg", x)), axes=(1,)))
    b.output("w", b.op("Mul", p, x))
    return b.build()


def read_later(rows: int, columns: int, dtype: Any) -> Graph:
    """The product is read by a stage after the one whose values could lie in its place."""
    b = GraphBuilder("read later")
    x = scores(b, rows, columns, dtype)
    p = softmax(b, x)
    b.output("y", b.op("MatMul", p, b.input("v", np.dtype(dtype), (columns, 5))))
    b.output("w", b.op("Mul", normal(b, p), x))
    return b.build()


GRAPHS = [attention, normalised, twice, shifted, shifted_product, statistic, batched, turned, overwritten, read_later]


def feeds_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {value.name: rng.normal(0.1, 1, value.shape).astype(value.dtype) for value in graph.inputs}


def behind(graph: Graph) -> list[tuple[str, ...]]:
    """Products alone, and all that lies between them in one group each."""
    groups: list[list[str]] = [[]]
    for node in graph.nodes:
        if node.op in PRODUCTS:
            groups += [[node.name], []]
        else:
            groups[-1].append(node.name)
    return [tuple(group) for group in groups if group]


def together(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(node.name for node in graph.nodes)]


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("make", GRAPHS)
@pytest.mark.parametrize("shape", [(13, 20), (7, 2100)])
def test_a_walk_gives_what_the_reference_gives(make: Any, shape: tuple[int, int], dtype: Any) -> None:
    """Every access checked, parts of the scratch apart, items in any order."""
    graph = make(*shape, dtype)
    feeds, want = feeds_of(graph), evaluate(graph, feeds_of(graph))
    interpreter = Interpreter(graph, together(graph))
    for seed in range(2):
        got = interpreter.outputs(interpreter(feeds, seed))
        for name, array in want.items():
            np.testing.assert_allclose(got[name], array, rtol=3e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("make", GRAPHS)
def test_compiled_walks_give_the_bits_of_stages_alone(make: Any) -> None:
    graph = make(37, 150, F32)
    feeds = feeds_of(graph)
    one, apart = BoundPlan(graph, together(graph))(feeds), BoundPlan(graph, [(node.name,) for node in graph.nodes])(feeds)
    for name, array in apart.items():
        # a product's order of additions may depend on its blocks
        assert same_bits(one[name], array) or np.allclose(one[name], array, rtol=1e-5, atol=1e-6), name


def emitter(graph: Graph) -> Emitter:
    program = Program(graph)
    found = analyse(program, (1 << len(graph.nodes)) - 1, 64)
    e = Emitter(program, found)
    e.open()
    return e


def walked(graph: Graph) -> list[set[str]]:
    """The operators of each walk that has loops around its stages."""
    e = emitter(graph)
    return [
        {e.group.members[i].node.op for stage in e.stages[walk.first : walk.last + 1] for i in stage.members}
        for walk in e.walks
        if walk.atoms
    ]


def test_what_is_of_one_row_walks_together() -> None:
    assert walked(attention(64, 50, F32)) == [{"ReduceMax", "Sub", "Exp", "ReduceSum", "Div"}]
    assert len(walked(twice(64, 50, F32))) == 2
    # the second softmax reads two rows of the first
    assert [{"ReduceMax", "ReduceSum"} <= ops for ops in walked(shifted(64, 50, F32))] == [True, True]
    assert all("Transpose" not in ops for ops in walked(turned(64, 50, F32)))


def test_what_waits_is_one_row() -> None:
    """Attention's scores and weights lie in one place, and its exponentials are a row: what a thread needs is one block of rows."""
    graph = attention(600, 1500, F32)
    (step,) = BoundPlan(graph, together(graph)).steps
    assert isinstance(step, KernelStep)
    (rows,) = {block.tile for block in step.kernel.blocks if block.extent == 600}
    block = 4 * 1500 * rows
    assert sum(part.nbytes == block for part in step.kernel.reserved) == 1
    waiting = [part.nbytes for part in step.kernel.reserved if part.first > 0 and part.last < 4]  # within the walk
    assert waiting
    assert max(waiting) <= 4 * 1500
