"""Numbers of less than 16 bits, as they are stored: bytes that are read through a table or put together from their fields.

Floats of 8, 6 and 4 bits and integers of 4 and 2 bits take one byte an element in memory. Nothing computes in them: they are
converted to float32 or int32 where they are read and back where they are stored, by operators on bits.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from fusion_search.frontends.onnx.lower.context import Lowering, NotLowered
from fusion_search.frontends.onnx.lower.formula import Term
from fusion_search.frontends.onnx.tensors import CORE_DTYPES

_FLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT4E2M1")
_INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")


def _dtypes(names: tuple[str, ...]) -> frozenset[np.dtype[Any]]:
    codes = [TensorProto.DataType.Value(name) for name in names if name in TensorProto.DataType.keys()]  # noqa: SIM118
    return frozenset(np.dtype(helper.tensor_dtype_to_np_dtype(code)) for code in codes)


FLOATS, INTEGERS = _dtypes(_FLOATS), _dtypes(_INTEGERS)
NARROW = FLOATS | INTEGERS
#: The package's functions have no types.
finfo: Any = ml_dtypes.finfo
iinfo: Any = ml_dtypes.iinfo
_EXPONENT_ONLY = np.dtype(ml_dtypes.float8_e8m0fnu)
_BYTE, _INT32 = np.dtype(np.uint8), np.dtype(np.int32)
#: Fields of float32.
_MANTISSA, _BIAS, _INFINITE = 23, 127, 0x7F800000


def decode(ctx: Lowering, x: str) -> str:
    """Return a narrow value in float32, or in int8 or uint8 for integers, all exactly."""
    dtype = ctx.dtype(x)
    byte = Term(ctx, ctx.op("BitCast", x, part="byte", to=_BYTE.name))
    if dtype in FLOATS:
        table = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
        return ctx.op("Gather", ctx.constant(table), byte.cast(_INT32).name, part="decode", axis=0)
    bits = iinfo(dtype).bits
    if iinfo(dtype).min == 0:
        return byte.of("BitwiseAnd", (1 << bits) - 1).name
    return byte.cast(np.int8).of("ShiftLeft", 8 - bits).of("ShiftRight", 8 - bits).name


def encode(ctx: Lowering, x: str, dtype: np.dtype[Any], *, saturate: bool = True, round_mode: str = "up") -> str:
    """Return a value in a narrow dtype: integers truncated and cut to their bits, floats rounded to even.

    Parameters
    ----------
    saturate : bool
        Whether what is too large for a float becomes its largest number instead of an infinity or NaN.
    round_mode : str
        Of a format that is an exponent alone: up, down or nearest.
    """
    if dtype in INTEGERS:
        whole = Term(ctx, ctx.cast(x, _INT32, part="whole"))
        code = whole.of("BitwiseAnd", (1 << iinfo(dtype).bits) - 1)
    else:
        wide = Term(ctx, ctx.cast(x, np.dtype(np.float32), part="widen"))
        code = _exponent(wide, saturate, round_mode) if dtype == _EXPONENT_ONLY else _float_code(wide, dtype, saturate)
    return ctx.op("BitCast", code.cast(_BYTE).name, part="encode", to=dtype.name)


def convert(ctx: Lowering, x: str, to: np.dtype[Any], *, saturate: bool, round_mode: str) -> str:
    """Convert from or to a narrow dtype."""
    for dtype in (ctx.dtype(x), to):
        if dtype not in NARROW and dtype not in CORE_DTYPES:
            raise NotLowered
    if ctx.dtype(x) in NARROW:
        x = decode(ctx, x)
    return encode(ctx, x, to, saturate=saturate, round_mode=round_mode) if to in NARROW else ctx.cast(x, to)


def _float_code(x: Term, dtype: np.dtype[Any], saturate: bool) -> Term:
    """Return the fields of a small float: with a step q of its exponent, the code is x / q and the exponents below.

    A mantissa that rounds up to the next power of two so becomes the next exponent, and numbers below the smallest exponent
    are multiples of its step.
    """
    info, bits = finfo(dtype), int(finfo(dtype).bits)
    sign, mantissa, least = 1 << (bits - 1), int(info.nmant), int(info.minexp) + _BIAS
    with np.errstate(all="ignore"):
        probes = np.array([float(info.max), np.inf, np.nan, -np.nan, -0.0], np.float32).astype(dtype)
    largest, over, nan, negative_nan, negative_zero = (int(code) for code in probes.view(np.uint8))
    if saturate:
        x = x.of("Clip", float(info.min), float(info.max))
    stored = x.of("BitCast", to=_INT32.name)
    size = stored.of("BitwiseAnd", 0x7FFFFFFF)
    exponent = size.of("ShiftRight", _MANTISSA).of("Max", least)
    step = (exponent - mantissa).of("ShiftLeft", _MANTISSA).of("BitCast", to="float32")
    multiple = (size.of("BitCast", to="float32") / step).of("Round").cast(_INT32)
    code = multiple + (exponent - least).of("ShiftLeft", mantissa)
    code = ((code > largest) | (size >= _INFINITE)).where(over, code)
    negative = stored < 0
    signed = code.of("BitwiseOr", sign)
    if negative_zero == 0:  # a format without it
        negative_code = (code > 0).where(signed, 0)
    else:
        negative_code = signed
    code = negative.where(negative_code, code)
    not_a_number = negative.where(code.number(negative_nan), nan) if nan != negative_nan else code.number(nan)
    return (size > _INFINITE).where(not_a_number, code)


def _exponent(x: Term, saturate: bool, round_mode: str) -> Term:
    """Return the exponent of a number as float32 has it; the sign is lost."""
    if round_mode not in ("up", "down", "nearest"):
        raise ValueError(f"unknown round_mode {round_mode!r}")
    size = x.of("BitCast", to=_INT32.name).of("BitwiseAnd", 0x7FFFFFFF)
    exponent = size.of("ShiftRight", _MANTISSA)
    if round_mode == "down":
        return exponent
    fraction = size.of("BitwiseAnd", (1 << _MANTISSA) - 1)
    half = 1 << (_MANTISSA - 1)
    if round_mode == "up":
        more = fraction > 0
    else:  # the fraction is above a half, or is one and there is an exponent to be odd
        more = (fraction > half) | (fraction.of("Equal", half) & (exponent > 0))
    more = more & (exponent < (0xFE if saturate else 0xFF))
    return more.where(exponent + 1, exponent)
