"""Elementwise operators: all loops parallel, a scalar expression, NumPy broadcasting.

Bodies are texts over the helpers of :mod:`fusion_search.codegen.rt`. `dt` is the dtype code in which the node
computes: f4, f8, i1 .. i8, u1 .. u8 or b1 (16-bit floats compute in f4 and are rounded at the definition).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from fusion_search.ir.spec import NEVER_POSITIVE, Array, Domain, FlopClass, OpSpec, Type, broadcast_access

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


def typed(function: Callable[..., Array]) -> Callable[[Sequence[Array], dict[str, Any]], Array]:
    wide = _wide(function)
    return lambda arrays, attrs: wide(arrays, attrs).astype(arrays[0].dtype, copy=False)


def call(name: str) -> Body:
    """A helper that exists for float32 and float64 under `name` + 32 or 64."""
    return lambda dt, a, attrs: f"{name}{'64' if dt == 'f8' else '32'}({', '.join(a)})"


def _text(template: str) -> Body:
    return lambda dt, a, attrs: template.format(*a, T=f"T_{dt}")


def _exp_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    if dt == "f8":
        return f"exp64({a[0]})"
    return f"exp32_neg({a[0]})" if attrs.get(NEVER_POSITIVE) else f"exp32({a[0]})"


def unary(name: str, function: Callable[..., Array], body: Body, cls: FlopClass = "simple", *, exact: bool = True) -> OpSpec:
    return OpSpec(name, "map", _infer, domain, typed(function), body, flop_class=cls, exact=exact)


def binary(name: str, function: Callable[..., Array], body: Body, cls: FlopClass = "simple", *, exact: bool = True) -> OpSpec:
    return OpSpec(name, "map", _infer, domain, typed(function), body, flop_class=cls, exact=exact)


def _compare(name: str, function: Callable[..., Array], text: str) -> OpSpec:
    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        return np.asarray(function(*arrays), BOOL)

    return OpSpec(name, "map", _infer_bool, domain, evaluate, _text(text), exact=True)


def _int_div(a: Array, b: Array) -> Array:
    """Truncating integer division as ONNX has it; a division by zero gives 0."""
    if a.dtype.kind == "f" or a.dtype.kind == "V":
        return a / b
    opposite = (b == -1) if a.dtype.kind == "i" else np.zeros(np.shape(b), bool)
    safe = np.where((b == 0) | opposite, np.ones((), a.dtype), b)
    floor = np.floor_divide(a, safe)
    truncated = floor + ((floor < 0) & (floor * safe != a)).astype(a.dtype)
    # the quotient of the smallest integer by -1 wraps around, as negation does
    found = np.where(opposite, np.negative(a), truncated)
    return np.where(b == 0, np.zeros((), a.dtype), found).astype(a.dtype)


def _div_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    return f"{a[0]} / {a[1]}" if dt[0] == "f" else f"{'u' if dt[0] == 'u' else ''}int_div({a[0]}, {a[1]})"


def larger(dt: str, a: str, b: str) -> str:
    """Return the text of a maximum of any dtype; NaN stays NaN."""
    return f"{a} | {b}" if dt == "b1" else f"{ {'f4': 'np_maximum', 'f8': 'np_maximum64'}.get(dt, 'int_maximum') }({a}, {b})"


def smaller(dt: str, a: str, b: str) -> str:
    """Return the text of a minimum of any dtype; NaN stays NaN."""
    return f"{a} & {b}" if dt == "b1" else f"{ {'f4': 'np_minimum', 'f8': 'np_minimum64'}.get(dt, 'int_minimum') }({a}, {b})"


def _sign_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    if dt[0] == "f":
        return f"sign({a[0]})"
    above = f"select({a[0]} > T_{dt}(0), T_{dt}(1), T_{dt}(0))"
    return above if dt[0] == "u" else f"select({a[0]} < T_{dt}(0), T_{dt}(-1), {above})"


def _abs_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    return a[0] if dt[0] in "ub" else f"abs({a[0]})"


#: By dtype: what gives the bits of the maximum with 0 in two instructions in place of three.
_RELU = {"f4": "relu32", "f8": "relu64"}


def _relu(x: Array) -> Array:
    return np.maximum(x, np.zeros((), x.dtype))


def _sigmoid(x: Array) -> Array:
    # SciPy's float32 form is 0 where the answer is a subnormal number
    return np.asarray(special.expit(x.astype(np.float64))).astype(x.dtype)


def power(x: Array, y: Array) -> Array:
    """Raise to a power as IEEE 754 has it, and integers as ONNX has them."""
    if x.dtype.kind != "i":
        # where the exponent is the number 0.5, NumPy takes the root: another answer for -inf and -0
        root = (y == 0.5) & ((x == 0) | (x == -np.inf))
        return np.where(root, abs(x), np.power(x, y))
    # NumPy refuses negative exponents of integers: 1 / x**-y truncated is 0 but for the units
    inverse = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0)).astype(x.dtype)
    return np.where(y < 0, inverse, np.power(x, np.where(y < 0, 0, y)))


def _pow_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    if dt[0] == "f":
        return f"pow{'64' if dt == 'f8' else '32'}({a[0]}, {a[1]})"
    return f"{'uint_pow' if dt[0] == 'u' else 'int_pow'}({a[0]}, {a[1]})"


def _cast(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return arrays[0].astype(np.dtype(attrs["to"]))


def _cast_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    # the generator rounds every definition to the node's dtype, which is what a cast does
    to = np.dtype(attrs["to"])
    if to == BOOL:
        return f"{a[0]} != T_{dt}(0)"
    if to.kind in "iu" and dt[0] == "f":
        if to == np.uint64:
            return f"float_to_uint({a[0]})"
        return f"{'float_to_int' if to in (np.int64, np.uint32) else 'to_int32'}({a[0]})"
    if to.itemsize == 2 and to.kind not in "iu":
        return f"nearly_f32({a[0]})" if dt == "f8" and to.kind == "f" else f"T_f4({a[0]})"
    return a[0]


def _where(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    return np.where(arrays[0], arrays[1], arrays[2])


def _clip(x: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _clip_body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
    return smaller(dt, larger(dt, a[0], a[1]), a[2])


def _mod(a: Array, b: Array) -> Array:
    return np.mod(a, b if a.dtype.kind == "f" else np.where(b == 0, 1, b))


def _fmod(a: Array, b: Array) -> Array:
    return np.fmod(a, b if a.dtype.kind == "f" else np.where(b == 0, 1, b))


def _remainder(word: str) -> Body:
    def body(dt: str, a: Sequence[str], attrs: dict[str, Any]) -> str:
        if dt[0] == "f":
            return f"{word}{'64' if dt == 'f8' else '32'}({a[0]}, {a[1]})"
        return f"uint_mod({a[0]}, {a[1]})" if dt[0] == "u" else f"int_{word}({a[0]}, {a[1]})"

    return body


SPECS: tuple[OpSpec, ...] = (
    binary("Add", np.add, _text("{0} + {1}")),
    binary("Sub", np.subtract, _text("{0} - {1}")),
    binary("Mul", np.multiply, _text("{0} * {1}")),
    binary("Div", _int_div, _div_body),
    binary("Pow", power, _pow_body, "special", exact=False),
    binary("Max", np.maximum, lambda dt, a, attrs: larger(dt, *a)),
    binary("Min", np.minimum, lambda dt, a, attrs: smaller(dt, *a)),
    binary("Mod", _mod, _remainder("mod")),
    binary("FMod", _fmod, _remainder("fmod")),
    unary("Neg", np.negative, _text("-{0}")),
    unary("Abs", np.abs, _abs_body),
    unary("Relu", _relu, lambda dt, a, attrs: f"{_RELU[dt]}({a[0]})" if dt in _RELU else larger(dt, a[0], f"T_{dt}(0)")),
    unary("Sqrt", np.sqrt, _text("np.sqrt({0})")),
    unary("Reciprocal", np.reciprocal, _text("{T}(1) / {0}")),
    unary("Floor", np.floor, _text("np.floor({0})")),
    unary("Ceil", np.ceil, _text("np.ceil({0})")),
    unary("Round", np.rint, call("rint")),
    unary("Sign", np.sign, _sign_body),
    unary("Exp", np.exp, _exp_body, "special", exact=False),
    unary("Log", np.log, call("log"), "special", exact=False),
    unary("Tanh", np.tanh, call("tanh"), "special", exact=False),
    unary("Sigmoid", _sigmoid, call("sigmoid"), "special", exact=False),
    unary("Erf", special.erf, call("erf"), "special", exact=False),
    unary("Sin", np.sin, call("sin"), "special", exact=False),
    unary("Cos", np.cos, call("cos"), "special", exact=False),
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
    OpSpec("Clip", "map", _infer, domain, typed(_clip), _clip_body, flops=2.0, exact=True),
    OpSpec("Cast", "map", _infer_cast, domain, _cast, _cast_body, exact=True),
)
