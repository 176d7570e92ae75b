"""Memory of results that the runtime makes itself: recycled once nobody holds it.

Touching new pages costs more than most kernels.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusion_search.ir.graph import Value

Array = np.ndarray[Any, Any]
#: An array for a result, and the memory behind it, which the views of the array hold too.
Kept = tuple[Array, Array]

#: Results start where a cache line does; a vector that straddles two lines costs a small kernel a quarter of its time.
LINE = 64
#: Arrays kept for each result by each workspace: one that the caller still holds while the next run makes another.
KEPT = 2


def aligned(nbytes: int, align: int) -> Array:
    """Return bytes of zeros that start at a multiple of `align`."""
    block = np.zeros(nbytes + align, np.uint8)
    start = -block.ctypes.data % align
    return block[start : start + nbytes]


def _made(value: Value) -> Kept:
    block = np.empty(int(value.nbytes) + LINE, np.uint8)
    start = -block.ctypes.data % LINE
    return block[start : start + int(value.nbytes)].view(value.dtype).reshape(value.shape), block


def _references(kept: Kept) -> tuple[int, int]:
    return sys.getrefcount(kept[0]), sys.getrefcount(kept[1])


#: References to an array and its memory when no caller has them: counted, since interpreters differ in what a call holds.
UNHELD = _references(_made(Value("", np.dtype(np.uint8), (1,))))
_ARRAY, _BLOCK = UNHELD
_count, _watched = sys.getrefcount, weakref.getweakrefcount


class ResultBuffers:
    """Gives out arrays for the results of runs in one workspace, one run at a time.

    Parameters
    ----------
    values : sequence of Value
        The results, as the caller is to get them.
    """

    __slots__ = ("_every", "_kept", "values")

    def __init__(self, values: Sequence[Value]) -> None:
        self.values = tuple(values)
        self._kept: list[list[Kept]] = [[] for _ in values]
        self._every = range(len(self.values))

    def fresh(self, k: int) -> Array:
        """Return an array for result number `k`: one of an earlier run that nobody holds any more, or a new one.

        Whoever holds an earlier result, or a view of it, holds its memory. The array is as its last holder left it: see `intact`.
        """
        kept = self._kept[k]
        for entry in kept:
            if _count(entry[0]) == _ARRAY and _count(entry[1]) == _BLOCK and not _watched(entry[0]):
                return entry[0]
        made = _made(self.values[k])
        if len(kept) < KEPT:
            kept.append(made)
        return made[0]

    def fresh_all(self) -> list[Array]:
        """Return a fresh array for each result."""
        return [self.fresh(k) for k in self._every]

    def intact(self, k: int) -> Array:
        """Return a fresh array of a result's dtype, shape and layout, which a holder may have set otherwise."""
        value, array = self.values[k], self.fresh(k)
        if array.shape == value.shape and array.dtype == value.dtype and array.flags.carray:
            return array
        self.forget(k)
        return self.fresh(k)

    def forget(self, k: int) -> None:
        """Keep none of the arrays of a result: one was returned with another shape, type or layout than it had."""
        self._kept[k].clear()
