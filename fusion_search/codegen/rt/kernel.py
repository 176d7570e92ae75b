"""Everything a generated kernel may name, in one import."""

# ruff: noqa: F401, F403

import numpy as np
from numba import njit, types

from fusion_search.codegen.rt.driver import KERNEL_SIGNATURE
from fusion_search.codegen.rt.intrinsics import *
from fusion_search.codegen.rt.intrinsics import INLINE, select
from fusion_search.codegen.rt.lanes import *
from fusion_search.codegen.rt.maths import *
from fusion_search.codegen.rt.memory import *
from fusion_search.codegen.rt.memory import make_stack
from fusion_search.codegen.rt.special import *

T_f4, T_f8 = np.float32, np.float64
T_i1, T_i2, T_i4, T_i8 = np.int8, np.int16, np.int32, np.int64
T_u1, T_u2, T_u4, T_u8 = np.uint8, np.uint16, np.uint32, np.uint64

#: Elements of a strip of a reduction in lanes; a multiple of 64 lanes.
STRIP = 1024
lanes_f4 = make_stack(64, types.float32)
lanes_f8 = make_stack(64, types.float64)
strip_f4 = make_stack(STRIP, types.float32)
strip_f8 = make_stack(STRIP, types.float64)


@njit(**INLINE)
def int_div(a, b):
    """Divide integers towards zero, as ONNX does; 0 for a zero divisor."""
    if b == 0:
        return a - a
    q = a // b
    if q < 0 and q * b != a:
        q += 1
    return q


@njit(**INLINE)
def int_mod(a, b):
    """Remainder with the divisor's sign, as NumPy's; 0 for a zero divisor."""
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
    return x if x != x else (x > 0) * (x - x + 1) - (x < 0) * (x - x + 1)


@njit(**INLINE)
def not_(x):
    return select(x, False, True)


@njit(**INLINE)
def float_to_int(x):
    """Truncate; what does not fit an int64 is the machine's, as in NumPy."""
    return np.int64(x)


@njit(**INLINE)
def checked_index(index, size, flag):
    """Wrap a negative index; one outside raises the flag and reads element 0."""
    at = index + size if index < 0 else index
    if at < 0 or at >= size:
        flag[0] = np.int64(1)
        return np.int64(0)
    return at
