"""Free concats in the search: as good as trying everything, sound by the checker's own derivation, and off where asked."""

from __future__ import annotations

from dataclasses import replace

import msgspec.structs
import pytest

import fusion_search as fs
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.space import GroupSpace
from fusion_search.search.check import check
from fusion_search.search.methods import METHODS
from fusion_search.search.oracle import exhaustive
from tests.fusion.concats import features, random_concats
from tests.fusion.programs import graph_of, space_of
from tests.search.checked_plans import edit, rules

H100 = fs.load_profile("nvidia-h100-sxm")


class _Fit:
    """A space that refuses by itself what the search never asks: sets that are not connected, or not convex."""

    def __init__(self, space: GroupSpace) -> None:
        self.space, self.n, self.preds = space, space.n, space.preds

    def cost(self, group: int) -> int | None:
        return None if self.space.reasons(group) else self.space.cost(group)


def everything(space: GroupSpace) -> tuple[int, tuple[int, ...]]:
    return exhaustive(_Fit(space))  # type: ignore[arg-type]  # it asks nothing else


def test_equals_trying_everything() -> None:
    gained = 0
    for seed in range(120):
        graph = random_concats(seed, 6)
        space = space_of(graph, launch_overhead_s=seed % 2 * 1e-9 + 1e-9)
        plan = METHODS["exact"](space, 30.0)
        cost, groups = everything(space)
        assert plan.status == "optimal"
        assert plan.cost_as == cost
        assert plan.launches <= len(groups)
        assert check(graph, plan) == []
        off = METHODS["exact"](space.without_aliases, 30.0)
        assert off.cost_as == everything(space.without_aliases)[0] >= cost
        assert check(graph, off) == []
        gained += off.cost_as > cost
    assert gained > 15


def test_floors_are_floors() -> None:
    """Of every run of nodes, and of the whole: no plan costs less."""
    tried = 0
    for seed in range(80):
        space = CoarseSpace(space_of(random_concats(seed, 6)))
        floors = space.floors(range(space.n))
        assert floors.whole() <= everything(space.fine)[0]
        for start, row in enumerate(floors.rows()):
            for length, floor in enumerate(row, 1):
                cost = space.cost(((1 << length) - 1) << start)
                assert cost is None or floor <= cost
                tried += cost == 0
    assert tried > 10


def test_a_growing_list_costs_its_layers_only() -> None:
    graph = graph_of(features)
    plan = fs.search(graph, H100)
    concats = [node.name for node in graph.nodes if node.op == "Concat"]
    free = {group.nodes[0]: group for group in plan.groups if group.alias}
    assert set(free) <= set(concats)
    assert free
    for group in free.values():
        assert group.cost_as == group.bytes_read == group.bytes_written == 0
        assert set(group.terms.values()) == {0.0}
    assert plan.launches == len(plan.groups) - len(free)
    assert check(graph, plan) == []


@pytest.mark.parametrize("method", [name for name in fs.methods() if name != "exact"])
def test_every_method_pays_the_same_for_the_same_group(method: str) -> None:
    graph = graph_of(features)
    plan = fs.search(graph, H100, method=method)
    assert check(graph, plan) == []
    assert all((group.cost_as == 0) == group.alias for group in plan.groups)
    assert fs.search(graph, H100).cost_as <= plan.cost_as


@pytest.mark.parametrize("demand", [fs.fusion_off(rule="alias"), fs.peak_bytes(1 << 30)], ids=str)
def test_off_is_off_and_said(demand: object) -> None:
    graph = graph_of(features)
    on, off = fs.search(graph, H100), fs.search(graph, H100, constraints=[demand])
    assert "+alias" in on.space["name"]
    assert "alias" not in off.space["name"]
    assert off.space["aliases"] == "off"
    assert not any(group.alias for group in off.groups)
    assert all(group.cost_as for group in off.groups)
    assert off.cost_as > on.cost_as
    assert check(graph, off) == check(graph, on) == []


def test_the_checker_derives_it_by_itself() -> None:
    graph = graph_of(features)
    plan = fs.search(graph, H100, method="unfused")
    off = fs.search(graph, H100, method="unfused", constraints=[fs.fusion_off(rule="alias")])
    (first, *_), kernel = [g for g in plan.groups if g.alias], next(g for g in plan.groups if not g.alias)
    assert rules(check(graph, edit(plan, kernel.nodes[0], alias=True))) >= {"alias", "terms"}
    assert rules(check(graph, edit(plan, first.nodes[0], alias=False))) >= {"alias"}
    assert rules(check(graph, edit(plan, first.nodes[0], bytes_read=64))) == {"bytes"}
    assert rules(check(graph, edit(plan, first.nodes[0], terms={**first.terms, "launch": 1e-6}))) == {"terms"}
    assert rules(check(graph, replace(plan, space={**plan.space, "name": "vertical"}))) >= {"alias"}
    assert rules(check(graph, replace(plan, space={**plan.space, "constraints": [{"kind": "peak_bytes", "limit_bytes": 1 << 40}]}))) >= {
        "alias"
    }
    priced = next(g for g in off.groups if g.nodes == first.nodes)
    mixed = [msgspec.structs.replace(priced) if g.nodes == first.nodes else g for g in plan.groups]
    assert rules(check(graph, replace(plan, groups=tuple(mixed), cost_as=plan.cost_as + priced.cost_as))) == {"alias"}


def test_plan_files_and_words_say_it(tmp_path: object) -> None:
    graph = graph_of(features)
    plan = fs.search(graph, H100)
    path = f"{tmp_path}/plan.json"
    plan.save(path)
    assert fs.Plan.load(path, graph).groups == plan.groups
    free = next(group.nodes[0] for group in plan.groups if group.alias)
    other = next(group.nodes[0] for group in plan.groups if not group.alias)
    assert f"{free} is no kernel: its producers write it in place." in str(fs.explain(plan, free, other))
    assert fs.replay(path, graph).plan.cost_as == plan.cost_as
