"""Members without a product's columns or rows: blocks that compute them again, with the same bits whatever the blocks and threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime import program
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep, make_steps
from fusion_search.testing.graphs import random_feeds
from fusion_search.testing.interpreter import interpret
from tests.codegen.agree import differences, space_of
from tests.codegen.test_forms import softmax_of, weights, window

F32 = np.float32
#: What makes the left side of a product: rows of it, from inputs, without a column of the result.
Front = Callable[[GraphBuilder, int, int], str]


def pooled(b: GraphBuilder, rows: int, depth: int) -> str:
    side = 2 * depth + 1
    kernel = {"kernel": (1, 1, 3, 3)} | window(4, strides=(1, 1, 2, 2))
    return b.reshape(b.op("MaxPool", b.input("x", F32, (rows, 3, side, 5)), **kernel), (rows, 6 * depth))


def averaged(b: GraphBuilder, rows: int, depth: int) -> str:
    mean = b.op("ReduceMean", b.input("x", F32, (rows, 5, depth)), axes=(1,))
    return b.reshape(b.op("Tanh", mean), (rows, depth))


def mapped(b: GraphBuilder, rows: int, depth: int) -> str:
    return b.op("Tanh", b.op("Mul", b.input("x", F32, (rows, depth)), weights(b, depth)))


def softmax(b: GraphBuilder, rows: int, depth: int) -> str:
    return softmax_of(b, b.input("x", F32, (rows, depth)), 1)


def summed_windows(b: GraphBuilder, rows: int, depth: int) -> str:
    kernel = {"kernel": (1, 3)} | window(2, before=(0, 1), after=(0, 1))
    return b.op("SumPool", b.input("x", F32, (rows, depth)), **kernel)


FRONTS: dict[str, Front] = {f.__name__: f for f in (pooled, averaged, mapped, softmax, summed_windows)}
#: What the right side is: packed, read as it lies, or computed in the group, without a row of the result.
SIDES = ("constant", "input", "computed")


def projection(front: str, side: str, rows: int, depth: int, columns: int) -> Graph:
    b = GraphBuilder("projection")
    left = FRONTS[front](b, rows, depth)
    terms = b.shape(left)[1]
    right = weights(b, terms, columns) if side == "constant" else b.input("w", F32, (terms, columns))
    if side == "computed":
        right = b.op("Tanh", right)
    b.output("y", b.op("Relu", b.op("Add", b.op("MatMul", left, right), weights(b, columns))))
    return b.build()


def run(graph: Graph, threads: int, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, np.ndarray], list[tuple[int, int]]]:
    """Run a graph as one group; return the results, and extent and tile of each of its loops."""
    monkeypatch.setattr(program.numba, "get_num_threads", lambda: threads)
    bound = BoundPlan(graph, [[node.name for node in graph.nodes]])
    (step,) = bound.steps
    assert isinstance(step, KernelStep)
    return bound(random_feeds(graph, 3)), [(block.extent, block.tile) for block in step.kernel.blocks]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.usefixtures("eager_threads")
def test_blocks_and_threads_change_no_bit(front: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng([len(front), len(side)])
    cut = 0
    for _ in range(6):
        rows, columns = int(rng.choice([2, 5, 8, 13, 40, 150])), int(rng.choice([17, 64, 65, 129, 300, 700, 1100]))
        graph = projection(front, side, rows, int(rng.choice([3, 8, 33])), columns)
        space = space_of(graph)
        assert space.reasons(space.program.mask([node.name for node in graph.nodes])) == []
        want, _ = run(graph, 1, monkeypatch)
        assert differences(graph, random_feeds(graph, 3), want) == []
        for threads in (2, 3, 8):
            got, blocks = run(graph, threads, monkeypatch)
            assert got["y"].tobytes() == want["y"].tobytes(), (rows, columns, threads, blocks)
            cut += any(tile < extent for extent, tile in blocks if extent == columns)
    assert cut


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("front", FRONTS)
def test_no_access_is_out_of_bounds(front: str, side: str) -> None:
    for rows, columns in ((2, 129), (8, 300)):
        graph = projection(front, side, rows, 3, columns)
        feeds = random_feeds(graph, 3)
        got = interpret(graph, [tuple(node.name for node in graph.nodes)], feeds)
        assert differences(graph, feeds, got) == []


def tiles(graph: Graph, threads: int) -> dict[int, int]:
    """Tile by extent of the loops of a graph's one kernel."""
    (step,) = make_steps(graph, [[node.name for node in graph.nodes]], threads)
    assert isinstance(step, KernelStep)
    return {block.extent: block.tile for block in step.kernel.blocks}


@pytest.mark.parametrize("batch", [2, 8, 11])
def test_a_batch_reads_the_weights_behind_a_pool_once(batch: int) -> None:
    """All rows are in one block, and threads share the columns, though the pool is computed for each of them."""
    found = tiles(projection("pooled", "constant", batch, 300, 4096), 2)
    assert found[batch] == batch
    assert found[4096] <= 2048


def test_what_is_read_again_counts_beside_what_is_computed_again() -> None:
    """A sum of two images is little work, and twice the product's own traffic: the filters are whole as long as pixels suffice."""
    b = GraphBuilder("residual")
    x, y = (b.reshape(b.input(name, F32, (8, 64, 14, 14)), (8, 1, 64, 14, 14)) for name in "xy")
    rules = {"strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0)}
    b.output("z", b.op("Relu", b.op("Conv", b.op("Add", x, y), weights(b, 1, 384, 64, 1, 1), **rules)))
    assert tiles(b.build(), 2)[384] == 384
