"""The order in which the elements of a constant lie."""

from __future__ import annotations

import numpy as np

from fusion_search.ir.spec import Array

__all__ = ["row_major", "turned"]


def turned(array: Array) -> bool:
    """Whether an array is a large matrix whose columns lie one after the other."""
    return array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous and array.nbytes >= 1 << 20


def row_major(array: Array) -> Array:
    """Return an array in row-major order; large turned matrices are copied tile by tile, which is several times faster."""
    if not turned(array):
        return np.asarray(array, order="C")
    copy = np.empty(array.shape, array.dtype)
    rows, columns = array.shape
    for i in range(0, rows, 1024):
        for j in range(0, columns, 16):
            copy[i : i + 1024, j : j + 16] = array[i : i + 1024, j : j + 16]
    return copy
