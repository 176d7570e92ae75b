"""What several test modules of the search need."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_search.search.result import SearchResult
from fusion_search.search.space import GroupSpace
from tests.search.random_space import RandomSpace, members


def assert_sound(space: GroupSpace, groups: Sequence[int]) -> int:
    """Check cover, legality and order of a plan from first principles; return its cost."""
    done = 0
    total = 0
    for group in groups:
        assert group
        assert not group & done
        for v in members(group):
            assert not space.preds[v] & ~(done | group)
        cost = space.cost(group)
        assert cost is not None
        done |= group
        total += cost
    assert done == (1 << space.n) - 1
    return total


def assert_certified(space: GroupSpace, result: SearchResult) -> None:
    assert assert_sound(space, result.groups) == result.cost
    assert result.lower_bound <= result.cost
    assert (result.status == "optimal") == (result.lower_bound == result.cost)


def down_set_optimum(space: RandomSpace) -> int:
    """The least cost by the textbook program over down-sets and all subsets, for about a dozen nodes."""
    everything = (1 << space.n) - 1
    options = [(mask, cost) for mask in range(1, everything + 1) if (cost := space.cost(mask)) is not None]
    inputs = {}
    for mask, _ in options:
        inputs[mask] = 0
        for v in members(mask):
            inputs[mask] |= space.preds[v] & ~mask
    best = {0: 0}
    for done in range(everything):
        if done in best:
            for mask, cost in options:
                if not mask & done and not inputs[mask] & ~done:
                    total = best[done] + cost
                    if total < best.get(done | mask, total + 1):
                        best[done | mask] = total
    return best[everything]


def mutual_wait() -> RandomSpace:
    """a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2: each pair alone is fine, both together wait for each other."""

    class Pairs(RandomSpace):
        def cost(self, group: int) -> int | None:
            # Nodes: a1 = 0, b2 = 1, b1 = 2, a2 = 3.
            return {0b0001: 10, 0b0010: 10, 0b0100: 10, 0b1000: 10, 0b1001: 12, 0b0110: 13}.get(group)

    return Pairs(4, [(0, 3), (1, 2), (0, 2), (1, 3)])
