"""Recomputation decided for each consumer: against a brute force that knows nothing of copies, and the numerical rule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.fusion.copies import copyable, place
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan
from fusion_search.testing.graphs import random_graph

F32 = "float32"
H100 = fs.load_profile("nvidia-h100-sxm")


def expanded_mask(width: int = 512) -> Graph:
    """A small row is expanded; two products read it, which no kernel computes together."""
    b = GraphBuilder("mask")
    row = b.input("row", F32, (1, width))
    big = b.op("Add", b.op("Expand", row, shape=(width, width)), b.constant(np.ones((width, 1), F32)))
    x, y = b.input("x", F32, (width, width)), b.input("y", F32, (width, width))
    b.output("p", b.op("Add", b.op("MatMul", x, b.constant(np.ones((width, width), F32))), big))
    b.output("q", b.op("Add", b.op("MatMul", y, b.constant(np.full((width, width), 2, F32))), big))
    return b.build()


def test_a_cheap_large_value_is_computed_by_each_of_its_readers() -> None:
    graph = expanded_mask()
    apart = fs.fusion_off(rule="cross-block")
    plan = fs.search(graph, H100, constraints=[apart])
    assert plan.status == "optimal"
    assert fs.check(graph, plan) == []
    twice = [name for name in graph.index if sum(name in group.nodes for group in plan.groups) > 1]
    assert {graph.nodes[graph.index[name]].op for name in twice} == {"Expand", "Add"}
    assert not any(graph.nodes[graph.index[name]].output in group.stores for name in twice for group in plan.groups)
    without = fs.search(graph, H100, constraints=[apart, fs.fusion_off(rule="recomputation")])
    assert plan.cost_s < without.cost_s
    priced = fs.price(graph, [list(group.nodes) for group in plan.groups], H100)
    assert isinstance(priced, Plan)
    assert priced.cost_as == plan.cost_as


def test_a_plan_that_recomputes_runs() -> None:
    graph = expanded_mask(96)
    profile = fs.load_profile("local")
    add, *ends = (node.name for node in graph.nodes if node.op == "Add")
    left = [name for name in graph.index if name not in (add, *ends)]
    groups = [[ends[0], add], [ends[1], add], *([name] for name in left)]
    plan = fs.price(graph, groups, profile)
    assert isinstance(plan, Plan), plan
    assert fs.check(graph, plan) == []
    assert sum(add in group.nodes for group in plan.groups) == 2
    assert fs.verify(plan).ok


def test_plan_files_keep_what_is_computed_twice(tmp_path: pytest.TempPathFactory) -> None:
    graph = expanded_mask()
    plan = fs.search(graph, H100)
    where = f"{tmp_path}/plan.json"
    plan.save(where)
    loaded = fs.Plan.load(where, graph)
    assert loaded.groups == plan.groups
    assert fs.check(graph, loaded) == []
    assert all(fs.check(graph, point.plan) == [] for point in fs.pareto(graph, H100))
    assert str(fs.explain(loaded))


@pytest.mark.parametrize("build", ["softmax", "norm", "scaled"])
def test_a_statistic_never_meets_another_copy(build: str) -> None:
    b = GraphBuilder(build)
    x = b.input("x", F32, (64, 64))
    if build == "softmax":
        u = b.op("Exp", x)
        b.output("y", b.op("Div", u, b.op("ReduceSum", u, axes=(1,))))
    elif build == "norm":
        u = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
        b.output("y", b.op("Div", u, b.op("ReduceMean", b.op("Mul", u, u), axes=(1,))))
    else:
        u = b.op("Mul", x, b.constant(np.full((64, 1), 3, F32)))
        b.output("y", b.op("Exp", b.op("Sub", u, b.op("ReduceMax", u, axes=(1,)))))
    graph = b.build()
    assert copyable(Program(graph)) == frozenset()
    maker = graph.nodes[graph.producer[u]].name
    parts = [[node.name, maker] for node in graph.nodes if u in node.inputs]
    rest = [[node.name] for node in graph.nodes if u not in node.inputs and node.name != maker]
    reasons = fs.price(graph, [*parts, *rest], H100)
    assert isinstance(reasons, list)
    assert [reason.rule for reason in reasons] == ["recomputation"]


def test_reductions_that_stay_apart_do_not_forbid_recomputation() -> None:
    b = GraphBuilder("apart")
    x = b.input("x", F32, (256, 256))
    u = b.op("Tanh", x)
    b.output("y", b.op("ReduceSum", u, axes=(1,)))
    b.output("z", b.op("Exp", u))
    graph = b.build()
    assert copyable(Program(graph)) == {"Tanh_0"}


def covers(names: list[str], copied: frozenset[str]) -> Iterator[list[list[str]]]:
    """Every list of groups that covers all names, those that may be computed again by any number of groups."""
    once = [name for name in names if name not in copied]

    def partitions(items: list[str]) -> Iterator[list[list[str]]]:
        if not items:
            yield []
            return
        head, rest = items[0], items[1:]
        for more in partitions(rest):
            yield [[head], *more]
            for k in range(len(more)):
                yield [*more[:k], [head, *more[k]], *more[k + 1 :]]

    def spread(groups: list[list[str]], left: list[str]) -> Iterator[list[list[str]]]:
        if not left:
            yield groups
            return
        name = left[0]
        places = range(len(groups) + 1)
        for count in range(1, len(groups) + 2):
            for chosen in combinations(places, count):
                grown = [[*group, name] if k in chosen else group for k, group in enumerate(groups)]
                if len(groups) in chosen:
                    grown = [*grown, [name]]
                yield from spread(grown, left[1:])

    for groups in partitions(once):
        yield from spread(groups, sorted(copied))


def test_exact_is_the_least_of_all_covers() -> None:
    """All covers of small graphs; who stores a value that several groups compute is for `price` to choose."""
    seen = gained = 0
    for seed in range(400):
        graph = random_graph(seed, size=5, ops={"Add", "Exp", "MatMul", "Expand", "Concat", "Transpose", "ReduceMax"})
        copied = copyable(Program(graph))
        names = list(graph.index)
        if not copied or not 3 <= len(names) <= (5 if len(copied) == 1 else 4) or len(copied) > 2:
            continue
        plan = fs.search(graph, H100)
        assert plan.status == "optimal"
        assert fs.check(graph, plan) == []
        best = None
        for groups in covers(names, copied):
            priced = fs.price(graph, groups, H100)
            if isinstance(priced, Plan):
                assert fs.check(graph, priced) == []
                best = priced.cost_as if best is None else min(best, priced.cost_as)
        assert best == plan.cost_as, seed
        seen += 1
        gained += any(sum(name in group.nodes for group in plan.groups) > 1 for name in names)
    assert seen > 15


def test_groups_of_a_plan_are_placed_as_they_were() -> None:
    graph = expanded_mask()
    program = Program(graph, copyable(Program(graph)))
    plan = fs.search(graph, H100)
    masks = place(program, [group.nodes for group in plan.groups], [group.stores for group in plan.groups])
    assert not isinstance(masks, frozenset)
    assert [program.names(mask) for mask in masks] == [group.nodes for group in plan.groups]
    everything = 0
    for mask in masks:
        assert not everything & mask
        everything |= mask
    assert everything == (1 << len(program.members)) - 1
