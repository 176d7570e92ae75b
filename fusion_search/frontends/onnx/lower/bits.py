"""Lowering of operators on bits, and of a few more activations."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule
from fusion_search.frontends.onnx.tensors import CORE_DTYPES


def same(ctx: Lowering, call: Call) -> list[Item]:
    """The core operator of the same name on the same operands."""
    return [ctx.op(call.op, *call.tensors)]


def bit_shift(ctx: Lowering, call: Call) -> list[Item]:
    """A shift to the left or to the right."""
    direction = call.attrs["direction"]
    if direction not in ("LEFT", "RIGHT"):
        raise ValueError(f"unknown direction {direction!r}")
    return [ctx.op("ShiftLeft" if direction == "LEFT" else "ShiftRight", *call.tensors)]


def bit_cast(ctx: Lowering, call: Call) -> list[Item]:
    """The same bits as another type of the same width."""
    x, to = call.tensor(0), np.dtype(helper.tensor_dtype_to_np_dtype(call.attrs["to"]))
    narrow = [t for t in (ctx.dtype(x), to) if t.itemsize == 2 and t.kind not in "iu"]
    if to not in CORE_DTYPES or narrow:  # 16-bit floats are widened when they are loaded, which may change the bits of a NaN
        raise NotLowered
    return [x if ctx.dtype(x) == to else ctx.op("BitCast", x, to=to.name)]


def shrink(ctx: Lowering, call: Call) -> list[Item]:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    x, bias, limit = call.tensor(0), call.attrs.get("bias", 0.0), call.attrs.get("lambd", 0.5)
    if not ctx.is_float(x):
        raise NotLowered
    dtype = ctx.dtype(x)
    x = ctx.widen(x)
    wide = ctx.dtype(x)
    low, high = (ctx.op(test, x, ctx.scalar(at, wide), part=test.lower()) for test, at in (("Less", -limit), ("Greater", limit)))
    up, down = (ctx.op(op, x, ctx.scalar(bias, wide), part=op.lower()) for op in ("Add", "Sub"))
    inner = ctx.op("Where", high, down, ctx.scalar(0, wide), part="high")
    return [ctx.narrow(ctx.op("Where", low, up, inner, part="low"), dtype)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), same),
    "BitShift": bit_shift,
    "BitCast": bit_cast,
    "Shrink": shrink,
}
