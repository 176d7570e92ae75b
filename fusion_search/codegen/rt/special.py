"""Error function, powers and the functions left to the C library.

Continues :mod:`fusion_search.codegen.rt.maths` with the same promises, except
that what ends in ``math.*`` here is a call, scalar and as accurate as the C
library.
"""

import math

import numpy as np
from numba import njit

from fusion_search.codegen.rt.intrinsics import (
    INLINE,
    bits_f64,
    copysign64,
    f32_bits,
    f64_bits,
    fabs32,
    fabs64,
    fma32,
    fma64,
    rint32,
    rint64,
    select,
)
from fusion_search.codegen.rt.lookup import make_lookup
from fusion_search.codegen.rt.maths import (
    _INF32,
    _MAGIC32,
    _MAGIC64,
    _MAGIC64_BITS,
    _NAN32,
    D,
    F,
    _log64_positive,
    exp64,
    signed32,
)
from fusion_search.codegen.rt.tables import ERF

# --------------------------------------------------------------------- erf
_e_at, _e0, _e1, _e2, _e3, _e4, _e5 = (make_lookup(column) for column in zip(*ERF, strict=True))


@njit(**INLINE)
def erf32(x):
    """Error function of a float32: a polynomial for each eighth up to 4, without an exponential."""
    a = fabs32(x)
    y = F(3.93) if a > F(3.93) else a  # 1 from here on
    t = fma32(y, F(8), _MAGIC32)
    i = f32_bits(t)
    d = y - _e_at(i)
    p = fma32(fma32(_e5(i), d, _e4(i)), d * d, fma32(_e3(i), d, _e2(i)))
    # near 0 the polynomial is of erf(y) - y: the slope 1.13 is no float32
    start = y if y < F(0.1875) else _e0(i)
    return signed32(fma32(fma32(p, d, _e1(i)), d, start), x)


@njit(**INLINE)
def erf64(x):
    """Error function of a float64 (Cephes' rational approximations)."""
    a = fabs64(x)
    s = a * a
    t = fma64(D(9.60497373987051638749e0), s, D(9.00260197203842689217e1))
    t = fma64(t, s, D(2.23200534594684319226e3))
    t = fma64(t, s, D(7.00332514112805075473e3))
    t = fma64(t, s, D(5.55923013010394962768e4))
    u = fma64(s + D(3.35617141647503099647e1), s, D(5.21357949780152679795e2))
    u = fma64(u, s, D(4.59432382970980127987e3))
    u = fma64(u, s, D(2.26290000613890934246e4))
    u = fma64(u, s, D(4.92673942608635921086e4))
    c = D(6.5) if a > D(6.5) else a
    p = fma64(D(2.46196981473530512524e-10), c, D(5.64189564831068821977e-1))
    p = fma64(p, c, D(7.46321056442269912687e0))
    p = fma64(p, c, D(4.86371970985681366614e1))
    p = fma64(p, c, D(1.96520832956077098242e2))
    p = fma64(p, c, D(5.26445194995477358631e2))
    p = fma64(p, c, D(9.34528527171957607540e2))
    p = fma64(p, c, D(1.02755188689515710272e3))
    p = fma64(p, c, D(5.57535335369399327526e2))
    q = fma64(c + D(1.32281951154744992508e1), c, D(8.67072140885989742329e1))
    q = fma64(q, c, D(3.54937778887819891062e2))
    q = fma64(q, c, D(9.75708501743205489753e2))
    q = fma64(q, c, D(1.82390916687909736289e3))
    q = fma64(q, c, D(2.24633760818710981792e3))
    q = fma64(q, c, D(1.65666309194161350182e3))
    q = fma64(q, c, D(5.57535340817727675546e2))
    small = a < D(1)
    ratio = select(small, t, p * exp64(-c * c)) / select(small, u, q)
    return select(small, x * ratio, copysign64(D(1) - ratio, x))


# --------------------------------------------------------------------- pow
@njit(**INLINE)
def pow32(x, y):
    """Power of two float32, through float64: rounded right but for ties."""
    ax = fabs32(x)
    t = D(y) * _log64_positive(D(ax))
    t = D(200.0) if t > D(200.0) else t
    t = D(-200.0) if t < D(-200.0) else t
    k = rint64(t * D(1.4426950408889634))
    r = fma64(-k, D(0.6931471805599453), t)
    p = fma64(D(2.755731922398589e-07), r, D(2.7557319223985893e-06))
    p = fma64(p, r, D(2.48015873015873e-05))
    p = fma64(p, r, D(1.984126984126984e-04))
    p = fma64(p, r, D(1.388888888888889e-03))
    p = fma64(p, r, D(8.333333333333333e-03))
    p = fma64(p, r, D(4.1666666666666664e-02))
    p = fma64(p, r, D(1.6666666666666666e-01))
    p = fma64(p, r, D(0.5))
    p = fma64(p, r, D(1))
    p = fma64(p, r, D(1))
    v = F(p * bits_f64((f64_bits(k + _MAGIC64) - _MAGIC64_BITS + 1023) << 52))
    # Special cases by selects and bitwise logic: `and`, `or` and ternaries
    # would make branches here and keep the loop scalar.
    half = y * F(0.5)
    odd = (rint32(y) == y) & (rint32(half) != half)
    negative = f32_bits(x) < np.int32(0)
    y_negative = y < F(0)
    v = select(ax == F(0), select(y_negative, _INF32, F(0)), v)
    v = select(ax == _INF32, select(y_negative, F(0), _INF32), v)
    grows = (ax > F(1)) == (y > F(0))
    at_inf = select(ax == F(1), F(1), select(grows, _INF32, F(0)))
    v = select(fabs32(y) == _INF32, at_inf, v)
    v = select((x < F(0)) & (ax != _INF32) & (rint32(y) != y), _NAN32, v)
    v = select(negative & odd, -v, v)
    v = select((x != x) | (y != y), x + y, v)
    return select((y == F(0)) | (x == F(1)), F(1), v)


@njit(**INLINE)
def pow64(x, y):
    """Power of two float64 (the C library's)."""
    return math.pow(x, y)


# ------------------------------------------------ by the C library, scalar
@njit(**INLINE)
def log1p32(x):
    """Return log(1 + x) of a float32, through float64."""
    return F(math.log1p(D(x)))


@njit(**INLINE)
def expm1_32(x):
    """Return exp(x) - 1 of a float32, through float64."""
    return F(math.expm1(D(x)))


@njit(**INLINE)
def log1p64(x):
    """Return log(1 + x) of a float64."""
    return math.log1p(x)


@njit(**INLINE)
def expm1_64(x):
    """Return exp(x) - 1 of a float64."""
    return math.expm1(x)
