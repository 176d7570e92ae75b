"""Everything a generated kernel may name, in one import."""

# ruff: noqa: F401, F403

import numpy as np
from numba import njit, types

from fusion_search.codegen.rt.driver import KERNEL_SIGNATURE
from fusion_search.codegen.rt.interleave import Folded, Interleaved
from fusion_search.codegen.rt.intrinsics import *
from fusion_search.codegen.rt.intrinsics import INLINE, select
from fusion_search.codegen.rt.lanes import *
from fusion_search.codegen.rt.maths import *
from fusion_search.codegen.rt.memory import *
from fusion_search.codegen.rt.memory import make_stack
from fusion_search.codegen.rt.scalars import *
from fusion_search.codegen.rt.special import *
from fusion_search.codegen.rt.streaming import *

T_f4, T_f8 = np.float32, np.float64
T_i1, T_i2, T_i4, T_i8 = np.int8, np.int16, np.int32, np.int64
T_u1, T_u2, T_u4, T_u8 = np.uint8, np.uint16, np.uint32, np.uint64

#: Elements of a strip of a reduction in lanes; a multiple of 64 lanes.
STRIP = 1024
#: Strips that are summed before their lanes are added to those of the strips before.
STRIPS = 64
#: What is reduced in lanes next, one element a lane.
next_f4 = make_stack(64, types.float32)
next_f8 = make_stack(64, types.float64)


@njit(**INLINE)
def checked_index(index, size, flag):
    """Wrap a negative index; one outside raises the flag and reads element 0."""
    at = index + size if index < 0 else index
    if at < 0 or at >= size:
        flag[0] = np.int64(1)
        return np.int64(0)
    return at
