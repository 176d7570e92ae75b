"""Independent parts of a graph, each solved on its own, equal ones once.

A part is a connected component of "some group that can be in a best plan holds both nodes": every group lies inside one
part, so that without the order between groups a best plan is a best cover of each part. Inside a part nodes are
renumbered ``0, 1, ...`` in their order. The instance of a dynamic program is then exactly the list of (set, cost); two
parts with equal lists have equal solutions position by position, which is what reuse rests on, with no assumption
about the graph.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from fusion_search.search.enumerate import Enumeration
from fusion_search.search.lattice import Budget, Outcome, best_path, cover
from fusion_search.search.ordered import ordered_cover
from fusion_search.search.prices import linear_prices, reduced
from fusion_search.search.space import Facts, Tiebreak, bits

__all__ = ["Part", "Solved", "Work", "join_parts", "solve_jointly", "solve_parts", "split_parts"]

# States and steps, about half a second, after which a linear program for better bounds is worth its time.
_PLAIN_STATES, _PLAIN_STEPS = 100_000, 2_000_000
_BEAM = 64


@dataclass(slots=True)
class Work:
    """Running totals of the dynamic programs."""

    states: int = 0
    transitions: int = 0
    pruned: int = 0
    reused: int = 0

    def add(self, outcome: Outcome) -> Outcome:
        """Count one outcome and hand it on."""
        self.states += outcome.states
        self.transitions += outcome.transitions
        self.pruned += outcome.pruned
        return outcome


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes, and the (set, cost) of every group inside them that a best plan can hold."""

    nodes: int
    groups: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Solved:
    """A part with its plan.

    Attributes
    ----------
    part : Part
        The part; without groups when they could not all be enumerated.
    groups : tuple of int
        A partition of its nodes.
    bound : int
        What the groups inside these nodes cost at least in any plan.
    closed : bool
        Whether `groups` attains the bound.
    ordered : bool
        Whether the order between the groups of this part was part of the problem.
    prices : tuple of int, optional
        Feasible prices of its nodes in ascending order, where they were needed.
    """

    part: Part
    groups: tuple[int, ...]
    bound: int
    closed: bool
    ordered: bool = False
    prices: tuple[int, ...] | None = None


def split_parts(nodes: int, enumeration: Enumeration) -> list[Part]:
    """Split a set of nodes at the borders that no group crosses. Near-linear in the sizes of the groups."""
    parent = {v: v for v in bits(nodes)}

    def find(v: int) -> int:
        while parent[v] != v:
            parent[v] = v = parent[parent[v]]
        return v

    # Groups that grew from one node share it and differ in little else: only what is new to it is united.
    reached: dict[int, int] = {}
    for group, _ in enumeration.groups:
        low = group & -group
        known = reached.get(low, low)
        fresh = group & ~known
        if fresh:
            reached[low] = known | group
            root = find(low.bit_length() - 1)
            for v in bits(fresh):
                other = find(v)
                # Towards the smaller node, so that a part is named by its smallest.
                root, other = min(root, other), max(root, other)
                parent[other] = root
    components: dict[int, int] = {}
    for v in parent:
        root = find(v)
        components[root] = components.get(root, 0) | 1 << v
    members: dict[int, list[tuple[int, int]]] = {root: [] for root in components}
    for group, cost in enumeration.groups:
        members[find((group & -group).bit_length() - 1)].append((group, cost))
    return [Part(components[root], tuple(groups)) for root, groups in members.items()]


def join_parts(parts: Sequence[Part]) -> Part:
    """Return the union of disjoint parts."""
    nodes = 0
    for part in parts:
        nodes |= part.nodes
    return Part(nodes, tuple(group for part in parts for group in part.groups))


class _Packing:
    """Renumbers the nodes of a part as 0, 1, ...; by runs of consecutive nodes, which are few."""

    __slots__ = ("_runs", "_starts", "nodes")

    def __init__(self, nodes: int) -> None:
        self.nodes = list(bits(nodes))
        self._runs: list[tuple[int, int, int]] = []
        self._starts: list[int] = []
        position = 0
        while position < len(self.nodes):
            end = position + 1
            while end < len(self.nodes) and self.nodes[end] == self.nodes[end - 1] + 1:
                end += 1
            self._runs.append((self.nodes[position], (1 << (end - position)) - 1, position))
            self._starts.append(self.nodes[position])
            position = end

    def pack(self, mask: int) -> int:
        """Renumber the members of a set; others are left out."""
        packed = 0
        first = max(0, bisect_left(self._starts, (mask & -mask).bit_length()) - 1)
        top = mask.bit_length()
        for start, width, position in self._runs[first:]:
            if start >= top:
                break
            packed |= (mask >> start & width) << position
        return packed


def _deepen(
    solve: Callable[[list[int], int], Outcome], weights: Sequence[int], base: int, ceiling: int | None
) -> tuple[Outcome, list[int], int]:
    """Solve with few groups, then with more, until the optimum is proved or time is up.

    A plan that costs at most base + room uses only groups of a reduced cost up to room, because reduced costs add up
    and none is negative. So either the program over those groups finds the optimum, or every plan costs more.

    Parameters
    ----------
    solve : callable
        Solves over the groups at the given positions, under the given ceiling.
    weights : sequence of int
        Reduced costs.
    base : int
        Sum of the node prices.
    ceiling : int or None
        A value that is attained, if one is known.

    Returns
    -------
    outcome, kept, bound
        The last outcome, the positions it was solved over, and a lower bound on every plan.
    """
    room, bound = 0, base
    while True:
        if ceiling is not None:
            room = min(room, ceiling - base)
        kept = [i for i, weight in enumerate(weights) if weight <= room]
        outcome = solve(kept, base + room)
        if not outcome.over or base + room == ceiling:
            return outcome, kept, max(bound, outcome.bound)
        bound = base + room
        room = 5 * room + max(base, 0) // 5000 + 1


def _singles_and(groups: Sequence[tuple[int, int]], kept: Sequence[int]) -> list[int]:
    """Add the positions of single nodes, with which no narrow search runs into a dead end."""
    return sorted({*kept, *(i for i, (group, _) in enumerate(groups) if group & (group - 1) == 0)})


@dataclass(frozen=True, slots=True)
class _Answer:
    """An outcome, the positions in the part's groups that its indices mean, and node prices if there are any."""

    outcome: Outcome
    kept: list[int]
    prices: tuple[int, ...] | None = None


def _solve_cover(groups: Sequence[tuple[int, int]], size: int, deadline: float, work: Work) -> _Answer:
    """Solve the relaxed program."""
    budget = Budget(deadline, states=_PLAIN_STATES, steps=_PLAIN_STEPS)
    plain = work.add(cover(groups, size, budget=budget))
    if plain.closed:
        return _Answer(plain, list(range(len(groups))))
    now = time.monotonic()
    prices = linear_prices(groups, size, now + (deadline - now) / 3)
    base, weights = sum(prices), reduced(groups, prices)
    priced = [(group, weight) for (group, _), weight in zip(groups, weights, strict=True)]

    def solve(kept: list[int], ceiling: int) -> Outcome:
        chosen = [priced[i] for i in kept]
        return work.add(cover(chosen, size, base=base, ceiling=ceiling, budget=Budget(deadline)))

    outcome, kept, bound = _deepen(solve, weights, base, None)
    if outcome.closed:
        return _Answer(outcome, kept, tuple(prices))
    # No deadline: one narrow pass is short, and there must be some cover.
    kept = _singles_and(groups, kept)
    guess = work.add(cover([priced[i] for i in kept], size, base=base, beam=_BEAM))
    assert guess.value is not None, "singletons cover every part"
    bound = min(guess.value, max(bound, plain.bound))
    return _Answer(replace(guess, bound=bound, closed=bound == guess.value), kept, tuple(prices))


def _pick(outcome: Outcome, final: Hashable, candidates: Sequence[int], tiebreak: Tiebreak) -> tuple[int, ...]:
    path = best_path(outcome.levels, final, lambda i: tiebreak(candidates[i]))
    return tuple(candidates[i] for i in path)


def solve_parts(parts: Sequence[Part], tiebreak: Tiebreak, deadline: float, work: Work, *, reuse: bool = True) -> list[Solved]:
    """Solve the relaxed program of each part.

    Ties are broken by `tiebreak` in each part, among all of its optimal covers, also where the outcome is reused.
    """

    def likeness(part: Part) -> tuple[int, int, int]:
        return part.nodes.bit_count(), len(part.groups), sum(cost for _, cost in part.groups)

    alike = Counter(likeness(part) for part in parts)
    known: dict[tuple[tuple[int, int], ...], _Answer] = {}
    solved = []
    for part in parts:
        if part.nodes & (part.nodes - 1) == 0:
            solved.append(Solved(part, (part.nodes,), part.groups[0][1], True))
            continue
        packing = _Packing(part.nodes)
        size = len(packing.nodes)
        packed = tuple((packing.pack(group), cost) for group, cost in part.groups)
        answer = known.get(packed) if reuse and alike[likeness(part)] > 1 else None
        if answer is None:
            answer = _solve_cover(packed, size, deadline, work)
            if reuse and alike[likeness(part)] > 1:
                known[packed] = answer
        else:
            work.reused += 1
        outcome = answer.outcome
        groups = _pick(outcome, 0, [part.groups[i][0] for i in answer.kept], tiebreak)
        solved.append(Solved(part, groups, outcome.bound, outcome.closed, prices=answer.prices))
    return solved


def _joint_prices(members: Sequence[Solved], deadline: float) -> list[int]:
    price: dict[int, int] = {}
    for member in members:
        packing = _Packing(member.part.nodes)
        prices: Sequence[int] | None = member.prices
        if prices is None:
            packed = [(packing.pack(group), cost) for group, cost in member.part.groups]
            now = time.monotonic()
            prices = linear_prices(packed, len(packing.nodes), now + (deadline - now) / 3)
        price.update(zip(packing.nodes, prices, strict=True))
    return [price[v] for v in sorted(price)]


def solve_jointly(
    members: Sequence[Solved],
    facts: Facts,
    attained: tuple[int, ...],
    tiebreak: Tiebreak,
    deadline: float,
    work: Work,
) -> Solved:
    """Solve parts as one, with the order between their groups, by `ordered_cover`.

    Parameters
    ----------
    members : sequence of Solved
        Disjoint parts, usually ones whose relaxed plans wait for each other. Prices of theirs are feasible for the
        union, whose groups are theirs, and no better ones come from a linear program that knows no order.
    facts : Facts
        Closures in the whole graph: paths through nodes outside the part count. Such nodes may wait for each other
        more than their paths tell once they are grouped, so the result is a true bound and the caller checks again.
    attained : tuple of int
        Some partition of the union with an execution order: the ceiling, and the answer when time is up.
    """
    part = join_parts([member.part for member in members])
    bound = sum(member.bound for member in members)
    packing = _Packing(part.nodes)
    size = len(packing.nodes)
    packed = [(packing.pack(group), cost) for group, cost in part.groups]
    above = [packing.pack(facts.ancestors[v]) for v in packing.nodes]
    needs = []
    for group, _ in packed:
        need = 0
        for v in bits(group):
            need |= above[v]
        needs.append(need & ~group)
    cost_of = dict(part.groups)
    ceiling = sum(cost_of[group] for group in attained)
    final = ((1 << size) - 1, ())
    kept = list(range(len(packed)))
    outcome = None
    # States are dearer here, and where the relaxed program needed prices this one will.
    if all(member.prices is None for member in members):
        budget = Budget(deadline, states=_PLAIN_STATES // 10, steps=_PLAIN_STEPS // 10)
        outcome = work.add(ordered_cover(packed, needs, size, ceiling=ceiling, budget=budget))
    if outcome is None or not outcome.closed:
        bound = max(bound, 0 if outcome is None else outcome.bound)
        prices = _joint_prices(members, deadline)
        base, weights = sum(prices), reduced(packed, prices)
        priced = [(group, weight) for (group, _), weight in zip(packed, weights, strict=True)]

        def solve(kept: list[int], ceiling: int) -> Outcome:
            chosen, chosen_needs = [priced[i] for i in kept], [needs[i] for i in kept]
            budget = Budget(deadline)
            return work.add(ordered_cover(chosen, chosen_needs, size, base=base, ceiling=ceiling, budget=budget))

        outcome, kept, proved = _deepen(solve, weights, base, ceiling)
        if not outcome.closed:
            kept = _singles_and(packed, kept)
            chosen, chosen_needs = [priced[i] for i in kept], [needs[i] for i in kept]
            guess = work.add(ordered_cover(chosen, chosen_needs, size, base=base, beam=_BEAM))
            if guess.value is not None and guess.value < ceiling:
                ceiling, attained = guess.value, _pick(guess, final, [part.groups[i][0] for i in kept], tiebreak)
            bound = min(ceiling, max(bound, proved))
            return Solved(part, attained, bound, bound == ceiling, True, tuple(prices))
    groups = _pick(outcome, final, [part.groups[i][0] for i in kept], tiebreak)
    return Solved(part, groups, outcome.bound, True, True)
