"""Elementwise operators on bits, and the trigonometric and hyperbolic functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusion_search.ir.ops.maps import BOOL, broadcast, call, domain, unary
from fusion_search.ir.spec import Array, OpSpec, Type


def _infer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    first = types[0].dtype
    if first.kind not in "iu" or any(other.dtype != first for other in types):
        raise ValueError("operands must be integers of one dtype, got " + ", ".join(str(t.dtype) for t in types))
    return Type(first, broadcast(types))


def _bits(name: str, function: Callable[..., Array], text: str) -> OpSpec:
    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        return np.asarray(function(*arrays)).astype(arrays[0].dtype, copy=False)

    def body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
        return text.format(*a, bits=f"T_{dt}({8 * int(dt[1:])})")

    return OpSpec(name, "map", _infer, domain, evaluate, body, exact=True)


def _left(x: Array, n: Array) -> Array:
    inside = (n >= 0) & (n < 8 * x.dtype.itemsize)
    return np.where(inside, np.left_shift(x, np.where(inside, n, 0)), np.zeros((), x.dtype))


def _right(x: Array, n: Array) -> Array:
    most = 8 * x.dtype.itemsize - 1
    inside = (n >= 0) & (n <= most)
    once = np.right_shift(x, np.where(inside, n, np.asarray(most, n.dtype)))
    return np.where(inside, once, np.right_shift(once, np.ones((), n.dtype)))


def _infer_bitcast(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    to = np.dtype(attrs["to"])
    if to.itemsize != types[0].dtype.itemsize:
        raise ValueError(f"cannot read the bits of {types[0].dtype} as {to}: the widths differ")
    return Type(to, types[0].shape)


def _bitcast(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    bits: Array = np.ascontiguousarray(arrays[0]).view(np.dtype(attrs["to"])).reshape(arrays[0].shape)
    return bits


def _bitcast_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    to = np.dtype(attrs["to"])
    width = to.itemsize
    if dt == "b1":
        return f"np.uint8({a[0]})"
    if to == BOOL:
        return f"{a[0]} != T_{dt}(0)"
    text = a[0]
    if dt[0] == "f":
        text = f"f{8 * width}_bits({text})" if width > 2 else text
    elif to.kind == "f" and width > 2:
        text = f"bits_f{8 * width}(T_i{width}({text}))"
    return text


SPECS: tuple[OpSpec, ...] = (
    _bits("BitwiseAnd", np.bitwise_and, "{0} & {1}"),
    _bits("BitwiseOr", np.bitwise_or, "{0} | {1}"),
    _bits("BitwiseXor", np.bitwise_xor, "{0} ^ {1}"),
    _bits("BitwiseNot", np.invert, "~{0}"),
    _bits("ShiftLeft", _left, "shift_left({0}, {1}, {bits})"),
    _bits("ShiftRight", _right, "shift_right({0}, {1}, {bits})"),
    OpSpec("BitCast", "map", _infer_bitcast, domain, _bitcast, _bitcast_body, exact=True),
    unary("Tan", np.tan, call("tan"), "special", exact=False),
    unary("Asin", np.arcsin, call("asin"), "special", exact=False),
    unary("Acos", np.arccos, call("acos"), "special", exact=False),
    unary("Atan", np.arctan, call("atan"), "special", exact=False),
    unary("Sinh", np.sinh, call("sinh"), "special", exact=False),
    unary("Cosh", np.cosh, call("cosh"), "special", exact=False),
    unary("Asinh", np.arcsinh, call("asinh"), "special", exact=False),
    unary("Acosh", np.arccosh, call("acosh"), "special", exact=False),
    unary("Atanh", np.arctanh, call("atanh"), "special", exact=False),
)
