"""Floors are below every price, and equal to it where nothing but bytes and launches costs."""

from __future__ import annotations

import numpy as np
import pytest

import costmodels
import fusion_search as fs
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.copies import copyable
from fusion_search.fusion.floors import MOST, RunFloors
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.search.exact import exact
from fusion_search.search.runs import RunPath, in_line
from fusion_search.search.space import bits, derive_facts, structurally_fit
from fusion_search.testing.graphs import random_graph, random_partition
from tests.cases import scale
from tests.cases.harness import load, model, node, value


def space_of(graph: fs.Graph, profile: str = "local", model: str = "weighted") -> GroupSpace:
    return GroupSpace(Program(graph), fs.load_profile(profile), costmodels.model(model))


@pytest.mark.parametrize("profile", ["local", "nvidia-h100-sxm"])
@pytest.mark.parametrize("model", ["weighted", "roofline"])
@pytest.mark.parametrize("seed", range(25))
def test_floors_of_random_graphs(seed: int, profile: str, model: str) -> None:
    space = space_of(random_graph(seed, size=8), profile, model)
    if not space.n:
        pytest.skip("an empty graph")
    facts = derive_facts(space)
    floors = RunFloors(space.program, space.profile, space.model, range(space.n), space.max_nodes)
    for i, row in enumerate(floors.rows()):
        assert len(row) == min(space.max_nodes, space.n - i)
        for k, floor in enumerate(row):
            group = ((1 << (k + 1)) - 1) << i
            price = space.cost(group) if k == 0 or structurally_fit(space, facts, group) else None
            assert price is None or floor <= price, (i, k)
            assert price is None or floor < MOST
    rng = np.random.default_rng(seed)
    for _ in range(8):
        groups = random_partition(space, rng)
        total = sum(price for group in groups if (price := space.cost(group)) is not None)
        assert floors.whole() <= total
    assert floors.whole() <= exact(space).cost


def test_floors_of_nodes_that_may_be_computed_twice() -> None:
    """A copy stands beside its reader, so that a run which holds both neither reads nor writes the value."""
    copied = 0
    for seed in range(120):
        graph = random_graph(seed, size=8)
        program = Program(graph, copyable(Program(graph)))
        if not program.copies or len(program.members) > 16:
            continue
        space = GroupSpace(program, fs.load_profile(["local", "nvidia-h100-sxm"][seed % 2]), costmodels.model("weighted"))
        facts, floors = derive_facts(space), RunFloors(program, space.profile, space.model, range(space.n), space.max_nodes)
        for i, row in enumerate(floors.rows()):
            for k, floor in enumerate(row):
                group = ((1 << (k + 1)) - 1) << i
                price = space.cost(group) if k == 0 or structurally_fit(space, facts, group) else None
                assert price is None or floor <= price, (seed, i, k)
        assert floors.whole() <= exact(space).cost, seed
        copied += 1
    assert copied > 30


@pytest.mark.parametrize("profile", ["local", "nvidia-h100-sxm"])
@pytest.mark.parametrize("limit", [3, 5, 256])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_runs_of_a_line_are_the_best_plan(seed: int, limit: int, profile: str) -> None:
    rng = np.random.default_rng(seed)
    makers = [lambda: scale.mixed(20, int(rng.integers(1, 3000))), lambda: scale.additions(24), lambda: scale.choices(12)]
    space = space_of(load(makers[seed % 3]()), profile)
    space.max_nodes = limit
    facts = derive_facts(space)
    assert in_line(facts, range(space.n))
    floors = RunFloors(space.program, space.profile, space.model, range(space.n), limit)
    found = RunPath(space, facts, range(space.n), floors).solve(most_priced=10**6, deadline=float("inf"))
    best = exact(space)
    assert best.status == "optimal"
    assert found.cost == found.bound == best.cost
    assert sum(found.groups) == (1 << space.n) - 1


@pytest.mark.parametrize("most_priced", [0, 3, 20])
def test_out_of_budget_the_bound_is_true(most_priced: int) -> None:
    space = space_of(load(scale.mixed(40, 3000)))
    space.max_nodes = 6
    facts, sequence = derive_facts(space), range(space.n)
    floors = RunFloors(space.program, space.profile, space.model, sequence, 6)
    best = exact(space).cost
    found = RunPath(space, facts, sequence, floors).solve(most_priced=most_priced, deadline=float("inf"))
    assert found.bound <= best <= found.cost
    assert sorted(v for group in found.groups for v in bits(group)) == list(sequence)


def test_floors_of_chains_are_those_of_the_nodes_behind() -> None:
    space = space_of(load(scale.mixed(60)))
    coarse = CoarseSpace(space)
    assert coarse.n < space.n
    facts = derive_facts(coarse)
    for i, row in enumerate(coarse.floors(range(coarse.n)).rows()):
        for k, floor in enumerate(row):
            group = ((1 << (k + 1)) - 1) << i
            price = coarse.cost(group) if structurally_fit(coarse, facts, group) else None
            assert price is None or floor <= price
    assert exact(coarse, floors_of=coarse.floors).cost == exact(coarse).cost == exact(space).cost


@pytest.mark.parametrize("n", [300, 600])
def test_many_siblings_attain_the_floor(n: int) -> None:
    space = space_of(load(scale.consumers(n)))
    found = exact(space, floors_of=CoarseSpace(space).floors, time_limit_s=30)
    assert found.cost - found.lower_bound <= n
    assert len(found.groups) == -(-n // (space.profile.operand_limit - 1))


@pytest.mark.parametrize("profile", ["local", "nvidia-h100-sxm"])
def test_what_every_chain_reads_every_group_reads(profile: str) -> None:
    nodes = [node(scale.UNARY[(i + k) % 5], f"c{k}_{i}" if i else "x", f"c{k}_{i + 1}") for k in range(9) for i in range(4)]
    outputs = " ".join(f"c{k}_4" for k in range(9))
    space = space_of(load(model(nodes, [value("x", (512,))], outputs)), profile)
    space.max_nodes = 9
    coarse = CoarseSpace(space)
    assert coarse.n == 9
    best = exact(coarse).cost
    floors = coarse.floors(range(coarse.n))
    apart = RunFloors(space.program, space.profile, space.model, range(space.n), space.max_nodes)
    # Two chains fit a group: five groups, each of which reads x once.
    assert apart.whole() < floors.whole() <= best
    assert best - floors.whole() <= 10
