"""Calls of operator sets 1 to 6 in the form that the rules know: broadcasting by attributes, operands that were attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from fusion_search.frontends.onnx.lower.context import Call, Lowering, NotLowered, axis_of

#: The first operator set whose operators broadcast as NumPy does.
MODERN = 7


def _broadcast(ctx: Lowering, call: Call) -> Call:
    """``broadcast`` and ``axis`` say where the second operand's dimensions lie in the first's."""
    x, y = call.tensor(0), call.tensor(1)
    left, right = ctx.shape(x), ctx.shape(y)
    if not call.attrs.get("broadcast", 0):
        if left != right:
            raise ValueError(f"operands {list(left)} and {list(right)} have different shapes, and broadcast is off")
        return call
    if len(right) > len(left):
        raise ValueError(f"cannot broadcast {list(right)} to {list(left)}")
    axis = axis_of(call.attrs["axis"], len(left), end=True) if "axis" in call.attrs else len(left) - len(right)
    after = len(left) - axis - len(right)
    if after < 0:
        raise ValueError(f"cannot broadcast {list(right)} to {list(left)} from dimension {axis}")
    return replace(call, inputs=(x, ctx.view(y, (*right, *(1,) * after))))


def _slopes(ctx: Lowering, call: Call) -> Call:
    """One slope, or one a channel."""
    x, slope = call.tensor(0), call.tensor(1)
    shape = ctx.shape(slope)
    if len(shape) == 1 and shape[0] != 1 and len(ctx.shape(x)) > 1:
        slope = ctx.view(slope, (*shape, *(1,) * (len(ctx.shape(x)) - 2)))
    return replace(call, inputs=(x, slope))


def _inference(ctx: Lowering, call: Call) -> Call:
    if not call.attrs.get("is_test", 0):
        raise NotLowered
    return call


def _reshape(ctx: Lowering, call: Call) -> Call:
    if "shape" not in call.attrs:
        return call
    return replace(call, inputs=(call.tensor(0), ctx.constant(np.asarray(call.attrs["shape"], np.int64))))


def _cast(ctx: Lowering, call: Call) -> Call:
    to: Any = call.attrs["to"]
    return replace(call, attrs={**call.attrs, "to": TensorProto.DataType.Value(to.upper()) if isinstance(to, str) else to})


def _concat(ctx: Lowering, call: Call) -> Call:
    return replace(call, attrs={"axis": 1, **call.attrs}) if call.opset < 4 else call


def _tile(ctx: Lowering, call: Call) -> Call:
    if call.opset >= 6:
        return call
    x, rank = call.tensor(0), len(ctx.shape(call.tensor(0)))
    (times,), (axis,) = ctx.ints(call.tensor(1)), ctx.ints(call.tensor(2))
    repeats = [times if d == axis_of(axis, rank) else 1 for d in range(rank)]
    return replace(call, inputs=(x, ctx.constant(np.asarray(repeats, np.int64))))


def _pad(ctx: Lowering, call: Call) -> Call:
    return replace(call, attrs={**call.attrs, "pads": call.attrs["paddings"]}) if "paddings" in call.attrs else call


def _selu(ctx: Lowering, call: Call) -> Call:
    return replace(call, attrs={"alpha": 1.6732, "gamma": 1.0507, **call.attrs}) if call.opset < 6 else call


def _unknown(ctx: Lowering, call: Call) -> Call:
    raise NotLowered


OLD: dict[str, Callable[[Lowering, Call], Call]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Less", "Greater"), _broadcast),
    "PRelu": _slopes,
    **dict.fromkeys(("BatchNormalization", "Dropout"), _inference),
    "Reshape": _reshape,
    "Cast": _cast,
    "Concat": _concat,
    "Tile": _tile,
    "Pad": _pad,
    "Selu": _selu,
    "Upsample": _unknown,
}


def modern(ctx: Lowering, call: Call) -> Call:
    """Return a call in the form of operator set 7 and later."""
    if call.opset >= MODERN or call.op not in OLD:
        return call
    return OLD[call.op](ctx, call)
