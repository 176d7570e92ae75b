"""The exact search against the exhaustive oracle, and what its certificate promises."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_search.search import parts
from fusion_search.search.baselines import unfused
from fusion_search.search.exact import exact
from fusion_search.search.improve import plan_cost
from fusion_search.search.oracle import exhaustive
from fusion_search.search.result import SearchResult
from tests.search.random_space import RandomSpace, conv_net, fanned_space, members, random_space, transformer, wide
from tests.search.soundness import assert_certified, down_set_optimum, mutual_wait

SEEDS = st.integers(min_value=0, max_value=10**9)


@settings(derandomize=True, max_examples=2500, deadline=None, database=None)
@given(SEEDS)
def test_equals_the_oracle(seed: int) -> None:
    space = random_space(random.Random(seed), 8)
    result = exact(space)
    cost, groups = exhaustive(space)
    assert_certified(space, result)
    assert result.status == "optimal"
    assert result.cost == cost
    assert len(result.groups) == len(groups)


@settings(derandomize=True, max_examples=800, deadline=None, database=None)
@given(SEEDS)
def test_equals_the_oracle_where_more_heavy_nodes_share_a_group(seed: int) -> None:
    space = fanned_space(random.Random(seed), 9)
    result = exact(space)
    assert_certified(space, result)
    assert result.status == "optimal"
    assert result.cost == exhaustive(space)[0]


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(SEEDS)
def test_equals_the_oracle_when_bounds_come_from_the_linear_program(seed: int) -> None:
    space = random_space(random.Random(seed), 8)
    plain = exact(space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_PLAIN_STEPS", -1)
        priced = exact(space)
    assert priced.status == "optimal"
    assert priced.cost == exhaustive(space)[0]
    assert priced.groups == plain.groups


def test_mutual_wait() -> None:
    space = mutual_wait()
    result = exact(space)
    assert result.cost == 32  # {a1, a2} saves 8, {b1, b2} saves 7, both together cannot run
    assert result.status == "optimal"
    assert result.statistics.parts == 2
    assert result.statistics.parts_joined == 2
    assert_certified(space, result)


def waiting_space(seed: int) -> RandomSpace:
    """Bipartite edges and cheap pairs: almost every relaxed plan has groups that wait for each other."""
    draw = random.Random(seed)
    n = 11
    edges = sorted({(u, v) for u in range(6) for v in range(6, n) if draw.random() < 0.5})
    flavour = draw.choice(["sub", "mixed"])
    return RandomSpace(n, edges, seed=seed, hole_rate=0.6, flavour=flavour, max_nodes=4, heavy=draw.choice([0, 0b11]))


def test_parts_that_wait_are_solved_together() -> None:
    joined = 0
    for seed in range(40):
        space = waiting_space(seed)
        result = exact(space)
        assert_certified(space, result)
        assert result.status == "optimal"
        assert result.cost == down_set_optimum(space)
        joined += result.statistics.parts_joined > 0
    assert joined >= 10


@pytest.mark.parametrize(("time_limit_s", "max_sets"), [(0.0, 1000), (60.0, 9), (60.0, 12)])
def test_out_of_budget_the_bound_is_true(time_limit_s: float, max_sets: int) -> None:
    feasible = 0
    for seed in range(300):
        space = random_space(random.Random(seed), 8)
        result = exact(space, time_limit_s=time_limit_s, max_sets=max_sets)
        assert_certified(space, result)
        assert result.lower_bound <= exhaustive(space)[0] <= result.cost
        assert result.cost <= plan_cost(space, unfused(space))
        feasible += result.status == "feasible"
    assert feasible > 20


def test_floors_raise_the_bound_of_what_is_not_enumerated() -> None:
    space = transformer(2)
    floors = [40] * space.n  # no group costs less: a launch alone is 1000, and a group has at most 13 nodes here
    blind = exact(space, max_sets=50)
    bounded = exact(space, max_sets=50, floors=floors, plan_floor=1000)
    assert blind.status == bounded.status == "feasible"
    assert blind.lower_bound < bounded.lower_bound <= exact(space).cost


def test_reuse_changes_nothing() -> None:
    for space in (transformer(3), conv_net(4), conv_net(2, 3)):
        reused, plain = exact(space), exact(space, reuse=False)
        assert reused.statistics.parts_reused > 0
        assert plain.statistics.parts_reused == 0
        assert reused.groups == plain.groups
        assert reused.statistics.transitions < plain.statistics.transitions


def shuffled(space: RandomSpace, draw: random.Random) -> RandomSpace:
    """The same space with its nodes in another topological order."""
    left, order = set(range(space.n)), []
    while left:
        v = draw.choice([v for v in sorted(left) if not any(u in left for u in members(space.preds[v]))])
        left.remove(v)
        order.append(v)
    at = {v: i for i, v in enumerate(order)}

    def moved(mask: int) -> int:
        return sum(1 << at[v] for v in members(mask))

    pairs = [(u, v) for u in range(space.n) for v in members(space.neighbours[u]) if u < v]
    edges = [(u, v) for u in range(space.n) for v in members(space.succs[u])]
    return RandomSpace(
        space.n,
        [(at[u], at[v]) for u, v in edges],
        siblings=[(at[u], at[v]) for u, v in pairs],
        labels=[space.labels[v] for v in order],
        heavy=moved(space.heavy),
        max_heavy=space.max_heavy,
        families=[moved(family) for family in space.families],
        solo=moved(space.solo),
        blocked=[(at[u], at[v]) for u, v in edges if space.blocked(u, v)],
        max_nodes=space.max_nodes,
        seed=space._seed,
        hole_rate=space._hole_rate,
        flavour=space._flavour,
    )


def readable(space: RandomSpace, result: SearchResult) -> list[str]:
    return sorted(repr([sorted(part, key=repr) for part in space.key(group)]) for group in result.groups)


@settings(derandomize=True, max_examples=400, deadline=None, database=None)
@given(SEEDS)
def test_node_order_changes_neither_cost_nor_the_multiset_of_keys(seed: int) -> None:
    draw = random.Random(seed)
    space = random_space(draw, 9)
    other = shuffled(space, draw)
    one, two = exact(space), exact(other)
    assert one.cost == two.cost
    assert readable(space, one) == readable(other, two)


SCRIPT = """
import random
from tests.search.random_space import random_space, transformer, conv_net
from fusion_search.search.exact import exact
for seed in range(60):
    print(exact(random_space(random.Random(seed), 9)).groups)
for space in (transformer(2), conv_net(2, 3)):
    print(exact(space).groups, exact(space, max_sets=60).groups)
"""


def test_hash_seed_changes_nothing() -> None:
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert outputs.pop().strip()


def test_wide_graphs_end_with_a_plan() -> None:
    space = wide(60, 5)
    result = exact(space, time_limit_s=20.0, max_sets=5000)
    assert result.status == "feasible"
    assert_certified(space, result)
    assert result.cost < plan_cost(space, unfused(space)) / 4


def test_a_transformer_closes_with_one_solution_for_all_its_layers() -> None:
    result = exact(transformer(10))
    assert result.status == "optimal"
    assert result.statistics.parts_reused >= 8


def test_an_empty_graph_has_an_empty_plan() -> None:
    result = exact(RandomSpace(0, []))
    assert (result.groups, result.cost, result.status) == ((), 0, "optimal")
