"""Elementwise operators: all loops parallel, a scalar expression, NumPy broadcasting.

Bodies are texts over the helpers of :mod:`fusion_search.codegen.rt`. `dt` is the dtype code in which the node
computes: f4, f8, i1 .. i8, u1 .. u8 or b1 (16-bit floats compute in f4 and are rounded at the definition).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from fusion_search.ir.spec import Array, Domain, FlopClass, OpSpec, Type, broadcast_access

Body = Callable[[str, Sequence[str], dict[str, Any]], str]
BOOL = np.dtype(bool)


def broadcast(types: Sequence[Type]) -> tuple[int, ...]:
    """Return the broadcast shape of several operands."""
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*(t.shape for t in types)))
    except ValueError:
        raise ValueError("shapes do not broadcast: " + ", ".join(str(list(t.shape)) for t in types)) from None


def _infer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    first = types[0].dtype
    for other in types[1:]:
        if other.dtype != first:
            raise ValueError(f"operands have different dtypes: {first} and {other.dtype}")
    return Type(first, broadcast(types))


def _infer_bool(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return Type(BOOL, _infer(types, attrs).shape)


def _infer_cast(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return Type(np.dtype(attrs["to"]), types[0].shape)


def _infer_where(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    if types[0].dtype != BOOL:
        raise ValueError(f"condition must be bool, got {types[0].dtype}")
    return Type(_infer(types[1:], attrs).dtype, broadcast(types))


def domain(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    """All loops are the output's; operands broadcast."""
    return Domain(out.shape, 0, tuple(broadcast_access(t.shape, out.shape) for t in types))


def _wide(function: Callable[..., Array]) -> Callable[[Sequence[Array], dict[str, Any]], Array]:
    """Evaluate in float32 inside when operands are 16-bit floats, and round once."""

    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        dtype = arrays[0].dtype
        with np.errstate(all="ignore"):
            if dtype.itemsize == 2 and dtype.kind not in "iu":
                return np.asarray(function(*(a.astype(np.float32) for a in arrays))).astype(dtype)
            return np.asarray(function(*arrays))

    return evaluate


def _typed(function: Callable[..., Array]) -> Callable[[Sequence[Array], dict[str, Any]], Array]:
    wide = _wide(function)
    return lambda arrays, attrs: wide(arrays, attrs).astype(arrays[0].dtype, copy=False)


def _call(name: str) -> Body:
    """A helper that exists for float32 and float64 under `name` + 32 or 64."""
    return lambda dt, a, attrs: f"{name}{'64' if dt == 'f8' else '32'}({', '.join(a)})"


def _text(template: str) -> Body:
    return lambda dt, a, attrs: template.format(*a, T=f"T_{dt}")


def _unary(name: str, function: Callable[..., Array], body: Body, cls: FlopClass = "simple", *, exact: bool = True) -> OpSpec:
    return OpSpec(name, "map", _infer, domain, _typed(function), body, flop_class=cls, exact=exact)


def _binary(name: str, function: Callable[..., Array], body: Body, cls: FlopClass = "simple", *, exact: bool = True) -> OpSpec:
    return OpSpec(name, "map", _infer, domain, _typed(function), body, flop_class=cls, exact=exact)


def _compare(name: str, function: Callable[..., Array], text: str) -> OpSpec:
    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        return np.asarray(function(*arrays), BOOL)

    return OpSpec(name, "map", _infer_bool, domain, evaluate, _text(text), exact=True)


def _int_div(a: Array, b: Array) -> Array:
    """Truncating integer division as ONNX has it; a division by zero gives 0."""
    if a.dtype.kind == "f" or a.dtype.kind == "V":
        return a / b
    safe = np.where(b == 0, 1, b)
    quotient = (np.abs(a.astype(object)) // np.abs(safe.astype(object))) * np.sign(a.astype(object)) * np.sign(safe.astype(object))
    wrapped = np.vectorize(lambda v: int(v) & ((1 << (8 * a.dtype.itemsize)) - 1), otypes=[object])(quotient)
    unsigned = np.asarray(wrapped).astype(np.dtype(f"u{a.dtype.itemsize}"))
    return np.where(b == 0, np.zeros((), a.dtype), unsigned.view(a.dtype).reshape(quotient.shape))


def _div_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    return f"{a[0]} / {a[1]}" if dt[0] == "f" else f"int_div({a[0]}, {a[1]})"


def _relu(x: Array) -> Array:
    return np.maximum(x, np.zeros((), x.dtype))


def _sigmoid(x: Array) -> Array:
    return np.asarray(special.expit(x))


def _pow(x: Array, y: Array) -> Array:
    return np.power(x, y)


def _cast(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return arrays[0].astype(np.dtype(attrs["to"]))


def _cast_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    # the generator rounds every definition to the node's dtype, which is what a cast does
    to = np.dtype(attrs["to"])
    if to == BOOL:
        return f"{a[0]} != T_{dt}(0)"
    if to.kind in "iu" and dt[0] == "f":
        return f"float_to_int({a[0]})"
    return a[0]


def _where(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    return np.where(arrays[0], arrays[1], arrays[2])


def _clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _mod(a: Array, b: Array) -> Array:
    return np.fmod(a, b) if a.dtype.kind == "f" else np.mod(a, np.where(b == 0, 1, b))


SPECS: tuple[OpSpec, ...] = (
    _binary("Add", np.add, _text("{0} + {1}")),
    _binary("Sub", np.subtract, _text("{0} - {1}")),
    _binary("Mul", np.multiply, _text("{0} * {1}")),
    _binary("Div", _int_div, _div_body),
    _binary("Pow", _pow, _call("pow"), "special", exact=False),
    _binary("Max", np.maximum, _text("np_maximum({0}, {1})")),
    _binary("Min", np.minimum, _text("np_minimum({0}, {1})")),
    _binary("Mod", _mod, _text("int_mod({0}, {1})")),
    _unary("Neg", np.negative, _text("-{0}")),
    _unary("Abs", np.abs, _text("abs({0})")),
    _unary("Relu", _relu, _text("np_maximum({0}, {T}(0))")),
    _unary("Sqrt", np.sqrt, _text("np.sqrt({0})")),
    _unary("Reciprocal", np.reciprocal, _text("{T}(1) / {0}")),
    _unary("Floor", np.floor, _text("np.floor({0})")),
    _unary("Ceil", np.ceil, _text("np.ceil({0})")),
    _unary("Round", np.rint, _call("rint")),
    _unary("Sign", np.sign, _text("sign({0})")),
    _unary("Exp", np.exp, _call("exp"), "special", exact=False),
    _unary("Log", np.log, _call("log"), "special", exact=False),
    _unary("Tanh", np.tanh, _call("tanh"), "special", exact=False),
    _unary("Sigmoid", _sigmoid, _call("sigmoid"), "special", exact=False),
    _unary("Erf", special.erf, _call("erf"), "special", exact=False),
    _unary("Sin", np.sin, _call("sin"), "special", exact=False),
    _unary("Cos", np.cos, _call("cos"), "special", exact=False),
    _compare("Equal", np.equal, "{0} == {1}"),
    _compare("Less", np.less, "{0} < {1}"),
    _compare("LessOrEqual", np.less_equal, "{0} <= {1}"),
    _compare("Greater", np.greater, "{0} > {1}"),
    _compare("GreaterOrEqual", np.greater_equal, "{0} >= {1}"),
    _compare("And", np.logical_and, "{0} & {1}"),
    _compare("Or", np.logical_or, "{0} | {1}"),
    _compare("Xor", np.logical_xor, "{0} ^ {1}"),
    _compare("Not", np.logical_not, "not_({0})"),
    _compare("IsNaN", np.isnan, "{0} != {0}"),
    OpSpec("Where", "map", _infer_where, domain, _where, _text("select({0}, {1}, {2})"), exact=True),
    OpSpec("Clip", "map", _infer, domain, _typed(_clip), _text("np_minimum(np_maximum({0}, {1}), {2})"), flops=2.0, exact=True),
    OpSpec("Cast", "map", _infer_cast, domain, _cast, _cast_body, exact=True),
)
