"""The rows and columns of a product's blocks: whole micro-kernels, shared by the threads, and little computed again.

Costs are counted in rows times vectors: the product's own work on one vector of columns for one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush

#: Rows of the product's micro-kernel: blocks of whole ones have no rest.
KERNEL_ROWS = 6
#: Columns of one vector of it.
VECTOR = 16
#: Rows below which a block waits for its packed panels: they pass through the cache once for each block of rows.
PASSING_ROWS = 12
#: Items for each thread that keep all of them busy when one is held up, and what it costs to have only one.
SPARE_ITEMS, HELD_UP = 4, 0.03


@dataclass(frozen=True, slots=True)
class Again:
    """What members that do not carry a product's loops cost, since each block computes them again.

    Attributes
    ----------
    row : float
        For each row of a block, however few columns it has: of members that do not carry the columns.
    vector : float
        For each vector of columns, however few rows: of members that do not carry the rows.
    block : float
        For each block: of members that carry neither.
    """

    row: float = 0.0
    vector: float = 0.0
    block: float = 0.0

    def of(self, rows: float, vectors: float) -> float:
        """Return the cost in one block."""
        return self.row * rows + self.vector * vectors + self.block


NOTHING = Again()


@cache
def panel_blocks(
    rows: int,
    columns: int,
    others: int,
    most: tuple[int, int],
    cut: tuple[bool, bool],
    threads: int,
    packed: bool = False,
    again: Again = NOTHING,
) -> tuple[int, int]:
    """Choose the rows and columns of a product's blocks.

    Parameters
    ----------
    rows, columns, others : int
        Of the result; products of that shape.
    most : tuple of int
        Rows and columns of a block; more where members would be computed again for each of them.
    cut : tuple of bool
        Whether rows and columns may be cut; what may not is whole in each block.
    threads : int
        How many share the blocks.
    packed : bool
        The right side is packed beforehand: nothing is copied, and its panels are not cut.
    again : Again
        What each block computes again.
    """
    best = (float("inf"), KERNEL_ROWS, most[1])
    copy, fewest = (0, PASSING_ROWS) if packed else (4, 0)
    for width in _widths(columns, most[1], cut[1], threads, packed, again):
        # vectors of columns; with fewer of them at once the micro-kernel is slower
        wide = [_vectors(min(width, columns - start)) for start in range(0, columns, width)]
        slower = max(1.0, 0.9 + 0.1 * most[1] / width)
        if not cut[1]:
            wide = [sum(wide)]
        for tall in _heights(rows, most[0], cut[0], threads, again):
            # a vector costs its rows, what a micro-kernel of fewer rows is slower, and the copy of its right side
            blocks = [min(tall, rows - start) for start in range(0, rows, tall)]
            heights = [max(height + (0.5 if height % KERNEL_ROWS else 0.0), fewest) for height in blocks]
            items = len(wide) * len(heights) * others
            if items <= 8 * threads:
                costs = [
                    (height + copy) * vectors * slower + 4 + again.of(block, vectors)
                    for height, block in zip(heights, blocks, strict=True)
                    for vectors in wide
                ]
                ends = _ends(costs * others, threads)
            else:
                whole = (sum(heights) + copy * len(heights)) * sum(wide) * slower + 4 * len(heights) * len(wide)
                whole += again.row * rows * len(wide) + (again.vector * sum(wide) + again.block * len(wide)) * len(blocks)
                ends = whole * others / threads + (tall + copy) * 2
            if again != NOTHING:
                ends *= 1 + HELD_UP * max(0.0, 1 - items / (SPARE_ITEMS * threads))
            best = min(best, (ends, tall, width))
    return best[1], best[2]


def _vectors(columns: int) -> int:
    return -(-columns // VECTOR)


def _widths(columns: int, most: int, cut: bool, threads: int, packed: bool, again: Again) -> list[int]:
    """Columns of a block that are tried."""
    if not cut:
        return [most]
    widths = [most] if packed else [most, most * 3 // 4, most // 2]
    if again.row or again.block:
        panels = max(-(-columns // most), 1)
        counts = {*range(1, 2 * threads + 1), *(panels >> k for k in range(panels.bit_length()))}
        widths += sorted({-(-panels // count) * most for count in counts} - {most})
    return widths


def _heights(rows: int, most: int, cut: bool, threads: int, again: Again) -> list[int]:
    """Rows of a block that are tried: of whole micro-kernels, or all of one height."""
    few = max(-(-rows // most), 1)
    counts = list(range(few, few + 2 * threads + 1)) if cut else [1]
    if cut and (again.vector or again.block):
        counts = sorted({*range(1, 2 * threads + 1), *counts})
    return list(dict.fromkeys(-(-max(rows, 1) // (n * unit)) * unit for n in counts for unit in (KERNEL_ROWS, 1)))


def _ends(costs: list[float], threads: int) -> float:
    """When the last thread is done with blocks in their order, as the driver hands them out.

    Each thread owns a like number of blocks that follow each other, and when it is done helps those after it.
    """
    owners = min(threads, len(costs))
    taken = [owner * len(costs) // owners for owner in range(owners)]
    last = [*taken[1:], len(costs)]
    working, done = [(0.0, owner) for owner in range(owners)], 0.0
    while working:
        now, owner = heappop(working)
        found = next((at for at in ((owner + k) % owners for k in range(owners)) if taken[at] < last[at]), None)
        if found is None:
            done = max(done, now)
            continue
        heappush(working, (now + costs[taken[found]], owner))
        taken[found] += 1
    return done
