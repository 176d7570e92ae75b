"""The search under a limit on live memory: least J over partitions *and* orders in which no moment needs more than the limit.

What is alive depends on the set of nodes that have run (`fusion.memory`), so a plan is a path through down-sets, each step a
group all of whose operands have run, and the limit forbids steps. Least cost over such paths is a shortest path. Node prices that
no group undercuts (`prices`) make every step's weight its reduced cost, at least 0, so the search goes best first, and the least
weight on its frontier bounds every path that is not yet finished. Parts cannot be solved apart here, since memory is shared.

1. The plan without the limit, less groups that break it alone, is a lower bound, and where its groups have an order that keeps to
   the limit it is the optimum.
2. A beam gives a plan that keeps to the limit: a ceiling.
3. Best first over down-sets closes the gap, or proves that nothing keeps to the limit; out of budget, the better of ceiling and
   finished paths is returned with the frontier's bound.

Groups that a partition of their own nodes beats stay: they may need less memory than it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.constraints import ConstrainedSpace
from fusion_search.fusion.demands import PeakBytes
from fusion_search.fusion.memory import LiveMemory
from fusion_search.search.enumerate import enumerate_groups
from fusion_search.search.prices import linear_prices, reduced
from fusion_search.search.space import GroupSpace, bits, derive_facts

__all__ = ["Within", "fitting_order", "peak_of", "plan_within"]

#: Down-sets that are kept at most, and those that an ordering of fixed groups tries.
_STATES, _ORDERED = 400_000, 50_000
_BEAM = 48
_MAX_SETS = 200_000


@dataclass(frozen=True, slots=True)
class Within:
    """The best plan found that keeps to the limit.

    Attributes
    ----------
    groups : tuple of int or None
        In an order that keeps to it; None when none was found.
    bound : int
        No such plan costs less.
    closed : bool
        The plan is the best; without a plan: there is none.
    least_peak_bytes : int or None
        When there is none: what the plan that needs least needs, where that was proved.
    states : int
        Down-sets visited.
    """

    groups: tuple[int, ...] | None
    bound: int
    closed: bool
    least_peak_bytes: int | None = None
    states: int = 0


def peak_of(memory: LiveMemory, groups: Sequence[int]) -> int:
    """Return the most bytes that are alive at once when groups run in the order given."""
    done = alive = most = 0
    for group in groups:
        stored = memory.stored_bytes(group)
        most = max(most, alive + stored + memory.scratch_bytes(group))
        alive += stored - memory.freed_bytes(done, group)
        done |= group
    return most


def fitting_order(memory: LiveMemory, preds: Sequence[int], groups: Sequence[int], limit: int) -> tuple[list[int] | None, bool]:
    """Find an order in which fixed groups keep to a limit.

    A group that is ready, fits and leaves no more alive than before runs at once: it would leave no more later on, and what others
    free does not make it worse. Otherwise each ready group is tried, the one that adds least first; sets from which no order led on
    are not tried again.

    Returns
    -------
    order : list of int or None
    proved : bool
        Whether None means that there is no such order, and not that too many were tried.
    """
    needs = {}
    for group in groups:
        read = 0
        for v in bits(group):
            read |= preds[v]
        needs[group] = read & ~group
    everything = 0
    for group in groups:
        everything |= group
    dead: set[int] = set()

    def steps(done: int, alive: int) -> Iterator[tuple[int, int]]:
        found = []
        for group in groups:
            if group & done or needs[group] & ~done:
                continue
            stored = memory.stored_bytes(group)
            if alive + stored + memory.scratch_bytes(group) > limit:
                continue
            added = stored - memory.freed_bytes(done, group)
            if added <= 0:
                yield group, alive + added
                return
            found.append((added, group))
        for added, group in sorted(found):
            yield group, alive + added

    path: list[tuple[int, Iterator[tuple[int, int]]]] = [(0, steps(0, 0))]
    order: list[int] = []
    while path:
        done, following = path[-1]
        if done == everything:
            return order, True
        for group, alive in following:
            after = done | group
            if after not in dead:
                order.append(group)
                path.append((after, steps(after, alive)))
                break
        else:
            dead.add(done)
            if len(dead) > _ORDERED:
                return None, False
            path.pop()
            if order:
                order.pop()
    return None, True


class _KeepAll:
    """A space in which no partition of its nodes beats a group: each costs so much more that one is always cheaper than two."""

    def __init__(self, space: CoarseSpace, extra: int) -> None:
        self.space, self.extra = space, extra
        self.n, self.preds, self.succs, self.neighbours = space.n, space.preds, space.succs, space.neighbours
        self.heavy, self.solo, self.max_nodes, self.max_heavy = space.heavy, space.solo, space.max_nodes, space.max_heavy
        self.key, self.blocked, self.hopeless, self.descriptions = space.key, space.blocked, space.hopeless, space.descriptions

    def cost(self, group: int) -> int | None:
        found = self.space.cost(group)
        return None if found is None else found + self.extra


@dataclass(slots=True)
class _Moves:
    """The groups of a space as steps between down-sets."""

    space: CoarseSpace
    memory: LiveMemory
    limit: int
    groups: list[tuple[int, int]]
    complete: bool
    prices: list[int]
    #: By lowest node: (weight, group, nodes behind it, what it needs, bytes it stores, bytes of its scratch).
    from_node: list[list[tuple[int, int, int, int, int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.from_node = [[] for _ in range(self.space.n)]
        for (group, _), weight in zip(self.groups, reduced(self.groups, self.prices), strict=True):
            needs = 0
            for v in bits(group):
                needs |= self.space.preds[v]
            nodes = self.space.expand(group)
            entry = (weight, group, nodes, needs & ~group, self.memory.stored_bytes(nodes), self.memory.scratch_bytes(nodes))
            self.from_node[(group & -group).bit_length() - 1].append(entry)
        for entries in self.from_node:
            entries.sort()

    def steps(self, done: int, alive: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (weight, group, bytes alive behind it, bytes alive during it) of every group that can run next within the limit."""
        limit, memory = self.limit, self.memory
        behind = self.space.expand(done)
        for v, entries in enumerate(self.from_node):
            if done >> v & 1 or self.space.preds[v] & ~done:
                continue
            for weight, group, nodes, needs, stored, scratch in entries:
                if group & done or needs & ~done:
                    continue
                during = alive + stored + scratch
                if during <= limit:
                    yield weight, group, alive + stored - memory.freed_bytes(behind, nodes), during


def _moves(space: ConstrainedSpace, memory: LiveMemory, limit: int, deadline: float) -> _Moves:
    coarse = CoarseSpace(space, chained=False)
    extra = 1 + 2 * sum(coarse.cost(1 << c) or 0 for c in range(coarse.n))
    kept: GroupSpace = _KeepAll(coarse, extra)
    now = time.monotonic()
    found = enumerate_groups(kept, derive_facts(kept), (1 << coarse.n) - 1, max_sets=_MAX_SETS, deadline=now + (deadline - now) / 3)
    groups = [(group, cost - extra) for group, cost in found.groups]
    now = time.monotonic()
    return _Moves(coarse, memory, limit, groups, found.complete, list(linear_prices(groups, coarse.n, now + (deadline - now) / 3)))


def _beam(moves: _Moves, width: int, deadline: float) -> tuple[int, tuple[int, ...]] | None:
    """A path by the cheapest and by the smallest states of each size: (weight, groups)."""
    n = moves.space.n
    levels: list[dict[int, tuple[int, int, tuple[int, ...]]]] = [{} for _ in range(n + 1)]
    levels[0][0] = (0, 0, ())
    for level in range(n):
        if time.monotonic() > deadline:
            width = 2
        states = list(levels[level].items())
        if len(states) > width:
            cheap = sorted(states, key=lambda item: (item[1][0], item[1][1], item[0]))[: width // 2]
            small = sorted(states, key=lambda item: (item[1][1], item[1][0], item[0]))[: width // 2]
            states = list(dict([*cheap, *small]).items())
        for done, (weight, alive, path) in states:
            for more, group, left, _ in moves.steps(done, alive):
                after = done | group
                target = levels[level + group.bit_count()]
                known = target.get(after)
                if known is None or weight + more < known[0]:
                    target[after] = (weight + more, left, (*path, group))
        levels[level] = {}
    final = levels[n].get((1 << n) - 1)
    return None if final is None else (final[0], final[2])


def _best_first(moves: _Moves, ceiling: int | None, deadline: float) -> tuple[int | None, tuple[int, ...], int, bool, int]:
    """Weight and groups of the best path below a ceiling, the least weight that any other has, whether all was looked at, states."""
    everything = (1 << moves.space.n) - 1
    best = {0: 0}
    came: dict[int, tuple[int, int]] = {}
    closed: set[int] = set()
    heap = [(0, 0, 0, 0)]  # weight, nodes to run, down-set, bytes alive
    while heap:
        weight, left, done, alive = heapq.heappop(heap)
        if done in closed:
            continue
        if done == everything:
            return weight, _path(came, done), weight, True, len(best)
        if len(best) > _STATES or (not len(closed) & 255 and time.monotonic() > deadline):
            return None, (), weight, False, len(best)
        closed.add(done)
        for more, group, behind, _ in moves.steps(done, alive):
            after, total = done | group, weight + more
            if ceiling is not None and total >= ceiling:
                continue
            if after not in best or total < best[after]:
                best[after] = total
                came[after] = (done, group)
                heapq.heappush(heap, (total, left - group.bit_count(), after, behind))
    return None, (), ceiling or 0, True, len(best)


def _path(came: dict[int, tuple[int, int]], done: int) -> tuple[int, ...]:
    found = []
    while done:
        done, group = came[done]
        found.append(group)
    return tuple(reversed(found))


def _least_peak(space: ConstrainedSpace, memory: LiveMemory, deadline: float) -> int | None:
    """What any plan needs at its worst moment at least, by a bottleneck path; None when time was up."""
    # Among all groups: the limit that nothing keeps to has refused some.
    others = [constraint for constraint in space.constraints if not isinstance(constraint, PeakBytes)]
    moves = _moves(ConstrainedSpace(space.base, others, held=space.held), memory, 1 << 62, deadline)
    if not moves.complete:
        return None
    everything = (1 << moves.space.n) - 1
    best = {0: 0}
    closed: set[int] = set()
    heap = [(0, 0, 0, 0)]
    while heap:
        peak, left, done, alive = heapq.heappop(heap)
        if done in closed:
            continue
        if done == everything:
            return peak
        if len(best) > _STATES or (not len(closed) & 255 and time.monotonic() > deadline):
            return None
        closed.add(done)
        for _, group, behind, during in moves.steps(done, alive):
            after, worst = done | group, max(peak, during)
            if after not in best or worst < best[after]:
                best[after] = worst
                heapq.heappush(heap, (worst, left - group.bit_count(), after, behind))
    return None


def plan_within(space: ConstrainedSpace, relaxed: Sequence[int], bound: int, time_limit_s: float) -> Within:
    """Find the best plan that keeps to the limit of a space.

    Parameters
    ----------
    space : ConstrainedSpace
        With a limit on live memory.
    relaxed : sequence of int
        The best plan found without the limit on plans.
    bound : int
        No plan costs less, with or without it.
    time_limit_s : float

    Returns
    -------
    Within
        Exact when closed. Worst case exponential in the width of the graph; the budget ends it before.
    """
    assert space.memory is not None
    assert space.limit_bytes is not None
    deadline = time.monotonic() + time_limit_s
    memory, limit = space.memory, space.limit_bytes
    cost = sum(space.cost(group) or 0 for group in relaxed)
    order, _ = fitting_order(memory, space.preds, relaxed, limit)
    if order is not None and cost == bound:
        return Within(tuple(order), bound, True)
    moves = _moves(space, memory, limit, deadline)
    base = sum(moves.prices)
    found = _beam(moves, _BEAM, time.monotonic() + (deadline - time.monotonic()) / 3)
    ceiling, groups = (None, None) if found is None else (base + found[0], tuple(moves.space.expand(group) for group in found[1]))
    if order is not None and (ceiling is None or cost < ceiling):
        ceiling, groups = cost, tuple(order)
    weight, path, reached, complete, states = _best_first(moves, None if ceiling is None else ceiling - base, deadline)
    if weight is not None:
        ceiling, groups = base + weight, tuple(moves.space.expand(group) for group in path)
    if not moves.complete:
        complete = False
    else:
        bound = max(bound, base + reached)
    if groups is None:
        least = _least_peak(space, memory, max(deadline, time.monotonic() + time_limit_s * 0.1)) if complete else None
        return Within(None, bound, complete, least, states)
    assert ceiling is not None
    if complete:
        bound = ceiling
    return Within(groups, min(bound, ceiling), bound >= ceiling, None, states)
