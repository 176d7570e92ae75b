"""Kernels of groups at the size limit: text, table and nesting grow with the nodes, so that compiling them does too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.codegen import pieces
from fusion_search.fusion.space import MAX_NODES
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.steps import KernelStep, make_steps
from tests.codegen.agree import space_of


def chain(n: int) -> Graph:
    b = GraphBuilder("chain")
    x = b.input("x", np.float32, (64, 300))
    for k in range(n):
        x = b.op(("Tanh", "Relu", "Exp")[k % 3], x)
    b.output("y", x)
    return b.build()


def siblings(n: int) -> Graph:
    b = GraphBuilder("siblings")
    x = b.input("x", np.float32, (64, 300))
    for k in range(n):
        b.output(f"y{k}", b.op(("Tanh", "Relu", "Exp")[k % 3], x))
    return b.build()


def doubled(n: int) -> Graph:
    """Each value is read twice: written out at each use it would be 2^n long."""
    b = GraphBuilder("doubled")
    x = b.input("x", np.float32, (64, 300))
    for _ in range(n // 2):
        x = b.op("Sub", b.op("Mul", x, x), x)
    b.output("y", x)
    return b.build()


def reductions(n: int) -> Graph:
    """A new stage every three nodes."""
    b = GraphBuilder("reductions")
    x = b.input("x", np.float32, (64, 300))
    for _ in range(n // 4):
        m = b.op("ReduceMax", x, axes=(1,))
        x = b.op("Mul", b.op("Tanh", b.op("Sub", x, m)), x)
    b.output("y", x)
    return b.build()


def measures(graph: Graph) -> tuple[int, int, int, int]:
    """Lines, characters and slots of the one kernel, and the deepest brackets of a line."""
    (step,) = make_steps(graph, [[node.name for node in graph.nodes]], 2)
    assert isinstance(step, KernelStep)
    source = step.kernel.source
    deepest = 0
    for line in source.splitlines():
        depth = 0
        for letter in line:
            depth += (letter == "(") - (letter == ")")
            deepest = max(deepest, depth)
    return source.count("\n"), len(source), len(step.kernel.slots), deepest


@pytest.mark.parametrize("long_lines", [0, 10**6])
@pytest.mark.parametrize("make", [chain, siblings, doubled, reductions])
def test_a_group_of_the_most_nodes_grows_no_faster_than_its_nodes(
    make: Callable[[int], Graph], long_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one function and in pieces, each of which reads its numbers again."""
    monkeypatch.setattr(pieces, "LONG_LINES", long_lines)
    found = {n: measures(make(n)) for n in (MAX_NODES // 4, MAX_NODES // 2, MAX_NODES)}
    assert len(make(MAX_NODES).nodes) == MAX_NODES
    small, middle, large = found.values()
    for k in range(3):
        assert large[k] - middle[k] <= 2.2 * (middle[k] - small[k])
    assert small[3] == middle[3] == large[3] <= 16


def test_no_group_is_larger() -> None:
    graph = chain(MAX_NODES + 1)
    space = space_of(graph)
    assert [reason.rule for reason in space.reasons((1 << space.n) - 1)] == ["nodes"]
