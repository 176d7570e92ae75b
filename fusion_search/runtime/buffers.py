"""Planning of buffers: values that are never alive together share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Every buffer starts on a cache line of its own.
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value in memory: its size and the first and last step that touches it."""

    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """Offsets of the values in one block of memory, and its size."""

    offsets: dict[str, int]
    nbytes: int


def plan_buffers(values: Sequence[Lifetime]) -> Arena:
    """Place values so that those alive together do not overlap.

    Largest first, each at the lowest offset that is free over its whole life; O(n^2) in the number of values.
    """
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[str, int] = {}
    total = 0
    for value in sorted(values, key=lambda v: (-v.nbytes, v.first, v.name)):
        size = -(-max(value.nbytes, 1) // ALIGN) * ALIGN
        busy = sorted((start, stop) for start, stop, other in placed if other.first <= value.last and value.first <= other.last)
        at = 0
        for start, stop in busy:
            if at + size <= start:
                break
            at = max(at, stop)
        placed.append((at, at + size, value))
        offsets[value.name] = at
        total = max(total, at + size)
    return Arena(offsets, total)
