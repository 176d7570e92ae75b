"""The plan driver: every item once, private scratch, order of steps."""

import threading

import numba
import numpy as np
import pytest

from fusion_search.codegen.rt import driver, loader
from tests.codegen.rt.helpers import HEADER

SOURCE = (
    HEADER
    + """
@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")
def k_scratch(args, scratch, lo, hi):
    # Fill the scratch, then read it back: a shared slot would show.
    t = table(args)
    x = p_f8(t[0], lo)
    out = p_f8(t[1], lo)
    s = p_f8(scratch, 0)
    for _ in range(20):
        for i in range(hi - lo):
            s[i] = x[i] * 3.0
        for i in range(hi - lo):
            out[i] = s[i] + 1.0

@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")
def k_count(args, scratch, lo, hi):
    out = p_i8(table(args)[0], lo)
    for i in range(hi - lo):
        out[i] += 1
"""
)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return loader.load(SOURCE, ["k_scratch", "k_count"], tmp_path_factory.mktemp("kernels"))


def test_layer_is_not_workqueue(kernels):
    driver.run_plan(np.zeros((1, 6), np.int64), 0)
    assert numba.config.THREADING_LAYER in ("omp", "tbb")


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 7])
@pytest.mark.parametrize(("n", "chunk"), [(0, 5), (1, 1), (1000, 1), (1000, 7), (1000, 999), (1000, 5000)])
def test_every_item_once(kernels, workers, n, chunk):
    counts = np.zeros(n + 1, np.int64)
    table = np.array([counts.ctypes.data], np.int64)
    steps = np.array([[kernels["k_count"], table.ctypes.data, n, chunk, 0, 0]] * 3, np.int64)
    driver.run_plan(steps, 3, workers)
    assert (counts[:n] == 3).all()
    assert counts[n] == 0


def test_scratch_is_private_and_results_repeat(kernels):
    n, chunk = 50_000, 512
    x = np.random.default_rng(0).standard_normal(n)
    results = []

    def plan():
        mid, out = np.empty(n), np.empty(n)
        tables = [np.array([a.ctypes.data, b.ctypes.data], np.int64) for a, b in ((x, mid), (mid, out))]
        scratch = np.empty(5 * chunk)
        places = (scratch.ctypes.data, scratch.ctypes.data + 3 * chunk * 8)  # a step has a scratch of its own
        rows = [[kernels["k_scratch"], t.ctypes.data, n, chunk, at, chunk * 8] for t, at in zip(tables, places, strict=True)]
        for workers in (1, 2):
            driver.run_plan(np.array(rows, np.int64), 2, workers)
            results.append(out.tobytes())

    # Two Python threads run plans at the same time.
    threads = [threading.Thread(target=plan) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {((x * 3 + 1) * 3 + 1).tobytes()}
    assert len(results) == 4


def test_a_launch_binds_what_moves_and_returns_the_flag(kernels):
    counts = np.zeros((2, 8), np.int64)
    table, bases, flag = np.full(3, -1), np.array([0, counts.ctypes.data]), np.ones(1, np.int64)
    taken = np.zeros(2 * driver.COUNTER, np.int64)
    moves = np.array([[1, 1, 64]])
    steps = np.array([[kernels["k_count"], table.ctypes.data + 8, 8, 3, 0, 0]], np.int64)
    record = np.array([a.ctypes.data for a in (steps, steps, steps, taken, moves, moves, table, bases, flag)])
    record[[1, 2, 5]] = 1, 2, 1
    assert driver.launch(record.ctypes.data) == 0
    assert table.tolist() == [-1, counts.ctypes.data + 64, -1]
    assert counts.tolist() == [[0] * 8, [1] * 8]
    bases[1] = flag.ctypes.data - 64
    steps[0, 2:4] = 1
    assert driver.launch(record.ctypes.data) == 1
