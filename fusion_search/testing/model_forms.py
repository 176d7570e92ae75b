"""Forms of float operators for random ONNX models: operands by the shape of what came before, and attributes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion_search.testing.model_drawing import Draw, Form

#: Operators on one float tensor, with the attributes that they may have.
_UNARY: dict[str, tuple[dict[str, Any], ...]] = {
    **{name: ({},) for name in ("Abs", "Neg", "Exp", "Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Atan", "Asinh", "Relu", "Softplus")},
    **{name: ({},) for name in ("Softsign", "HardSwish", "Mish", "Identity", "Sinh", "Cosh", "Dropout")},
    "LeakyRelu": ({}, {"alpha": 0.3}),
    "Elu": ({}, {"alpha": 0.5}),
    "Selu": ({}, {"alpha": 1.2, "gamma": 0.9}),
    "Celu": ({}, {"alpha": 2.0}),
    "HardSigmoid": ({}, {"alpha": 0.3, "beta": 0.4}),
    "Gelu": ({}, {"approximate": "tanh"}),
    "Shrink": ({"bias": 0.0, "lambd": 0.5},),
}
_REDUCTIONS = tuple(f"Reduce{name}" for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"))

_WINDOWS = ("Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "InstanceNormalization", "BatchNormalization")


def _binary(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    op = d.one(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean", "PRelu", "Where", "Div"])
    cut = d.number(0, len(shape))
    other = tuple(1 if d.flip(0.3) else n for n in shape[cut:])
    y = d.feed(other, low=0.5 if op == "Div" else -2)
    if op == "Where":
        return d.node(op, d.feed(other, bool), x, y), shape
    return d.node(op, *((y, x) if d.flip() and op not in ("PRelu", "Div") else (x, y))), shape


def _reduction(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    op = d.one(_REDUCTIONS)
    axes = sorted(int(a) for a in d.rng.choice(len(shape), d.number(1, len(shape)), replace=False))
    keep = d.flip()
    y = d.node(op, x, d.fixed([a - len(shape) if d.flip(0.3) else a for a in axes]), keepdims=int(keep))
    return y, tuple(1 if k in axes else n for k, n in enumerate(shape) if keep or k not in axes)


def _softmax(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    return d.node(d.one(["Softmax", "LogSoftmax"]), x, axis=d.number(-len(shape), len(shape) - 1)), shape


def _running(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    axis = d.fixed(d.number(-len(shape), len(shape) - 1))
    return d.node("CumSum", x, axis, exclusive=d.number(0, 1), reverse=d.number(0, 1)), shape


def _layout(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape:
        return None
    op = d.one(["Transpose", "Flatten", "Unsqueeze", "Tile", "Expand", "Pad", "Slice", "Concat", "Gather", "Split", "Reshape", "Trilu"])
    axis, rank = d.number(0, len(shape) - 1), len(shape)
    rest = list(shape)
    if op == "Transpose":
        perm = [int(p) for p in d.rng.permutation(rank)]
        return d.node(op, x, perm=perm), tuple(shape[p] for p in perm)
    if op == "Flatten":
        return d.node(op, x, axis=axis), (math.prod(shape[:axis]), math.prod(shape[axis:]))
    if op == "Unsqueeze":
        return d.node(op, x, d.fixed([axis])), (*shape[:axis], 1, *shape[axis:])
    if op == "Reshape":
        return None if 0 in shape else (d.node(op, x, d.fixed([*shape[:axis], -1])), (*shape[:axis], math.prod(shape[axis:])))
    if op == "Tile":
        rest[axis] *= 2
        return d.node(op, x, d.fixed([2 if k == axis else 1 for k in range(rank)])), tuple(rest)
    if op == "Expand":
        return d.node(op, x, d.fixed([2, *(1 for _ in shape)])), (2, *shape)
    if op == "Pad":
        mode = d.one(["constant", "edge", "reflect", "wrap"])
        if 0 in shape:
            return None
        before, after = ([d.number(0, 2 if mode == "constant" else min(2, n - 1)) for n in shape] for _ in range(2))
        return d.node(op, x, d.fixed(before + after), mode=mode), tuple(n + b + a for n, b, a in zip(shape, before, after, strict=True))
    if op == "Slice":
        step = d.one([1, 2, -1, -2, 3])
        start, end = (d.number(-shape[axis] - 1, shape[axis] + 1) for _ in range(2))
        rest[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
        inside = 0 <= start < shape[axis] and 0 <= end <= shape[axis]
        return (d.node(op, x, d.fixed([start]), d.fixed([end]), d.fixed([axis]), d.fixed([step])), tuple(rest)) if inside else None
    if op == "Concat":
        rest[axis] = d.number(1, 3)
        y = d.feed(tuple(rest))
        return d.node(op, *((x, y) if d.flip() else (y, x)), axis=axis), (*shape[:axis], shape[axis] + rest[axis], *shape[axis + 1 :])
    if op == "Gather":
        if shape[axis] == 0:
            return None
        index = d.fixed(d.rng.integers(-shape[axis], shape[axis], d.number(1, 4)), d.one([np.int32, np.int64]))
        return d.node(op, x, index, axis=axis), (*shape[:axis], d.constants[index].size, *shape[axis + 1 :])
    if op == "Split":
        cut = d.number(0, shape[axis])
        rest[axis] = cut
        return d.node(op, x, d.fixed([cut, shape[axis] - cut]), outputs=2, axis=axis), tuple(rest)
    return (d.node(op, x, upper=d.number(0, 1)), shape) if rank >= 2 else None


def _product(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    n = d.number(1, 5)
    if len(shape) == 2 and d.flip():
        turned = d.flip()
        y = d.feed((n, shape[1]) if turned else (shape[1], n))
        bias = [d.feed(d.one([(n,), (1, n), (shape[0], 1), ()]))] if d.flip() else []
        return d.node("Gemm", x, y, *bias, transB=int(turned), alpha=d.one([1.0, 0.5]), beta=d.one([1.0, 2.0])), (shape[0], n)
    if not shape or shape[-1] == 0:
        return None
    if d.flip(0.2):
        return d.node("MatMul", x, d.feed((shape[-1],))), shape[:-1]
    return d.node("MatMul", x, d.feed((shape[-1], n))), (*shape[:-1], n) if len(shape) > 1 else (n,)


def _window(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    spatial = len(shape) - 2
    op = d.one(_WINDOWS)
    channels = shape[1]
    if op == "GlobalAveragePool":
        return d.node(op, x), (*shape[:2], *([1] * spatial))
    if op == "InstanceNormalization":
        return d.node(op, x, d.feed((channels,)), d.feed((channels,))), shape
    if op == "BatchNormalization":
        return d.node(op, x, *(d.feed((channels,)) for _ in range(3)), d.feed((channels,), low=0.5)), shape
    kernel = [d.number(1, min(3, n)) for n in shape[2:]]
    strides = [d.number(1, 2) for _ in kernel]
    pads = [d.number(0, k - 1) for k in kernel] + [d.number(0, k - 1) for k in kernel]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    out = tuple((n + pads[k] + pads[k + spatial] - kernel[k]) // strides[k] + 1 for k, n in enumerate(shape[2:]))
    if op == "ConvTranspose":
        out = tuple((n - 1) * strides[k] + kernel[k] - pads[k] - pads[k + spatial] for k, n in enumerate(shape[2:]))
        filters = d.number(1, 3)
        return (d.node(op, x, d.feed((channels, filters, *kernel)), **attrs), (shape[0], filters, *out)) if min(out) > 0 else None
    if op == "Conv":
        groups = channels if d.flip(0.3) else 1
        filters = groups * d.number(1, 3)
        bias = [d.feed((filters,))] if d.flip() else []
        return d.node(op, x, d.feed((filters, channels // groups, *kernel)), *bias, group=groups, **attrs), (shape[0], filters, *out)
    if op == "AveragePool":
        attrs["count_include_pad"] = d.number(0, 1)
    return d.node(op, x, **attrs), (*shape[:2], *out)


def _norm(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    axis = d.number(0, len(shape) - 1)
    bias = [d.feed(shape[axis:])] if d.flip() else []
    return d.node("LayerNormalization", x, d.feed(shape[axis:]), *bias, axis=axis), shape


def _unary(d: Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    op = d.one(sorted(_UNARY))
    return d.node(op, x, **d.one(_UNARY[op])), shape


FORMS: tuple[Form, ...] = (_unary, _unary, _binary, _binary, _reduction, _softmax, _running, _layout, _layout, _product, _window, _norm)
