"""The shared driver: runs a whole plan from a table of numbers.

A kernel is a C function ``void(argtable, scratch, lo, hi)`` of four int64 that
processes the items ``lo <= i < hi``.  One row of the int64 step table is one
kernel call: (function address, argument table address, number of items, items
a task, scratch address, bytes from one thread's scratch to the next one's).
Because addresses are data, one compiled driver runs every plan.
"""

import importlib.util
import os

import numba
import numpy as np
from numba import njit, prange, types
from numpy.typing import NDArray

from fusion_search.codegen.rt.memory import addr_of, call_address, fetch_add, make_stack


def _choose_layer() -> None:
    """Prefer OpenMP, then TBB; workqueue is 40 times slower and not thread-safe."""
    if numba.config.THREADING_LAYER != "default":
        return  # the user has asked for one
    for layer, module in (("omp", "omppool"), ("tbb", "tbbpool")):
        if importlib.util.find_spec(f"numba.np.ufunc.{module}") is not None:
            numba.config.THREADING_LAYER = layer
            return


_choose_layer()
# By default an idle OpenMP thread spins for milliseconds.  On a busy machine
# that takes the processor from the very thread it waits for: a 0.5 ms kernel
# then takes 8 ms.  Read when the OpenMP library is loaded, so set here; spinning
# some 50 us still bridges the gap between two steps.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

#: The signature of every kernel.
KERNEL_SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64)
#: Columns of a step table.
STEP_FIELDS = ("function", "argtable", "items", "chunk", "scratch", "stride")
#: Numbers between the counters of two threads: one cache line pair.
_PAD = 16
_MAX_WORKERS = 256
# On the stack: an allocation would cost more than starting a small plan.
_counters = make_stack(_PAD * _MAX_WORKERS, types.int64)


@njit("void(i8[:,::1],i8,i8)", parallel=True, cache=True, error_model="numpy", nogil=True)
def _run_plan(steps, count, workers):
    # The number of workers is an argument because asking for it in compiled
    # code would make the function uncacheable.
    counters = _counters()
    base = addr_of(counters)
    workers = min(workers, _MAX_WORKERS)
    for s in range(count):
        fn = steps[s, 0]
        args = steps[s, 1]
        n = steps[s, 2]
        chunk = steps[s, 3] if steps[s, 3] > 0 else max(n, 1)
        scratch_base = steps[s, 4]
        scratch_stride = steps[s, 5]
        tasks = (n + chunk - 1) // chunk
        if tasks <= 1 or workers == 1:
            for task in range(tasks):
                lo = task * chunk
                call_address(fn, (args, scratch_base, lo, min(lo + chunk, n)))
        else:
            for t in range(workers):
                counters[t * _PAD] = t * tasks // workers
            # Each worker owns a contiguous range, the same in every step, so
            # what it wrote is still in its cache; when done it helps others.
            # A worker is an iteration, not a thread: two may share a thread,
            # one after the other, and no scratch slot is ever used twice at
            # the same time.
            for t in prange(workers):
                scratch = scratch_base + t * scratch_stride
                for v in range(workers):
                    w = t + v
                    if w >= workers:
                        w -= workers
                    end = (w + 1) * tasks // workers
                    task = fetch_add(base + w * _PAD * 8, 1)
                    while task < end:
                        lo = task * chunk
                        call_address(fn, (args, scratch, lo, min(lo + chunk, n)))
                        task = fetch_add(base + w * _PAD * 8, 1)


def run_plan(
    steps: NDArray[np.int64],
    count: int,
    workers: int = 0,
) -> None:
    """Run the first `count` steps, in order, each on all threads.

    Parameters
    ----------
    steps : int64[:, ::1]
        Rows of `STEP_FIELDS`; a chunk of 0 means all items.  No kernel call spans more than
        one chunk, so scratch may be sized by it.  A step of at most one chunk
        runs in the calling thread; a step without items calls nothing.  The
        scratch of worker `t` starts ``t * stride`` bytes behind ``scratch``.
    count : int
        Number of steps.
    workers : int
        Number of scratch slots; 0 means Numba's current number of threads,
        which takes a microsecond to ask: pass it if known.
    """
    _run_plan(steps, count, workers or numba.get_num_threads())


@njit("void(i8[:,::1],i8)", cache=True, error_model="numpy", nogil=True)
def run_plan_serial(steps, count):
    """Run the first `count` steps in the calling thread, chunk by chunk.

    Parameters
    ----------
    steps : int64[:, ::1]
        Rows of `STEP_FIELDS`.
    count : int64
        Number of steps.
    """
    for s in range(count):
        n = steps[s, 2]
        chunk = steps[s, 3] if steps[s, 3] > 0 else max(n, 1)
        for task in range((n + chunk - 1) // chunk):
            lo = task * chunk
            call_address(steps[s, 0], (steps[s, 1], steps[s, 4], lo, min(lo + chunk, n)))


@njit("void(i8[::1],i8[::1],i8[::1],i8[::1])", cache=True, error_model="numpy", nogil=True)
def bind(table, slots, offsets, bases):
    """Fill argument tables from buffer addresses known only at run time.

    ``table[i]`` becomes ``bases[slots[i]] + offsets[i]`` where ``slots[i]`` is
    not negative, else ``offsets[i]`` (a constant).
    """
    for i in range(table.size):
        table[i] = bases[slots[i]] + offsets[i] if slots[i] >= 0 else offsets[i]
