"""Tables in registers: what a loop looks up is what lies in the table, however the loop is compiled."""

import numpy as np
import pytest
from numba import cfunc

from fusion_search.codegen.rt import maths, target
from fusion_search.codegen.rt.driver import KERNEL_SIGNATURE
from fusion_search.codegen.rt.interleave import Folded, Interleaved
from fusion_search.codegen.rt.lookup import HOST_WIDTH, make_ends, make_lookup, make_scale_floor
from fusion_search.codegen.rt.memory import p_f4, p_i4, table
from tests.codegen.rt.helpers import run_kernel, same_bits

WIDTHS = [width for width in (0, 8, 16) if width <= HOST_WIDTH]
COMPILERS = [{}, {"pipeline_class": Interleaved}, {"pipeline_class": Folded}]
TABLES = {size: np.random.default_rng(size).normal(size=size).astype(np.float32) for size in (16, 32)}


def _lookup_kernel(lookup, options):
    @cfunc(KERNEL_SIGNATURE, error_model="numpy", **options)
    def kernel(args, scratch, lo, hi):
        t = table(args)
        index, out = p_i4(t[0], 0), p_f4(t[1], 0)
        for i in range(lo, hi):
            out[i] = lookup(index[i])

    return kernel


@pytest.mark.parametrize("options", COMPILERS, ids=["plain", "interleaved", "folded"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", TABLES)
def test_every_form_reads_the_table_by_the_low_bits_of_the_index(size, width, options):
    kernel = _lookup_kernel(make_lookup(TABLES[size], width), options)
    for n in (1, 7, 16, 31, 56, 300):
        index = np.random.default_rng(n).integers(-(2**31), 2**31, n).astype(np.int32)
        out = np.zeros(n, np.float32)
        run_kernel(kernel.address, [index, out], n)
        assert same_bits(out, TABLES[size][index & (size - 1)])


@pytest.mark.skipif(HOST_WIDTH == 0, reason="the processor cannot permute vectors")
@pytest.mark.parametrize("options", COMPILERS[1:], ids=["interleaved", "folded"])
def test_loops_permute_registers_without_calls_or_gathers(options):
    text = _lookup_kernel(make_lookup(TABLES[32]), options)._library.get_asm_str()
    loop = text[: text.index(".Lfunc_end0")]
    assert "vperm" in loop
    assert "gather" not in loop


@pytest.mark.parametrize("options", COMPILERS, ids=["plain", "interleaved", "folded"])
def test_scaling_by_powers_of_two_rounds_once_also_to_subnormal_results(options):
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(1, 2, 1000), [1, np.nan, 1.5]]).astype(np.float32)
    k = np.concatenate([rng.integers(-160 * 16, 129 * 16, 1000) / 16, [0, np.nan, -149.0]]).astype(np.float32)
    with np.errstate(over="ignore"):
        want = np.ldexp(x.astype(np.float64), np.floor(np.nan_to_num(k)).astype(int)).astype(np.float32)
    for width in (0, HOST_WIDTH):
        out = np.zeros_like(x)
        run_kernel(_scale_kernel(make_scale_floor(width), options).address, [x, k, out], x.size)
        assert same_bits(out, want)


def _scale_kernel(scale, options):
    @cfunc(KERNEL_SIGNATURE, error_model="numpy", **options)
    def kernel(args, scratch, lo, hi):
        t = table(args)
        x, k, out = p_f4(t[0], 0), p_f4(t[1], 0), p_f4(t[2], 0)
        for i in range(lo, hi):
            out[i] = scale(x[i], k[i])

    return kernel


@pytest.mark.parametrize("options", COMPILERS, ids=["plain", "interleaved", "folded"])
@pytest.mark.parametrize("name", ["exp32", "exp32_neg"])
def test_far_beyond_its_ends_an_exponential_is_0_or_infinite_in_every_form(name, options):
    function = getattr(maths, name)

    @cfunc(KERNEL_SIGNATURE, error_model="numpy", **options)
    def kernel(args, scratch, lo, hi):
        t = table(args)
        x, out = p_f4(t[0], 0), p_f4(t[1], 0)
        for i in range(lo, hi):
            out[i] = function(x[i])

    far = [-np.inf, -3e38, -1e30, -3e5, -1e5, -150.0, -104.5, -103.9, -90.0, -0.0, 0.0, np.nan, -np.nan]
    if name == "exp32":
        far += [88.0, 88.73, 89.5, 150.0, 1e5, 3e5, 1e30, 3e38, np.inf]
    with np.errstate(over="ignore"):
        want = np.exp(np.array(far, np.float64)).astype(np.float32)
    for n in (1, 16, 64, 130):  # elements alone, in vectors, in several vectors at a time
        x = np.repeat(np.array(far, np.float32), n)
        out = np.zeros_like(x)
        run_kernel(kernel.address, [x, out], x.size)
        np.testing.assert_allclose(out, np.repeat(want, n), rtol=2e-7, atol=0)
        assert all(same_bits(part, np.repeat(part[:1], n)) for part in out.reshape(-1, n) if not np.isnan(part[0]))


def test_without_the_instruction_the_ends_are_clamped_and_the_rest_is_left(monkeypatch):
    monkeypatch.setattr(target, "has", lambda feature: feature != "avx512dq")
    ends, rest = make_ends(-3.0, 2.0, 0.5, 16)

    @cfunc(KERNEL_SIGNATURE, error_model="numpy")
    def kernel(args, scratch, lo, hi):
        t = table(args)
        x, clamped, left = p_f4(t[0], 0), p_f4(t[1], 0), p_f4(t[2], 0)
        for i in range(lo, hi):
            clamped[i] = ends(x[i])
            left[i] = rest(x[i])

    x = np.array([-np.inf, -4, -3, -0.1, 0, 1.9, 2.5, np.inf, np.nan] * 8, np.float32)
    clamped, left = np.zeros_like(x), np.zeros_like(x)
    run_kernel(kernel.address, [x, clamped, left], x.size)
    np.testing.assert_array_equal(clamped, np.clip(x, -3, 2))
    np.testing.assert_array_equal(left, x)


def test_a_table_of_another_size_is_refused():
    with pytest.raises(ValueError, match="17 values"):
        make_lookup(np.zeros(17))
