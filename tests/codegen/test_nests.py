"""Where maps are placed, how blocks are read across their rows, and which loops are split: by the text, and against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.codegen.kernel import Kernel, build
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.testing.graphs import random_feeds
from fusion_search.testing.interpreter import Interpreter
from tests.codegen.agree import disagreements

F32 = np.float32


def kernel_of(graph: Graph, tile: int = 64) -> Kernel:
    """The kernel of all nodes of a graph as one group, its outer loops as the cheapest schedule has them."""
    program = Program(graph)
    return build(program, analyse(program, (1 << len(program.members)) - 1, tile))


def check(graph: Graph) -> None:
    assert disagreements(graph, [[node.name for node in graph.nodes]], random_feeds(graph, 1)) == []


def normalised(rows: int, columns: int) -> Graph:
    """Centre, then divide by the root of a vector of variances, which has a nest of its own."""
    b = GraphBuilder("g")
    x, mean, variance = b.input("x", F32, (rows, 6, columns)), b.input("m", F32, (6, 1)), b.input("v", F32, (6, 1))
    centred = b.op("Sub", x, mean)
    root = b.op("Sqrt", b.op("Add", b.op("Mul", variance, variance), b.constant(np.array([1], F32))))
    b.output("y", b.op("Div", centred, root))
    return b.build()


def test_the_map_of_a_live_in_waits_in_no_scratch() -> None:
    kernel = kernel_of(normalised(8, 4096))
    assert kernel.scratch_bytes <= 4 * 64  # the roots at most; not the centred block
    assert kernel.source.count("- h") == 1  # centred in the loop


def test_a_map_stays_where_moving_it_would_store_more() -> None:
    """Both operands are needed by the reduction too: the sum moves to no later nest, since two values would wait in place of one."""
    b = GraphBuilder("g")
    x = b.input("x", F32, (8, 512))
    s, c = b.op("Sin", x), b.op("Cos", x)
    total = b.op("ReduceSum", b.op("Mul", s, c), axes=(1,))
    b.output("y", b.op("Div", b.op("Add", s, c), total))
    graph = b.build()
    assert kernel_of(graph).scratch_bytes <= 4 * 512 + 64
    check(graph)


def test_normalisation_against_the_reference() -> None:
    check(normalised(3, 50))


def turned(shape: tuple[int, ...], perm: tuple[int, ...], dtype: type = np.float32) -> Callable[[], Graph]:
    def make() -> Graph:
        b = GraphBuilder("g")
        x = b.input("x", dtype, shape)
        b.output("y", b.op("Abs", b.op("Transpose", x, perm=perm)))
        return b.build()

    return make


@pytest.mark.parametrize("shape", [(16, 16), (64, 64), (65, 130), (200, 7), (3, 300), (1, 40), (33, 17)])
def test_transposes(shape: tuple[int, int]) -> None:
    check(turned(shape, (1, 0))())


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.int8])
def test_permutations(perm: tuple[int, ...], dtype: type) -> None:
    check(turned((2, 5, 19, 35), perm, dtype)())


def test_a_block_read_across_its_rows_is_turned_once_for_all_its_readers() -> None:
    b = GraphBuilder("g")
    x, z = b.input("x", F32, (130, 70)), b.input("z", F32, (70, 130))
    t = b.op("Transpose", x, perm=(1, 0))
    b.output("y", b.op("Add", b.op("Mul", t, z), t))
    graph = b.build()
    assert kernel_of(graph).source.count("turn(") == 1
    check(graph)


def product_turned(rows: int, columns: int, dtype: type = np.float32) -> Graph:
    """A product, maps of it, and a sum that lies across them."""
    b = GraphBuilder("g")
    product = b.op("MatMul", b.input("x", dtype, (rows, 6)), b.input("w", dtype, (6, columns)))
    gelu = b.op("Mul", product, b.op("Erf", product))
    b.output("y", b.op("Add", b.op("Transpose", gelu, perm=(1, 0)), b.input("z", dtype, (columns, rows))))
    return b.build()


@pytest.mark.parametrize("shape", [(5, 7), (64, 64), (130, 70), (3, 300), (200, 1), (150, 65)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_kernel_computes_is_turned_for_a_result_that_lies_across_it(shape: tuple[int, int], dtype: type) -> None:
    graph = product_turned(*shape, dtype)
    check(graph)
    interpreter, feeds = Interpreter(graph, [[node.name for node in graph.nodes]]), random_feeds(graph, 1)
    (got,) = interpreter.outputs(interpreter(feeds, 0)).values()
    np.testing.assert_allclose(got, evaluate(graph, feeds)["y"], rtol=1e-4, atol=1e-5)


def test_rows_are_written_whole_and_turned_in_small_copies() -> None:
    """What stays in registers has no say in the order of the loops; the copy is of a few rows, however large the block."""
    made = kernel_of(product_turned(2000, 500), 4096)
    assert made.source.count("turn(") == 1
    assert "[j * " not in made.source
    widest = max(block.tile for block in made.blocks)
    copies = [part.nbytes for part in made.reserved if part.first == part.last == 1]
    assert copies
    assert max(copies) <= 4 * 64 * max(widest, 2000)


def test_vectors_have_little_say_in_the_order_of_an_image_s_loops() -> None:
    """Four vectors along the channels, and an image that lies along its columns."""
    b = GraphBuilder("g")
    x = b.input("x", F32, (2, 64, 30, 30))
    a, c, d, f = (b.input(name, F32, (64, 1, 1)) for name in "acdf")
    b.output("y", b.op("Add", b.op("Mul", b.op("Mul", b.op("Sub", x, a), c), d), f))
    graph = b.build()
    source = kernel_of(graph).source
    assert "turn(" not in source
    assert "[j * " not in source
    check(graph)


def test_many_outputs_have_a_loop_each_unless_they_share_work() -> None:
    def graph(shared: bool) -> Graph:
        b = GraphBuilder("g")
        x = b.input("x", F32, (5000,))
        first = b.op("Exp", x) if shared else x
        for k in range(8):
            b.output(f"y{k}", b.op("Mul", first, b.constant(np.array([k], F32))))
        return b.build()

    assert kernel_of(graph(False)).source.count("for j in") == 8
    assert kernel_of(graph(True)).source.count("for j in") == 1
    check(graph(False))
    check(graph(True))


def test_short_rows_share_an_item() -> None:
    """Rotating halves of rows of 64: an item of one row would spend its time on finding the row."""
    b = GraphBuilder("g")
    x, c = b.input("x", F32, (4, 50, 64)), b.input("c", F32, (50, 64))
    low = b.op("Slice", x, starts=(0, 0, 0), steps=(1, 1, 1), sizes=(4, 50, 32))
    high = b.op("Slice", x, starts=(0, 0, 32), steps=(1, 1, 1), sizes=(4, 50, 32))
    b.output("y", b.op("Add", b.op("Mul", b.op("Concat", b.op("Neg", high), low, axis=2), c), x))
    graph = b.build()
    check(graph)


def test_special_functions_are_interleaved_and_short_rows_folded() -> None:
    def text(op: str, *shape: int) -> str:
        b = GraphBuilder("g")
        x = b.input("x", F32, shape)
        y = b.op(op, x)
        b.output("y", b.op("ReduceSum", y, axes=(1,)) if len(shape) > 1 else y)
        return kernel_of(b.build()).source

    assert "pipeline_class=Interleaved" in text("Exp", 5000)
    assert "pipeline_class=Interleaved" in text("Exp", 30, 128)  # whole vectors, several times as many as are worked on at a time
    assert "pipeline_class=Folded" in text("Exp", 30, 56)
    assert "pipeline_class" not in text("Neg", 30, 56)


def test_long_chains_of_simple_operations_are_interleaved() -> None:
    """An operation waits for the one before; sums of many values, as many operations as they are, wait for few."""

    def text(length: int, *, chained: bool) -> str:
        b = GraphBuilder("g")
        x, y = b.input("x", F32, (5000,)), b.input("y", F32, (5000,))
        values = [x] * (length + 1)
        for k in range(length):
            values[k + 1] = b.op("Mul", values[k] if chained else y, x)
        while not chained and len(values) > 1:  # a tree
            values = [b.op("Add", *pair) for pair in zip(values[::2], values[1::2], strict=False)]
        b.output("z", values[-1])
        return kernel_of(b.build()).source

    assert "pipeline_class=Interleaved" in text(32, chained=True)
    assert "pipeline_class" not in text(8, chained=True)
    assert "pipeline_class" not in text(31, chained=False)
