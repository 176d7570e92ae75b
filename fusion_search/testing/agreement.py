"""How closely one node's result must agree with its reference on the very operands that it had.

Checked node by node, errors do not add up: exact operators must agree to the last bit whatever the numbers, functions within a few
units in the last place, sums within what the rounding of their terms explains. A cast of a number that the integer type cannot hold
is the machine's business, as in NumPy, and so are the bits of a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fusion_search.ir.graph import Node
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Array

#: Units in the last place that a function may be off.
ULPS = 8.0
_SUMS = ("ReduceSum", "ReduceMean", "MatMul", "Conv", "SumPool", "CumSum")
_PRODUCTS = {"ReduceProd": "ReduceSum", "CumProd": "CumSum"}


def floating(dtype: np.dtype[Any]) -> bool:
    """True for every float, bfloat16 included."""
    return dtype.kind == "f" or dtype == np.dtype(ml_dtypes.bfloat16)


def same_bits(a: Array, b: Array) -> bool:
    """True when two arrays agree to the last bit, any NaN being like any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not floating(a.dtype):
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    return bool((((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))).all())


def undefined(node: Node, arrays: Sequence[Array]) -> Array | None:
    """Where a result is the machine's business: casts that do not fit, bits of a NaN; None when nowhere."""
    x = arrays[0]
    if node.op == "BitCast" and floating(x.dtype):
        odd = np.isnan(x.astype(np.float64))
    elif node.op == "Cast" and floating(x.dtype) and np.dtype(node.attr("to")).kind in "iu":
        info = np.iinfo(node.attr("to"))
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            odd = ~((np.trunc(wide) >= float(info.min)) & (np.trunc(wide) < float(info.max) + (info.bits < 64)))
    else:
        return None
    return odd if odd.any() else None


def node_error(node: Node, arrays: Sequence[Array], got: Array) -> str:
    """Say how a node's result differs from its reference beyond what is allowed; empty when it does not.

    Parameters
    ----------
    node : Node
    arrays : sequence of numpy.ndarray
        Its operands.
    got : numpy.ndarray
        The result.
    """
    spec, attrs = OPS[node.op], dict(node.attrs)
    with np.errstate(all="ignore"):
        want = np.asarray(spec.evaluate(arrays, attrs))
        if got.dtype != want.dtype or got.shape != want.shape:
            return f"{node.op}: {got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}"
        if want.size == 0:
            return ""
        extreme = spec.combiner in ("max", "min")
        if not floating(want.dtype) or spec.exact or extreme:
            bad = _unequal(got, want, signs=not extreme)
            if (odd := undefined(node, arrays)) is not None:
                bad &= ~odd
        elif node.op in _SUMS:
            bad = _sum_differs(node, arrays, got)
        elif node.op in _PRODUCTS:
            bad = _product_differs(node, arrays, got)
        else:
            bad = _ulps_differ(got, want)
    if not bad.any():
        return ""
    k = tuple(int(i) for i in np.argwhere(bad)[0])
    operands = ", ".join(f"{a[k]!r}" for a in arrays if a.shape == got.shape)
    return f"{node.op}: {int(bad.sum())} of {got.size} elements differ, at {list(k)} {got[k]!r}, expected {want[k]!r} ({operands})"


def _unequal(got: Array, want: Array, *, signs: bool) -> Array:
    if not floating(want.dtype):
        return np.asarray(got != want)
    x, y = got.astype(np.float64), want.astype(np.float64)
    same = x == y
    if signs:
        same &= np.signbit(x) == np.signbit(y)
    return np.asarray(~(same | (np.isnan(x) & np.isnan(y))))


def _ulps_differ(got: Array, want: Array) -> Array:
    limits = ml_dtypes.finfo(want.dtype)  # type: ignore[no-untyped-call]  # ml_dtypes has no types here
    x, y = got.astype(np.longdouble), want.astype(np.longdouble)
    most = np.longdouble(float(limits.max))
    x, y = (np.where(np.isinf(v), np.copysign(most, v), v) for v in (x, y))  # next to the largest number, infinity is near
    ulps = ULPS if want.dtype.itemsize > 2 else 1.0
    allowed = ulps * float(limits.eps) * np.abs(y) + 4 * np.longdouble(float(limits.smallest_subnormal))
    return np.asarray(~((np.abs(x - y) <= allowed) | (np.isnan(x) & np.isnan(y))))


def _terms(node: Node, arrays: Sequence[Array]) -> int:
    """How many terms one result has."""
    x: tuple[int, ...] = arrays[0].shape
    if node.op == "MatMul":
        return x[-1]
    if node.op == "Conv":
        return math.prod(int(n) for n in arrays[1].shape[2:]) + 1
    if node.op == "SumPool":
        return math.prod(int(n) for n in node.attr("kernel"))
    if node.op.startswith("Cum"):
        return x[int(node.attr("axis"))]
    return math.prod(x[int(a)] for a in node.attr("axes"))


def _limits(got: Array) -> tuple[Any, Any]:
    """The limits of the stored type, and of the one in which sums are formed."""
    stored = ml_dtypes.finfo(got.dtype)  # type: ignore[no-untyped-call]
    return stored, np.finfo(np.float64 if got.dtype == np.float64 else np.float32)


def _sum_differs(node: Node, arrays: Sequence[Array], got: Array) -> Array:
    spec, attrs, n = OPS[node.op], dict(node.attrs), _terms(node, arrays)
    stored, formed = _limits(got)
    wide = [a.astype(np.longdouble) for a in arrays]
    want = np.asarray(spec.evaluate(wide, attrs))
    finite = [np.where(np.isfinite(a), a, 1) for a in wide]
    bound = np.asarray(spec.evaluate([np.abs(a) for a in finite], attrs))
    if node.op == "Conv" and (any(attrs["before"]) or any(attrs["after"])):  # 0 times infinity: padding may be left out
        wild = ~np.isfinite(wide[1]).all(axis=tuple(range(2, wide[1].ndim)))
        bound = np.where(wild.reshape(1, *wild.shape, *([1] * (arrays[0].ndim - 3))), np.inf, bound)
    if node.op == "ReduceMean":
        bound = bound * n
    result = got.astype(np.longdouble)
    allowed = (n + 4) * formed.eps * bound + 1.01 * float(stored.eps) * np.abs(want)
    allowed = allowed + (n + 4) * np.longdouble(float(formed.smallest_subnormal)) + np.longdouble(float(stored.smallest_subnormal))
    open_ = (bound > 0.9 * float(formed.max)) | (np.isfinite(want) & (np.abs(want) > 0.99 * float(stored.max)))
    near = np.where(np.isfinite(want), np.abs(result - want) <= allowed, (result == want) | (np.isnan(result) & np.isnan(want)))
    return np.asarray(~(near | open_))


def _product_differs(node: Node, arrays: Sequence[Array], got: Array) -> Array:
    spec, attrs, n = OPS[node.op], dict(node.attrs), _terms(node, arrays)
    stored, formed = _limits(got)
    x = arrays[0].astype(np.longdouble)
    want = np.asarray(spec.evaluate([x], attrs))
    usual = np.isfinite(x) & (x != 0)
    size = np.where(usual, np.abs(np.log2(np.where(usual, np.abs(x), 1))), 0)
    reach = np.asarray(OPS[_PRODUCTS[node.op]].evaluate([size], attrs))
    result = got.astype(np.longdouble)
    allowed = ((n + 4) * formed.eps + 1.01 * float(stored.eps)) * np.abs(want) + np.longdouble(float(stored.smallest_subnormal))
    open_ = (reach > formed.maxexp - 3) | (np.isfinite(want) & (np.abs(want) > 0.99 * float(stored.max)))
    near = np.where(np.isfinite(want), np.abs(result - want) <= allowed, (result == want) | (np.isnan(result) & np.isnan(want)))
    return np.asarray(~(near | open_))
