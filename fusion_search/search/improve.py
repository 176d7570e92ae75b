"""Heuristics that give a good plan when the exact search does not close: repair, greedy merging, single-node moves.

None of them is exact; each returns an acyclic partition into legal groups, never costlier than the one it was given
(`repair` excepted).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from itertools import islice

from fusion_search.search.partition import Partition
from fusion_search.search.quotient import cyclic_components, execution_order
from fusion_search.search.space import Facts, GroupSpace, bits, structurally_fit

__all__ = ["improve", "merge_greedily", "move_nodes", "plan_cost", "repair"]

# Neighbours tried in each merging step; a thousand readers of one tensor would otherwise give a million pairs.
_FAN = 8


def plan_cost(space: GroupSpace, groups: Sequence[int]) -> int:
    """Return the summed cost of legal groups; ValueError names an illegal one."""
    total = 0
    for group in groups:
        cost = space.cost(group)
        if cost is None:
            raise ValueError(f"not a legal group: nodes {list(bits(group))}")
        total += cost
    return total


def repair(space: GroupSpace, groups: Sequence[int]) -> list[int]:
    """Split groups into single nodes until the quotient graph is acyclic, in each cycle the one that saves least."""
    groups = list(groups)
    while components := cyclic_components(space.preds, groups):
        for component in components:
            wide = [group for group in component if group & (group - 1)]
            worst = min(
                wide,
                key=lambda group: (
                    plan_cost(space, [1 << v for v in bits(group)]) - plan_cost(space, [group]),
                    group & -group,
                ),
            )
            groups.remove(worst)
            groups.extend(1 << v for v in bits(worst))
    return groups


def merge_greedily(space: GroupSpace, facts: Facts, groups: Sequence[int], deadline: float) -> list[int]:
    """Merge the pair of neighbouring groups that saves most, again and again. Ties go to the smallest nodes."""
    partition = Partition(space, facts, groups)
    costs = {group: plan_cost(space, [group]) for group in groups}
    heap: list[tuple[int, int, int, int]] = []

    def propose(name: int, within: int) -> None:
        mine = partition.mask(name)
        for other in islice(partition.near(name, within), _FAN):
            mask = partition.union(name, other)
            cost = space.cost(mask) if mask else None
            if cost is not None:
                costs[mask] = cost
                gain = costs[mine] + costs[partition.mask(other)] - cost
                if gain > 0:
                    low, high = sorted((mine, partition.mask(other)), key=lambda group: group & -group)
                    heapq.heappush(heap, (-gain, (low & -low).bit_length(), low, high))

    for name in partition.names:
        if time.monotonic() > deadline:
            break
        propose(name, -1 << name)
    while heap and time.monotonic() <= deadline:
        _, _, low, high = heapq.heappop(heap)
        # A name with another mask now means that one of the two has been merged since.
        current = all(partition.mask((group & -group).bit_length() - 1) == group for group in (low, high))
        if current and not partition.waits(low | high):
            name = partition.merge(low | high)
            propose(name, -1)
    return partition.masks


def move_nodes(space: GroupSpace, facts: Facts, groups: Sequence[int], deadline: float) -> list[int]:
    """Move single nodes to a neighbouring group, or out of their group, while that saves anything."""
    current = {group & -group: group for group in groups}
    owner = {v: group for group in groups for v in bits(group)}

    def try_node(v: int) -> bool:
        mine = owner[v]
        left = mine & ~(1 << v)
        left_cost: int | None = 0
        if left:
            left_cost = space.cost(left) if structurally_fit(space, facts, left) else None
        if left_cost is None:
            return False
        mine_cost = plan_cost(space, [mine])
        targets: list[int] = [0] if left else []
        for w in islice(bits(facts.joins[v] & ~mine), 4 * _FAN):
            if owner[w] not in targets and not facts.clash[v] & owner[w]:
                targets.append(owner[w])
        best: tuple[int, int] | None = None
        for target in targets:
            joined = target | 1 << v
            joined_cost = space.cost(joined) if structurally_fit(space, facts, joined) else None
            if joined_cost is None:
                continue
            before = mine_cost + (plan_cost(space, [target]) if target else 0)
            gain = before - left_cost - joined_cost
            if gain > 0 and (best is None or gain > best[0]):
                best = (gain, target)
        if best is None:
            return False
        target = best[1]
        changed = dict(current)
        for old in (mine, target):
            changed.pop(old & -old, None)
        fresh = [group for group in (left, target | 1 << v) if group]
        for group in fresh:
            changed[group & -group] = group
        if execution_order(space.preds, list(changed.values())) is None:
            return False
        current.clear()
        current.update(changed)
        for group in fresh:
            for w in bits(group):
                owner[w] = group
        return True

    improved = True
    while improved:
        improved = False
        for v in range(space.n):
            if time.monotonic() > deadline:
                return sorted(current.values(), key=lambda group: group & -group)
            improved |= try_node(v)
    return sorted(current.values(), key=lambda group: group & -group)


def improve(space: GroupSpace, facts: Facts, groups: Sequence[int], deadline: float) -> list[int]:
    """Alternate greedy merging and node moves until neither saves anything or time is up."""
    groups = list(groups)
    cost = plan_cost(space, groups)
    while True:
        groups = merge_greedily(space, facts, groups, deadline)
        groups = move_nodes(space, facts, groups, deadline)
        now = plan_cost(space, groups)
        if now >= cost or time.monotonic() > deadline:
            return groups
        cost = now
