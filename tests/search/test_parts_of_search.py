"""Quotient graphs, prices, partitions, baselines and the oracle, each on its own."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from fusion_search.search.baselines import fuse_all, per_operator, unfused
from fusion_search.search.enumerate import enumerate_groups, join_components
from fusion_search.search.grow import grow_plan
from fusion_search.search.improve import improve, plan_cost, repair
from fusion_search.search.lattice import Budget, cover
from fusion_search.search.oracle import exhaustive
from fusion_search.search.ordered import ordered_cover
from fusion_search.search.partition import Partition
from fusion_search.search.prices import linear_prices, proportional_prices, reduced
from fusion_search.search.quotient import cyclic_components, execution_order
from fusion_search.search.space import derive_facts
from tests.search.random_space import RandomSpace, conv_net, members, random_space, transformer
from tests.search.soundness import assert_sound, mutual_wait


def random_partition(space: RandomSpace, draw: random.Random) -> list[int]:
    blocks: dict[int, int] = {}
    for v in range(space.n):
        block = draw.randrange(space.n)
        blocks[block] = blocks.get(block, 0) | 1 << v
    return [blocks[block] for block in sorted(blocks)]


def test_quotient_agrees_with_networkx() -> None:
    cyclic = 0
    for seed in range(300):
        draw = random.Random(seed)
        space = random_space(draw, 12)
        groups = random_partition(space, draw)
        owner = {v: group for group in groups for v in members(group)}
        quotient: nx.DiGraph[int] = nx.DiGraph()
        quotient.add_nodes_from(groups)
        quotient.add_edges_from((owner[u], owner[v]) for u in range(space.n) for v in members(space.succs[u]) if owner[u] != owner[v])
        expected = {frozenset(found) for found in nx.strongly_connected_components(quotient) if len(found) > 1}
        assert {frozenset(found) for found in cyclic_components(space.preds, groups)} == expected
        order = execution_order(space.preds, groups)
        assert (order is None) == bool(expected)
        cyclic += order is None
        if order is not None:
            smallest_first = nx.lexicographical_topological_sort(quotient, key=lambda group: group & -group)
            assert order == list(smallest_first)
    assert 30 < cyclic < 270


def test_prices_are_feasible_and_bound_the_cover() -> None:
    for seed in range(120):
        space = random_space(random.Random(seed), 9)
        groups = enumerate_groups(space, derive_facts(space), (1 << space.n) - 1).groups
        best = cover(groups, space.n).value
        assert best is not None
        weak = proportional_prices(groups, space.n)
        strong = linear_prices(groups, space.n, float("inf"))
        for prices in (weak, strong):
            assert min(reduced(groups, prices)) >= 0
        assert sum(weak) <= sum(strong) <= best
        assert linear_prices(groups, space.n, 0.0) == weak


def test_dynamic_programs_that_stop_early_bound_truly() -> None:
    for seed in range(120):
        space = random_space(random.Random(seed), 9)
        facts = derive_facts(space)
        groups = enumerate_groups(space, facts, (1 << space.n) - 1).groups
        needs = []
        for group, _ in groups:
            need = 0
            for v in members(group):
                need |= facts.ancestors[v]
            needs.append(need & ~group)
        relaxed = cover(groups, space.n).value
        ordered = ordered_cover(groups, needs, space.n).value
        assert relaxed is not None
        assert ordered is not None
        assert relaxed <= ordered == exhaustive(space)[0]
        for states in (0, 2, 5, 9):
            budget = Budget(states=states)
            assert cover(groups, space.n, budget=budget).bound <= relaxed
            assert ordered_cover(groups, needs, space.n, budget=budget).bound <= ordered
        # A ceiling that is attained cuts nothing that matters; a beam still covers.
        assert ordered_cover(groups, needs, space.n, ceiling=ordered).value == ordered
        narrow = cover(groups, space.n, beam=1)
        assert not narrow.closed
        assert narrow.value is not None
        assert narrow.bound <= relaxed <= narrow.value


def test_heuristics_keep_plans_sound() -> None:
    for seed in range(200):
        space = random_space(random.Random(seed), 9)
        facts = derive_facts(space)
        start = list(unfused(space))
        better = improve(space, facts, start, float("inf"))
        order = execution_order(space.preds, better)
        assert order is not None
        assert exhaustive(space)[0] <= assert_sound(space, order) <= plan_cost(space, start)


def test_repair_splits_the_group_that_saves_least() -> None:
    space = mutual_wait()
    assert cyclic_components(space.preds, [0b1001, 0b0110]) == [[0b1001, 0b0110]]
    assert sorted(repair(space, [0b1001, 0b0110])) == [0b0010, 0b0100, 0b1001]


def test_baselines_are_sound_and_maximal() -> None:
    for seed in range(200):
        draw = random.Random(seed)
        space = random_space(draw, 9)
        operators = sorted(draw.randrange(4) for _ in range(space.n))
        assert assert_sound(space, unfused(space)) == plan_cost(space, unfused(space))
        assert_sound(space, fuse_all(space))
        groups = per_operator(space, operators)
        assert_sound(space, groups)
        for group in groups:
            assert len({operators[v] for v in members(group)}) == 1
        merged = fuse_all(space)
        for i, one in enumerate(merged):
            for two in merged[:i]:
                near = any(space.neighbours[v] & two for v in members(one))
                if near and space.cost(one | two) is not None:
                    rest = [group for group in merged if group not in (one, two)]
                    assert execution_order(space.preds, [*rest, one | two]) is None


def test_baselines_on_networks() -> None:
    space = conv_net(3)
    assert fuse_all(space) == fuse_all(space, facts=derive_facts(space))
    assert plan_cost(space, fuse_all(space)) < plan_cost(space, unfused(space))
    whole = transformer(1)
    # Every node its own operator is the unfused plan; an operator that holds two contractions is split.
    assert per_operator(whole, range(whole.n)) == unfused(whole)
    split = per_operator(RandomSpace(3, [(0, 1), (1, 2)], heavy=0b101, hole_rate=0.0), [0, 0, 0])
    assert split == (0b011, 0b100)


def test_oracle_refuses_large_graphs() -> None:
    with pytest.raises(ValueError, match="10 nodes are too many"):
        exhaustive(RandomSpace(10, []))


def test_grown_plans_are_sound() -> None:
    gained = 0
    for seed in range(150):
        space = random_space(random.Random(seed), 9)
        facts = derive_facts(space)
        for nodes in join_components(facts.joins, (1 << space.n) - 1):
            grown = grow_plan(space, facts, nodes, float("inf"))
            assert sum(grown) == nodes
            assert plan_cost(space, grown) > 0  # all legal
            # In the order given each group follows all that it needs of its own component.
            done = ~nodes
            for group in grown:
                assert all(not space.preds[v] & ~(done | group) for v in members(group))
                done |= group
            gained += len(grown) < nodes.bit_count()
        assert grow_plan(space, facts, (1 << space.n) - 1, 0.0) == [1 << v for v in range(space.n)]
    assert gained > 40


def test_merging_keeps_an_order() -> None:
    for seed in range(150):
        draw = random.Random(seed)
        space = random_space(draw, 9)
        partition = Partition(space, derive_facts(space))
        for _ in range(12):
            a, b = (draw.choice(partition.names) for _ in range(2))
            mask = partition.mask(a) | partition.mask(b)
            rest = [group for group in partition.masks if not group & mask]
            assert partition.waits(mask) == (execution_order(space.preds, [*rest, mask]) is None)
            if a != b and partition.joint(a, b):
                partition.merge(mask)
            assert execution_order(space.preds, partition.masks) is not None
        partition.deadline = 0.0
        before = partition.masks
        partition.merge_maximally(-1)
        assert partition.masks == before


def test_baselines_stop_with_their_time() -> None:
    space = conv_net(3)
    assert fuse_all(space, deadline=0.0) == unfused(space)
    assert per_operator(space, [0] * space.n, deadline=0.0) == unfused(space)
