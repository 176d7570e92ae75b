"""Plans of components too large to enumerate, by moving the borders of groups.

A plan is a label for each node such that no node has a smaller label than a node it reads. Whatever the labels, groups
of equal labels are convex and never wait for each other, so that nodes move from group to group without any search for
cycles. What a move changes is known from the values that the node makes and reads: launches, bytes, and how many tensors the
two groups touch. That is a microsecond's work, and simulated annealing (Kirkpatrick, Gelatt and Vecchi, 1983) makes
millions of moves. It begins with bands: the nodes of neighbouring places (`lattice_floor`) in runs along each band.

The labels only suggest. Spill, loops and everything else is asked of the space afterwards, group by group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product, zip_longest
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from fusion_search.search.enumerate import join_components
from fusion_search.search.lattice_floor import Place
from fusion_search.search.narrow import Borders, linear_price
from fusion_search.search.space import Facts, GroupSpace, bits, structurally_fit

__all__ = ["band_labels", "border_plan"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Moves tried for each node at each temperature, temperatures, and the first and last of them, in prices of one value that crosses.
_TRIES, _STEPS, _HOT, _COLD = 60, 40, 0.7, 0.15
# Starts that are tried, those that are tried longer, how long, and groups in a start for each that is needed.
_STARTS, _LONG_STARTS, _LONG_TRIES, _SPARE = 8, 2, 500, 1.2
# A plan so near to its floor is good enough.
_NEAR = 1.01
# Values with more readers than this are left out.
_FAN = 64
# Slopes of bands, and of the cuts along them: straight, and those of hexagons.
_SLOPES = (((1, 0), (0, 1)), ((0, 1), (1, 0)), ((1, 2), (2, 1)), ((2, 1), (1, 2)))
_BANDS = range(1, 17)


@dataclass(frozen=True, slots=True)
class _Wires:
    """Values as arrays: who makes each, who reads it, what that costs; and the values of each node."""

    maker: Ints
    start: Ints
    reader: Ints
    write: Floats
    read: Floats
    leaves: npt.NDArray[np.bool_]
    first: Ints
    value: Ints
    below: Ints  # predecessors
    below_start: Ints
    above: Ints  # successors
    above_start: Ints
    lengths: Ints
    launch: float
    limit: int
    most: int


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    start = np.zeros(len(rows) + 1, np.int64)
    start[1:] = np.cumsum([len(row) for row in rows])
    return start, np.array([x for row in rows for x in row], np.int64)


def _wires(space: GroupSpace, sequence: Sequence[int], borders: Borders, launch: float, each: float) -> _Wires:
    values = [value for value in borders.crossings() if len(value.reads) <= _FAN]
    uses: list[list[int]] = [[] for _ in sequence]
    for u, value in enumerate(values):
        for v in {value.made, *(r for r, _ in value.reads)} - {-1}:
            uses[v].append(u)
    place = {v: i for i, v in enumerate(sequence)}
    start, reader = _rows([[r for r, _ in value.reads] for value in values])
    first, value_of = _rows(uses)
    below_start, below = _rows([[place[u] for u in bits(space.preds[v]) if u in place] for v in sequence])
    above_start, above = _rows([[place[u] for u in bits(space.succs[v]) if u in place] for v in sequence])
    return _Wires(
        np.array([value.made for value in values], np.int64),
        start,
        reader,
        np.array([each * value.written for value in values]),
        np.array([each * max((size for _, size in value.reads), default=0) for value in values]),
        np.array([value.leaves for value in values], np.bool_),
        first,
        value_of,
        below,
        below_start,
        above,
        above_start,
        np.array(borders.lengths, np.int64),
        launch,
        borders.operand_limit,
        borders.most,
    )


def _cross(u: int, labels: Any, wires: Any, touched: Any, sign: int, changed: Any, count: int) -> tuple[float, int]:
    """Price of what one value has cross borders; adds to the tensors that groups touch, and lists these groups."""
    maker, start, reader, write, read, leaves = wires
    cost = 0.0
    home = -1
    out = leaves[u]
    if maker[u] >= 0:
        home = labels[maker[u]]
    for k in range(start[u], start[u + 1]):
        g = labels[reader[k]]
        if g == home:
            continue
        out = True
        new = True
        for m in range(start[u], k):
            if labels[reader[m]] == g:
                new = False
                break
        if new:
            cost += read[u]
            touched[g] += sign
            changed[count] = g
            count += 1
    if out and home >= 0:
        cost += write[u]
        touched[home] += sign
        changed[count] = home
        count += 1
    return cost, count


def _total(labels: Any, sizes: Any, touched: Any, wires: Any, launch: float, limit: int) -> float:
    """Price of all groups, with a launch for each tensor beyond what a group may touch."""
    changed = np.zeros(1024, np.int64)
    cost = 0.0
    touched[:] = 0
    for u in range(len(wires[0])):
        cost += _cross(u, labels, wires, touched, 1, changed, 0)[0]
    for g in range(len(sizes)):
        if sizes[g]:
            cost += launch
        if touched[g] > limit:
            cost += launch * (touched[g] - limit)
    return cost


def _anneal(
    labels: Any,
    sizes: Any,
    touched: Any,
    wires: Any,
    nodes: Any,
    lengths: Any,
    launch: float,
    limit: int,
    most: int,
    heat: float,
    tries: int,
    state: Any,
) -> float:
    """Try so many moves at one temperature; return what the price has changed by."""
    first, value_of, below, below_start, above, above_start = nodes
    n = len(lengths)
    changed = np.zeros(65536, np.int64)
    total = 0.0
    x = state[0]
    for _ in range(tries):
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        v = int((x >> np.uint64(11)) % np.uint64(n))
        g = labels[v]
        near_below = below_start[v + 1] - below_start[v]
        near = near_below + above_start[v + 1] - above_start[v]
        if near == 0:
            continue
        pick = int((x >> np.uint64(40)) % np.uint64(near))
        if pick < near_below:
            h = labels[below[below_start[v] + pick]]
        else:
            h = labels[above[above_start[v] + pick - near_below]]
        if h == g or sizes[h] + lengths[v] > most:
            continue
        fits = True
        for k in range(below_start[v], below_start[v + 1]):
            fits = fits and labels[below[k]] <= h
        for k in range(above_start[v], above_start[v + 1]):
            fits = fits and labels[above[k]] >= h
        if not fits:
            continue
        gain = 0.0
        count = 0
        for k in range(first[v], first[v + 1]):
            cost, count = _cross(value_of[k], labels, wires, touched, -1, changed, count)
            gain -= cost
        labels[v] = h
        middle = count
        for k in range(first[v], first[v + 1]):
            cost, count = _cross(value_of[k], labels, wires, touched, 1, changed, count)
            gain += cost
        if sizes[g] == lengths[v]:
            gain -= launch
        # Groups change one tensor at a time: of each, what is beyond the limit now and was before.
        over = 0
        for k in range(count):
            c = changed[k]
            if touched[c] > limit - 64:
                seen = False
                step = 0
                for m in range(count):
                    if changed[m] == c:
                        if m < k:
                            seen = True
                        step += 1 if m >= middle else -1
                if not seen:
                    over += max(touched[c] - limit, 0) - max(touched[c] - step - limit, 0)
        gain += launch * over
        x ^= x << np.uint64(13)
        x ^= x >> np.uint64(7)
        x ^= x << np.uint64(17)
        chance = float(x >> np.uint64(11)) / 9007199254740992.0
        if gain <= 0.0 or chance < np.exp(-gain / heat):
            total += gain
            sizes[g] -= lengths[v]
            sizes[h] += lengths[v]
        else:
            for k in range(count):
                touched[changed[k]] += 1 if k < middle else -1
            labels[v] = g
    state[0] = x
    return total


@cache
def _compiled() -> tuple[Callable[..., float], Callable[..., float]]:
    """The two loops as machine code; only large components get here, and they are worth the seconds that compiling takes."""
    import numba

    cross = numba.njit(_cross)
    scope = {**globals(), "_cross": cross}
    made = []
    for function in (_total, _anneal):  # as they are here, but for what they call
        made.append(numba.njit(FunctionType(function.__code__, scope, function.__name__)))
    return made[0], made[1]


def band_labels(sequence: Sequence[int], borders: Borders, where: dict[int, Place], preds: Sequence[Sequence[int]]) -> list[list[Ints]]:
    """Labels of bands of places, each cut into runs of equal length: for each slope, of several widths.

    A node goes to the band of its place or of the last node that it reads, whichever is further.
    """
    found: list[list[Ints]] = []
    n = len(sequence)
    lengths = np.array(borders.lengths, np.int64)
    if not where:
        return []
    for across, ahead in _SLOPES:
        known = {i: (across[0] * p + across[1] * q, ahead[0] * p + ahead[1] * q) for i, (p, q) in where.items()}
        low, high = min(b for b, _ in known.values()), max(b for b, _ in known.values()) + 1
        found.append([])
        for count in _BANDS:
            band, along = np.zeros(n, np.int64), np.zeros(n, np.int64)
            for i in range(n):
                before = preds[i]
                band[i] = max((band[u] for u in before), default=0)
                if i in known:
                    band[i] = max(band[i], (known[i][0] - low) * count // (high - low))
                    along[i] = known[i][1]
                along[i] = max([along[i], *(along[u] for u in before if band[u] == band[i])])
            order = np.lexsort((np.arange(n), along, band))
            for late, spare in product((0.0, 0.25, 0.5, 0.75), (0, 1)):
                labels, label = np.zeros(n, np.int64), 0
                for k, b in enumerate(np.unique(band)):
                    mine = order[band[order] == b]
                    ends = np.cumsum(lengths[mine])
                    whole = int(ends[-1])
                    # Cuts are shifted from band to band by a share of a run, so that the corners of four groups do not meet.
                    shift = (k * late) % 1.0
                    groups = -(-whole // borders.most) + spare
                    each = min(borders.most, -(-whole // groups)) if not shift else borders.most - spare * borders.most // 8
                    labels[mine] = label + (ends - 1 + int(shift * each)) // each
                    label = int(labels[mine[-1]]) + 1
                found[-1].append(labels)
    return found


def border_plan(
    space: GroupSpace, facts: Facts, sequence: Sequence[int], borders: Borders, where: dict[int, Place], deadline: float, floor: int = 0
) -> list[int] | None:
    """Partition a component by moving borders.

    Parameters
    ----------
    space, facts : GroupSpace, Facts
    sequence : sequence of int
        Its nodes, ascending.
    borders : Borders
        Of that sequence.
    where : dict of int to (int, int)
        Places of its nodes, as from `lattice_floor.places`.
    deadline : float
        On the clock of `time.monotonic`.
    floor : int
        What every plan costs at least; one that is near it ends the search.

    Returns
    -------
    list of int or None
        Legal groups; None when the price is no sum of launches and bytes, or there is nothing to begin with.
    """
    linear = linear_price(borders)
    if linear is None:
        return None
    wires = _wires(space, sequence, borders, *linear)
    preds = [wires.below[a:b].tolist() for a, b in zip(wires.below_start, wires.below_start[1:], strict=False)]
    starts = band_labels(sequence, borders, where, preds)
    if not starts:
        return None
    total, anneal = _compiled()
    values = (wires.maker, wires.start, wires.reader, wires.write, wires.read, wires.leaves)
    nodes = (wires.first, wires.value, wires.below, wires.below_start, wires.above, wires.above_start)

    def priced(labels: Ints) -> tuple[float, Ints, Ints]:
        sizes = np.bincount(labels, wires.lengths).astype(np.int64)
        touched = np.zeros(len(sizes), np.int64)
        return total(labels, sizes, touched, values, wires.launch, wires.limit), sizes, touched

    needed = -(-int(wires.lengths.sum()) // wires.most)
    most = needed * _SPARE

    def fit(labels: Ints) -> bool:
        return bool(labels.max() < most and np.bincount(labels, wires.lengths).max() <= wires.most)

    # The cheapest of each slope, then the second of each, and so on.
    ranks = [sorted(filter(fit, those), key=lambda labels: priced(labels)[0]) for those in starts]
    chosen = [labels for rank in zip_longest(*ranks) for labels in rank if labels is not None][:_STARTS]
    if not chosen:
        return None
    one = float(np.median(wires.read + wires.write)) / 2
    state = np.array([0x9E3779B97F4A7C15], np.uint64)

    def annealed(labels: Ints, tries: int) -> tuple[float, Ints] | None:
        labels = labels.copy()
        cost, sizes, touched = priced(labels)
        for heat in one * np.geomspace(_HOT, _COLD, _STEPS):
            rules = (wires.lengths, wires.launch, wires.limit, wires.most)
            cost += anneal(labels, sizes, touched, values, nodes, *rules, heat, tries * len(sequence), state)
            if time.monotonic() > deadline:
                return None
        return cost, labels

    tried: list[tuple[float, int, Ints, Ints]] = []
    for labels in chosen:
        found = annealed(labels, _TRIES)
        if found is None:
            break
        tried.append((found[0], len(tried), found[1], labels))
        if found[0] <= floor * _NEAR:
            break
    tried.sort(key=lambda one: one[:2])
    best: tuple[float, Ints] = (tried[0][0], tried[0][2]) if tried else (priced(chosen[0])[0], chosen[0])
    for _, _, _, labels in tried[: _LONG_STARTS if best[0] > floor * _NEAR else 0]:
        found = annealed(labels, _LONG_TRIES)
        if found is not None and found[0] < best[0]:
            best = found
    labels = best[1]
    return _legal(space, facts, sequence, labels)


def _legal(space: GroupSpace, facts: Facts, sequence: Sequence[int], labels: Ints) -> list[int]:
    """The groups of equal labels, each cut in two along the sequence again and again while it is not legal."""
    found = []
    masks: dict[int, int] = {}
    for v, label in zip(sequence, labels.tolist(), strict=True):
        masks[label] = masks.get(label, 0) | 1 << v
    todo = list(masks.values())
    while todo:
        mask = todo.pop()
        if mask & (mask - 1) == 0 or (structurally_fit(space, facts, mask) and space.cost(mask) is not None):
            found.append(mask)
            continue
        pieces = join_components(facts.joins, mask)
        if len(pieces) == 1:
            nodes = list(bits(mask))
            pieces = [sum(1 << v for v in half) for half in (nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :])]
        todo += pieces
    return found
