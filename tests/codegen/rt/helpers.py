"""Shared by the tests of the run-time library: build, run, compare."""

import ctypes

import numpy as np

HEADER = """
import numpy as np
from numba import cfunc
from fusion_search.codegen.rt.driver import KERNEL_SIGNATURE
from fusion_search.codegen.rt.intrinsics import *
from fusion_search.codegen.rt.lanes import *
from fusion_search.codegen.rt.maths import *
from fusion_search.codegen.rt.memory import *
from fusion_search.codegen.rt.special import *
from fusion_search.codegen.rt.streaming import *
"""


def elementwise(name, expression, inputs, out, size="f4"):
    """Return the source of a kernel ``out[i] = expression`` over x, y."""
    lines = [
        '@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")',
        f"def {name}(args, scratch, lo, hi):",
        "    t = table(args)",
    ]
    lines += [f"    p{v} = p_{size}(t[{i}], lo)" for i, v in enumerate(inputs)]
    lines += [f"    out = p_{out}(t[{len(inputs)}], lo)", "    for i in range(hi - lo):"]
    lines += [f"        {v} = p{v}[i]" for v in inputs]
    return "\n".join([*lines, f"        out[i] = {expression}", "", ""])


def call(address, n_args):
    """Return a Python callable of a void function of `n_args` int64."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * n_args)(address)


def run_kernel(address, arrays, n, scalars=()):
    """Run a kernel over all its items in this thread."""
    table = np.array([*(a.ctypes.data for a in arrays), *scalars], np.int64)
    call(address, 4)(table.ctypes.data, 0, 0, n)


def same_bits(a, b):
    """Return whether two arrays hold the same bytes."""
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def max_ulp(got, reference):
    """Return the largest error in ulp of `got` against a wider reference."""
    ref = np.asarray(reference)
    rounded = ref.astype(got.dtype)
    fine = np.isfinite(rounded) & np.isfinite(got)
    special = ~fine
    assert np.array_equal(got[special], rounded[special], equal_nan=True)
    ulp = np.spacing(np.abs(rounded[fine])).astype(ref.dtype)
    error = np.abs(got[fine].astype(ref.dtype) - ref[fine]) / ulp
    return float(error.max()) if error.size else 0.0
