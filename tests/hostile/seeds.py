"""Small valid models of many kinds, to be damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.cases.harness import model, node, value

rng = np.random.default_rng(5)
F = np.float32


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(F)


def classifier() -> onnx.ModelProto:
    nodes = [node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("BatchNormalization", "c s t m v", "n"), node("Relu", "n", "r")]
    nodes += [node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]), node("Flatten", "p", "f"), node("Gemm", "f g h", "l")]
    nodes.append(node("Softmax", "l", "y", axis=-1))
    weights = {"w": normal(4, 2, 3, 3), "b": normal(4), "s": normal(4), "t": normal(4), "m": normal(4), "v": np.abs(normal(4))}
    return model(nodes, [value("x", ("N", 2, 6, 6))], "y", weights | {"g": normal(36, 5), "h": normal(5)})


def attention() -> onnx.ModelProto:
    nodes = [
        node("Gather", "table ids", "e"),
        node("MatMul", "e wq", "q"),
        node("MatMul", "e wk", "k"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
    ]
    nodes += [node("MatMul", "q kt", "a"), node("Mul", "a scale", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p e", "o")]
    nodes += [node("Add", "o e", "r"), node("LayerNormalization", "r g", "n", axis=-1), node("ReduceMean", "n", "y", axes=[1], keepdims=0)]
    weights = {"table": normal(64, 8), "wq": normal(8, 8), "wk": normal(8, 8), "scale": 0.35, "g": np.ones(8, F)}
    return model(nodes, [value("ids", (2, "S"), np.int64)], "y", weights)


def shapes() -> onnx.ModelProto:
    nodes = [node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Concat", "n minus", "t", axis=0), node("Reshape", "x t", "r")]
    nodes += [node("ConstantOfShape", "s", "o"), node("Add", "x o", "a"), node("Expand", "r wide", "w"), node("Tile", "r reps", "l")]
    nodes += [node("ReduceSum", "w", "y", keepdims=0), node("Slice", "l zero two zero", "z"), node("Pad", "a pads", "u")]
    ints = {"zero": [0], "minus": [-1], "wide": [2, 1, 1], "reps": [2, 1], "two": [2], "pads": [0, 1, 0, 0, 0, 1]}
    return model(nodes, [value("x", (3, "m", 2))], "y z u", {name: np.array(v) for name, v in ints.items()})


def control() -> onnx.ModelProto:
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
    then = helper.make_graph([node("Neg", "x", "o")], "then", [], [out])
    other = helper.make_graph([node("Add", "x x", "o")], "else", [], [out])
    one = numpy_helper.from_array(np.ones(4, F), "one")
    it, cond, v = value("i", (), np.int64), value("c0", (), np.bool_), value("v0", (4,))
    body = helper.make_graph(
        [node("Identity", "c0", "c1"), node("Add", "v0 one", "v1")],
        "body",
        [it, cond, v],
        [value("c1", (), np.bool_), value("v1", (4,))],
        [one],
    )
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "b"),
        helper.make_node("If", ["b"], ["d"], then_branch=then, else_branch=other),
    ]
    nodes.append(helper.make_node("Loop", ["trips", "always", "d"], ["y"], body=body))
    return model(nodes, [value("x", (4,))], "y", {"zero": 0.0, "trips": np.asarray(3), "always": np.asarray(True)})


def quantised() -> onnx.ModelProto:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Resize", "d - - sizes", "r", mode="linear"),
    ]
    nodes += [
        node("Cast", "r", "h", to=10),
        node("Mul", "h h", "g"),
        node("Cast", "g", "f", to=1),
        node("Clip", "f lo hi", "y"),
        node("ArgMax", "y", "i"),
    ]
    nodes += [node("CumSum", "y axis", "c"), node("Where", "mask y c", "w")]
    constants = {
        "s": 0.5,
        "z": np.int8(3),
        "sizes": np.array([1, 2, 6]),
        "lo": -3.0,
        "hi": 9.0,
        "axis": np.asarray(2),
        "mask": np.array([True] * 3 + [False] * 3),
    }
    return model(nodes, [value("x", (1, 2, 3))], "y i w", constants)


def elementwise() -> onnx.ModelProto:
    nodes = [node("Mul", "x k", "a"), node("Add", "a y", "b"), node("Tanh", "b", "c"), node("Div", "c x", "d"), node("Sub", "d a", "e")]
    nodes += [
        node("Max", "e y a", "f"),
        node("Sqrt", "f", "g"),
        node("Split", "g", "p q", axis=0),
        node("Einsum", "p q", "z", equation="ij,ij->i"),
    ]
    return model(nodes, [value("x", (4, 33)), value("y", (1, 33))], "z g", {"k": 3.0})


MODELS = (classifier, attention, shapes, control, quantised, elementwise)
