"""An integer programming solver finds the same optimum, and its bound is a bound."""

from __future__ import annotations

import random

import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.search.exact import exact
from fusion_search.search.milp import milp_plan
from fusion_search.search.oracle import exhaustive
from fusion_search.testing.graphs import random_graph
from tests.search.random_space import RandomSpace, conv_net, random_space, transformer
from tests.search.soundness import assert_sound, mutual_wait
from tests.search.test_exact import waiting_space


def assert_same_optimum(space: RandomSpace, best: int) -> int:
    found = milp_plan(space)
    assert found.closed
    assert found.cost == best == assert_sound(space, found.groups)
    assert best - 2 - best // 100_000 <= found.lower_bound <= best
    return found.cuts


def test_random_spaces_against_the_oracle() -> None:
    for seed in range(60):
        space = random_space(random.Random(seed), 8)
        best = exhaustive(space)[0]
        assert assert_same_optimum(space, best) >= 0
        assert exact(space).cost == best


def test_groups_that_wait_are_cut_off() -> None:
    assert assert_same_optimum(mutual_wait(), 32) == 1
    cuts = 0
    for seed in range(12):
        space = waiting_space(seed)
        cuts += assert_same_optimum(space, exact(space).cost)
    assert cuts > 3


@pytest.mark.parametrize("space", [transformer(2), conv_net(4)], ids=["transformer", "conv_net"])
def test_networks(space: RandomSpace) -> None:
    assert_same_optimum(space, exact(space).cost)


def test_out_of_budget_nothing_is_claimed() -> None:
    for seconds, sets in ((0.0, 500_000), (60.0, 9)):
        found = milp_plan(transformer(1), time_limit_s=seconds, max_sets=sets)
        assert (found.groups, found.cost, found.lower_bound, found.closed) == ((), None, 0, False)


@pytest.mark.parametrize("seed", range(4))
def test_on_request(seed: int) -> None:
    graph, profile = random_graph(seed, size=8), fs.load_profile("nvidia-h100-sxm")
    plan = fs.search(graph, profile, bound="milp")
    assert plan.status == "optimal"
    said = plan.statistics["milp"]
    assert said["closed"]
    assert said["cost_s"] == pytest.approx(plan.cost_s, rel=1e-15)
    assert plan.cost_s * (1 - 1e-5) <= said["lower_bound_s"] <= plan.cost_s
    assert fs.check(graph, plan) == []
    with pytest.raises(UsageError, match="unknown bound 'lp'"):
        fs.search(graph, profile, bound="lp")
