"""Matrix products: values, untouched surroundings, bits independent of the split."""

import numpy as np
import pytest

from fusion_search.codegen.packing import Packing, panel_columns
from fusion_search.codegen.rt.gemm import gemm_address, gemm_scratch_bytes
from tests.codegen.rt.helpers import call, same_bits

SIZES = [0, 1, 2, 3, 5, 6, 7, 13, 17, 31, 49, 64, 65, 70, 97, 130]


def multiply(a, b, c, beta=0):
    gemm = call(gemm_address(str(a.dtype)), 13)
    size = a.itemsize
    need = gemm_scratch_bytes(a.shape[1], copies=a.strides[1] != size)
    scratch = np.full(need + 64, 0xA5, np.uint8)
    gemm(
        a.shape[0],
        b.shape[1],
        a.shape[1],
        a.ctypes.data,
        a.strides[0] // size,
        a.strides[1] // size,
        b.ctypes.data,
        b.strides[0] // size,
        b.strides[1] // size,
        c.ctypes.data,
        c.strides[0] // size,
        beta,
        scratch.ctypes.data,
    )
    assert (scratch[need:] == 0xA5).all()


def matrix(rng, rows, cols, dtype):
    layout = rng.integers(4)
    if layout == 0:
        return rng.standard_normal((rows, cols)).astype(dtype)
    if layout == 1:
        return rng.standard_normal((cols, rows)).astype(dtype).T
    if layout == 2:
        return rng.standard_normal((rows, 2 * cols)).astype(dtype)[:, ::2]
    return rng.standard_normal((rows, cols + 5)).astype(dtype)[:, 3 : 3 + cols]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_shapes(dtype):
    rng = np.random.default_rng(0)
    tolerance = 2e-4 if dtype == "float32" else 1e-11
    for trial in range(250):
        m, n, k = (int(v) for v in rng.choice(SIZES, 3))
        k = int(rng.integers(380, 900)) if trial % 16 == 0 else k
        a, b = matrix(rng, m, k, dtype), matrix(rng, k, n, dtype)
        old = rng.standard_normal((m, n)).astype(dtype)
        frame = np.full((m + 1, n + 3), 7, dtype)
        c = frame[:m, :n]
        c[:] = old
        beta = int(rng.integers(2))
        multiply(a, b, c, beta)
        reference = a.astype(np.float64) @ b.astype(np.float64) + beta * old
        np.testing.assert_allclose(c, reference, rtol=tolerance, atol=tolerance)
        assert (frame[m:] == 7).all()
        assert (frame[:, n:] == 7).all()
        pieces = old.copy()
        i, j = int(rng.integers(m + 1)), int(rng.integers(n + 1))
        for rows in (slice(0, i), slice(i, m)):
            for cols in (slice(0, j), slice(j, n)):
                multiply(a[rows], b[:, cols], pieces[rows, cols], beta)
        assert same_bits(pieces, c), (m, n, k, a.strides, b.strides, beta)


def packed_gemm(form, a, b, c, c_step, first, beta):
    """Multiply by columns of a packed matrix, from `first` on, as many as C has."""
    size = a.itemsize
    width = panel_columns(size)
    lies = b if b.flags.c_contiguous else b.T  # as a constant does
    packed = Packing(width, (), ((b.shape[1], b.strides[1] // size),), ((b.shape[0], b.strides[0] // size),)).pack(lies)
    needed = gemm_scratch_bytes(a.shape[1], copies=a.strides[1] != size, form=form)
    scratch = np.full(needed + 64, 0xA5, np.uint8)
    gemm = call(gemm_address(str(a.dtype), form), 13)
    columns = c.shape[0] if form == "gemm_turned" else c.shape[1]
    where = a.ctypes.data, a.strides[0] // size, a.strides[1] // size, packed.ctypes.data, a.shape[1] * width, first
    gemm(a.shape[0], columns, a.shape[1], *where, c.ctypes.data, c_step, beta, scratch.ctypes.data)
    assert (scratch[needed:] == 0xA5).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["gemm_packed", "gemm_turned"])
def test_packed_forms_have_the_bits_of_the_plain_one(form, dtype):
    rng = np.random.default_rng(3)
    for trial in range(250):
        m, n, k = (int(v) for v in rng.choice(SIZES, 3))
        k = int(rng.integers(380, 1700)) if trial % 16 == 0 else k
        m = int(rng.integers(140, 300)) if trial % 16 == 1 else m
        if not n or not k:  # no constant is packed that has no elements
            continue
        a, b = matrix(rng, m, k, dtype), np.ascontiguousarray(rng.standard_normal((k, n)).astype(dtype))
        b = np.asfortranarray(b) if trial % 2 else b
        first = int(rng.integers(n))
        columns = int(rng.integers(n - first + 1))
        old = rng.standard_normal((m, columns)).astype(dtype)
        turned = form == "gemm_turned"
        beta = int(rng.integers(3))
        start = rng.standard_normal(columns if turned else m).astype(dtype)
        expected = old.copy() if beta < 2 else np.empty_like(old)
        if beta == 2:
            expected[:] = start if turned else start[:, None]
        multiply(a, b[:, first : first + columns], expected, min(beta, 1))
        frame = np.full((columns + 1, m + 3) if turned else (m + 1, columns + 3), 7, dtype)
        c = frame[:columns, :m] if turned else frame[:m, :columns]
        c[:] = old.T if turned else old
        packed_gemm(form, a, b, c, frame.shape[1], first, start.ctypes.data if beta == 2 else beta)
        assert same_bits(np.ascontiguousarray(c.T if turned else c), expected), (m, n, k, first, columns, beta)
        frame[: c.shape[0], : c.shape[1]] = 7
        assert (frame == 7).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_start_from_a_vector(dtype):
    rng = np.random.default_rng(2)
    for trial in range(200):
        m, n, k = (int(v) for v in rng.choice(SIZES, 3))
        k = int(rng.integers(380, 900)) if trial % 16 == 0 else k
        a, b = matrix(rng, m, k, dtype), matrix(rng, k, n, dtype)
        start = rng.standard_normal(m).astype(dtype)
        first, second = np.full((m, n), np.nan, dtype), np.repeat(start[:, None], n, 1)
        multiply(a, b, first, start.ctypes.data)
        multiply(a, b, second, 1)
        assert same_bits(first, second), (m, n, k, a.strides, b.strides)


def test_k_may_be_split_by_beta():
    rng = np.random.default_rng(1)
    a = rng.standard_normal((20, 700)).astype(np.float32)
    b = rng.standard_normal((700, 90)).astype(np.float32)
    whole, parts = np.empty((20, 90), np.float32), np.empty((20, 90), np.float32)
    multiply(a, b, whole)
    multiply(a[:, :123], b[:123], parts)
    multiply(a[:, 123:], b[123:], parts, 1)
    assert same_bits(whole, parts)
