"""Enumeration finds every group, once, and drops only what no best plan holds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fusion_search.search.baselines import fuse_all
from fusion_search.search.enumerate import enumerate_groups, join_components
from fusion_search.search.oracle import exhaustive
from fusion_search.search.space import derive_facts, structurally_fit
from tests.search.random_space import RandomSpace, fanned_space, members, random_space, transformer


def everything(space: RandomSpace) -> int:
    return (1 << space.n) - 1


def restricted(space: RandomSpace, group: int) -> RandomSpace:
    """The part of a space inside one group, that group itself made illegal."""
    nodes = members(group)
    at = {v: i for i, v in enumerate(nodes)}

    class Inner(RandomSpace):
        def cost(self, mask: int) -> int | None:
            outer = sum(1 << nodes[i] for i in members(mask))
            return None if outer == group else space.cost(outer)

    return Inner(len(nodes), [(at[u], at[v]) for u in nodes for v in members(space.succs[u] & group)])


@pytest.mark.parametrize("draw_space", [random_space, fanned_space])
def test_every_group_is_found_once(draw_space: Callable[[random.Random, int], RandomSpace]) -> None:
    crowds = 0
    for seed in range(250):
        space = draw_space(random.Random(seed), 8)
        found = enumerate_groups(space, derive_facts(space), everything(space))
        assert found.complete
        legal = {mask: cost for mask in range(1, 1 << space.n) if (cost := space.cost(mask)) is not None}
        kept = dict(found.groups)
        assert len(kept) == len(found.groups)
        assert kept.items() <= legal.items()
        assert len(kept) + found.dominated == len(legal)
        for mask in sorted(set(legal) - set(kept)):
            assert exhaustive(restricted(space, mask))[0] < legal[mask]
        crowds += any((mask & space.heavy).bit_count() > space.max_heavy for mask in kept)
    assert crowds > (100 if draw_space is fanned_space else 2)


def test_structure_that_clashes_is_never_joined() -> None:
    # 0 -> 1 -> 2 -> 3 with heavy ends: any group of both ends would hold the two.
    space = RandomSpace(4, [(0, 1), (1, 2), (2, 3)], heavy=0b1001, hole_rate=0.0)
    facts = derive_facts(space)
    assert facts.clash == (0b1000, 0, 0, 0b0001)
    # Over a blocked edge 1 -> 2 nothing before meets anything after.
    space = RandomSpace(4, [(0, 1), (1, 2), (2, 3)], blocked=[(1, 2)], hole_rate=0.0)
    facts = derive_facts(space)
    assert facts.clash == (0b1100, 0b1100, 0b0011, 0b0011)
    assert join_components(facts.joins, 0b1111) == [0b0011, 0b1100]


def test_a_group_holds_so_many_heavy_nodes_and_no_more() -> None:
    # 0 -> 1 -> 2 -> 3 -> 4, heavy at 0, 2 and 4: two fit, three do not.
    chain = [(v, v + 1) for v in range(4)]
    space = RandomSpace(5, chain, heavy=0b10101, max_heavy=2, hole_rate=0.0, flavour="sub")
    facts = derive_facts(space)
    assert facts.clash == (0b10000, 0, 0, 0, 0b00001)
    found = [group for group, _ in enumerate_groups(space, facts, everything(space)).groups]
    assert 0b01111 in found
    assert 0b11110 in found
    assert 0b11111 not in found
    assert not structurally_fit(space, facts, 0b11111)
    # Side by side no path counts them, but a group still does.
    fan = RandomSpace(4, [(0, 3), (1, 3), (2, 3)], heavy=0b0111, max_heavy=2, hole_rate=0.0, flavour="sub")
    assert derive_facts(fan).clash == (0, 0, 0, 0)
    widest = max((group for group, _ in enumerate_groups(fan, derive_facts(fan), 0b1111).groups), key=int.bit_count)
    assert widest.bit_count() == 3
    assert all((group & 0b0111).bit_count() <= 2 for group in fuse_all(fan))


def test_a_group_without_a_legal_pair_is_reached() -> None:
    class AddOfTwo(RandomSpace):
        def cost(self, group: int) -> int | None:
            return {1: 5, 2: 5, 4: 5, 7: 6}.get(group)

    space = AddOfTwo(3, [(0, 2), (1, 2)])
    assert dict(enumerate_groups(space, derive_facts(space), 7).groups) == {1: 5, 2: 5, 4: 5, 7: 6}


def test_budgets_are_truthful() -> None:
    space = transformer(1)
    facts = derive_facts(space)
    nodes = (1 << space.n) - 1
    whole = enumerate_groups(space, facts, nodes)
    assert whole.complete
    assert enumerate_groups(space, facts, nodes, max_sets=whole.grown).complete
    assert not enumerate_groups(space, facts, nodes, max_sets=whole.grown - 1).complete
    assert not enumerate_groups(space, facts, nodes, deadline=0.0).complete
