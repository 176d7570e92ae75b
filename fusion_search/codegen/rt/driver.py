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

from fusion_search.codegen.rt.memory import call_address, call_number, fetch_add, p_i8


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
COUNTER = 16


#: Numbers of a launch record: all that one run of a plan needs, so that a call has a single argument.
LAUNCH_FIELDS = ("rows", "steps", "workers", "counters", "moves", "moved", "table", "bases", "flag")


@njit("void(i8,i8,i8,i8)", parallel=True, cache=True, error_model="numpy", nogil=True)
def _run_rows(rows, count, workers, counters):
    # The number of workers is an argument because asking for it in compiled
    # code would make the function uncacheable.
    # The counters are the caller's: a buffer on the stack is zeroed at entry,
    # and for as many workers as there may be that takes a microsecond.
    steps, taken = p_i8(rows, 0), p_i8(counters, 0)
    for s in range(count):
        fn = steps[6 * s]
        args = steps[6 * s + 1]
        n = steps[6 * s + 2]
        chunk = steps[6 * s + 3] if steps[6 * s + 3] > 0 else max(n, 1)
        scratch_base = steps[6 * s + 4]
        scratch_stride = steps[6 * s + 5]
        tasks = (n + chunk - 1) // chunk
        if tasks <= 1 or workers == 1:
            for task in range(tasks):
                lo = task * chunk
                call_address(fn, (args, scratch_base, lo, min(lo + chunk, n)))
        else:
            sharers = min(workers, tasks)
            for t in range(sharers):
                taken[t * COUNTER] = t * tasks // sharers
            # Each worker owns a contiguous range, the same in every step, so
            # what it wrote is still in its cache; when done it helps others.
            # A worker is an iteration, not a thread: two may share a thread,
            # one after the other, and no scratch slot is ever used twice at
            # the same time.
            for t in prange(sharers):
                scratch = scratch_base + t * scratch_stride
                for v in range(sharers):
                    w = t + v
                    if w >= sharers:
                        w -= sharers
                    end = (w + 1) * tasks // sharers
                    task = fetch_add(counters + w * COUNTER * 8, 1)
                    while task < end:
                        lo = task * chunk
                        call_address(fn, (args, scratch, lo, min(lo + chunk, n)))
                        task = fetch_add(counters + w * COUNTER * 8, 1)


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
        Number of scratch slots, of which a step uses one for each of its tasks at most; 0 means Numba's current number of threads,
        which takes a microsecond to ask: pass it if known.
    """
    workers = workers or numba.get_num_threads()
    counters = np.empty(workers * COUNTER, np.int64)
    _run_rows(steps.ctypes.data, count, workers, counters.ctypes.data)


@njit("void(i8,i8,i8)", parallel=True, cache=True, error_model="numpy", nogil=True)
def ask(fn, workers, answers):
    """Have each of the threads that share a step call the C function ``int f(void)`` at an address, and write its answer.

    Parameters
    ----------
    fn : int
    workers : int
        At most Numba's current number of threads.
    answers : int
        Address of an int64 for each.
    """
    for t in prange(workers):
        p_i8(answers, t)[0] = call_number(fn)


@njit("void(i8,i8,i8,i8)", cache=True, error_model="numpy", nogil=True)
def bind(moves, count, table, bases):
    """Enter buffer addresses that change from run to run into the argument tables.

    Parameters
    ----------
    moves : int
        Address of rows (place in the tables, number of the base, offset): the place becomes the base's address plus the offset.
    count : int
        Number of rows.
    table, bases : int
        Address of the argument tables, and of the bases' addresses.
    """
    rows, entries, starts = p_i8(moves, 0), p_i8(table, 0), p_i8(bases, 0)
    for i in range(count):
        entries[rows[3 * i]] = starts[rows[3 * i + 1]] + rows[3 * i + 2]


@njit("i8(i8)", cache=True, error_model="numpy", nogil=True)
def launch(record):
    """Run a whole plan: bind what moved, run all steps, and return what they left in the flag.

    Parameters
    ----------
    record : int
        Address of the numbers named by `LAUNCH_FIELDS`.
    """
    r = p_i8(record, 0)
    flag = p_i8(r[8], 0)
    flag[0] = 0
    bind(r[4], r[5], r[6], r[7])
    _run_rows(r[0], r[1], r[2], r[3])
    return flag[0]
