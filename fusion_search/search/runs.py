"""Plans of consecutive nodes: a shortest path over the places where a sequence of nodes is cut.

The nodes of a component, in topological order, are cut into runs; a run is a group. Where each node comes before the
next in the order of the graph itself (every two nodes are joined by a path, as in a long chain of operators), a convex
set is a run, so the best such plan is the best of all. Elsewhere it is a good plan to start from: runs never wait for
each other, and siblings lie side by side.

The path is found by A*: floors of runs are cheap (`Floors`), the least sum of floors from a cut to the end bounds what
is left, and a run is priced only when its floor puts it on a path that may be the best. Where nothing but bytes and launches
costs, that is once for each group of the plan, however long the sequence is.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fusion_search.search.narrow import Borders
from fusion_search.search.space import Facts, GroupSpace, structurally_fit

__all__ = ["Floors", "RunPath", "Runs", "in_line"]


class Floors(Protocol):
    """Lower bounds on the cost of groups of one sequence of nodes."""

    def rows(self) -> Sequence[npt.NDArray[np.int64]]:
        """For each node what the runs of 1, 2, ... nodes from it cost at least, in attoseconds; at least one entry each."""

    def whole(self) -> int:
        """What every plan of these nodes costs at least."""

    def borders(self) -> Borders | None:
        """What crosses borders between these nodes; None where that is not so simple."""


@dataclass(frozen=True, slots=True)
class Runs:
    """A partition into runs.

    Attributes
    ----------
    groups : tuple of int
    cost : int
    bound : int
        No partition into runs of at most `max_heavy` heavy nodes costs less.
    priced : int
        Runs whose cost was asked for.
    """

    groups: tuple[int, ...]
    cost: int
    bound: int
    priced: int


def in_line(facts: Facts, sequence: Sequence[int]) -> bool:
    """Whether there is a path from each node of an ascending sequence to the next."""
    return all(facts.descendants[a] >> b & 1 for a, b in pairwise(sequence))


def _stops(space: GroupSpace, facts: Facts, sequence: Sequence[int]) -> list[int]:
    """Index after the longest run from each node that holds no clash and at most `max_heavy` heavy nodes. O(n) set operations.

    Groups of more lie on no path (`GroupSpace.max_heavy`), so a sequence in line has none.
    """
    n = len(sequence)
    place = {v: i for i, v in enumerate(sequence)}
    inside = sum(1 << v for v in sequence)
    stops, stop = [n] * n, n
    heavies: list[int] = []  # indices of the heavy nodes from here on, the nearest last
    for i in reversed(range(n)):
        v = sequence[i]
        after = (facts.clash[v] & inside) >> v + 1
        if after:
            stop = min(stop, place[v + (after & -after).bit_length()])
        if space.heavy >> v & 1:
            heavies.append(i)
        if len(heavies) > space.max_heavy:
            stop = min(stop, heavies[-1 - space.max_heavy])
        stops[i] = stop = max(stop, i + 1)
    return stops


class RunPath:
    """The cuts of a sequence of nodes as a graph: a path from the first cut to the last is a partition into runs.

    Parameters
    ----------
    space, facts : GroupSpace, Facts
        The space and its closures.
    sequence : sequence of int
        Nodes, ascending.
    floors : Floors
        Their floors.
    """

    def __init__(self, space: GroupSpace, facts: Facts, sequence: Sequence[int], floors: Floors) -> None:
        self.space, self.facts, self.sequence = space, facts, list(sequence)
        # No run reaches past the first node that clashes with one of its own.
        limits = _stops(space, facts, self.sequence)
        self.rows = [row[: stop - i] for i, (row, stop) in enumerate(zip(floors.rows(), limits, strict=True))]
        n = len(self.sequence)
        ceiling = int(np.iinfo(np.int64).max) // 4
        ahead = np.zeros(n + 1, np.int64)
        for i in reversed(range(n)):
            row = self.rows[i]
            ahead[i] = min(int((row + ahead[i + 1 : i + 1 + len(row)]).min()), ceiling)
        self.ahead = ahead
        self._costs: dict[tuple[int, int], int | None] = {}
        # Edges from a cut in the order of what a path over them costs at least, the longest run first among equals.
        self._edges: dict[int, tuple[Any, Any]] = {}

    @property
    def least(self) -> int:
        """What any partition into runs costs at least, before one is priced."""
        return int(self.ahead[0])

    def edge(self, i: int, rank: int) -> tuple[int, int] | None:
        """The end of the edge of this rank from cut i, and what a path from i over it costs at least."""
        known = self._edges.get(i)
        if known is None:
            row = self.rows[i]
            through = row + self.ahead[i + 1 : i + 1 + len(row)]
            order = np.argsort(through[::-1], kind="stable")
            known = self._edges[i] = (i + len(row) - order, through[::-1][order])
        if rank >= len(known[0]):
            return None
        return int(known[0][rank]), int(known[1][rank])

    def cost(self, i: int, j: int) -> int | None:
        """Cost of the run from cut i to cut j."""
        if (i, j) not in self._costs:
            group = sum(1 << v for v in self.sequence[i:j])
            fit = j == i + 1 or structurally_fit(self.space, self.facts, group)
            self._costs[i, j] = self.space.cost(group) if fit else None
        return self._costs[i, j]

    def solve(self, *, most_priced: int, deadline: float) -> Runs:
        """Cut the sequence into runs of least cost.

        Parameters
        ----------
        most_priced : int
            How many runs may be priced on the way to the optimum.
        deadline : float
            When to stop, on the clock of `time.monotonic`; some plan is always found.

        Returns
        -------
        Runs
            The best when `cost` equals `bound`.
        """
        n = len(self.sequence)
        best: list[int | None] = [None] * (n + 1)
        origin = [0] * (n + 1)
        best[0] = 0
        # (least cost of a path, -end, 0 for a cut or 1 for an edge not yet priced, start, rank)
        heap: list[tuple[int, int, int, int, int]] = [(int(self.ahead[0]), 0, 0, 0, 0)]
        done = [False] * (n + 1)
        bound = int(self.ahead[0])
        while heap:
            least, end, kind, i, rank = heapq.heappop(heap)
            bound = max(bound, least)
            if kind == 0:
                if -end == n:
                    return self._result(origin, n, int(best[n] or 0), least)
                if done[-end]:
                    continue
                done[-end] = True
                i, rank = -end, -1
            elif len(self._costs) > most_priced or time.monotonic() > deadline:
                break
            here = best[i]
            assert here is not None, "a cut is expanded after it was reached"
            if kind == 1:
                price = self.cost(i, -end)
                known = best[-end]
                if price is not None and (known is None or here + price < known):
                    best[-end], origin[-end] = here + price, i
                    heapq.heappush(heap, (here + price + int(self.ahead[-end]), end, 0, 0, 0))
            following = self.edge(i, rank + 1)
            if following is not None:
                heapq.heappush(heap, (here + following[1], -following[0], 1, i, rank + 1))
        return self._finish(best, origin, bound)

    def _finish(self, best: list[int | None], origin: list[int], bound: int) -> Runs:
        """Go on from the furthest cut that was reached, each time over the first legal one of a few edges."""
        n = len(self.sequence)
        at = max(k for k, cost in enumerate(best) if cost is not None)
        while at < n:
            here = best[at]
            assert here is not None
            chosen, price = at + 1, self.cost(at, at + 1)
            for rank in range(4):
                found = self.edge(at, rank)
                longer = self.cost(at, found[0]) if found else None
                if found and longer is not None:
                    chosen, price = found[0], longer
                    break
            assert price is not None, "single nodes are legal"
            best[chosen], origin[chosen], at = here + price, at, chosen
        total = best[n]
        assert total is not None
        return self._result(origin, n, total, min(bound, total))

    def _result(self, origin: list[int], n: int, cost: int, bound: int) -> Runs:
        groups = []
        at = n
        while at:
            groups.append(sum(1 << v for v in self.sequence[origin[at] : at]))
            at = origin[at]
        return Runs(tuple(reversed(groups)), cost, bound, len(self._costs))
