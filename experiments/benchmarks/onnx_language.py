"""The workloads' operators in ONNX: calling a form with symbols writes down a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from experiments.benchmarks.case import Array, Form

OPSET = 20


class Symbol:
    """A value of the model that is being written."""

    def __init__(self, language: OnnxLanguage, name: str) -> None:
        self.language, self.name = language, name

    def __add__(self, other: Any) -> Symbol:
        return self.language.node("Add", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return self.language.node("Add", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return self.language.node("Sub", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return self.language.node("Sub", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return self.language.node("Mul", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return self.language.node("Mul", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return self.language.node("Div", self, other)

    def __neg__(self) -> Symbol:
        return self.language.node("Neg", self)


class OnnxLanguage:
    """Writes one node for each operator that a form applies."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, dtype: Any) -> str:
        """Add an initialiser and return its name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, op: str, *inputs: Any, **attributes: Any) -> Symbol:
        """Add a node; numbers among its inputs become float32 constants."""
        names = [x.name if isinstance(x, Symbol) else x if isinstance(x, str) else self.constant(x, np.float32) for x in inputs]
        out = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], f"n{len(self.nodes)}_{op.lower()}", **attributes))
        return Symbol(self, out)

    def _ints(self, values: Sequence[int]) -> str:
        return self.constant(list(values), np.int64)

    def relu(self, x: Symbol) -> Symbol:
        return self.node("Relu", x)

    def exp(self, x: Symbol) -> Symbol:
        return self.node("Exp", x)

    def log(self, x: Symbol) -> Symbol:
        return self.node("Log", x)

    def tanh(self, x: Symbol) -> Symbol:
        return self.node("Tanh", x)

    def sigmoid(self, x: Symbol) -> Symbol:
        return self.node("Sigmoid", x)

    def sqrt(self, x: Symbol) -> Symbol:
        return self.node("Sqrt", x)

    def abs(self, x: Symbol) -> Symbol:
        return self.node("Abs", x)

    def clip(self, x: Symbol, low: float, high: float) -> Symbol:
        return self.node("Clip", x, low, high)

    def silu(self, x: Symbol) -> Symbol:
        return self.node("Mul", x, self.sigmoid(x))

    def gelu(self, x: Symbol) -> Symbol:
        return self.node("Gelu", x, approximate="none")

    def gelu_tanh(self, x: Symbol) -> Symbol:
        return self.node("Gelu", x, approximate="tanh")

    def softmax(self, x: Symbol) -> Symbol:
        return self.node("Softmax", x, axis=-1)

    def layer_norm(self, x: Symbol, scale: Symbol, bias: Symbol) -> Symbol:
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    def rms_norm(self, x: Symbol, scale: Symbol) -> Symbol:
        mean = self.node("ReduceMean", x * x, self._ints([-1]), keepdims=1)
        return x / self.sqrt(mean + 1e-5) * scale

    def batch_norm(self, x: Symbol, scale: Symbol, bias: Symbol, mean: Symbol, variance: Symbol) -> Symbol:
        return self.node("BatchNormalization", x, scale, bias, mean, variance, epsilon=1e-5)

    def sum(self, x: Symbol, axis: int) -> Symbol:
        return self.node("ReduceSum", x, self._ints([axis]), keepdims=0)

    def mean_all(self, x: Symbol) -> Symbol:
        return self.node("ReduceMean", x, keepdims=0)

    def concat(self, parts: Sequence[Symbol], axis: int) -> Symbol:
        return self.node("Concat", *parts, axis=axis)

    def cut(self, x: Symbol, axis: int, start: int, stop: int) -> Symbol:
        return self.node("Slice", x, self._ints([start]), self._ints([stop]), self._ints([axis]))

    def permute(self, x: Symbol, order: Sequence[int]) -> Symbol:
        return self.node("Transpose", x, perm=list(order))

    def contiguous(self, x: Symbol) -> Symbol:
        return x

    def pad(self, x: Symbol, width: int) -> Symbol:
        return self.node("Pad", x, self._ints([width] * 4))

    def matmul(self, a: Symbol, b: Symbol) -> Symbol:
        return self.node("MatMul", a, b)

    def reshape(self, x: Symbol, shape: Sequence[int]) -> Symbol:
        return self.node("Reshape", x, self._ints(shape))

    def conv(self, x: Symbol, weight: Symbol, bias: Symbol, *, pad: int, groups: int = 1) -> Symbol:
        return self.node("Conv", x, weight, bias, pads=[pad] * 4, group=groups)


def to_model(name: str, form: Form, feeds: Mapping[str, Array], weights: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """Write a form down as an ONNX model with these inputs and initialisers; its outputs are called ``out0``, ``out1``, ...

    Raises
    ------
    onnx.checker.ValidationError
        When the form is no valid model.
    """
    language = OnnxLanguage()
    weights = weights or {}
    results = form(language, *(Symbol(language, key) for key in (*feeds, *weights)))
    language.constants += [numpy_helper.from_array(array, key) for key, array in weights.items()]
    results = results if isinstance(results, tuple) else (results,)
    renamed = {symbol.name: f"out{k}" for k, symbol in enumerate(results)}
    for node in language.nodes:
        node.output[:] = [renamed.get(value, value) for value in node.output]
        node.input[:] = [renamed.get(value, value) for value in node.input]
    given = [helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for key, v in feeds.items()]
    outputs = [helper.make_empty_tensor_value_info(value) for value in renamed.values()]
    graph = helper.make_graph(language.nodes, name, given, outputs, language.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    model = shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    return model
