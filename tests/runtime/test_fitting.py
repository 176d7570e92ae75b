"""Planned memory of fused plans: not above what the nodes need one by one, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime import program
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import Choice, KernelStep, Made
from fusion_search.testing.graphs import random_feeds
from fusion_search.testing.interpreter import Interpreter
from tests.codegen.agree import differences, space_of
from tests.codegen.test_forms import CASES, built, window
from tests.frontends.modeling import random


def feed_forward(rows: int = 128, width: int = 64, inner: int = 512) -> fs.Graph:
    """Two products with a map between and a residual: in one kernel, their blocks lie in scratch."""
    b = GraphBuilder("feed_forward")
    x = b.op("Exp", b.input("x", np.float32, (rows, width)))
    h = b.op("Tanh", b.op("MatMul", x, b.constant(random((width, inner), 1) / 16)))
    b.output("y", b.op("Exp", b.op("Add", x, b.op("MatMul", h, b.constant(random((inner, width), 2) / 16)))))
    return b.build()


def filters(channels: int = 16, side: int = 40) -> fs.Graph:
    """Convolutions with a map behind each: values of one size, so that fusing saves nothing at the peak."""
    b = GraphBuilder("filters")
    x = b.reshape(b.input("x", np.float32, (1, channels, side, side)), (1, 1, channels, side, side))
    for k in range(3):
        y = b.op("Conv", x, b.constant(random((1, channels, channels, 3, 3), k)), **window(2, before=(1, 1), after=(1, 1)))
        x = b.op("Tanh", b.op("Relu", y))
    b.output("y", x)
    return b.build()


def product_and_residual() -> fs.Graph:
    """A product whose block may lie in the place of what is made from it; another result of its nest has another shape."""
    b = GraphBuilder("residual")
    x, r = b.input("x", np.float32, (70, 40)), b.input("r", np.float32, (70, 50))
    y = b.op("MatMul", x, b.constant(random((40, 50), 1)))
    s = b.op("Add", b.op("Mul", y, y), r)
    b.output("s", s)
    b.output("t", b.op("Tanh", s))
    return b.build()


def read_twice() -> fs.Graph:
    """A product that two maps read: it cannot lie where one of them writes before the other has read it."""
    b = GraphBuilder("twice")
    y = b.op("MatMul", b.input("x", np.float32, (70, 40)), b.constant(random((40, 50), 1)))
    b.output("s", b.op("Exp", y))
    b.output("t", b.op("Tanh", y))
    return b.build()


def read_by_rows() -> fs.Graph:
    """A product that a sum reads as well, and one that is itself a result."""
    b = GraphBuilder("rows")
    y = b.op("MatMul", b.input("x", np.float32, (70, 40)), b.constant(random((40, 50), 1)))
    b.output("s", b.op("Sub", y, b.op("ReduceSum", y, axes=(1,))))
    z = b.op("MatMul", b.input("x2", np.float32, (70, 40)), b.constant(random((40, 50), 2)))
    b.output("z", z)
    b.output("w", b.op("Exp", z))
    return b.build()


GRAPHS = {"feed_forward": feed_forward, "filters": filters, "residual": product_and_residual, "twice": read_twice, "rows": read_by_rows}


def groups_of(graph: fs.Graph, method: str = "exact") -> list[tuple[str, ...]]:
    return [group.nodes for group in fs.search(graph, fs.load_profile("local"), method=method).groups]


def plain(graph: fs.Graph, groups: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> BoundPlan:
    """The plan as the generator makes it."""
    with monkeypatch.context() as patch:
        patch.setattr(program, "fitted", lambda graph, steps, *_: list(steps))
        return BoundPlan(graph, groups)


@pytest.mark.parametrize("graph", [feed_forward(), filters()], ids=["feed_forward", "filters"])
def test_a_fused_plan_needs_no_more_than_its_nodes_one_by_one(graph: fs.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of(graph)
    fit, before, apart = BoundPlan(graph, groups), plain(graph, groups, monkeypatch), BoundPlan(graph, groups_of(graph, "unfused"))
    assert len(fit.steps) < len(apart.steps)
    assert fit.peak_bytes <= apart.peak_bytes < before.peak_bytes
    feeds = random_feeds(graph, 0)
    for name, array in before(feeds).items():
        assert fit(feeds)[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("name", [*GRAPHS, *(name for name in CASES if "product" in name or "convolution" in name)])
def test_products_in_the_place_of_what_is_made_from_them_have_the_same_bits(name: str) -> None:
    graph = GRAPHS[name]() if name in GRAPHS else built(name)
    space = space_of(graph)
    whole = [node.name for node in graph.nodes]
    groups = groups_of(graph) if space.reasons(space.program.mask(whole)) else [space.program.names(space.program.mask(whole))]
    direct = BoundPlan(graph, groups, choose=directly)
    own = BoundPlan(graph, groups)
    feeds = random_feeds(graph, 1)
    checked = Interpreter(graph, groups, choose=directly)
    assert differences(graph, feeds, checked.outputs(checked(feeds))) == []
    assert {n: a.tobytes() for n, a in direct(feeds).items()} == {n: a.tobytes() for n, a in own(feeds).items()}
    assert differences(graph, feeds, direct(feeds)) == []


def directly(made: Made) -> Choice:
    return Choice({}, 0, True)


def scratch(run: BoundPlan) -> int:
    return sum(step.kernel.scratch_bytes for step in run.steps if isinstance(step, KernelStep))


@pytest.mark.parametrize(("name", "saves"), [("filters", True), ("residual", True), ("twice", False), ("rows", False)])
def test_a_product_lies_in_the_place_of_a_result_only_where_nobody_else_reads_it(
    name: str, saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = GRAPHS[name]()
    groups = groups_of(graph)
    direct, own = BoundPlan(graph, groups, choose=directly), plain(graph, groups, monkeypatch)
    assert (scratch(direct) < scratch(own)) == saves


def test_measured_schedules_stay_as_they_were_measured() -> None:
    graph = feed_forward()
    groups = groups_of(graph)

    def measured(made: Made) -> Choice:
        return Choice({block.loop: block.tile for block in made.kernel.blocks if block.free}, 1)

    run = BoundPlan(graph, groups, choose=measured)
    assert all(step.chunk == 1 for step in run.steps if isinstance(step, KernelStep))
    assert run.peak_bytes > BoundPlan(graph, groups).peak_bytes
