"""What the machine can do, measured beside what is compared with it: copy, triad, stores alone, and the rate of a large product."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from experiments.benchmarks.case import Array
from fusion_search.runtime.waking import awake

#: Elements of one task; a multiple of the elements of a page.
_BLOCK = 1 << 14
#: Bytes of a cache line, at least.
_LINE = 64


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
    factor, threads = np.float32(0.5), numba.get_num_threads()
    copy, triad = awake(threads, copy), awake(threads, triad)
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
    pieces = numba.get_num_threads()
    call = awake(pieces, _fill())
    target = np.ones((pieces, max(64, nbytes // pieces)), np.uint8)
    return (lambda: call(target, np.uint8(1))), target.nbytes


@cache
def _past() -> tuple[Callable[..., None], Callable[..., None]]:
    @intrinsic  # type: ignore[untyped-decorator]  # numba has none
    def store_line(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            line = ir.VectorType(ir.DoubleType(), _LINE // 8)
            temporary = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
            store = builder.store(ir.Constant(line, [1.5] * line.count), builder.inttoptr(arguments[0], line.as_pointer()), align=_LINE)
            store.set_metadata("nontemporal", temporary)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    @numba.njit("void(i8,i8)", nogil=True)  # type: ignore[untyped-decorator]  # numba has none
    def alone(start: int, end: int) -> None:
        for address in range(start, end, _LINE):
            store_line(address)

    @numba.njit("void(i8,i8,i8)", parallel=True, nogil=True)  # type: ignore[untyped-decorator]  # numba has none
    def together(start: int, piece: int, pieces: int) -> None:
        for k in numba.prange(pieces):
            alone(start + k * piece, start + (k + 1) * piece)

    return alone, together


def past(nbytes: int) -> tuple[Callable[[], None], Callable[[], None], int]:
    """Make stores of whole lines past the caches over so many bytes, by one thread and by all; return them and their bytes.

    They say what the way to memory takes. Where all threads store no more than one does, they share one way: such is a core complex
    of a processor made of several, and a virtual machine may be moved from one to two of them and back.
    """
    alone, together = _past()
    threads = numba.get_num_threads()
    together = awake(threads, together)
    piece = max(1, nbytes // (threads * _LINE)) * _LINE
    raw = np.ones(piece * threads + _LINE, np.uint8)
    start = raw.ctypes.data + -raw.ctypes.data % _LINE

    def by_one() -> None:
        alone(start, start + raw.nbytes - _LINE)

    return by_one, (lambda: together(start, piece, threads)), piece * threads


def product(size: int = 1536) -> tuple[Callable[[], object], int]:
    """Make a large float32 product in the BLAS of NumPy; return it and its floating-point operations."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(a)
    return (lambda: np.matmul(a, b, out=out)), 2 * size**3
