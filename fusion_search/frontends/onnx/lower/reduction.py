"""Lowering of reductions, in every form that the operator sets have had."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, Rule, axes_of

_AXES_AS_INPUT = {"ReduceSum": 13}  # the others follow in 18


def _axes(ctx: Lowering, call: Call, rank: int) -> tuple[int, ...] | None:
    """Return the reduced axes, or None when nothing is to be done."""
    if call.opset >= _AXES_AS_INPUT.get(call.op, 18):
        given = ctx.ints(call.tensor(1)) if call.tensor(1) else ()
        if not given and call.attrs.get("noop_with_empty_axes", 0):
            return None
    else:
        given = tuple(call.attrs.get("axes", ()))
    return axes_of(given, rank) if given else tuple(range(rank))


def _reduce(core: str, ctx: Lowering, x: str, axes: tuple[int, ...], part: str = "") -> str:
    """Apply a core reduction; over no elements at all the result is the neutral element."""
    shape = ctx.shape(x)
    if not axes:
        return x
    if ctx.dtype(x).kind == "b":  # as numbers 0 and 1
        return ctx.cast(_reduce(core, ctx, ctx.cast(x, np.dtype(np.uint8), part="number"), axes, "reduce"), ctx.dtype(x), part="bool")
    if math.prod(shape[a] for a in axes) == 0:
        dtype = ctx.dtype(x)
        low, high = (
            (-np.inf, np.inf) if ctx.is_float(x) else (False, True) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        )
        empty = {"ReduceSum": 0, "ReduceProd": 1, "ReduceMax": low, "ReduceMin": high, "ReduceMean": np.nan}[core]
        return ctx.op("Expand", ctx.scalar(empty, dtype), shape=tuple(1 if d in axes else n for d, n in enumerate(shape)))
    return ctx.op(core, x, part=part, axes=axes)


Body = Callable[[Lowering, str, tuple[int, ...]], str]


def _rule(body: Body, *, floats: bool = False, plain: bool = False) -> Rule:
    """Make a rule of a function that reduces and keeps the dimensions."""

    def lowered(ctx: Lowering, call: Call) -> list[Item]:
        x = call.tensor(0)
        dtype, shape = ctx.dtype(x), ctx.shape(x)
        axes = _axes(ctx, call, len(shape))
        if axes is None:
            return [x if plain else ctx.narrow(body(ctx, ctx.widen(x), ()), dtype)]
        if floats and not ctx.is_float(x):  # roots and logarithms of integers: in float64, truncated at the end
            kept = ctx.cast(body(ctx, ctx.cast(x, np.dtype(np.float64), part="widen"), axes), dtype, part="truncate")
        else:
            kept = ctx.narrow(body(ctx, x if plain else ctx.widen(x), axes), dtype)
        if call.attrs.get("keepdims", 1):
            return [kept]
        return [ctx.view(kept, [n for d, n in enumerate(shape) if d not in axes])]

    return lowered


def _plain(core: str) -> Rule:
    return _rule(lambda ctx, x, axes: _reduce(core, ctx, x, axes), plain=True)


def _l1(ctx: Lowering, x: str, axes: tuple[int, ...]) -> str:
    return _reduce("ReduceSum", ctx, ctx.op("Abs", x, part="abs"), axes, "sum")


def _sum_square(ctx: Lowering, x: str, axes: tuple[int, ...]) -> str:
    return _reduce("ReduceSum", ctx, ctx.op("Mul", x, x, part="square"), axes, "sum")


def _l2(ctx: Lowering, x: str, axes: tuple[int, ...]) -> str:
    return ctx.op("Sqrt", _sum_square(ctx, x, axes), part="sqrt")


def _log_sum(ctx: Lowering, x: str, axes: tuple[int, ...]) -> str:
    return ctx.op("Log", _reduce("ReduceSum", ctx, x, axes, "sum"), part="log")


def _log_sum_exp(ctx: Lowering, x: str, axes: tuple[int, ...]) -> str:
    top = _reduce("ReduceMax", ctx, x, axes, "max")
    # an infinite maximum must not be subtracted from itself
    infinite = ctx.op("Equal", ctx.op("Abs", top, part="abs"), ctx.scalar(np.inf, ctx.dtype(x)), part="infinite")
    safe = ctx.op("Where", infinite, ctx.scalar(0, ctx.dtype(x)), top, part="safe")
    total = _reduce("ReduceSum", ctx, ctx.op("Exp", ctx.op("Sub", x, safe, part="sub"), part="exp"), axes, "sum")
    return ctx.op("Add", ctx.op("Log", total, part="log"), safe, part="add")


RULES: dict[str, Rule] = {
    **{core: _plain(core) for core in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")},
    "ReduceL1": _rule(_l1),
    "ReduceL2": _rule(_l2, floats=True),
    "ReduceSumSquare": _rule(_sum_square),
    "ReduceLogSum": _rule(_log_sum, floats=True),
    "ReduceLogSumExp": _rule(_log_sum_exp, floats=True),
}
