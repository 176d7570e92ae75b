"""Vectorisable elementary functions in plain arithmetic and explicit fma.

None of them uses a call or a branch that LLVM keeps, and their tables fit
registers (`lookup`), so loops over them vectorise; none depends on a fast-math
flag, so scalar, SSE2, AVX2 and AVX-512 code give the same bits.  Largest error
in ulp, float32 over all inputs: exp 0.81, log 0.83, tanh 1.0, sigmoid 2.41,
erf 0.9, sin and cos 1.5, pow 0.51; float64 sampled: exp 1.01, log 0.83, tanh
1.35, erf 2.6.  Special
values (NaN, infinities, signed zeros, subnormals) follow C.
"""

import math

import numpy as np
from numba import njit

from fusion_search.codegen.rt.intrinsics import (
    INLINE,
    bits_f32,
    bits_f64,
    copysign64,
    f32_bits,
    f64_bits,
    fabs32,
    fabs64,
    fma32,
    fma64,
    iadd,
    iand,
    iashr,
    ior,
    ishl,
    isub,
    ixor,
    rint64,
    select,
)
from fusion_search.codegen.rt.lookup import make_ends, make_lookup, scale_floor32
from fusion_search.codegen.rt.tables import ROOTS, ROOTS_LOW, TANH

F = np.float32
D = np.float64
_I0, _I1, _I2, _I23, _I30, _I127 = (np.int32(i) for i in (0, 1, 2, 23, 30, 127))

# Adding 1.5 * 2**23 rounds to an integer that then sits in the low bits.  Unlike
# a conversion this is defined for NaN.
_MAGIC32, _MAGIC32_BITS = F(12582912.0), np.int32(0x4B400000)
_MAGIC64, _MAGIC64_BITS = D(6755399441055744.0), np.int64(0x4338000000000000)
_INF32, _NAN32, _SIGN32 = F(np.inf), F(np.nan), np.int32(-(2**31))
_INF64, _NAN64 = D(np.inf), D(np.nan)

# --------------------------------------------------------------------- exp
# 2**(j / 16), and what rounding it to float32 left off
_root, _root_low = make_lookup(ROOTS), make_lookup(ROOTS_LOW)
# Rounds to a whole number of sixteenths, whose low bits are then the root's index.
_SIXTEENTHS = F(786432.0)


_ends, _rest = make_ends(-104.0, 89.0, 0.5)
_end_below, _ = make_ends(-104.0, np.inf, 0.5)


@njit(**INLINE)
def _exp32(x):
    t = fma32(x, F(1.44269504088896341), _SIXTEENTHS)
    k = t - _SIXTEENTHS
    r = fma32(-k, F(0.693145751953125), x)
    r = _rest(fma32(-k, F(1.42860682030941723212e-6), r))
    # exp(r) - 1 for r up to 1 / 46, minimax: 0.03 ulp. The low part of the root makes up for its rounding.
    q = fma32(fma32(F(1.6667e-1), r, F(5.000162e-1)), r * r, r)
    index = f32_bits(t)
    root = _root(index)
    return scale_floor32(root + fma32(root, q, _root_low(index)), k)


@njit(**INLINE)
def exp32_neg(x):
    """Exponential of a float32 that is at most 0, or NaN (softmax)."""
    return _exp32(_end_below(x))


@njit(**INLINE)
def exp32(x):
    """Exponential of a float32."""
    return _exp32(_ends(x))


@njit(**INLINE)
def exp64(x):
    """Exponential of a float64."""
    x = D(710.0) if x > D(710.0) else x
    x = D(-746.0) if x < D(-746.0) else x
    t = fma64(x, D(1.44269504088896338700), _MAGIC64)
    k = f64_bits(t) - _MAGIC64_BITS
    kf = t - _MAGIC64
    r = fma64(-kf, D(6.93147180369123816490e-01), x)
    r = fma64(-kf, D(1.90821492927058770002e-10), r)
    p = fma64(D(1 / 6227020800.0), r, D(1 / 479001600.0))
    p = fma64(p, r, D(1 / 39916800.0))
    p = fma64(p, r, D(1 / 3628800.0))
    p = fma64(p, r, D(1 / 362880.0))
    p = fma64(p, r, D(1 / 40320.0))
    p = fma64(p, r, D(1 / 5040.0))
    p = fma64(p, r, D(1 / 720.0))
    p = fma64(p, r, D(1 / 120.0))
    p = fma64(p, r, D(1 / 24.0))
    p = fma64(p, r, D(1 / 6.0))
    p = fma64(p, r, D(0.5))
    p = fma64(p * r, r, r) + D(1)
    half = k >> 1
    rest = k - half
    return (p * bits_f64((half + 1023) << 52)) * bits_f64((rest + 1023) << 52)


# --------------------------------------------------------------------- log
@njit(**INLINE)
def log32(x):
    """Natural logarithm of a float32; -inf at 0, NaN below."""
    subnormal = x < F(1.17549435e-38)
    scaled = x * F(33554432.0) if subnormal else x
    bias = F(-25.0) if subnormal else F(0.0)
    bits = f32_bits(scaled)
    e = iashr(isub(bits, np.int32(0x3F3504F3)), _I23)
    m = bits_f32(isub(bits, ishl(e, _I23)))
    ef = F(e) + bias
    r = m - F(1)
    z = r * r
    p = fma32(F(7.0376836292e-2), r, F(-1.1514610310e-1))
    p = fma32(p, r, F(1.1676998740e-1))
    p = fma32(p, r, F(-1.2420140846e-1))
    p = fma32(p, r, F(1.4249322787e-1))
    p = fma32(p, r, F(-1.6668057665e-1))
    p = fma32(p, r, F(2.0000714765e-1))
    p = fma32(p, r, F(-2.4999993993e-1))
    p = fma32(p, r, F(3.3333331174e-1))
    y = fma32(ef, F(-2.12194440e-4), (p * r) * z)
    y = fma32(F(-0.5), z, y)
    v = fma32(ef, F(0.693359375), r + y)
    v = x if x == _INF32 else v
    v = -_INF32 if x == F(0) else v
    return _NAN32 if x < F(0) else (x + x if x != x else v)


@njit(**INLINE)
def _log64_parts(e, f, bias):
    # fdlibm's log of 1 + f plus e (and bias) times log 2.
    k = (bits_f64(_MAGIC64_BITS + e) - _MAGIC64) + bias
    s = f / (D(2) + f)
    z = s * s
    w = z * z
    t1 = fma64(w, D(1.531383769920937332e-01), D(2.222219843214978396e-01))
    t1 = w * fma64(w, t1, D(3.999999999940941908e-01))
    t2 = fma64(w, D(1.479819860511658591e-01), D(1.818357216161805012e-01))
    t2 = fma64(w, t2, D(2.857142874366239149e-01))
    t2 = z * fma64(w, t2, D(6.666666666666735130e-01))
    hf = D(0.5) * f * f
    low = fma64(k, D(1.90821492927058770002e-10), s * (hf + (t2 + t1)))
    return k * D(6.93147180369123816490e-01) - ((hf - low) - f)


@njit(**INLINE)
def _log64_positive(x):
    # Finite, positive, normal doubles only: every positive float32 is one.
    bits = f64_bits(x)
    e = (bits - np.int64(0x3FE6A09E667F3BCD)) >> 52
    return _log64_parts(e, bits_f64(bits - (e << 52)) - D(1), D(0))


@njit(**INLINE)
def log64(x):
    """Natural logarithm of a float64; -inf at 0, NaN below."""
    subnormal = x < D(2.2250738585072014e-308)
    scaled = x * D(18014398509481984.0) if subnormal else x
    bias = D(-54.0) if subnormal else D(0.0)
    bits = f64_bits(scaled)
    e = (bits - np.int64(0x3FE6A09E667F3BCD)) >> 52
    v = _log64_parts(e, bits_f64(bits - (e << 52)) - D(1), bias)
    v = x if x == _INF64 else v
    v = -_INF64 if x == D(0) else v
    return _NAN64 if x < D(0) else (x + x if x != x else v)


# ----------------------------------------------------------- tanh, sigmoid
_t_at, _t0, _t1, _t2, _t3, _t4, _t5 = (make_lookup(column) for column in zip(*TANH, strict=True))
#: Bits of 1 / 16, less one interval: four intervals an octave begin there.
_TANH_FIRST, _I21 = np.int32(0x3D600000), np.int32(21)


@njit(**INLINE)
def signed32(size, x):
    """Give a float32 without a sign that of `x`.

    As integers: where the result is rounded to float16 and `x` came from float64, LLVM makes of a copysign a call of a function that
    no library here has.
    """
    return bits_f32(ior(f32_bits(size), iand(f32_bits(x), _SIGN32)))


@njit(**INLINE)
def tanh32(x):
    """Hyperbolic tangent of a float32: a polynomial for each of 30 intervals, without exponential or division."""
    a = fabs32(x)
    y = F(9.02) if a > F(9.02) else a  # 1 from here on
    i = iashr(isub(f32_bits(y), _TANH_FIRST), _I21)
    i = select(i < _I0, _I0, i)
    d = y - _t_at(i)
    p = fma32(fma32(_t5(i), d, _t4(i)), d * d, fma32(_t3(i), d, _t2(i)))
    return signed32(fma32(fma32(p, d, _t1(i)), d, _t0(i)), x)


@njit(**INLINE)
def tanh64(x):
    """Hyperbolic tangent of a float64."""
    a = fabs64(x)
    s = x * x
    p = fma64(D(-9.64399179425052238628e-1), s, D(-9.92877231001918586564e1))
    p = fma64(p, s, D(-1.61468768441708447952e3))
    q = fma64(s + D(1.12811678491631932402e2), s, D(2.23548839060100448583e3))
    q = fma64(q, s, D(4.84406305325125486048e3))
    small = a < D(0.625)
    e = exp64(a + a)
    ratio = select(small, p, D(2)) / select(small, q, e + D(1))
    near = copysign64(fma64(x * s, ratio, x), x)
    return select(small, near, copysign64(D(1) - ratio, x))


@njit(**INLINE)
def sigmoid32(x):
    """Logistic function of a float32; never overflows."""
    e = exp32_neg(-fabs32(x))
    return (e if x < F(0) else F(1)) / (F(1) + e)


@njit(**INLINE)
def sigmoid64(x):
    """Logistic function of a float64; never overflows."""
    e = exp64(-fabs64(x))
    return (e if x < D(0) else D(1)) / (D(1) + e)


# ----------------------------------------------------------- sin and cos
#: Up to here the three-term reduction of `sin32_small` and `cos32_small` holds.
SINCOS32_LIMIT = F(48000.0)

# 2/pi in pieces of 24 bits: the product of each with a float32 is exact in
# float64.  Eight reach 192 bits, enough for every float32 below 2**128.
_TWO_OVER_PI = tuple(
    D(math.ldexp(piece, -24 * (i + 1)))
    for i, piece in enumerate((0xA2F983, 0x6E4E44, 0x1529FC, 0x2757D1, 0xF534DD, 0xC0DB62, 0x95993C, 0x439041))
)
_P0, _P1, _P2, _P3, _P4, _P5, _P6, _P7 = _TWO_OVER_PI


@njit(**INLINE)
def _sincos32_poly(r, k):
    # sin of r (cos where k is odd), sign by bit 1 of the quadrant k.
    s = r * r
    c = fma32(F(2.44677067e-5), s, F(-1.38877297e-3))
    c = fma32(c, s, F(4.16666567e-2))
    c = fma32(c, s, F(-0.5))
    c = fma32(c, s, F(1))
    q = fma32(F(2.86567956e-6), s, F(-1.98559923e-4))
    q = fma32(q, s, F(8.33338592e-3))
    q = fma32(q, s, F(-1.66666672e-1))
    q = fma32(q, fma32(s, r, F(0)), r)
    v = c if iand(k, _I1) != _I0 else q
    return bits_f32(ixor(f32_bits(v), ishl(iand(k, _I2), _I30)))


@njit(**INLINE)
def _reduce32_small(x):
    t = fma32(x, F(0.636619747), _MAGIC32)
    n = t - _MAGIC32
    r = fma32(-n, F(1.57079601e00), x)
    r = fma32(-n, F(3.13916473e-07), r)
    return fma32(-n, F(5.39030253e-15), r), isub(f32_bits(t), _MAGIC32_BITS)


@njit(**INLINE)
def _reduce_step(x, piece, frac, quadrant):
    # Add x * piece modulo 4; whole quadrants move from `frac` to `quadrant`.
    # Every term is exact until the sum is down to its last 53 bits.
    p = x * piece
    p = fma64(D(-4), rint64(p * D(0.25)), p)
    frac = frac + p
    n = rint64(frac)
    return frac - n, quadrant + n


@njit(**INLINE)
def _sincos32(x, offset):
    small_r, small_k = _reduce32_small(x)
    xd = D(x)
    f, q = _reduce_step(xd, _P0, D(0), D(0))
    f, q = _reduce_step(xd, _P1, f, q)
    f, q = _reduce_step(xd, _P2, f, q)
    f, q = _reduce_step(xd, _P3, f, q)
    f, q = _reduce_step(xd, _P4, f, q)
    f, q = _reduce_step(xd, _P5, f, q)
    f, q = _reduce_step(xd, _P6, f, q)
    f, q = _reduce_step(xd, _P7, f, q)
    big_r = F(f * D(1.5707963267948966))
    big_k = isub(f32_bits(F(q) + _MAGIC32), _MAGIC32_BITS)
    small = fabs32(x) <= SINCOS32_LIMIT
    r = select(small, small_r, big_r)
    return _sincos32_poly(r, iadd(select(small, small_k, big_k), offset))


@njit(**INLINE)
def sin32_small(x):
    """Sine of a float32 with ``abs(x) <= SINCOS32_LIMIT``, else meaningless.

    The same bits as `sin32` there, five times faster.
    """
    r, k = _reduce32_small(x)
    return _sincos32_poly(r, k)


@njit(**INLINE)
def cos32_small(x):
    """Cosine of a float32 with ``abs(x) <= SINCOS32_LIMIT``, else meaningless."""
    r, k = _reduce32_small(x)
    return _sincos32_poly(r, iadd(k, _I1))


@njit(**INLINE)
def sin32(x):
    """Sine of any float32."""
    return _sincos32(x, _I0)


@njit(**INLINE)
def cos32(x):
    """Cosine of any float32."""
    return _sincos32(x, _I1)


@njit(**INLINE)
def sin64(x):
    """Sine of a float64 (the C library's)."""
    return math.sin(x)


@njit(**INLINE)
def cos64(x):
    """Cosine of a float64 (the C library's)."""
    return math.cos(x)
