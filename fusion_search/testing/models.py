"""Random small ONNX models over the operators that have lowering rules, with inputs: all from seeds.

Most operators are drawn from a table of forms: operands by the letter of their kind, and attributes. A drawn model is a chain of a
few of them, each reading what came before; operators that are not continuous end a chain of floats, so that a tolerance on the
results means something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fusion_search.ir.spec import Array

OPSET = 20
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
_LAST = {"Sign": ({},), "Floor": ({},), "Ceil": ({},), "Round": ({},), "IsNaN": ({},), "IsInf": ({},), "ThresholdedRelu": ({"alpha": 0.6},)}
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")


@dataclass(slots=True)
class _Draw:
    """A model while it is drawn."""

    rng: np.random.Generator
    dtype: Any
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def flip(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def one(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def shape(self, rank: int, least: int = 1) -> tuple[int, ...]:
        """Extents whose product stays small."""
        shape = [max(least, int(self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7], p=[0.02, *[0.14] * 7]))) for _ in range(rank)]
        while math.prod(shape) > 200:
            shape[int(np.argmax(shape))] -= 1
        return tuple(shape)

    def feed(self, shape: tuple[int, ...], dtype: Any = None, low: float = -2, high: float = 2) -> str:
        """An input, or a constant now and then."""
        dtype = np.dtype(dtype or self.dtype)
        raw = self.rng.random(shape) < 0.5 if dtype == bool else self.rng.uniform(low, high, shape)
        if dtype.kind in "iu":
            raw = self.rng.integers(int(low), int(high) + 1, shape)
        given = self.constants if self.inputs and self.flip(0.3) else self.inputs
        name = f"{'c' if given is self.constants else 'x'}{len(given)}"
        given[name] = np.asarray(raw).astype(dtype)
        return name

    def fixed(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n{len(self.nodes)}", **attrs))
        return names[0]


Form = Callable[[_Draw, str, tuple[int, ...]], tuple[str, tuple[int, ...]] | None]


def _binary(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    op = d.one(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean", "PRelu", "Where", "Div"])
    cut = d.number(0, len(shape))
    other = tuple(1 if d.flip(0.3) else n for n in shape[cut:])
    y = d.feed(other, low=0.5 if op == "Div" else -2)
    if op == "Where":
        return d.node(op, d.feed(other, bool), x, y), shape
    return d.node(op, *((y, x) if d.flip() and op not in ("PRelu", "Div") else (x, y))), shape


def _reduction(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    op = d.one(_REDUCTIONS)
    axes = sorted(int(a) for a in d.rng.choice(len(shape), d.number(1, len(shape)), replace=False))
    keep = d.flip()
    y = d.node(op, x, d.fixed([a - len(shape) if d.flip(0.3) else a for a in axes]), keepdims=int(keep))
    return y, tuple(1 if k in axes else n for k, n in enumerate(shape) if keep or k not in axes)


def _softmax(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    return d.node(d.one(["Softmax", "LogSoftmax"]), x, axis=d.number(-len(shape), len(shape) - 1)), shape


def _running(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    axis = d.fixed(d.number(-len(shape), len(shape) - 1))
    return d.node("CumSum", x, axis, exclusive=d.number(0, 1), reverse=d.number(0, 1)), shape


def _layout(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
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


def _product(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
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


def _window(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    spatial = len(shape) - 2
    op = d.one(["Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "InstanceNormalization", "BatchNormalization"])
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


def _norm(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    if not shape or 0 in shape:
        return None
    axis = d.number(0, len(shape) - 1)
    bias = [d.feed(shape[axis:])] if d.flip() else []
    return d.node("LayerNormalization", x, d.feed(shape[axis:]), *bias, axis=axis), shape


def _unary(d: _Draw, x: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    op = d.one(sorted(_UNARY))
    return d.node(op, x, **d.one(_UNARY[op])), shape


FORMS: tuple[Form, ...] = (_unary, _unary, _binary, _binary, _reduction, _softmax, _running, _layout, _layout, _product, _window, _norm)


def random_model(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Make a valid model and inputs for it.

    Parameters
    ----------
    seed : int
        The same seed gives the same model.

    Returns
    -------
    model : onnx.ModelProto
    feeds : dict of str to numpy.ndarray
    """
    rng = np.random.default_rng([seed, 3])
    d = _Draw(rng, np.float64 if rng.random() < 0.15 else np.float32)
    if d.flip(0.15):  # one operator that is not continuous, on inputs
        shape = d.shape(d.number(0, 4))
        x, op = d.feed(shape), d.one([*sorted(_LAST), "Less", "Greater", "Equal", "Cast"])
        if op in _LAST:
            results = [d.node(op, x, **d.one(_LAST[op]))]
        elif op == "Cast":
            to = d.one(["INT8", "UINT8", "INT32", "INT64", "FLOAT16", "DOUBLE", "BOOL"])
            x = d.node("Abs", x) if to == "UINT8" else x
            results = [d.node(op, x, to=getattr(onnx.TensorProto, to))]
        else:
            results = [d.node(op, x, d.feed(shape))]
    else:
        shape = d.shape(d.number(1, 4))
        x = d.feed(shape)
        for _ in range(d.number(1, 4)):
            made = d.one(FORMS)(d, x, shape)
            if made is not None and math.prod(made[1]) <= 400 and len(made[1]) <= 5:
                x, shape = made
        results = [x if d.nodes and x == d.nodes[-1].output[0] else d.node("Identity", x)]
    given = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in d.inputs.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    weights = [numpy_helper.from_array(v, k) for k, v in d.constants.items()]
    graph = helper.make_graph(d.nodes, f"random{seed}", given, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9), d.inputs
