"""Lowering of running totals, places of extremes, and norms along one axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of

_INT64 = np.dtype(np.int64)


def running(ctx: Lowering, call: Call) -> list[Item]:
    """CumSum and CumProd; from the other end the operand is turned around and back."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    if not shape:
        return [x]
    axis = axis_of(int(ctx.known(call.tensor(1)).reshape(-1)[0]), len(shape))
    reverse, exclusive = bool(call.attrs.get("reverse", 0)), bool(call.attrs.get("exclusive", 0))
    x = _turned(ctx, x, axis, "turn") if reverse else x
    out = ctx.op(call.op, x, axis=axis, exclusive=exclusive)
    return [_turned(ctx, out, axis, "turn_back") if reverse else out]


def _turned(ctx: Lowering, x: str, axis: int, part: str) -> str:
    shape = ctx.shape(x)
    starts = tuple(max(n - 1, 0) if d == axis else 0 for d, n in enumerate(shape))
    return ctx.op("Slice", x, part=part, starts=starts, steps=tuple(-1 if d == axis else 1 for d in range(len(shape))), sizes=shape)


def place_of(ctx: Lowering, x: str, axis: int, core: str, *, last: bool = False) -> str:
    """Return where along an axis the largest or smallest element is, the axis kept with an extent of 1. A NaN is both."""
    n = ctx.shape(x)[axis]
    best = ctx.op(core, x, part="best", axes=(axis,))
    hit = ctx.op("Equal", x, best, part="hit")
    if ctx.is_float(x):
        hit = ctx.op("Or", hit, ctx.op("IsNaN", x, part="nan"), part="or_nan")
    places = ctx.constant(np.arange(n, dtype=np.int64).reshape((n, *(1,) * (len(ctx.shape(x)) - axis - 1))))
    found = ctx.op("Where", hit, places, ctx.scalar(-1 if last else n, _INT64), part="places")
    return ctx.op("ReduceMax" if last else "ReduceMin", found, part="place", axes=(axis,))


def arg_extreme(ctx: Lowering, call: Call) -> list[Item]:
    """ArgMax and ArgMin: the extreme, then the first or last place that has it."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    axis = axis_of(call.attrs.get("axis", 0), len(shape))
    if shape[axis] == 0:
        raise ValueError("there is no extreme of no elements")
    core = "ReduceMax" if call.op == "ArgMax" else "ReduceMin"
    place = place_of(ctx, x, axis, core, last=bool(call.attrs.get("select_last_index", 0)))
    return [place if call.attrs.get("keepdims", 1) else ctx.view(place, shape[:axis] + shape[axis + 1 :])]


def hardmax(ctx: Lowering, call: Call) -> list[Item]:
    """1 at the first largest element of an axis, 0 elsewhere; before version 13 of all axes from that one on."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    if call.opset < 13:
        axis = axis_of(call.attrs.get("axis", 1), len(shape), end=True)
        x, axis = ctx.view(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))), 1
    else:
        axis = axis_of(call.attrs.get("axis", -1), len(shape))
    n = ctx.shape(x)[axis]
    if n == 0:
        return [call.tensor(0)]
    places = ctx.constant(np.arange(n, dtype=np.int64).reshape((n, *(1,) * (len(ctx.shape(x)) - axis - 1))))
    hit = ctx.op("Equal", place_of(ctx, x, axis, "ReduceMax"), places, part="equal")
    return [ctx.view(ctx.cast(hit, ctx.dtype(x), part="cast"), shape)]


def power_sum(ctx: Lowering, x: str, p: float, reduce: Any) -> str:
    """Return the p-th root of the sum of the p-th powers of |x|, the sum taken by `reduce`."""
    wide = ctx.dtype(x)
    if p == 1:
        return str(reduce(ctx.op("Abs", x, part="abs")))
    if p == 2:
        return ctx.op("Sqrt", reduce(ctx.op("Mul", x, x, part="square")), part="sqrt")
    powers = ctx.op("Pow", ctx.op("Abs", x, part="abs"), ctx.scalar(p, wide), part="power")
    return ctx.op("Pow", reduce(powers), ctx.scalar(1 / p, wide), part="root")


def lp_normalization(ctx: Lowering, call: Call) -> list[Item]:
    """x divided by its norm along an axis; 0 where that is 0."""
    x, p = call.tensor(0), call.attrs.get("p", 2)
    if not ctx.is_float(x) or p not in (1, 2):
        raise NotLowered
    dtype, axis = ctx.dtype(x), axis_of(call.attrs.get("axis", -1), len(ctx.shape(x)))
    x = ctx.widen(x)
    norm = power_sum(ctx, x, p, lambda v: ctx.op("ReduceSum", v, part="sum", axes=(axis,)))
    empty = ctx.op("Equal", norm, ctx.scalar(0, ctx.dtype(x)), part="empty")
    quotient = ctx.op("Div", x, norm, part="div")
    return [ctx.narrow(ctx.op("Where", empty, ctx.scalar(0, ctx.dtype(x)), quotient, part="where"), dtype)]


def global_lp_pool(ctx: Lowering, call: Call) -> list[Item]:
    """The norm of each channel."""
    x = call.tensor(0)
    dtype, axes = ctx.dtype(x), tuple(range(2, len(ctx.shape(x))))
    if not axes:
        raise NotLowered
    out = power_sum(ctx, ctx.widen(x), call.attrs.get("p", 2), lambda v: ctx.op("ReduceSum", v, part="sum", axes=axes))
    return [ctx.narrow(out, dtype)]


def eye_like(ctx: Lowering, call: Call) -> list[Item]:
    """A matrix with ones on a diagonal, known from the shape alone."""
    from onnx import helper

    x = call.tensor(0)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(call.attrs["dtype"])) if "dtype" in call.attrs else ctx.dtype(x)
    if len(ctx.shape(x)) != 2:
        raise ValueError(f"the operand must be a matrix, got {list(ctx.shape(x))}")
    rows, columns = ctx.shape(x)
    distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
    return [ctx.constant((distance == call.attrs.get("k", 0)).astype(dtype))]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("CumSum", "CumProd"), running),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extreme),
    "Hardmax": hardmax,
    "LpNormalization": lp_normalization,
    "GlobalLpPool": global_lp_pool,
    "EyeLike": eye_like,
}
