"""A floor for two-dimensional recurrences: how few values can cross the borders of groups of limited size.

Where nodes are read by two others each, and read two, they often lie on a grid: node (p, q) is read by (p + 1, q) and (p, q + 1),
as in stacked recurrences and wavefronts. Places are found by propagation, and what follows holds for any places that differ.

Take two nodes at neighbouring places, (p, q - 1) and (p, q), (p - 1, q) and (p, q), or (p + 1, q - 1) and (p, q). They are *linked* when
some value of the node at (i, j) is made or read by both and both are among the places (i, j), (i + 1, j) and (i, j + 1).

1. A group that holds one end of a link and not the other has that value cross its border, to be written or read. One
   value gives at most three links, a triangle, of which a group cuts none or two. So a group moves at least half as many values
   as it cuts links.
2. Let a group hold nodes of `a` different p, `b` different q and `d` different p + q. On each of these lines its first and its
   last node have a cut link beyond them, or none. So it cuts at least 2 (a + b + d) links, less the missing links of its nodes.
3. Nodes of equal p + q are an antichain of the product of two chains, of `a` and of `b` elements. That product is
   made of chains of a + b - 1, a + b - 3, ... elements, min(a, b) of them (de Bruijn, Tengbergen and Kruyswijk, 1951), and an antichain
   has one element of each at most. So the group holds at most the sum over these chains of min(their length, d) nodes.

A group of k nodes therefore moves at least h(k) values, less half its missing links, where h(k) is the least a + b + d that
has room for k. The missing links of all nodes are known, and the least sum of prices over all ways to give the nodes group
sizes is a knapsack. Nodes with more than a few missing links are better left out: a group without them is no larger and moves
no less of the values that count here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from fusion_search.search.narrow import Borders, linear_price

__all__ = ["Place", "crossing_floor", "lattice_floor", "places"]

Place = tuple[int, int]

_STEPS = ((0, 1), (1, 0))
# The six neighbours of a place, two for each of the three kinds of line.
_AROUND = ((0, -1), (0, 1), (-1, 0), (1, 0), (1, -1), (-1, 1))


def places(borders: Borders) -> dict[int, Place]:
    """Give nodes places such that readers of a value are one step further, as far as that follows from one first choice each time.

    No two nodes have the same place. Nodes that have none are left out.
    """
    n = len(borders.lengths)
    succs: list[set[int]] = [set() for _ in range(n)]
    preds: list[set[int]] = [set() for _ in range(n)]
    for value in borders.crossings():
        if value.made >= 0:
            for reader, _ in value.reads:
                succs[value.made].add(reader)
                preds[reader].add(value.made)
    found: dict[int, Place] = {}
    taken: dict[Place, int] = {}
    offset = 0

    def put(v: int, place: Place) -> bool:
        if v in found or place in taken:
            return False
        found[v] = place
        taken[place] = v
        todo.append(v)
        return True

    def spread(v: int, sign: int) -> None:
        """Place the other of two nodes next to a placed one, or the one between two placed ones."""
        near = (succs if sign > 0 else preds)[v]
        if len(near) != 2:
            return
        first, second = near
        if v in found:
            p, q = found[v]
            options = [(p + sign * dp, q + sign * dq) for dp, dq in _STEPS]
            for one, other in ((first, second), (second, first)):
                if one in found and other not in found and found[one] in options:
                    put(other, options[1 - options.index(found[one])])
        elif first in found and second in found:
            (p, q), (r, s) = sorted((found[first], found[second]))
            if (r - p, s - q) == (1, -1):
                put(v, (p, s) if sign > 0 else (r, q))

    todo: deque[int] = deque()
    for seed in range(n):
        if seed in found or len(succs[seed]) != 2 or any(w in found for w in succs[seed]):
            continue
        put(seed, (offset, offset))
        for w, (dp, dq) in zip(sorted(succs[seed]), _STEPS, strict=True):
            put(w, (offset + dp, offset + dq))
        while todo:
            v = todo.popleft()
            spread(v, 1)
            spread(v, -1)
            for u in preds[v]:
                spread(u, 1)
            for w in succs[v]:
                spread(w, -1)
        offset += 2 * n + 2  # far from all others
    return found


def _linked(borders: Borders, where: dict[int, Place], least: float) -> dict[int, int]:
    """Number of links of each placed node; a value of fewer bytes than `least` gives none."""
    links: set[tuple[Place, Place]] = set()
    for value in borders.crossings():
        if value.made < 0 or min((value.written, *(size for _, size in value.reads))) < least:
            continue
        home = where.get(value.made)
        readers = [where[r] for r, _ in value.reads if r in where]
        if home is None:
            continue
        steps = {(home[0] + dp, home[1] + dq) for dp, dq in _STEPS}
        triangle = sorted({home, *(place for place in readers if place in steps)})
        links.update((a, b) for i, a in enumerate(triangle) for b in triangle[i + 1 :])
    count = dict.fromkeys(where, 0)
    at = {place: v for v, place in where.items()}
    for a, b in links:
        count[at[a]] += 1
        count[at[b]] += 1
    return count


def _room(a: int, b: int, d: int) -> int:
    """Most nodes of `a` different p, `b` different q and `d` different p + q."""
    a, b = min(a, b), max(a, b)
    full = min(a, max(0, (a + b - 1 - d) // 2 + 1))
    return full * d + (a - full) * (a + b - 1) - (a * (a - 1) - full * (full - 1))


def crossing_floor(most: int) -> list[int]:
    """For each size up to `most`, the least sum of different p, q and p + q of so many nodes. O(most)^1.5."""
    found = [0] * (most + 1)
    size, total = 0, 2
    while size < most:
        total += 1
        room = 0
        for a in range(1, total):
            for b in range(a, total - a):
                d = total - a - b
                if d <= a + b - 1:
                    room = max(room, _room(a, b, d))
        for k in range(size + 1, min(room, most) + 1):
            found[k] = total
        size = max(size, min(room, most))
    return found


def lattice_floor(borders: Borders, where: dict[int, Place]) -> int:
    """Return what every plan costs at least, by the places of its nodes.

    Parameters
    ----------
    borders : Borders
        What crosses borders, and its price.
    where : dict of int to (int, int)
        Different places of some of the nodes, as from `places`.

    Returns
    -------
    int
        Attoseconds; 0 when nothing follows.
    """
    linear = linear_price(borders)
    if linear is None or not where:
        return 0
    if len(set(where.values())) < len(where):
        raise ValueError("two nodes at one place")
    sizes = [min((value.written, *(size for _, size in value.reads))) for value in borders.crossings() if value.made >= 0 and value.reads]
    most = max(1, borders.most // min(borders.lengths))
    values = crossing_floor(most)
    groups = -(-sum(borders.lengths) // borders.most)
    best = 0
    for least in sorted({size for size in sizes if size})[-3:]:
        kept = where
        for _ in range(3):
            links = _linked(borders, kept, least)
            missing = sum(6 - count for count in links.values())
            best = max(best, _knapsack(linear, values, len(kept), missing, float(least), groups))
            left_out = {v for v, count in links.items() if count <= 2}
            if not left_out:
                break
            kept = {v: place for v, place in kept.items() if v not in left_out}
    return best


def _knapsack(linear: tuple[float, float], values: Sequence[int], nodes: int, missing: int, nbytes: float, groups: int) -> int:
    """The least sum of prices of groups that hold so many nodes together, when there are at least so many groups.

    Groups that hold none of these nodes cost a launch. So with a launch taken off every price, what is left is not
    negative, and as many launches as there are groups come on top.
    """
    launch, each = linear
    most = len(values) - 1
    best = 0.0
    for spared in (0.0, launch):
        price = launch - spared + each * nbytes * np.array(values[1:], np.float64)
        least = np.zeros(nodes + 1)
        for k in range(1, nodes + 1):
            few = min(k, most)
            least[k] = (least[k - few : k] + price[:few][::-1]).min()
        best = max(best, float(least[nodes]) + spared * groups)
    total = best - each * nbytes * missing / 2
    # A price is rounded once for each group, and there are no more groups than nodes.
    return max(0, int(total * (1 - 1e-12)) - nodes - groups)
