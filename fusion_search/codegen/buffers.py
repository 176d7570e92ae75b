"""Planning of buffers: values that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

#: Every buffer starts on a cache line of its own.
ALIGN = 64
#: Orders that are tried after the fixed ones: the values that made the last peak are placed first in the next round.
ROUNDS = 24
#: More values than this are placed in the fixed orders only; placing is quadratic.
FEW = 1500


class Piece(NamedTuple):
    """Bytes of a value from `start` to `stop`, and the first and last step that touches them."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value in memory: its size and the first and last step that touches it.

    Attributes
    ----------
    name : str
    nbytes, first, last : int
    pieces : tuple of Piece
        Where parts of it come to life one after the other: what is needed when. By default all of it, all the time.
    """

    name: str
    nbytes: int
    first: int
    last: int
    pieces: tuple[Piece, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in whole cache lines; a value without elements has an address too."""
        return -(-max(self.nbytes, 1) // ALIGN) * ALIGN

    @property
    def lines(self) -> tuple[Piece, ...]:
        """Its pieces, in whole cache lines."""
        if len(self.pieces) < 2:
            return (Piece(0, self.size, self.first, self.last),)
        return tuple([Piece(p.start // ALIGN * ALIGN, -(-p.stop // ALIGN) * ALIGN, p.first, p.last) for p in self.pieces])


def cut(values: Sequence[Piece]) -> tuple[Piece, ...]:
    """Cut bytes that several values share, whole or in part, into pieces: each is needed from its first to its last touch by any."""
    ends = sorted({end for value in values for end in (value.start, value.stop)})
    found: list[Piece] = []
    for start, stop in pairwise(ends):
        over = [value for value in values if value.start <= start and stop <= value.stop]
        if over:
            piece = Piece(start, stop, min(value.first for value in over), max(value.last for value in over))
            if found and found[-1][1:] == (start, *piece[2:]):
                piece = Piece(found.pop().start, *piece[1:])
            found.append(piece)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets of the values in one block of memory, and its size."""

    offsets: dict[str, int]
    nbytes: int


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda v: (-v.size, v.first),
    lambda v: (-v.size * (v.last - v.first + 1), -v.size),
    lambda v: (v.first - v.last, -v.size),
    lambda v: (v.first, -v.size),
)


def most_alive(values: Sequence[Lifetime]) -> int:
    """Bytes that are alive at once at most: no placement needs less."""
    change: dict[int, int] = {}
    for value in values:
        for piece in value.lines:
            change[piece.first] = change.get(piece.first, 0) + piece.stop - piece.start
            change[piece.last + 1] = change.get(piece.last + 1, 0) - piece.stop + piece.start
    most = alive = 0
    for step in sorted(change):
        alive += change[step]
        most = max(most, alive)
    return most


def alive_by_step(values: Sequence[Lifetime], steps: int) -> list[int]:
    """Bytes that are alive during each step."""
    change = [0] * (steps + 1)
    for value in values:
        for piece in value.lines:
            change[piece.first] += piece.stop - piece.start
            change[piece.last + 1] -= piece.stop - piece.start
    return list(accumulate(change))[:steps]


def plan_buffers(values: Sequence[Lifetime]) -> Arena:
    """Place values so that those alive together do not overlap.

    Values are placed one by one, each at the lowest offset that is free over its whole life: largest first, and, while more is
    needed than is ever alive at once, in other orders, of which the best counts. The result depends on sizes, lifetimes and names
    only, not on the order in which values are given. O(n^2) in the number of values for each order.
    """
    bound = most_alive(values)
    best: Arena | None = None
    for order in _orders(values):
        offsets, total = _place(order)
        if best is None or total < best.nbytes:
            best = Arena(offsets, total)
        if best.nbytes == bound:
            break
    if best is None:
        return Arena({}, 0)
    return Arena({value.name: best.offsets[value.name] for value in values}, best.nbytes)


def _orders(values: Sequence[Lifetime]) -> Iterator[list[Lifetime]]:
    if not values:
        return
    for key in _ORDERS:
        yield sorted(values, key=lambda v: (*key(v), v.name))
    if len(values) > FEW:
        return
    order = sorted(values, key=lambda v: (*_ORDERS[0](v), v.name))
    for _ in range(ROUNDS):
        offsets, total = _place(order)
        high = [v for v in order if offsets[v.name] + v.size == total]
        order = [*high, *(v for v in order if v not in high)]
        yield order


def _place(order: Sequence[Lifetime]) -> tuple[dict[str, int], int]:
    placed: list[Piece] = []  # by start
    offsets: dict[str, int] = {}
    total = 0
    for value in order:
        pieces, size = value.lines, value.size
        at = _lowest(placed, pieces) if len(pieces) > 1 else _first_gap(placed, pieces[0])
        offsets[value.name] = at
        placed += [Piece(at + start, at + stop, first, last) for start, stop, first, last in pieces]
        placed.sort()
        total = max(total, at + size)
    return offsets, total


def _first_gap(placed: Sequence[Piece], value: Piece) -> int:
    """Lowest offset of a value in one piece."""
    at, size, first, last = 0, value.stop, value.first, value.last
    for start, stop, born, died in placed:
        if born <= last and first <= died:
            if at + size <= start:
                break
            if stop > at:
                at = stop
    return at


def _lowest(placed: Sequence[Piece], pieces: Sequence[Piece]) -> int:
    """Lowest offset at which no piece meets what is alive with it."""
    barred = sorted(
        (start - piece.stop, stop - piece.start)
        for piece in pieces
        for start, stop, born, died in placed
        if born <= piece.last and piece.first <= died
    )
    at = 0
    for low, high in barred:
        if low < at < high:
            at = high
        elif low >= at:
            break
    return at
