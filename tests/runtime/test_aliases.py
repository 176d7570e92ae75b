"""Concats without a step: the same bits as with one, in memory where nothing else is while it is needed, for every binding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.aliases import Placement, place_parts
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.measure import measure
from fusion_search.runtime.memory import plan_memory, touched
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import AliasStep, make_steps
from fusion_search.testing.graphs import random_feeds, random_partition
from tests.frontends.modeling import info, model, node
from tests.fusion.concats import F32, features, random_concats
from tests.fusion.programs import graph_of, space_of
from tests.runtime.plans import planned

LOCAL = fs.load_profile("local")


def drawn_plan(graph: Graph, seed: int) -> list[tuple[str, ...]]:
    """Groups of a random plan: concats alone in most of them."""
    space = space_of(graph, "local")
    masks = random_partition(space, np.random.default_rng(seed)) if seed % 3 == 0 else [1 << p for p in range(space.n)]
    return [space.program.names(mask) for mask in masks]


def bits(results: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in results.items()}


def run(graph: Graph, groups: Sequence[Sequence[str]], feeds: dict[str, np.ndarray], *, aliasing: bool) -> dict[str, np.ndarray]:
    return BoundPlan(graph, groups, aliasing=aliasing)(feeds)


def test_the_same_bits_and_every_result_an_array_of_its_own() -> None:
    free = 0
    for seed in range(60):
        graph = random_concats(seed)
        groups, feeds = drawn_plan(graph, seed), random_feeds(graph, seed)
        bound = BoundPlan(graph, groups)
        free += sum(isinstance(step, AliasStep) for step in bound.steps)
        found = bound(feeds)
        assert bits(found) == bits(run(graph, groups, feeds, aliasing=False))
        assert not any(np.shares_memory(a, b) for a, b in combinations(found.values(), 2))
        kept = bits(found)
        bound(random_feeds(graph, seed + 1))
        assert bits(found) == kept
        brought = {name: np.empty_like(array) for name, array in found.items()}
        assert bits(bound(feeds, brought)) == bits(brought) == kept
    assert free > 20


def test_bytes_that_are_needed_together_are_apart() -> None:
    """Byte by byte and step by step: whoever writes a byte that is needed later is a value over that byte."""
    placed = 0
    for seed in range(150):
        graph = random_concats(seed)
        groups = drawn_plan(graph, seed)
        placement = place_parts(graph, groups)
        steps = make_steps(graph, groups, 2, free=placement.free)
        memory = plan_memory(graph, steps, 2, placement)
        used = {name: [k for k, step in enumerate(steps) if name in touched(graph, step)] for name in memory.offsets}
        used = {name: where for name, where in used.items() if where}
        for a, b in combinations(used, 2):
            if placement.place(a).block == placement.place(b).block:
                placed += 1
                continue
            apart = used[a][-1] < used[b][0] or used[b][-1] < used[a][0]
            low, high = sorted((a, b), key=memory.offsets.__getitem__)
            assert apart or memory.offsets[low] + graph.values[low].nbytes <= memory.offsets[high]
        for name, place in placement.places.items():
            assert place.offset % graph.values[name].dtype.itemsize == 0
            if name in memory.offsets:
                assert 0 <= memory.offsets[name] <= memory.arena_bytes - graph.values[name].nbytes
    assert placed > 20


def test_a_part_takes_no_room_before_it_is_written() -> None:
    """A chain of large values runs between the two parts of a concat; its room is that of the part that is not there yet."""
    b = GraphBuilder("late")
    x = b.input("x", F32, (64, 64))
    early = b.op("Relu", b.op("Slice", x, starts=(0, 0), steps=(1, 1), sizes=(1, 64)))
    big = x
    for _ in range(4):
        big = b.op("Tanh", big)
    b.output("y", b.op("Exp", b.op("Concat", early, big, axis=0)))
    graph = b.build()
    alone = [(n.name,) for n in graph.nodes]
    needs = [BoundPlan(graph, alone, aliasing=aliasing).memory.arena_bytes for aliasing in (True, False)]
    assert needs[0] < needs[1]


def test_a_growing_list_lies_in_one_block() -> None:
    graph = graph_of(features)
    alone = [(n.name,) for n in graph.nodes]
    places = place_parts(graph, alone).places
    concats = [n.output for n in graph.nodes if n.op == "Concat"]
    assert {place.block for place in places.values()} == {concats[-1]}
    assert set(concats[:-1]) <= set(places)
    some = [group for group in alone if group != alone[-2]]  # the last concat is computed with its reader
    some = [*some[:-1], (alone[-2][0], alone[-1][0])]
    assert len({place.block for place in place_parts(graph, some).places.values()}) == 1
    feeds = random_feeds(graph, 0)
    assert bits(run(graph, some, feeds, aliasing=True)) == bits(run(graph, alone, feeds, aliasing=False))


def test_where_the_batch_parts_the_parts_a_kernel_joins_them() -> None:
    """One plan, made for a batch of one: at others the parts of an image lie apart, and the concat runs."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Tanh", ["x"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=1),
        node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
        node("AveragePool", ["c"], ["z"], kernel_shape=[2, 2]),
    ]
    graph = fs.load(model(nodes, [info("x", ["n", 3, 5, 5])], ["y", "z"]), dims={"n": 1})
    joined = next(n.name for n in graph.nodes if n.op == "Concat")
    plan = fs.price(graph, [[n.name] for n in graph.nodes], LOCAL)
    assert isinstance(plan, fs.Plan)
    assert [group.nodes for group in plan.groups if group.alias] == [(joined,)]
    compiled = CompiledPlan(plan)
    assert sum(isinstance(step, AliasStep) for step in compiled.planned.steps) == 1
    for n in (3, 1, 8):
        x = np.random.default_rng(n).standard_normal((n, 3, 5, 5)).astype(F32)
        bound = compiled.for_feeds({"x": x})
        assert any(isinstance(step, AliasStep) for step in bound.steps) == (n == 1)
        found = compiled({"x": x})
        both = np.concatenate((np.maximum(x, 0), np.tanh(x.astype(np.float64)).astype(F32)), 1)
        windows = np.lib.stride_tricks.sliding_window_view(both, (2, 2), (2, 3))
        np.testing.assert_allclose(found["y"], windows.max((4, 5)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["z"], windows.mean((4, 5)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("aliasing", [True, False])
def test_a_plan_without_the_rule_runs_its_concats(aliasing: bool) -> None:
    graph = graph_of(features)
    demands = () if aliasing else (fs.fusion_off(rule="alias"),)
    plan = fs.search(graph, LOCAL, method="unfused", constraints=demands)
    compiled = CompiledPlan(plan)
    assert any(isinstance(step, AliasStep) for step in compiled.planned.steps) == aliasing
    measured = measure(compiled, runs=3)
    assert len(measured.groups) == len(plan.groups)
    assert [seconds == 0.0 for seconds in measured.groups] == [group.alias for group in plan.groups]
    assert fs.verify(plan).ok


def test_nothing_to_place() -> None:
    graph = planned(graph_of(features)).graph
    assert place_parts(graph, [tuple(n.name for n in graph.nodes)]) == Placement()
