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
from itertools import pairwise
from typing import NamedTuple

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
    waits = _waits(preds, groups)
    after: list[list[int]] = [[] for _ in groups]
    for k, before in enumerate(waits):
        for j in bits(before):
            after[j].append(k)
    stored = [memory.stored_bytes(group) for group in groups]
    during = [size + memory.scratch_bytes(group) for size, group in zip(stored, groups, strict=True)]
    # A state: groups that have run, groups that are ready, nodes that have run, bytes alive.
    start = (0, sum(1 << k for k, before in enumerate(waits) if not before), 0, 0)
    everything = (1 << len(groups)) - 1
    dead: set[int] = set()

    def steps(state: tuple[int, int, int, int]) -> Iterator[tuple[int, int, int, int]]:
        done, ready, nodes, alive = state
        found = []
        for k in bits(ready):
            if alive + during[k] > limit:
                continue
            found.append((stored[k] - memory.freed_bytes(nodes, groups[k]), k))
            if found[-1][0] <= 0:
                found = found[-1:]
                break
        for added, k in sorted(found):
            ran = done | 1 << k
            fresh = sum(1 << j for j in after[k] if not waits[j] & ~ran)
            yield ran, ready & ~(1 << k) | fresh, nodes | groups[k], alive + added

    path = [(start, steps(start))]
    while path:
        state, following = path[-1]
        if state[0] == everything:
            runs = [upper[0][0] & ~lower[0][0] for lower, upper in pairwise(path)]
            return [groups[run.bit_length() - 1] for run in runs], True
        for reached in following:
            if reached[0] not in dead:
                path.append((reached, steps(reached)))
                break
        else:
            dead.add(state[0])
            if len(dead) > _ORDERED:
                return None, False
            path.pop()
    return None, True


def _waits(preds: Sequence[int], groups: Sequence[int]) -> list[int]:
    """For each group, by index, the groups that it reads from."""
    owner = {v: k for k, group in enumerate(groups) for v in bits(group)}
    found = []
    for k, group in enumerate(groups):
        read = 0
        for v in bits(group):
            read |= preds[v]
        found.append(sum(1 << j for j in {owner[v] for v in bits(read & ~group)} - {k}))
    return found


class _KeepAll:
    """A space in which no partition of its nodes beats a group: each costs so much more that one is always cheaper than two."""

    def __init__(self, space: CoarseSpace, extra: int) -> None:
        self.space, self.extra = space, extra
        self.n, self.preds, self.succs, self.neighbours = space.n, space.preds, space.succs, space.neighbours
        self.heavy, self.solo, self.max_nodes, self.max_heavy = space.heavy, space.solo, space.max_nodes, space.max_heavy
        self.key, self.blocked, self.hopeless, self.descriptions = space.key, space.blocked, space.hopeless, space.descriptions
        self.crowded, self.room = space.crowded, space.room
        self.computed = space.computed

    def cost(self, group: int) -> int | None:
        found = self.space.cost(group)
        return None if found is None else found + self.extra


class _State(NamedTuple):
    """A down-set: what has run, the nodes behind that, the nodes that are ready, and the bytes that are alive."""

    done: int
    ran: int
    ready: int
    alive: int


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

    def start(self) -> _State:
        """Nothing has run."""
        return _State(0, 0, sum(1 << v for v, before in enumerate(self.space.preds) if not before), 0)

    def steps(self, state: _State) -> Iterator[tuple[int, int, int, _State]]:
        """Yield (weight, group, bytes alive during it, state behind it) of every group that can run next within the limit.

        The lowest node of such a group is ready.
        """
        limit, memory, preds, succs = self.limit, self.memory, self.space.preds, self.space.succs
        done, ran, ready, alive = state
        for v in bits(ready):
            for weight, group, nodes, needs, stored, scratch in self.from_node[v]:
                during = alive + stored + scratch
                if during > limit or group & done or needs & ~done:
                    continue
                after, near = done | group, 0
                for u in bits(group):
                    near |= succs[u]
                fresh = sum(1 << w for w in bits(near & ~after) if not preds[w] & ~after)
                left = alive + stored - memory.freed_bytes(ran, nodes)
                yield weight, group, during, _State(after, ran | nodes, ready & ~group | fresh, left)


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
    levels: list[dict[int, tuple[int, _State]]] = [{} for _ in range(n + 1)]
    levels[0][0] = (0, moves.start())
    came: dict[int, tuple[int, int]] = {}
    for level in range(n):
        if time.monotonic() > deadline:
            width = 2
        states = list(levels[level].values())
        if len(states) > width:
            cheap = sorted(states, key=lambda entry: (entry[0], entry[1].alive, entry[1].done))[: width // 2]
            small = sorted(states, key=lambda entry: (entry[1].alive, entry[0], entry[1].done))[: width // 2]
            states = list({entry[1].done: entry for entry in (*cheap, *small)}.values())
        for weight, state in states:
            for more, group, _, reached in moves.steps(state):
                target = levels[level + group.bit_count()]
                known = target.get(reached.done)
                if known is None or weight + more < known[0]:
                    target[reached.done] = (weight + more, reached)
                    came[reached.done] = (state.done, group)
        levels[level] = {}
    final = levels[n].get((1 << n) - 1)
    return None if final is None else (final[0], _path(came, (1 << n) - 1))


def _best_first(moves: _Moves, ceiling: int | None, deadline: float) -> tuple[int | None, tuple[int, ...], int, bool, int]:
    """Weight and groups of the best path below a ceiling, the least weight that any other has, whether all was looked at, states."""
    n = moves.space.n
    best = {0: 0}
    came: dict[int, tuple[int, int]] = {}
    closed: set[int] = set()
    heap = [(0, n, moves.start())]  # weight, nodes to run
    while heap:
        weight, left, state = heapq.heappop(heap)
        if state.done in closed:
            continue
        if not left:
            return weight, _path(came, state.done), weight, True, len(best)
        if len(best) > _STATES or (not len(closed) & 255 and time.monotonic() > deadline):
            return None, (), weight, False, len(best)
        closed.add(state.done)
        for more, group, _, reached in moves.steps(state):
            total = weight + more
            if ceiling is not None and total >= ceiling:
                continue
            if reached.done not in best or total < best[reached.done]:
                best[reached.done] = total
                came[reached.done] = (state.done, group)
                heapq.heappush(heap, (total, left - group.bit_count(), reached))
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
    best = {0: 0}
    closed: set[int] = set()
    heap = [(0, moves.space.n, moves.start())]
    while heap:
        peak, left, state = heapq.heappop(heap)
        if state.done in closed:
            continue
        if not left:
            return peak
        if len(best) > _STATES or (not len(closed) & 255 and time.monotonic() > deadline):
            return None
        closed.add(state.done)
        for _, group, during, reached in moves.steps(state):
            worst = max(peak, during)
            if reached.done not in best or worst < best[reached.done]:
                best[reached.done] = worst
                heapq.heappush(heap, (worst, left - group.bit_count(), reached))
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
