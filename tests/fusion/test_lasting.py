"""Refusals that last: no group that holds a hopeless one is legal, on graphs small enough to try them all."""

from __future__ import annotations

from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import F32, graph_of, space_of, weight

OPS = {"MatMul", "MaxPool", "Conv", "Relu", "Add", "ReduceMax", "Transpose", "Sub"}


def supersets(space: GroupSpace, group: int) -> list[int]:
    rest = ((1 << space.n) - 1) & ~group
    found, more = [group], rest
    while more:
        found.append(group | more)
        more = (more - 1) & rest
    return found


def test_no_group_that_holds_a_hopeless_one_is_legal() -> None:
    hopeless = 0
    for seed in range(60):
        graph = random_graph(seed, size=7, ops=OPS)
        # A memory so small that capacity refuses much of what it can.
        space = space_of(graph, fast_memory_bytes=96)
        if space.n > 8:
            continue
        for group in range(1, 1 << space.n):
            if not space.reasons(group) or not space.hopeless(group):
                continue
            hopeless += 1
            assert all(space.reasons(wider) for wider in supersets(space, group)), (seed, group)
    assert hopeless > 100


def test_a_value_that_every_block_needs_whole_is_hopeless() -> None:
    def build(b: GraphBuilder) -> None:
        keys = b.op("Relu", b.input("k", F32, (64, 512)))
        b.output("y", b.op("MatMul", b.input("x", F32, (128, 64)), keys))
        b.output("z", b.op("Add", "y", weight(b, 512)))

    graph = graph_of(build)
    assert space_of(graph, fast_memory_bytes=128).hopeless(0b11)  # one column of the keys
    assert not space_of(graph, fast_memory_bytes=64 * 4).hopeless(0b11)
