"""Elementary functions: accuracy, special values, the same bits everywhere."""

import math

import numpy as np
import pytest
from numba import cfunc
from scipy import special

from fusion_search.codegen.rt import loader, maths
from fusion_search.codegen.rt import special as special_functions
from fusion_search.codegen.rt.driver import KERNEL_SIGNATURE
from fusion_search.codegen.rt.interleave import Folded, Interleaved
from fusion_search.codegen.rt.intrinsics import f32_to_f16
from fusion_search.codegen.rt.memory import p_f4, p_u2, table
from tests.codegen.rt.helpers import HEADER, elementwise, max_ulp, run_kernel, same_bits

SPECIALS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38, 1e-45]

# name -> (reference in float64, inputs, largest error in ulp)
CASES32 = {
    "exp32": (np.exp, "wide", 0.8),
    "log32": (np.log, "wide", 0.84),
    "tanh32": (np.tanh, "wide", 1.0),
    "sigmoid32": (special.expit, "wide", 2.42),
    "erf32": (special.erf, "wide", 0.9),
    "sin32": (np.sin, "all", 1.5),
    "cos32": (np.cos, "all", 1.5),
    "sin32_small": (np.sin, "small", 1.5),
    "cos32_small": (np.cos, "small", 1.5),
    "log1p32": (np.log1p, "wide", 0.6),
    "expm1_32": (np.expm1, "wide", 0.6),
}
CASES64 = {
    "exp64": (np.exp, 1.01),
    "log64": (np.log, 0.83),
    "tanh64": (np.tanh, 1.36),
    "sin64": (np.sin, 1.0),
    "cos64": (np.cos, 1.0),
}


def inputs32(kind):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = rng.uniform(-110, 100, 200_000).astype(np.float32)
    unit = rng.uniform(-2, 2, 100_000).astype(np.float32)
    x = np.concatenate([bits, near, unit, np.array(SPECIALS, np.float32)])
    return x[np.abs(x) <= 48000] if kind == "small" else x


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    source = HEADER
    names = []
    for name in CASES32:
        source += elementwise(f"k_{name}", f"{name}(x)", ["x"], "f4")
    for name in [*CASES64, "erf64", "sigmoid64"]:
        source += elementwise(f"k_{name}", f"{name}(x)", ["x"], "f8", "f8")
    for name in ("pow32", "np_maximum", "np_minimum"):
        source += elementwise(f"k_{name}", f"{name}(x, y)", ["x", "y"], "f4")
    source += elementwise("k_relu32", "relu32(x)", ["x"], "f4")
    source += elementwise("k_f16", "f32_to_f16(x)", ["x"], "u2")
    source += elementwise("k_bf16", "f32_to_bf16(x)", ["x"], "u2")
    source += elementwise("k_from_f16", "f16_to_f32(x)", ["x"], "f4", "u2")
    source += elementwise("k_from_bf16", "bf16_to_f32(x)", ["x"], "f4", "u2")
    source += elementwise("k_floordiv", "floordiv_i32(x, y)", ["x", "y"], "i4", "i4")
    names = [line[4:].split("(")[0] for line in source.splitlines() if line.startswith("def k_")]
    return loader.load(source, names, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("name", CASES32)
def test_float32_error(kernels, name):
    reference, kind, bound = CASES32[name]
    x = inputs32(kind)
    out = np.empty_like(x)
    run_kernel(kernels[f"k_{name}"], [x, out], x.size)
    with np.errstate(all="ignore"):
        assert max_ulp(out, reference(x.astype(np.float64))) <= bound


@pytest.mark.parametrize("name", CASES64)
def test_float64_error(kernels, name):
    reference, bound = CASES64[name]
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(-740, 710, 100_000), rng.uniform(-2, 2, 100_000), SPECIALS])
    out = np.empty_like(x)
    run_kernel(kernels[f"k_{name}"], [x, out], x.size)
    with np.errstate(all="ignore"):
        assert max_ulp(out, reference(x.astype(np.longdouble))) <= bound


def test_erf64_and_sigmoid64(kernels):
    x = np.concatenate([np.linspace(-7, 7, 20_001), SPECIALS])
    out = np.empty_like(x)
    run_kernel(kernels["k_erf64"], [x, out], x.size)
    # The reference is itself rounded: half an ulp on top of the bound.
    assert max_ulp(out, np.array([math.erf(v) for v in x])) <= 3.1
    run_kernel(kernels["k_sigmoid64"], [x, out], x.size)
    np.testing.assert_allclose(out, special.expit(x), rtol=1e-15)


@pytest.mark.parametrize("name", [n for n in CASES32 if not n.startswith(("log1p", "expm1"))])
def test_bits_do_not_depend_on_vectorisation(kernels, name):
    x = inputs32("small")[:5003]
    whole, pieces = np.empty_like(x), np.empty_like(x)
    run_kernel(kernels[f"k_{name}"], [x, whole], x.size)
    for lo in range(0, x.size, 7):
        part, out = x[lo : lo + 7].copy(), np.empty(min(7, x.size - lo), np.float32)
        run_kernel(kernels[f"k_{name}"], [part, out], part.size)
        pieces[lo : lo + 7] = out
    assert same_bits(whole, pieces)


def test_small_sine_has_the_bits_of_the_full_one(kernels):
    x = inputs32("small")
    for name in ("sin32", "cos32"):
        full, small = np.empty_like(x), np.empty_like(x)
        run_kernel(kernels[f"k_{name}"], [x, full], x.size)
        run_kernel(kernels[f"k_{name}_small"], [x, small], x.size)
        assert same_bits(full, small)


def test_pow32(kernels):
    rng = np.random.default_rng(5)
    sx, sy = np.meshgrid(np.array([*SPECIALS, 2, 0.5, -2, 3], np.float32), np.array([*SPECIALS, 2, 3, -3, 0.5, -0.5], np.float32))
    x = np.concatenate([np.exp(rng.uniform(-20, 20, 100_000)).astype(np.float32), sx.ravel()])
    y = np.concatenate([rng.uniform(-9, 9, 100_000).astype(np.float32), sy.ravel()])
    out = np.empty_like(x)
    run_kernel(kernels["k_pow32"], [x, y, out], x.size)
    with np.errstate(all="ignore"):
        assert max_ulp(out, np.power(x.astype(np.float64), y.astype(np.float64))) <= 0.51


@pytest.mark.parametrize(("name", "ufunc"), [("np_maximum", np.maximum), ("np_minimum", np.minimum)])
def test_maximum_has_numpys_bits(kernels, name, ufunc):
    values = np.array([*SPECIALS, 2.0, -2.0], np.float32)
    x, y = (np.tile(a.ravel(), 5) for a in np.meshgrid(values, values))
    x, y, out = x.copy(), y.copy(), np.empty_like(x)
    run_kernel(kernels[f"k_{name}"], [x, y, out], x.size)
    assert same_bits(out, ufunc(x, y))
    run_kernel(kernels["k_relu32"], [x, out], x.size)
    assert same_bits(out, np.maximum(x, np.float32(0)))


def test_half_precisions(kernels):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = inputs32("all")
    x = x[~np.isnan(x)]
    for name, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        out = np.empty(x.size, np.uint16)
        run_kernel(kernels[f"k_{name}"], [x, out], x.size)
        with np.errstate(over="ignore"):
            assert same_bits(out, x.astype(dtype).view(np.uint16))
        every = np.arange(65536, dtype=np.uint32).astype(np.uint16)
        wide = np.empty(65536, np.float32)
        run_kernel(kernels[f"k_from_{name}"], [every, wide], 65536)
        np.testing.assert_array_equal(wide, every.view(dtype).astype(np.float32))


@pytest.mark.parametrize("name", ["tanh32", "erf32"])
@pytest.mark.parametrize("options", [{}, {"pipeline_class": Interleaved}, {"pipeline_class": Folded}])
def test_odd_functions_between_float64_and_float16(name, options):
    function = getattr(maths if hasattr(maths, name) else special_functions, name)

    @cfunc(KERNEL_SIGNATURE, error_model="numpy", **options)
    def kernel(args, scratch, lo, hi):
        t = table(args)
        x, out = p_f4(t[0], 0), p_u2(t[1], 0)
        for i in range(lo, hi):
            out[i] = f32_to_f16(function(np.float32(math.asinh(np.float64(x[i])))))

    assert "truncdfhf2" not in kernel._library.get_asm_str()
    x = np.linspace(-9, 9, 77).astype(np.float32)
    out = np.empty(x.size, np.float16)
    run_kernel(kernel.address, [x, out], x.size)
    reference = {"tanh32": np.tanh, "erf32": special.erf}[name]
    np.testing.assert_allclose(out, reference(np.arcsinh(x)), rtol=2e-3)


def test_floor_division(kernels):
    rng = np.random.default_rng(6)
    x = rng.integers(-(2**31), 2**31, 10_000, dtype=np.int64).astype(np.int32)
    y = rng.integers(-50, 50, 10_000).astype(np.int32)
    out = np.empty_like(x)
    run_kernel(kernels["k_floordiv"], [x, y, out], x.size)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(out, np.where(y == 0, 0, x // y))
