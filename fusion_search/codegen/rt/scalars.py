"""Scalar helpers with ONNX's semantics for integers, remainders, and the functions left to the C library.

Integers wrap; a division truncates and gives 0 for a zero divisor, INT_MIN / -1 is INT_MIN.
"""

import math

import numpy as np
from numba import njit

from fusion_search.codegen.rt.intrinsics import INLINE, bits_f32, f32_bits, select, variant
from fusion_search.codegen.rt.maths import D, F


@njit(**INLINE)
def int_div(a, b):
    """Divide integers towards zero; 0 for a zero divisor."""
    if b == 0:
        return a - a
    if b + 1 == 0 and a < 0:  # the machine traps on INT_MIN / -1
        return a - a - a
    q = a // b
    if q < 0 and q * b != a:
        q += 1
    return q


@njit(**INLINE)
def uint_div(a, b):
    """Divide unsigned integers; 0 for a zero divisor."""
    if b == 0:
        return a - a
    return a // b


@njit(**INLINE)
def int_mod(a, b):
    """Remainder with the divisor's sign, as NumPy's; 0 for a zero divisor."""
    if b == 0 or b + 1 == 0:
        return a - a
    return a % b


@njit(**INLINE)
def int_fmod(a, b):
    """Remainder with the dividend's sign; 0 for a zero divisor."""
    if b == 0:
        return a - a
    return a - int_div(a, b) * b


@njit(**INLINE)
def uint_mod(a, b):
    """Remainder of unsigned integers; 0 for a zero divisor."""
    if b == 0:
        return a - a
    return a % b


@njit(**INLINE)
def int_maximum(a, b):
    return a if a > b else b


@njit(**INLINE)
def int_minimum(a, b):
    return a if a < b else b


@njit(**INLINE)
def sign(x):
    """-1, 0 or 1; NaN stays NaN."""
    return x if x != x else (x > 0) * 1.0 - (x < 0) * 1.0


@njit(**INLINE)
def not_(x):
    return select(x, False, True)


@njit(**INLINE)
def int_pow(x, y):
    """Power of two integers by squaring; a negative exponent gives what the truncated quotient is: 0, or 1 and -1 for such bases."""
    one = x - x + 1
    if y < 0:
        if x == 1:
            return one
        if x + 1 == 0:
            return one if y % 2 == 0 else x
        return x - x
    result, base, left = one, x, y
    while left > 0:
        if left % 2 == 1:
            result = result * base
        base = base * base
        left = left // 2
    return result


@njit(**INLINE)
def uint_pow(x, y):
    """Power of two unsigned integers by squaring."""
    result, base, left = np.uint64(1), np.uint64(x), np.uint64(y)
    while left != np.uint64(0):
        if left & np.uint64(1):
            result = result * base
        base = base * base
        left = left >> np.uint64(1)
    return result


@njit(**INLINE)
def shift_left(x, n, bits):
    """Shift towards the high bits; nothing is left of a shift by all of them, or by a negative number."""
    if n >= bits or n < 0:
        return x - x
    return x << n


@njit(**INLINE)
def shift_right(x, n, bits):
    """Shift towards the low bits, keeping the sign: a shift by all of them, or by a negative number, leaves only that."""
    if n >= bits or n < 0:
        return (x >> (bits - 1)) >> (bits // bits)
    return x >> n


@njit(**INLINE)
def to_int32(x):
    """Truncate; what does not fit is the machine's, as in NumPy."""
    return np.int32(x)


@njit(**INLINE)
def float_to_int(x):
    """Truncate; what does not fit an int64 is the machine's, as in NumPy."""
    return np.int64(x)


@njit(**INLINE)
def float_to_uint(x):
    """Truncate to 64 bits without a sign; negative numbers wrap, as in NumPy."""
    if x < 9223372036854775808.0:
        return np.uint64(np.int64(x))
    return np.uint64(x)


@njit(**INLINE)
def nearly_f32(x):
    """Round a float64 to float32 so that rounding again to 16 bits gives what one rounding would (round to odd)."""
    y = F(x)
    if D(y) == x or not (abs(y) < F(np.inf)):
        return y
    bits = f32_bits(y)
    if abs(D(y)) > abs(x):
        bits = np.int32(bits - 1)
    return bits_f32(np.int32(bits | 1))


# ------------------------------------------------------------ remainders of floats
@njit(**INLINE)
def fmod32(a, b):
    """Remainder with the dividend's sign."""
    return F(np.fmod(D(a), D(b)))


@njit(**INLINE)
def fmod64(a, b):
    """Remainder with the dividend's sign."""
    return np.fmod(a, b)


@njit(**INLINE)
def mod64(a, b):
    """Remainder with the divisor's sign, as NumPy's."""
    r = np.fmod(a, b)
    if b == 0.0:
        return r
    if r == 0.0:
        return math.copysign(0.0, b)
    return r + b if (b < 0.0) != (r < 0.0) else r


@njit(**INLINE)
def mod32(a, b):
    """Remainder with the divisor's sign, as NumPy's."""
    r = F(np.fmod(D(a), D(b)))
    if b == F(0):
        return r
    if r == F(0):
        return F(math.copysign(0.0, D(b)))
    return F(r + b) if (b < F(0)) != (r < F(0)) else r


def _scalar(function):
    @variant(function.__name__, INLINE)
    def double(x):
        return function(x)

    @variant(function.__name__, INLINE)
    def single(x):
        return F(function(D(x)))

    return single, double


tan32, tan64 = _scalar(math.tan)
asin32, asin64 = _scalar(math.asin)
acos32, acos64 = _scalar(math.acos)
atan32, atan64 = _scalar(math.atan)
sinh32, sinh64 = _scalar(math.sinh)
cosh32, cosh64 = _scalar(math.cosh)
asinh32, asinh64 = _scalar(math.asinh)
acosh32, acosh64 = _scalar(math.acosh)
atanh32, atanh64 = _scalar(math.atanh)
