"""Lowering of elementwise operators, activations among them."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule
from fusion_search.frontends.onnx.lower.narrow import NARROW, convert
from fusion_search.frontends.onnx.tensors import CORE_DTYPES


def same(ctx: Lowering, call: Call) -> list[Item]:
    """The core operator of the same name on the same operands."""
    return [ctx.op(call.op, *call.tensors)]


def boolean(ctx: Lowering, call: Call) -> list[Item]:
    """A core operator on bools only."""
    if any(ctx.dtype(name) != np.dtype(bool) for name in call.tensors):
        raise ValueError("operands must be bool")
    return [ctx.op(call.op, *call.tensors)]


def floating(ctx: Lowering, call: Call) -> list[Item]:
    """A core operator on floating-point operands only."""
    if not all(ctx.is_float(name) for name in call.tensors):
        raise NotLowered
    return [ctx.op(call.op, *call.tensors)]


def identity(ctx: Lowering, call: Call) -> list[Item]:
    """The operand itself."""
    return [call.inputs[0]]


def dropout(ctx: Lowering, call: Call) -> list[Item]:
    """Inference: the operand itself, and a mask that keeps everything."""
    x = call.tensor(0)
    if call.opset >= 12 and call.tensor(2) and bool(ctx.known(call.tensor(2)).reshape(-1)[0]):
        ratio = ctx.known(call.tensor(1)) if call.tensor(1) else np.asarray(0.5)
        if float(ratio.reshape(-1)[0]) != 0.0:  # every run draws again
            raise NotLowered
    mask = ""
    if call.wants(1):
        dtype = np.dtype(bool) if call.opset >= 10 else ctx.dtype(x)
        mask = ctx.op("Expand", ctx.scalar(1, dtype), part="mask", shape=ctx.shape(x))
    return [x, mask]


def cast(ctx: Lowering, call: Call) -> list[Item]:
    """Conversion between dtypes."""
    x = call.tensor(0)
    if call.op == "CastLike":
        to = ctx.dtype(call.tensor(1))
    else:
        to = np.dtype(helper.tensor_dtype_to_np_dtype(call.attrs["to"]))
    if to in NARROW or ctx.dtype(x) in NARROW:
        how = {"saturate": bool(call.attrs.get("saturate", 1)), "round_mode": call.attrs.get("round_mode", "up")}
        return [x if ctx.dtype(x) == to else convert(ctx, x, to, **how)]
    if to not in CORE_DTYPES:
        raise NotLowered
    return [x if ctx.dtype(x) == to else ctx.op("Cast", x, to=to.name)]


def variadic(ctx: Lowering, call: Call) -> list[Item]:
    """Sum, Mean, Max, Min: a chain of binary operators, rounded once."""
    names, dtype = call.tensors, ctx.dtype(call.tensor(0))
    core = {"Sum": "Add", "Mean": "Add"}.get(call.op, call.op)
    if core == "Add":
        names = [ctx.widen(name) for name in names]
    result = names[0]
    for name in names[1:]:
        result = ctx.op(core, result, name, part="" if len(names) == 2 and call.op != "Mean" else core.lower())
    if call.op == "Mean" and len(names) > 1:
        result = ctx.op("Div", result, ctx.scalar(len(names), ctx.dtype(result)), part="div")
    return [ctx.narrow(result, dtype)]


def mod(ctx: Lowering, call: Call) -> list[Item]:
    """The sign of the divisor, or with ``fmod`` that of the dividend."""
    return [ctx.op("FMod" if call.attrs.get("fmod", 0) else "Mod", *call.tensors)]


def power(ctx: Lowering, call: Call) -> list[Item]:
    """Pow; small constant exponents become products, which are at least as exact."""
    x, y = call.tensor(0), call.tensor(1)
    exponent = ctx.const(y)
    if exponent is not None and exponent.size == 1 and exponent.ndim <= len(ctx.shape(x)):
        value = float(exponent.reshape(-1)[0])
        if value == 1.0:
            return [x]
        if value == 2.0:
            return [ctx.op("Mul", x, x)]
        if value == 3.0 and ctx.is_float(x):
            wide = ctx.widen(x)
            return [ctx.narrow(ctx.op("Mul", ctx.op("Mul", wide, wide, part="square"), wide, part="mul"), ctx.dtype(x))]
        if value == -1.0 and ctx.is_float(x):
            return [ctx.op("Reciprocal", x)]
    if ctx.dtype(x).kind in "iu" and ctx.is_float(y):  # as NumPy: in a float type that holds both, truncated at the end
        common = np.dtype(np.result_type(ctx.dtype(x), np.float32 if ctx.dtype(y).itemsize == 2 else ctx.dtype(y)))
        return [ctx.cast(ctx.op("Pow", ctx.cast(x, common), ctx.cast(y, common), part="pow"), ctx.dtype(x), part="truncate")]
    return [ctx.op("Pow", x, ctx.cast(y, ctx.dtype(x)))]


def where(ctx: Lowering, call: Call) -> list[Item]:
    """A choice between two values."""
    return [ctx.op("Where", *call.tensors)]


def clip(ctx: Lowering, call: Call) -> list[Item]:
    """Limits from attributes (before version 11) or operands, each of which may be missing."""
    x = call.tensor(0)
    dtype = ctx.dtype(x)
    if call.opset < 11:
        low, high = (ctx.scalar(call.attrs[key], dtype) if key in call.attrs else "" for key in ("min", "max"))
    else:
        low, high = (ctx.view(name, ()) if name else "" for name in (call.tensor(1), call.tensor(2)))
    if low and high:
        return [ctx.op("Clip", x, low, high)]
    if low:
        return [ctx.op("Max", x, low)]
    return [ctx.op("Min", x, high) if high else x]


def is_inf(ctx: Lowering, call: Call) -> list[Item]:
    """Equality with the infinities asked for."""
    x = call.tensor(0)
    signs = [sign for key, sign in (("detect_positive", np.inf), ("detect_negative", -np.inf)) if call.attrs.get(key, 1)]
    if not signs or not ctx.is_float(x):
        raise NotLowered
    found = [ctx.op("Equal", x, ctx.scalar(sign, ctx.dtype(x)), part=f"equal{k}" if len(signs) > 1 else "") for k, sign in enumerate(signs)]
    return [found[0] if len(found) == 1 else ctx.op("Or", *found, part="or")]


def _wide(rule: Rule) -> Rule:
    """Compute in float32 inside when the operand is a 16-bit float, and round once."""

    def lowered(ctx: Lowering, call: Call) -> list[Item]:
        if not ctx.is_float(call.tensor(0)):
            raise NotLowered
        dtype = ctx.dtype(call.tensor(0))
        wide = Call(call.op, call.opset, tuple(ctx.widen(name) for name in call.tensors), call.attrs, call.wanted, call.node)
        result = rule(ctx, wide)[0]
        if not isinstance(result, str):
            raise NotLowered
        return [ctx.narrow(result, dtype)]

    return lowered


def _num(ctx: Lowering, x: str, value: float) -> str:
    return ctx.scalar(value, ctx.dtype(x))


def _choose(ctx: Lowering, x: str, negative: str, positive: str, test: str = "Less") -> list[Item]:
    return [ctx.op("Where", ctx.op(test, x, _num(ctx, x, 0), part="less"), negative, positive, part="where")]


@_wide
def leaky_relu(ctx: Lowering, call: Call) -> list[Item]:
    """x where x >= 0, alpha x elsewhere; PRelu has its slopes as an operand."""
    x = call.tensor(0)
    slope = call.tensor(1) if call.op == "PRelu" else _num(ctx, x, call.attrs.get("alpha", 0.01))
    return _choose(ctx, x, ctx.op("Mul", x, slope, part="mul"), x)


@_wide
def elu(ctx: Lowering, call: Call) -> list[Item]:
    """alpha (exp(x) - 1) where x < 0."""
    x = call.tensor(0)
    grown = ctx.op("Sub", ctx.op("Exp", x, part="exp"), _num(ctx, x, 1), part="sub")
    return _choose(ctx, x, ctx.op("Mul", grown, _num(ctx, x, call.attrs.get("alpha", 1.0)), part="mul"), x)


@_wide
def selu(ctx: Lowering, call: Call) -> list[Item]:
    """gamma x, or gamma alpha (exp(x) - 1) where x <= 0."""
    x = call.tensor(0)
    alpha, gamma = call.attrs.get("alpha", 1.67326319217681884765625), call.attrs.get("gamma", 1.05070102214813232421875)
    grown = ctx.op("Sub", ctx.op("Exp", x, part="exp"), _num(ctx, x, 1), part="sub")
    low = ctx.op("Mul", grown, _num(ctx, x, alpha), part="alpha")
    chosen = ctx.op("Where", ctx.op("LessOrEqual", x, _num(ctx, x, 0), part="less"), low, x, part="where")
    return [ctx.op("Mul", chosen, _num(ctx, x, gamma), part="gamma")]


@_wide
def celu(ctx: Lowering, call: Call) -> list[Item]:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    x, alpha = call.tensor(0), call.attrs.get("alpha", 1.0)
    grown = ctx.op("Exp", ctx.op("Div", x, _num(ctx, x, alpha), part="div"), part="exp")
    low = ctx.op("Mul", ctx.op("Sub", grown, _num(ctx, x, 1), part="sub"), _num(ctx, x, alpha), part="mul")
    return [ctx.op("Add", ctx.op("Relu", x, part="relu"), ctx.op("Min", low, _num(ctx, x, 0), part="min"), part="add")]


@_wide
def thresholded_relu(ctx: Lowering, call: Call) -> list[Item]:
    """x where x > alpha, 0 elsewhere."""
    x = call.tensor(0)
    above = ctx.op("Greater", x, _num(ctx, x, call.attrs.get("alpha", 1.0)), part="greater")
    return [ctx.op("Where", above, x, _num(ctx, x, 0), part="where")]


def _hard_sigmoid(ctx: Lowering, x: str, alpha: float, beta: float) -> str:
    line = ctx.op("Add", ctx.op("Mul", x, _num(ctx, x, alpha), part="mul"), _num(ctx, x, beta), part="add")
    return ctx.op("Clip", line, _num(ctx, x, 0), _num(ctx, x, 1), part="clip")


@_wide
def hard_sigmoid(ctx: Lowering, call: Call) -> list[Item]:
    """max(0, min(1, alpha x + beta))."""
    return [_hard_sigmoid(ctx, call.tensor(0), call.attrs.get("alpha", 0.2), call.attrs.get("beta", 0.5))]


@_wide
def hard_swish(ctx: Lowering, call: Call) -> list[Item]:
    """x max(0, min(1, x / 6 + 1 / 2)); the sixth is a float32, as in the standard's function body."""
    x = call.tensor(0)
    return [ctx.op("Mul", x, _hard_sigmoid(ctx, x, float(np.float32(1 / 6)), 0.5), part="gate")]


def _softplus(ctx: Lowering, x: str) -> str:
    # log(exp(x) + 1) as the standard has it overflows from 88 on; this form is the same number and does not
    small = ctx.op("Exp", ctx.op("Neg", ctx.op("Abs", x, part="abs"), part="neg"), part="exp")
    tail = ctx.op("Log", ctx.op("Add", small, _num(ctx, x, 1), part="plus1"), part="log")
    return ctx.op("Add", ctx.op("Relu", x, part="relu"), tail, part="add")


@_wide
def softplus(ctx: Lowering, call: Call) -> list[Item]:
    """log(exp(x) + 1)."""
    return [_softplus(ctx, call.tensor(0))]


@_wide
def mish(ctx: Lowering, call: Call) -> list[Item]:
    """x tanh(softplus(x))."""
    x = call.tensor(0)
    return [ctx.op("Mul", x, ctx.op("Tanh", _softplus(ctx, x), part="tanh"), part="mul")]


@_wide
def softsign(ctx: Lowering, call: Call) -> list[Item]:
    """x / (1 + |x|)."""
    x = call.tensor(0)
    return [ctx.op("Div", x, ctx.op("Add", ctx.op("Abs", x, part="abs"), _num(ctx, x, 1), part="add"), part="div")]


@_wide
def swish(ctx: Lowering, call: Call) -> list[Item]:
    """x sigmoid(alpha x)."""
    x, alpha = call.tensor(0), call.attrs.get("alpha", 1.0)
    inner = x if alpha == 1.0 else ctx.op("Mul", x, _num(ctx, x, alpha), part="scale")
    return [ctx.op("Mul", x, ctx.op("Sigmoid", inner, part="sigmoid"), part="mul")]


@_wide
def gelu(ctx: Lowering, call: Call) -> list[Item]:
    """x / 2 (1 + erf(x / sqrt 2)), or its approximation by tanh."""
    x = call.tensor(0)
    if call.attrs.get("approximate", "none") == "tanh":
        cube = ctx.op("Mul", ctx.op("Mul", x, x, part="square"), x, part="cube")
        inner = ctx.op("Add", x, ctx.op("Mul", cube, _num(ctx, x, 0.044715), part="scale"), part="inner")
        curve = ctx.op("Tanh", ctx.op("Mul", inner, _num(ctx, x, math.sqrt(2 / math.pi)), part="arg"), part="tanh")
    else:
        curve = ctx.op("Erf", ctx.op("Mul", x, _num(ctx, x, math.sqrt(0.5)), part="arg"), part="erf")
    half = ctx.op("Mul", x, _num(ctx, x, 0.5), part="half")
    return [ctx.op("Mul", half, ctx.op("Add", curve, _num(ctx, x, 1), part="plus1"), part="mul")]


def binarizer(ctx: Lowering, call: Call) -> list[Item]:
    """1 above a threshold, 0 elsewhere."""
    x = call.tensor(0)
    above = ctx.op("Greater", x, _num(ctx, x, call.attrs.get("threshold", 0.0)), part="greater")
    return [ctx.cast(above, ctx.dtype(x), part="cast")]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("Abs", "Neg", "Sign", "Relu", "Add", "Sub", "Mul", "Div", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), same
    ),
    **dict.fromkeys(
        (
            "Sqrt",
            "Reciprocal",
            "Floor",
            "Ceil",
            "Round",
            "Exp",
            "Log",
            "Tanh",
            "Sigmoid",
            "Erf",
            "Sin",
            "Cos",
            "IsNaN",
            "Tan",
            "Asin",
            "Acos",
            "Atan",
            "Sinh",
            "Cosh",
            "Asinh",
            "Acosh",
            "Atanh",
        ),
        floating,
    ),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), boolean),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), variadic),
    **dict.fromkeys(("Cast", "CastLike"), cast),
    **dict.fromkeys(("LeakyRelu", "PRelu"), leaky_relu),
    "Identity": identity,
    "Dropout": dropout,
    "Mod": mod,
    "Pow": power,
    "Where": where,
    "Clip": clip,
    "IsInf": is_inf,
    "Elu": elu,
    "Selu": selu,
    "Celu": celu,
    "ThresholdedRelu": thresholded_relu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Softplus": softplus,
    "Mish": mish,
    "Softsign": softsign,
    "Swish": swish,
    "Gelu": gelu,
    "ai.onnx.ml.Binarizer": binarizer,
}
