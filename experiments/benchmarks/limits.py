"""What the machine can do, measured beside what is compared with it: copy, triad, fill, and the rate of a large product."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np

from experiments.benchmarks.case import Array

#: Elements of one task; a multiple of the elements of a page.
_BLOCK = 1 << 14


@cache
def _streams() -> tuple[Callable[..., None], Callable[..., None]]:
    @numba.njit("void(f4[:,::1],f4[:,::1])", parallel=True, error_model="numpy")  # type: ignore[untyped-decorator]  # numba has none
    def copy(target: Array, source: Array) -> None:
        for k in numba.prange(target.shape[0]):
            t, s = target[k], source[k]
            for i in range(t.size):
                t[i] = s[i]

    @numba.njit("void(f4[:,::1],f4[:,::1],f4[:,::1],f4)", parallel=True, error_model="numpy")  # type: ignore[untyped-decorator]  # numba has none
    def triad(target: Array, a: Array, b: Array, factor: float) -> None:
        for k in numba.prange(target.shape[0]):
            t, x, y = target[k], a[k], b[k]
            for i in range(t.size):
                t[i] = x[i] + factor * y[i]

    return copy, triad


def stream(nbytes: int) -> tuple[Callable[[], None], Callable[[], None], int, int]:
    """Make STREAM's copy and triad over so many bytes.

    Returns
    -------
    copy, triad : callable
    copy_bytes, triad_bytes : int
        What each names: two arrays, three arrays.
    """
    copy, triad = _streams()

    def arrays(count: int) -> list[Any]:
        block = min(_BLOCK, max(64, nbytes // (4 * count * 8)))
        rows = max(1, round(nbytes / (4 * count * block)))
        made = []
        for k in range(count):
            raw = np.full(rows * block + 16, float(k + 1), np.float32)
            start = (-raw.ctypes.data % 64) // 4
            made.append(raw[start : start + rows * block].reshape(rows, block))
        return made

    two, three = arrays(2), arrays(3)
    factor = np.float32(0.5)
    return (lambda: copy(*two)), (lambda: triad(*three, factor)), 2 * two[0].nbytes, 3 * three[0].nbytes


@cache
def _fill() -> Callable[..., None]:
    @numba.njit("void(u1[:,::1],u1)", parallel=True, error_model="numpy")  # type: ignore[untyped-decorator]  # numba has none
    def fill(target: Array, value: int) -> None:
        for k in numba.prange(target.shape[0]):
            target[k][:] = value  # the system's own memset, which knows the machine

    made: Callable[..., None] = fill
    return made


def fill(nbytes: int) -> tuple[Callable[[], None], int]:
    """Make the system's memset over so many bytes, in a piece for each thread; return it and its bytes.

    It says what memory takes of stores alone, which may be much less than triad moves. Not of zeros: some processors store those faster.
    """
    call, pieces = _fill(), numba.get_num_threads()
    target = np.ones((pieces, max(64, nbytes // pieces)), np.uint8)
    return (lambda: call(target, np.uint8(1))), target.nbytes


def product(size: int = 1536) -> tuple[Callable[[], object], int]:
    """Make a large float32 product in the BLAS of NumPy; return it and its floating-point operations."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    return (lambda: np.matmul(a, b, out=out)), 2 * size**3
