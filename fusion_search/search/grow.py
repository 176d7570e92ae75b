"""Plans by growth in execution order, for components whose groups are too many to list.

Groups are made one after the other. A group starts at the first node that can run, and takes in, of the nodes that are joined to it
and could run by then, the one that adds fewest values to its border; ties go to the smallest node. So what has run is always closed under
predecessors: groups are convex and never wait for each other. Of the sizes on the way, each half of the one before, the cheapest
for each node is kept. Prices are asked a few times for each group, so that time grows with the edges, not with the groups there could be.
"""

from __future__ import annotations

import heapq
import time

from fusion_search.search.space import Facts, GroupSpace, bits

__all__ = ["grow_plan"]


def grow_plan(space: GroupSpace, facts: Facts, nodes: int, deadline: float) -> list[int]:
    """Partition nodes into groups grown in execution order.

    Parameters
    ----------
    space, facts : GroupSpace, Facts
        The space and its closures.
    nodes : int
        Nodes to partition, a component of `facts.joins`; others are taken to have run.
    deadline : float
        On the clock of `time.monotonic`; what is left then stays single.

    Returns
    -------
    list of int
        Legal groups, each after those that it needs.
    """
    waits = {v: (space.preds[v] & nodes).bit_count() for v in bits(nodes)}
    ready = [v for v, count in waits.items() if not count]
    heapq.heapify(ready)
    left, found = nodes, []
    while ready:
        seed = heapq.heappop(ready)
        if not left >> seed & 1:
            continue
        group = 1 << seed
        if time.monotonic() <= deadline:
            group = _best_prefix(space, _sequence(space, facts, left, waits, seed))
        left &= ~group
        found.append(group)
        for v in bits(group):
            for w in bits(space.succs[v] & nodes):
                waits[w] -= 1
                if not waits[w]:
                    heapq.heappush(ready, w)
    return found


def _sequence(space: GroupSpace, facts: Facts, left: int, waits: dict[int, int], seed: int) -> list[int]:
    """Nodes in the order in which a group takes them in, from its seed to as many as a group may hold."""
    succs, preds = space.succs, space.preds
    group = inputs = barred = near = heavy = 0
    missing: dict[int, int] = {}  # predecessors that still have to run, of nodes that the group reaches
    outside: dict[int, int] = {}  # readers outside, of members
    seen: dict[int, int] = {}  # when a node came into reach
    sequence: list[int] = []
    v = seed
    while True:
        sequence.append(v)
        bit = 1 << v
        group |= bit
        inputs = (inputs | preds[v]) & ~group
        barred |= facts.clash[v]
        heavy += space.heavy >> v & 1
        near |= facts.joins[v]
        outside[v] = succs[v].bit_count()
        for u in bits(preds[v] & group):
            outside[u] -= 1
        for w in bits(succs[v] & left):
            missing[w] = missing.get(w, waits[w]) - 1
        if len(sequence) == space.max_nodes:
            return sequence
        best: tuple[int, int, int] | None = None
        for w in bits(near & left & ~group & ~barred):
            if missing.get(w, waits[w]) or (heavy + (space.heavy >> w & 1) > space.max_heavy and space.crowded(group | 1 << w)):
                continue
            made_here = preds[w] & group
            closed = sum(outside[u] == 1 for u in bits(made_here))
            added = 1 - closed - (inputs >> w & 1) + (preds[w] & ~group & ~inputs).bit_count()
            age = seen.setdefault(w, len(sequence))
            if best is None or (added, age, w) < best:
                best = added, age, w
        if best is None:
            return sequence
        v = best[2]


def _best_prefix(space: GroupSpace, sequence: list[int]) -> int:
    """The start of a sequence that is cheapest for each of its nodes, of a few lengths; the first node alone is always one."""
    chosen, price, length = 1 << sequence[0], space.cost(1 << sequence[0]) or 0, 1
    size = len(sequence)
    while size > 1:
        group = sum(1 << v for v in sequence[:size])
        cost = space.cost(group)
        if cost is not None:
            if cost * length < price * size:
                chosen, price, length = group, cost, size
            elif length > size:  # the shorter, the dearer
                break
        size = size * 3 // 4
    return chosen
