"""Lowering of quantisation, and of products and convolutions of quantised tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import helper

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.contraction import auto_pads, convolve, window_attrs
from fusion_search.frontends.onnx.lower.narrow import FLOATS, NARROW, decode, encode, iinfo
from fusion_search.frontends.onnx.tensors import CORE_DTYPES

_F32, _I32 = np.dtype(np.float32), np.dtype(np.int32)


def _dtype(call: Call, key: str) -> np.dtype[Any] | None:
    return np.dtype(helper.tensor_dtype_to_np_dtype(call.attrs[key])) if call.attrs.get(key) else None


class _Blocks:
    """How scales and zero points spread over a tensor: as one number, along an axis, or in blocks of it."""

    def __init__(self, ctx: Lowering, call: Call) -> None:
        self.ctx, self.shape = ctx, ctx.shape(call.tensor(0))
        scale, block = ctx.shape(call.tensor(1)), call.attrs.get("block_size", 0)
        rank = len(self.shape)
        self.view: tuple[int, ...] = self.shape
        if math.prod(scale) == 1 and not block:
            self.spread: tuple[int, ...] = ()
        elif not block:
            axis = axis_of(call.attrs.get("axis", 1), rank)
            if scale != (self.shape[axis],):
                raise ValueError(f"scale {list(scale)} does not fit axis {axis} of {list(self.shape)}")
            self.spread = (*scale, *(1,) * (rank - axis - 1))
        else:
            axis = axis_of(call.attrs.get("axis", 1), rank)
            if len(scale) != rank or self.shape[axis] != scale[axis] * block:
                raise NotLowered
            self.view = (*self.shape[:axis], scale[axis], block, *self.shape[axis + 1 :])
            self.spread = (*scale[: axis + 1], 1, *scale[axis + 1 :])

    def parameter(self, name: str) -> str:
        """View a scale or zero point so that it broadcasts."""
        return self.ctx.view(name, self.spread)


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Smallest and largest number of an integer type."""
    info = iinfo(dtype)
    return int(info.min), int(info.max)


def _saturated(ctx: Lowering, x: str, dtype: np.dtype[Any], zero: str, wide: np.dtype[Any]) -> str:
    """Round to even, add the zero point, saturate and convert: in floats, so that nothing overflows on the way."""
    rounded = ctx.op("Round", x, part="round")
    if zero:
        rounded = ctx.op("Add", rounded, ctx.cast(zero, wide, part="zero"), part="shift")
    low, high = limits(dtype)
    clipped = ctx.op("Clip", rounded, ctx.scalar(low, wide), ctx.scalar(high, wide), part="saturate")
    return encode(ctx, clipped, dtype) if dtype in NARROW else ctx.cast(clipped, dtype, part="quantise")


def quantize(ctx: Lowering, call: Call) -> list[Item]:
    """saturate(round(x / scale) + zero point), the division in the scale's type or the one asked for."""
    x, scale, zero = call.tensor(0), call.tensor(1), call.tensor(2)
    to = ctx.dtype(zero) if zero else _dtype(call, "output_dtype") or np.dtype(np.uint8)
    if (to not in NARROW and to.kind not in "iu") or any(ctx.dtype(name) not in CORE_DTYPES for name in (x, scale)):
        raise NotLowered
    blocks = _Blocks(ctx, call)
    division = _dtype(call, "precision") or ctx.dtype(scale)
    x = ctx.view(ctx.cast(x, division, part="widen"), blocks.view)
    quotient = ctx.op("Div", x, blocks.parameter(ctx.cast(scale, division, part="scale")), part="div")
    wide = _F32 if division.itemsize < 4 else division
    zero = decode(ctx, zero) if zero and to in NARROW else zero
    if to in FLOATS:  # their zero points are 0
        out = encode(ctx, quotient, to, saturate=bool(call.attrs.get("saturate", 1)))
        return [ctx.view(out, blocks.shape)]
    out = _saturated(ctx, ctx.cast(quotient, wide, part="quotient"), to, blocks.parameter(zero) if zero else "", wide)
    return [ctx.view(out, blocks.shape)]


def dequantize(ctx: Lowering, call: Call) -> list[Item]:
    """(x - zero point) scale, computed in float32 and rounded once."""
    x, scale, zero = call.tensor(0), call.tensor(1), call.tensor(2)
    to = _dtype(call, "output_dtype") or ctx.dtype(scale)
    x, zero = (decode(ctx, name) if name and ctx.dtype(name) in NARROW else name for name in (x, zero))
    if to not in CORE_DTYPES or any(ctx.dtype(name) not in CORE_DTYPES for name in (x, scale)):
        raise NotLowered
    blocks = _Blocks(ctx, call)
    value = ctx.view(ctx.cast(x, _F32, part="widen"), blocks.view)
    if zero:
        value = ctx.op("Sub", value, blocks.parameter(ctx.cast(zero, _F32, part="zero")), part="sub")
    out = ctx.op("Mul", value, blocks.parameter(ctx.cast(scale, _F32, part="scale")), part="mul")
    return [ctx.view(ctx.cast(out, to, part="round"), blocks.shape)]


def _centred(ctx: Lowering, x: str, zero: str, part: str) -> str:
    """Return x - zero as int32."""
    wide = ctx.cast(x, _I32, part=f"{part}_widen")
    return ctx.op("Sub", wide, ctx.cast(zero, _I32, part=f"{part}_zero"), part=f"{part}_sub") if zero else wide


def _along_rows(ctx: Lowering, zero: str, x: str) -> str:
    """View a zero point of one number or one a row (column, for the right operand) so that it broadcasts."""
    shape = ctx.shape(zero) if zero else ()
    if len(shape) == 1 and shape != (1,) and len(ctx.shape(x)) > 1:
        return ctx.view(zero, (*shape, 1))
    return zero if len(shape) <= len(ctx.shape(x)) else ctx.view(zero, ())


def _integer_product(ctx: Lowering, a: str, b: str, a_zero: str, b_zero: str) -> str:
    left, right = _centred(ctx, a, _along_rows(ctx, a_zero, a), "a"), _centred(ctx, b, b_zero, "b")
    if len(ctx.shape(left)) < 2 or len(ctx.shape(right)) < 2:
        raise NotLowered
    return ctx.op("MatMul", left, right, part="matmul")


def matmul_integer(ctx: Lowering, call: Call) -> list[Item]:
    """A product of integers in int32."""
    return [_integer_product(ctx, *(call.tensor(k) for k in range(4)))]


def _requantised(ctx: Lowering, product: str, scales: tuple[str, str, str], zero: str, shape: tuple[int, ...]) -> str:
    """Multiply int32 sums by a_scale b_scale / y_scale and quantise them again."""
    a, b, y = (ctx.cast(name, _F32, part="scale") for name in scales)
    b = ctx.view(b, shape) if math.prod(ctx.shape(b)) != 1 else ctx.view(b, ())
    factor = ctx.op(
        "Div", ctx.op("Mul", ctx.view(a, ()) if math.prod(ctx.shape(a)) == 1 else a, b, part="factor"), ctx.view(y, ()), part="ratio"
    )
    scaled = ctx.op("Mul", ctx.cast(product, _F32, part="float"), factor, part="rescale")
    return _saturated(ctx, scaled, ctx.dtype(zero), ctx.view(zero, ()), _F32)


def qlinear_matmul(ctx: Lowering, call: Call) -> list[Item]:
    """A product of quantised tensors, quantised again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (call.tensor(k) for k in range(8))
    if ctx.dtype(y_zero) not in CORE_DTYPES or any(math.prod(ctx.shape(n)) != 1 for n in (a_scale, b_scale, y_scale, y_zero)):
        raise NotLowered
    product = _integer_product(ctx, a, b, a_zero, b_zero)
    return [_requantised(ctx, product, (a_scale, b_scale, y_scale), y_zero, ())]


def _integer_convolution(ctx: Lowering, call: Call, x: str, w: str, x_zero: str, w_zero: str, bias: str = "") -> str:
    xs, ws = ctx.shape(x), ctx.shape(w)
    groups, rank = call.attrs.get("group", 1), len(xs) - 2
    if rank < 1 or len(ws) != len(xs) or groups < 1 or xs[1] % groups or ws[0] % groups or xs[1] // groups != ws[1]:
        raise ValueError(f"input {list(xs)} does not fit weight {list(ws)} in {groups} groups")
    strides, dilations, before, after = window_attrs(call, rank, ws[2:])
    before, after = auto_pads(call, xs[2:], ws[2:], strides, dilations) or (before, after)
    if w_zero and math.prod(ctx.shape(w_zero)) != 1:
        w_zero = ctx.view(w_zero, (ws[0], *(1,) * (rank + 1)))
    elif w_zero:
        w_zero = ctx.view(w_zero, ())
    left = _centred(ctx, x, ctx.view(x_zero, ()) if x_zero else "", "x")  # padding is 0 after centring
    return convolve(ctx, left, _centred(ctx, w, w_zero, "w"), bias, groups, strides, dilations, before, after)


def conv_integer(ctx: Lowering, call: Call) -> list[Item]:
    """A convolution of integers in int32."""
    return [_integer_convolution(ctx, call, *(call.tensor(k) for k in range(4)))]


def qlinear_conv(ctx: Lowering, call: Call) -> list[Item]:
    """A convolution of quantised tensors, quantised again; scales and zero points of the weight may be one a channel."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (call.tensor(k) for k in range(8))
    if ctx.dtype(y_zero) not in CORE_DTYPES:
        raise NotLowered
    out = _integer_convolution(ctx, call, x, w, x_zero, w_zero, call.tensor(8))
    shape = (ctx.shape(w)[0], *(1,) * (len(ctx.shape(x)) - 2))
    return [_requantised(ctx, out, (x_scale, w_scale, y_scale), y_zero, shape)]


def dynamic_quantize(ctx: Lowering, call: Call) -> list[Item]:
    """Scale and zero point from the range of the operand, 0 included; then quantised to uint8."""
    x = call.tensor(0)
    if ctx.dtype(x) != _F32 or 0 in ctx.shape(x):
        raise NotLowered
    axes = tuple(range(len(ctx.shape(x))))
    zero_f = ctx.scalar(0, _F32)

    def extreme(core: str, join: str) -> str:
        end = ctx.view(ctx.op(core, x, part=core.lower(), axes=axes), ()) if axes else x
        return ctx.op(join, end, zero_f, part=join.lower())

    low, high = extreme("ReduceMin", "Min"), extreme("ReduceMax", "Max")
    scale = ctx.op("Div", ctx.op("Sub", high, low, part="range"), ctx.scalar(255, _F32), part="scale")
    origin = ctx.op("Sub", zero_f, ctx.op("Div", low, scale, part="origin"), part="negative")
    zero = _saturated(ctx, origin, np.dtype(np.uint8), "", _F32)
    y = _saturated(ctx, ctx.op("Div", x, scale, part="div"), np.dtype(np.uint8), zero, _F32)
    return [y, scale, zero]


RULES: dict[str, Rule] = {
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "ConvInteger": conv_integer,
    "QLinearConv": qlinear_conv,
}
