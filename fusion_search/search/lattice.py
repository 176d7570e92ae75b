"""The relaxed dynamic program: cheapest cover of a part by disjoint groups, whatever order they wait for each other in.

State: the set of covered nodes. The lowest uncovered node must be covered by some group, so only the groups that hold
it branch; all lower nodes are covered, so it is the lowest node of each of them. States therefore sweep the node order
and stay few when the order keeps chains together. Leaving out that the quotient graph must be acyclic makes the result
a true lower bound, and the optimum whenever its groups happen to be acyclic.

Each state keeps its least value and *every* transition that reaches it at that value. The paths to the final state are
then exactly the optimal covers, so that ties are broken afterwards (`best_path`) and cost nothing during the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Budget", "Entry", "Level", "Outcome", "best_path", "cover"]


@dataclass(slots=True)
class Entry:
    """Least value of a state, and (level, state, group index) of every transition that attains it."""

    value: int
    origins: list[tuple[int, Any, int]]


Level = dict[Any, Entry]


@dataclass(frozen=True, slots=True)
class Budget:
    """When a dynamic program must stop: on `time.monotonic`, or after so many states and steps (options looked at)."""

    deadline: float = float("inf")
    states: int = 2_000_000
    steps: int = 1 << 62

    def spent(self, states: int, steps: int) -> bool:
        """Whether it is time to stop."""
        return states > self.states or steps > self.steps or time.monotonic() > self.deadline


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a dynamic program.

    Attributes
    ----------
    closed : bool
        True when every transition that could matter was tried: `value` is then the optimum.
    value : int or None
        Least sum of weights found, None when no complete path was.
    bound : int
        No complete path costs less (paths over the ceiling excepted). Equal to `value` when closed.
    levels : tuple of dict
        The states of optimal paths, for `best_path`; the last level holds the final state alone.
    states, transitions, pruned : int
        What was explored; pruned counts transitions over the ceiling.
    over : bool
        True when it is proved that every path costs more than the ceiling.
    """

    closed: bool
    value: int | None
    bound: int
    levels: tuple[Level, ...] = field(repr=False)
    states: int = 0
    transitions: int = 0
    pruned: int = 0
    over: bool = False


def best_path(levels: Sequence[Level], final: Hashable, tiebreak: Callable[[int], int]) -> list[int]:
    """Return the group indices of the optimal path to `final` with the least sum of `tiebreak`.

    Exact over all optimal paths; linear in the tied transitions on them.
    """
    last = len(levels) - 1
    wanted: list[list[Hashable]] = [[] for _ in levels]
    wanted[last].append(final)
    seen = {(last, final)}
    for at in range(last, -1, -1):
        for state in wanted[at]:
            for level, origin, _ in levels[at][state].origins:
                if (level, origin) not in seen:
                    seen.add((level, origin))
                    wanted[level].append(origin)
    best: dict[tuple[int, Hashable], tuple[int, int, tuple[int, Hashable] | None]] = {}
    for at, states in enumerate(wanted):
        for state in states:
            chosen: tuple[int, int, tuple[int, Hashable] | None] | None = None
            for level, origin, group in levels[at][state].origins:
                value = best[level, origin][0] + tiebreak(group)
                # Equal sums are equal multisets of keys; the group index decides which nodes carry them.
                if chosen is None or (value, group) < chosen[:2]:
                    chosen = (value, group, (level, origin))
            best[at, state] = (0, -1, None) if chosen is None else chosen
    path = []
    _, group, previous = best[last, final]
    while previous is not None:
        path.append(group)
        _, group, previous = best[previous]
    return path[::-1]


def cover(
    groups: Sequence[tuple[int, int]],
    size: int,
    *,
    base: int = 0,
    ceiling: int | None = None,
    beam: int | None = None,
    budget: Budget | None = None,
) -> Outcome:
    """Cover nodes ``0..size-1`` by disjoint groups of least total weight.

    Parameters
    ----------
    groups : sequence of (int, int)
        Set and weight of each group, weights at least 0; with node prices, the reduced costs.
    size : int
        Number of nodes.
    base : int
        What reduced costs left out, the sum of the node prices; added to every value and bound.
    ceiling : int, optional
        A value known to be attainable; paths over it are cut.
    beam : int, optional
        Keep only so many states a level and so many options a state, the cheapest; then never closed.
    budget : Budget, optional
        When to stop.

    Returns
    -------
    Outcome
        Exact when closed. Otherwise `bound` is the least value of the states still open, which every path crosses.

    Notes
    -----
    O(states * groups at a node) operations on integers as long as the span of a group.
    """
    budget = budget or Budget()
    at_node: list[list[tuple[int, int, int]]] = [[] for _ in range(size)]
    for index, (group, weight) in enumerate(groups):
        low = (group & -group).bit_length() - 1
        at_node[low].append((weight, group >> low, index))
    room = None if ceiling is None else ceiling - base
    levels: list[Level] = [{} for _ in range(size + 1)]
    # A state is the covered set shifted by its level, the lowest uncovered node: small integers, equal far apart.
    levels[0][0] = Entry(0, [])
    states, transitions, pruned, steps = 1, 0, 0, 0
    closed = beam is None
    for low in range(size):
        level = levels[low]
        if not level:
            continue
        # Cheapest first, so that one comparison with the ceiling ends a state.
        options = sorted(at_node[low])
        if beam is not None and len(level) > beam:
            kept = sorted(level.items(), key=lambda item: (item[1].value, item[0]))[:beam]
            level = levels[low] = dict(kept)
        for count, (state, entry) in enumerate(level.items()):
            if not count & 15 and budget.spent(states, steps):
                # Every complete path crosses one of the states from here on.
                bound = min(entry.value for later in levels[low:] for entry in later.values())
                return Outcome(False, None, base + bound, (), states, transitions, pruned)
            value = entry.value
            steps += len(options)
            left = beam or -1
            for tried, (weight, group, index) in enumerate(options):
                if group & state:
                    continue
                if not left:
                    break
                left -= 1
                total = value + weight
                if room is not None and total > room:
                    pruned += len(options) - tried
                    break
                transitions += 1
                covered = group | state
                step = (~covered & (covered + 1)).bit_length() - 1
                covered >>= step
                target = levels[low + step]
                known = target.get(covered)
                if known is None:
                    target[covered] = Entry(total, [(low, state, index)])
                    states += 1
                elif total < known.value:
                    known.value = total
                    known.origins = [(low, state, index)]
                elif total == known.value:
                    known.origins.append((low, state, index))
    final = levels[size].get(0)
    if final is None:  # every path is over the ceiling: singletons leave no other way to end here
        return Outcome(False, None, base if ceiling is None else ceiling, (), states, transitions, pruned, True)
    value = base + final.value
    return Outcome(closed, value, value if closed else base, tuple(levels), states, transitions, pruned)
