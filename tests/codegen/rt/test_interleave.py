"""The hint reaches LLVM: vectors are worked on four at a time, and bits stay the same."""

import numpy as np
import pytest
from numba import cfunc

from fusion_search.codegen.rt.driver import KERNEL_SIGNATURE
from fusion_search.codegen.rt.interleave import COUNT, Folded, Interleaved
from fusion_search.codegen.rt.maths import exp32
from fusion_search.codegen.rt.memory import p_f4, padd, table, turn
from tests.codegen.rt.helpers import run_kernel


def _kernel(**options):
    @cfunc(KERNEL_SIGNATURE, error_model="numpy", **options)
    def kernel(args, scratch, lo, hi):
        t = table(args)
        x, out = p_f4(t[0], 0), p_f4(t[1], 0)
        for repeat in range(2):  # a loop around must not disturb
            for i in range(lo, hi):
                out[i] = exp32(x[i]) + np.float32(repeat)

    return kernel


def test_loops_carry_the_hint_and_are_interleaved():
    plain, hinted = _kernel(), _kernel(pipeline_class=Interleaved)
    polynomial = "@llvm.fma.v"
    calls = [kernel._library.get_llvm_str().count(polynomial) for kernel in (plain, hinted)]
    assert calls[1] >= COUNT * calls[0] / 2 > 0  # the remainder's loop has one vector in both


def test_short_loops_leave_nothing_over():
    texts = [kernel._library.get_llvm_str() for kernel in (_kernel(), _kernel(pipeline_class=Folded))]
    assert ["@llvm.masked.store" in text for text in texts] == [False, True]


@pytest.mark.parametrize("n", [0, 1, 15, 16, 31, 56, 1000, 10_007])
def test_bits_do_not_depend_on_it(n):
    x = np.random.default_rng(0).uniform(-110, 95, n).astype(np.float32)
    results = []
    for kernel in (_kernel(), _kernel(pipeline_class=Interleaved), _kernel(pipeline_class=Folded)):
        out = np.zeros_like(x)
        run_kernel(kernel.address, [x, out], x.size)
        results.append(out)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].view(np.int32), other.view(np.int32))


def test_turn_with_remainders_and_steps():
    @cfunc(KERNEL_SIGNATURE, error_model="numpy")
    def kernel(args, scratch, lo, hi):
        t = table(args)
        turn(padd(p_f4(t[1], 0), 3), padd(p_f4(t[0], 0), 5), t[2], t[3], t[4], t[5])

    for rows, columns in ((1, 1), (16, 16), (17, 33), (48, 15), (15, 64), (0, 9)):
        source = np.arange(80 * 100, dtype=np.float32)
        target = np.full(70 * 90, -1, np.float32)
        run_kernel(kernel.address, [source, target], 1, (rows, columns, 99, 80))
        want = np.full_like(target, -1)
        for r in range(rows):
            want[3 + r * 80 : 3 + r * 80 + columns] = source[5 + r :][: columns * 99 : 99][:columns]
        np.testing.assert_array_equal(target, want)
