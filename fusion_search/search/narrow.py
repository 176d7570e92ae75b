"""Plans of narrow components: a shortest path over down-sets, by what crosses the borders of groups.

The groups of a plan run in some order, so a plan is a chain of down-sets (sets closed under predecessors) from none of the
nodes to all of them, and a group is what lies between two. A narrow component has few down-sets, however long it is.

A group between D and D' reads the values of D that some node between needs, and writes those made between that some node
after D' needs. Where no value is alive at both, these are all values alive at D and all alive at D': the price is a sum of a
part that knows D only and a part that knows D' only, and the best D is the least entry of a window over sizes. What is alive
at both, the few neighbours of D', is priced pair by pair. Connection, the limit on operands, spill and recomputation are left
out, and so are the borders of values that stay alive over very many down-sets; each of them can only add to a price. So the
length of the path is a lower bound on every plan, and its groups are the best plan when they are legal and cost no more.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fusion_search.search.space import GroupSpace, bits

__all__ = ["Borders", "Narrow", "linear_price", "narrow_path"]

# Down-sets for each node, down-sets of one size, and down-sets over which a value is alive, that are looked at.
_WIDE, _LEVEL, _LASTING = 40, 512, 96


class Borders(Protocol):
    """What crosses the borders of groups of a sequence of nodes, and what that costs."""

    @property
    def lengths(self) -> Sequence[int]:
        """Nodes behind each node of the sequence."""

    @property
    def most(self) -> int:
        """Most nodes of a group, by these lengths."""

    @property
    def operand_limit(self) -> int:
        """Most tensors that a group of several nodes touches."""

    def crossings(self) -> Sequence[Any]:
        """Values that can cross a border (`fusion.floors.Crossing`); nodes are indices in the sequence."""

    def price(self, nbytes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """What groups cost at least that move so many bytes."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """A lower bound, and groups that attain it where they are legal and nothing but bytes and launches costs; or no groups."""

    bound: int
    groups: tuple[int, ...]


def linear_price(borders: Borders) -> tuple[float, float] | None:
    """Price of a launch and of a byte in attoseconds, None where the price is no such sum."""
    points = np.array([0.0, 64.0, 4096.0, 2.0**20, 2.0**30])
    prices = borders.price(points).astype(np.float64)
    each = (prices[-1] - prices[0]) / points[-1]
    straight = prices[0] + each * points
    return (float(prices[0]), float(each)) if bool(np.all(np.abs(prices - straight) <= 1.0 + 1e-12 * prices)) else None


@dataclass(slots=True)
class _DownSet:
    base: int  # all nodes below are in
    above: int  # those from there on, shifted by it
    size: int
    alive: tuple[int, ...]
    reads: float = 0.0  # to read all that is alive
    writes: float = 0.0  # to write it
    least: float = 0.0
    origin: int = -1

    def inside(self, other: _DownSet) -> bool:
        return self.base <= other.base and not (self.above >> (other.base - self.base)) & ~other.above


def _down_sets(
    space: GroupSpace,
    sequence: Sequence[int],
    lengths: Sequence[int],
    readers: dict[int, list[int]],
    uses: list[list[int]],
    first: tuple[int, ...],
    deadline: float,
) -> list[_DownSet] | None:
    """All down-sets by size, or None when there are too many."""
    n = len(sequence)
    place = {v: i for i, v in enumerate(sequence)}
    inside = sum(1 << v for v in sequence)
    preds = [[place[u] for u in bits(space.preds[v] & inside)] for v in sequence]
    succs = [[place[w] for w in bits(space.succs[v] & inside)] for v in sequence]
    found = _DownSet(0, 0, 0, first)
    waiting: dict[int, list[tuple[_DownSet, tuple[int, ...]]]] = {0: [(found, tuple(i for i in range(n) if not preds[i]))]}
    total = sum(lengths)
    result: list[_DownSet] = []
    seen: dict[int, set[tuple[int, int]]] = {}
    for size in range(total + 1):
        seen.pop(size, None)
        level = waiting.pop(size, ())
        if len(level) > _LEVEL:
            return None
        for down, can in level:
            result.append(down)
            if len(result) > _WIDE * n or len(can) > 64 or (len(result) & 1023 == 0 and time.monotonic() > deadline):
                return None
            for v in can:
                base, above = down.base, down.above | 1 << (v - down.base)
                while above & 1:
                    above >>= 1
                    base += 1
                key = (base, above)
                after = size + lengths[v]
                known = seen.setdefault(after, set())
                if key in known:
                    continue
                known.add(key)

                def has(i: int, base: int = base, above: int = above) -> bool:
                    return i < base or bool(above >> (i - base) & 1)

                alive = [u for u in down.alive if v not in readers[u] or not all(has(r) for r in readers[u])]
                alive += uses[v]
                nexts = tuple(w for w in can if w != v) + tuple(w for w in succs[v] if all(has(u) for u in preds[w]))
                waiting.setdefault(after, []).append((_DownSet(base, above, after, tuple(alive)), nexts))
    return result


def narrow_path(space: GroupSpace, sequence: Sequence[int], borders: Borders, deadline: float) -> Narrow | None:
    """Find the cheapest chain of down-sets, by bytes and launches.

    Parameters
    ----------
    space : GroupSpace
    sequence : sequence of int
        Nodes of a component, ascending.
    borders : Borders
        Of that sequence.
    deadline : float
        On the clock of `time.monotonic`.

    Returns
    -------
    Narrow or None
        None when the component is not narrow or the time is up.
    """
    linear = linear_price(borders)
    if linear is None:
        return None
    launch, each = linear
    values = borders.crossings()
    # Whatever the groups are, a value that leaves is written, and one from outside that one node needs is read once. Others from
    # outside are alive from the start.
    own = [value.made < 0 and len(value.reads) == 1 for value in values]
    always = sum(value.written for value in values if value.leaves)
    always += sum(value.reads[0][1] for value, alone in zip(values, own, strict=True) if alone)
    readers = {u: [r for r, _ in value.reads] for u, value in enumerate(values) if value.reads and not own[u]}
    uses: list[list[int]] = [[] for _ in sequence]
    for u in readers:
        if values[u].made >= 0:
            uses[values[u].made].append(u)
    first = tuple(u for u in readers if values[u].made < 0 and len(readers[u]) <= _LASTING)
    downs = _down_sets(space, sequence, borders.lengths, readers, uses, first, deadline)
    if downs is None:
        return None
    spans = [0] * len(values)
    for down in downs:
        for u in down.alive:
            spans[u] += 1
    read = [each * min((b for _, b in value.reads), default=0) for value in values]
    write = [0.0 if value.leaves or value.made < 0 else each * value.written for value in values]
    for down in downs:
        down.alive = tuple(u for u in down.alive if spans[u] <= _LASTING)
        down.reads = sum(read[u] for u in down.alive)
        down.writes = sum(write[u] for u in down.alive)

    most = borders.most
    total = downs[-1].size
    least = np.full(total + 1, np.inf)
    which = [-1] * (total + 1)
    least[0], which[0] = downs[0].reads, 0
    near: dict[int, list[int]] = {u: [0] for u in downs[0].alive}
    oldest = 0
    for k, down in enumerate(downs[1:], 1):
        low = max(0, down.size - most)
        size = low + int(np.argmin(least[low : down.size]))
        best, origin = float(least[size]) + launch + down.writes, which[size]
        shared = set(down.alive)
        while downs[oldest].size < low:
            oldest += 1
        nearby = [near.get(u, []) for u in down.alive]
        for j in {j for known in nearby for j in known[bisect_left(known, oldest) :]}:
            other = downs[j]
            if other.size >= down.size or not other.inside(down):
                continue
            cost = other.least + other.reads + launch + down.writes
            for u in other.alive:
                if u in shared:
                    cost -= write[u]
                    if not any(_between(r, other, down) for r in readers[u]):
                        cost -= read[u]
            if cost < best:
                best, origin = cost, j
        down.least, down.origin = best, origin
        for u in down.alive:
            near.setdefault(u, []).append(k)
        if best + down.reads < least[down.size]:
            least[down.size], which[down.size] = best + down.reads, k
        if k & 1023 == 0 and time.monotonic() > deadline:
            return None
    chain = []
    at = len(downs) - 1
    while at >= 0:
        chain.append(downs[at])
        at = downs[at].origin
    chain.reverse()
    # Prices are rounded once for each group, sums of floats by far less.
    bound = max(0, int(downs[-1].least + each * always) - 2 * len(chain) - 2 - int(downs[-1].least * 1e-13))
    groups = []
    for before, after in itertools.pairwise(chain):
        if not before.inside(after):
            return Narrow(bound, ())
        low = before.base
        members = [i for i in range(low, after.base + after.above.bit_length()) if _between(i, before, after)]
        groups.append(sum(1 << sequence[i] for i in members))
    return Narrow(bound, tuple(groups))


def _between(i: int, before: _DownSet, after: _DownSet) -> bool:
    """Whether node i is in one down-set and not yet in the other."""
    late = i < after.base or after.above >> (i - after.base) & 1
    early = i < before.base or before.above >> (i - before.base) & 1
    return bool(late and not early)
