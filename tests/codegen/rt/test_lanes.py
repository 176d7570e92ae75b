"""Lane reductions against a NumPy model of the tree."""

import numpy as np
import pytest

from fusion_search.codegen.rt import loader
from tests.codegen.rt.helpers import HEADER, run_kernel, same_bits

SIZES = [0, 1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 1000, 4099]
OPS = {"sum": (np.add, -0.0), "max": (None, -np.inf), "min": (None, np.inf)}


def combine(kind, acc, x):
    if kind == "sum":
        return acc + x
    best = np.where(x > acc, x, acc) if kind == "max" else np.where(x < acc, x, acc)
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), best)


def model(kind, x):
    start = OPS[kind][1]
    lanes = np.full(64, start, x.dtype)
    for lo in range(0, x.size, 64):
        part = x[lo : lo + 64]
        lanes[: part.size] = combine(kind, lanes[: part.size], part)
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = combine(kind, lanes[:half], lanes[half:])
    return lanes[0]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    source = HEADER
    names = []
    for kind, update in (("sum", "add"), ("max", "max"), ("min", "min")):
        for size, dt in ((32, "f4"), (64, "f8")):
            names.append(f"k_{kind}{size}")
            number = {"f4": "np.float32", "f8": "np.float64"}[dt]
            start = {"sum": "-0.0", "max": "-np.inf", "min": "np.inf"}[kind]
            source += f"""
@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")
def k_{kind}{size}(args, scratch, lo, hi):
    t = table(args)
    out = p_{dt}(t[1], 0)
    x = p_{dt}(t[0], 0)
    acc = lanes_{dt}({number}({start}))
    whole = hi // 64 * 64
    for at in range(0, whole, 64):
        acc = lanes_{update}_f{size}(acc, padd(x, at))
    if whole < hi:
        acc = lanes_rest_{update}_f{size}(acc, padd(x, whole), hi - whole)
    out[0] = fold_{kind}_f{size}(acc)
    lanes_store_f{size}(p_{dt}(t[2], 0), acc)
    out[1] = fold_{kind}_f{size}(lanes_{update}_f{size}(lanes_{dt}({number}({start})), p_{dt}(t[2], 0)))

"""
    for size, dt in ((32, "f4"), (64, "f8")):
        names.append(f"k_lines{size}")
        source += f"""
@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")
def k_lines{size}(args, scratch, lo, hi):
    t = table(args)
    out, x = p_{dt}(t[0], t[2]), p_{dt}(t[1], 0)
    waiting, before = lanes_{dt}(np.float{size}(5)), before_line(out, {size // 8})
    for at in range(0, hi, 64):
        waiting = lanes_lines_f{size}(padd(out, at), padd(x, at), waiting, before, at)
    lanes_last_f{size}(padd(out, hi), waiting, before)

"""
    for kind in ("sum", "max", "min"):
        names.append(f"k_int_{kind}")
        source += f"""
@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")
def k_int_{kind}(args, scratch, lo, hi):
    t = table(args)
    out = p_i8(t[1], 0)
    out[0] = int_{kind}(p_i4(t[0], 0), hi)

"""
    return loader.load(source, names, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("kind", OPS)
def test_tree(kernels, kind, size):
    rng = np.random.default_rng(1)
    dtype = np.dtype(f"f{size // 8}")
    for n in SIZES:
        for special in ([], [np.nan], [-0.0, 0.0], [np.inf, -np.inf]):
            x = rng.standard_normal(n).astype(dtype)
            for value in special[:n]:
                x[rng.integers(n)] = value
            out = np.empty(2, dtype)
            run_kernel(kernels[f"k_{kind}{size}"], [x, out, np.empty(64, dtype)], n)
            with np.errstate(invalid="ignore"):
                expected = model(kind, x)
            if np.isnan(expected):
                assert np.isnan(out).all()
            else:
                assert same_bits(out, np.array([expected, expected]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_begin_anywhere_are_written_in_whole_lines(kernels, dtype):
    """Each way that a row can lie in a line, and nothing beside it is written."""
    size = np.dtype(dtype).itemsize
    for offset in range(64 // size):
        for n in (64, 128, 320):
            x = np.random.default_rng(n).standard_normal(n).astype(dtype)
            out = np.full(n + 3 * 64, 7, dtype)
            first = -out.ctypes.data % 64 // size + 64 // size + offset
            run_kernel(kernels[f"k_lines{8 * size}"], [out, x], n, [first])
            assert same_bits(out[first : first + n], x)
            assert (np.delete(out, slice(first, first + n)) == 7).all()


def test_integers(kernels):
    x = np.random.default_rng(2).integers(-(2**31), 2**31, 1001).astype(np.int32)
    out = np.empty(1, np.int64)
    for kind, expected in (("sum", x.sum(dtype=np.int64)), ("max", x.max()), ("min", x.min())):
        run_kernel(kernels[f"k_int_{kind}"], [x, out], x.size)
        assert out[0] == expected
