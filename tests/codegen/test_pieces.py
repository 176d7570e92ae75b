"""Long kernels in pieces: the same results, functions of bounded length, and short kernels left alone."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fusion_search.codegen import pieces
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep, make_steps
from fusion_search.testing.graphs import random_feeds, random_graph, random_partition
from fusion_search.testing.interpreter import interpret
from tests.codegen.agree import differences, space_of
from tests.codegen.test_forms import CASES, built


def chain(nodes: int, every: int = 4) -> Graph:
    """Maps along rows, with a sum or an extreme of the row after some of them."""
    b = GraphBuilder("chain")
    x, c, k = b.input("x", np.float32, (6, 70)), b.constant(np.float32(0.5)), 0
    while k < nodes:
        x = b.op("Tanh", b.op("Mul", x, c)) if k % 3 else b.op("Abs", b.op("Add", x, c))
        k += 2
        if k % every == 0:
            x = b.op("Sub", x, b.op("ReduceSum" if k % (2 * every) else "ReduceMax", x, axes=(1,)))
            k += 2
    b.output("y", x)
    return b.build()


@pytest.fixture(autouse=True)
def _cut_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut kernels that are short enough to compile quickly in a test."""
    monkeypatch.setattr(pieces, "LONG_LINES", 300)


def lengths(graph: Graph) -> list[int]:
    """Lines of each function of the kernel that computes the whole graph."""
    (step,) = make_steps(graph, [[node.name for node in graph.nodes]], 2)
    assert isinstance(step, KernelStep)
    return [text.count("\n") for text in re.split(r"@cfunc", step.kernel.source)[1:]]


def groups_of(graph: Graph) -> list[tuple[str, ...]]:
    space = space_of(graph)
    whole = [node.name for node in graph.nodes]
    together = not space.reasons(space.program.mask(whole))
    return [space.program.names(space.program.mask(whole))] if together else [(node,) for node in whole]


def test_functions_do_not_grow_with_the_group_and_their_text_does_linearly() -> None:
    few, many = lengths(chain(100)), lengths(chain(200))
    assert len(lengths(chain(20))) == 1
    assert 1 < len(few) < len(many)
    assert max(many) < 2 * pieces.PIECE_LINES
    assert sum(many) < 2.2 * sum(few)


def test_a_long_kernel_has_the_bits_of_its_nodes_one_by_one() -> None:
    graph = chain(120)
    feeds = random_feeds(graph, 0)
    together, apart = BoundPlan(graph, [[n.name for n in graph.nodes]]), BoundPlan(graph, [[n.name] for n in graph.nodes])
    assert together(feeds)["y"].tobytes() == apart(feeds)["y"].tobytes()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel of two stages is long."""
    monkeypatch.setattr(pieces, "LONG_LINES", 0)
    monkeypatch.setattr(pieces, "PIECE_LINES", 0)


@pytest.mark.parametrize("name", CASES)
def test_every_form_in_pieces_of_one_stage(name: str, short: None) -> None:
    graph = built(name)
    feeds = random_feeds(graph, 3)
    assert differences(graph, feeds, interpret(graph, groups_of(graph), feeds)) == []


def test_random_plans_in_pieces_of_one_stage(short: None) -> None:
    cut = 0
    for seed in range(40):
        graph = random_graph(900 + seed, size=7)
        feeds = random_feeds(graph, seed)
        space = space_of(graph)
        groups = [space.program.names(mask) for mask in random_partition(space, np.random.default_rng(seed))]
        cut += any(step.kernel.source.count("@cfunc") > 2 for step in make_steps(graph, groups, 2) if isinstance(step, KernelStep))
        assert differences(graph, feeds, interpret(graph, groups, feeds)) == []
    assert cut > 8


@pytest.mark.parametrize("name", ["softmax_of_rows", "layer_norm_over_more_than_a_strip", "norm_then_matmul"])
def test_compiled_pieces_have_the_same_bits(name: str, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = built(name)
    feeds, groups = random_feeds(graph, 1), groups_of(graph)
    got = BoundPlan(graph, groups)(feeds)
    monkeypatch.setattr(pieces, "LONG_LINES", 10**6)
    want = BoundPlan(graph, groups)(feeds)
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}
