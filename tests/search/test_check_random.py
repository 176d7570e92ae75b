"""The checker is silent on sound plans of random graphs, and not when a carried loop is made another one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fusion_search.search.check import check
from hardware_profiles import load
from tests.search.checked_plans import carry, edit_loop, loops_of, merged, plan_of, random_graph, rules, space_of

SMALL = {"fast_memory_bytes": 1 << 20, "registers": 5, "line_bytes": 16, "parallel_units": 3, "operand_limit": 9}


@pytest.mark.parametrize("seed", range(150))
def test_sound_plans_of_random_graphs_have_no_violations(seed: int) -> None:
    graph = random_graph(seed)
    rng = random.Random(seed)
    profile = load("nvidia-h100-sxm")
    if seed % 2:
        profile = replace(profile, **SMALL)
    space = space_of(graph, profile, ("weighted", "roofline")[seed % 3 == 0])
    for _ in range(3):
        assert [str(v) for v in check(graph, plan_of(space, merged(space, rng), rng.choice(["optimal", "feasible"])))] == []


@pytest.mark.parametrize("seed", range(40))
def test_every_group_of_one_node_is_sound(seed: int) -> None:
    graph = random_graph(1000 + seed)
    space = space_of(graph)
    assert check(graph, plan_of(space, [1 << p for p in range(space.n)])) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_carried_loop_is_never_another_one(seed: int) -> None:
    graph, rng = random_graph(seed), random.Random(seed)
    space = space_of(graph)
    plan = plan_of(space, merged(space, rng))
    loops = [(group.nodes[0], k) for group in plan.groups for k in range(sum(len(tile.loops) for tile in group.schedule.tiles))]
    for node, k in rng.sample(loops, min(6, len(loops))):
        loop = loops_of(plan, node)[k][2]
        name = rng.choice(sorted(loop.carried))
        other = (rng.randrange(-1, 5), rng.choice([-1, 0, 1, 2, 3, 4, 6, 1 << 40]))
        if other != loop.carried[name]:
            assert "schedule" in rules(check(graph, edit_loop(plan, node, carry(name, *other), k)))
