"""Elementwise operators of random graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusion_search.testing.drawing import BF16, BOOL, F16, F32, F64, I32, I64, INTEGERS, TAME, Drawer, Skip, Tensor


def _binary(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.tame(d.number())
        y = d.tame(d.partner(x))
        if d.flip():
            x, y = y, x
        bound = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Mul": x.bound * y.bound}.get(name, max(x.bound, y.bound))
        return d.op(name, x, y, bound=bound)

    return draw


def _div(d: Drawer) -> Tensor:
    x = d.tame(d.number())
    y = d.tame(d.partner(x))
    if d.kind(x) == "f":
        y = d.positive(y)
        return d.op("Div", x, y, bound=2 * x.bound)
    return d.op("Div", x, y, bound=x.bound)


def _mod(d: Drawer) -> Tensor:
    x = d.some("f", exact=True, bound=TAME) if d.flip(0.3) else d.integer()
    y = d.partner(x, exact=True)
    if d.kind(x) == "f":
        y = d.positive(y)
    return d.op("FMod" if d.flip(0.3) else "Mod", x, y, bound=max(x.bound, y.bound))


def _bitwise(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.integer() if d.wide else d.tame(d.integer())
        if name == "BitwiseNot":
            return d.op(name, x, bound=x.bound + 1)
        y = d.partner(x)
        if name.startswith("Shift") and not d.wide:
            return d.op(name, x, d.op("Mod", y, d.number_of(y, 8), bound=8), bound=128 * x.bound)
        return d.op(name, x, y, bound=2 * max(x.bound, y.bound))

    return draw


def _bit_cast(d: Drawer) -> Tensor:
    x = d.some("f", exact=True)
    bits = d.op("BitCast", x, bound=math.inf, to=f"int{8 * d.dtype(x).itemsize}")
    return d.op("BitwiseAnd", bits, d.number_of(bits, 255), bound=255)


def _acosh(d: Drawer) -> Tensor:
    x = d.positive(d.tame(d.some("f")))
    return d.op("Acosh", d.op("Add", x, d.number_of(x, 1), bound=x.bound + 1), bound=6.0, exact=False)


def _pow(d: Drawer) -> Tensor:
    if d.wide:
        x = d.number()
        return d.op("Pow", x, d.partner(x), bound=math.inf, exact=False)
    x = d.tame(d.some("f"), 4.0)
    y = d.tame(d.partner(x), 2.0)
    return d.op("Pow", d.positive(x), y, bound=21.0, exact=False)


def _unary(name: str, kinds: str, *, exact: bool = True, limit: float = math.inf, bound: float = 0.0, only_exact: bool = False) -> Any:
    def draw(d: Drawer) -> Tensor:
        x = d.some("f", exact=only_exact) if kinds == "f" or d.flip(0.75) else d.integer()
        x = d.tame(x, limit)
        return d.op(name, x, bound=bound or x.bound + (0.5 if only_exact else 0), exact=exact)

    return draw


def _guarded(name: str, bound: Callable[[float], float], exact: bool) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.positive(d.tame(d.some("f")))
        return d.op(name, x, bound=bound(x.bound), exact=exact)

    return draw


def _compare(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.some("f", exact=True) if d.flip(0.6) else d.integer()
        return d.op(name, x, d.partner(x, exact=True), bound=1.0)

    return draw


def _logical(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.boolean()
        return d.op(name, x, bound=1.0) if name == "Not" else d.op(name, x, d.partner(x), bound=1.0)

    return draw


def _is_nan(d: Drawer) -> Tensor:
    return d.op("IsNaN", d.some("f"), bound=1.0)


def _where(d: Drawer) -> Tensor:
    x = d.number()
    y = d.partner(x)
    shape = np.broadcast_shapes(d.shape(x), d.shape(y))
    fits = [t for t in d.pool if d.dtype(t) == BOOL and d.shape(t) == shape]
    c = fits[0] if fits else d.fresh(BOOL, tuple(1 if d.flip(0.3) else n for n in shape))
    return d.op("Where", c, x, y, bound=max(x.bound, y.bound))


def _clip(d: Drawer) -> Tensor:
    x = d.number()
    return d.op("Clip", x, d.number_of(x, -1), d.number_of(x, 2), bound=2.0)


def _cast(d: Drawer) -> Tensor:
    x = d.some("fib")
    kinds = [F32, F32, d.main, F64, F16]
    if d.wide:
        kinds += [BF16, *INTEGERS, BOOL]
    elif x.exact and x.bound < 1e6:
        kinds += [I32, I64, BOOL]
    to = kinds[int(d.rng.integers(len(kinds)))]
    if to == d.dtype(x):
        raise Skip
    if to == F16 and not d.wide:
        x = d.tame(x)
    return d.op("Cast", x, bound=max(x.bound, 1.0), to=to.name)


#: What can be drawn: core operators.
ELEMENTWISE: dict[str, Callable[[Drawer], Tensor]] = {
    **{name: _binary(name) for name in ("Add", "Sub", "Mul", "Max", "Min")},
    "Div": _div,
    "Mod": _mod,
    "FMod": _mod,
    **{name: _bitwise(name) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "ShiftLeft", "ShiftRight")},
    "BitCast": _bit_cast,
    "Pow": _pow,
    **{name: _unary(name, "fi") for name in ("Neg", "Abs", "Relu")},
    "Sign": _unary("Sign", "fi", bound=1.0, only_exact=True),
    **{name: _unary(name, "f", only_exact=True) for name in ("Floor", "Ceil", "Round")},
    "Exp": _unary("Exp", "f", exact=False, limit=4.0, bound=55.0),
    "Tanh": _unary("Tanh", "f", exact=False, bound=1.0),
    "Sigmoid": _unary("Sigmoid", "f", exact=False, bound=1.0),
    "Erf": _unary("Erf", "f", exact=False, bound=1.0),
    "Sin": _unary("Sin", "f", exact=False, limit=TAME, bound=1.0),
    "Cos": _unary("Cos", "f", exact=False, limit=TAME, bound=1.0),
    "Tan": _unary("Tan", "f", exact=False, limit=1.0, bound=2.0),
    **{name: _unary(name, "f", exact=False, limit=0.9, bound=4.0) for name in ("Asin", "Acos", "Atanh")},
    **{name: _unary(name, "f", exact=False, bound=6.0) for name in ("Atan", "Asinh")},
    **{name: _unary(name, "f", exact=False, limit=4.0, bound=28.0) for name in ("Sinh", "Cosh")},
    "Acosh": _acosh,
    "Sqrt": _guarded("Sqrt", math.sqrt, True),
    "Log": _guarded("Log", lambda n: max(1.0, math.log(n)), False),
    "Reciprocal": _guarded("Reciprocal", lambda n: 2.0, True),
    **{name: _compare(name) for name in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")},
    **{name: _logical(name) for name in ("And", "Or", "Xor", "Not")},
    "IsNaN": _is_nan,
    "Where": _where,
    "Clip": _clip,
    "Cast": _cast,
}
