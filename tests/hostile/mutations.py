"""Seeded damage to models: bytes, structure, types, extents, attributes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.hostile.seeds import MODELS

EXTENTS = (1 << 40, -1, 0, 1 << 62, -(1 << 63), 1 << 31, 7, 1 << 20)
OPERATORS = ("Add", "MatMul", "Conv", "Reshape", "Concat", "Softmax", "Gather", "Expand", "Loop", "If", "Cast", "Einsum", "Tile", "Range",
             "OneHot", "NonZero", "TopK", "StringNormalizer", "SequenceAt", "LSTM", "Resize", "Pad", "Nonsense",
             "ConstantOfShape")  # fmt: skip
TYPES = (TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL, TensorProto.BFLOAT16, TensorProto.UNDEFINED,
         TensorProto.COMPLEX64, TensorProto.UINT8, 999)  # fmt: skip


def _node(m: onnx.ModelProto, r: random.Random) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = list(m.graph.node)
    return r.choice(nodes)


def _drop_node(m: onnx.ModelProto, r: random.Random) -> None:
    del m.graph.node[r.randrange(len(m.graph.node))]


def _cycle(m: onnx.ModelProto, r: random.Random) -> None:
    first, last = m.graph.node[0], m.graph.node[-1]
    first.input[0] = last.output[0]


def _rewire(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    if n.input:
        n.input[r.randrange(len(n.input))] = r.choice([*(o for k in m.graph.node for o in k.output), "", "nothing", "x" * 5000])


def _duplicate(m: onnx.ModelProto, r: random.Random) -> None:
    a, b = _node(m, r), _node(m, r)
    b.output[0] = a.output[0]


def _inputs(m: onnx.ModelProto, r: random.Random) -> None:
    n = _node(m, r)
    if r.random() < 0.5 and n.input:
        n.input.pop()
    else:
        n.input.extend([n.input[0] if n.input else "x"] * r.choice([1, 3]))


def _outputs(m: onnx.ModelProto, r: random.Random) -> None:
    m.graph.output[r.randrange(len(m.graph.output))].name = r.choice(["gone", "", m.graph.input[0].name, m.graph.output[0].name])


def _operator(m: onnx.ModelProto, r: random.Random) -> None:
    _node(m, r).op_type = r.choice(OPERATORS)


def _missing_weight(m: onnx.ModelProto, r: random.Random) -> None:
    if m.graph.initializer:
        del m.graph.initializer[r.randrange(len(m.graph.initializer))]


def _weight_type(m: onnx.ModelProto, r: random.Random) -> None:
    if m.graph.initializer:
        r.choice(list(m.graph.initializer)).data_type = r.choice(TYPES)


def _weight_extent(m: onnx.ModelProto, r: random.Random) -> None:
    tensors = [t for t in m.graph.initializer if t.dims]
    if tensors:
        t = r.choice(tensors)
        t.dims[r.randrange(len(t.dims))] = r.choice(EXTENTS)


def _weight_values(m: onnx.ModelProto, r: random.Random) -> None:
    if m.graph.initializer:
        t = r.choice(list(m.graph.initializer))
        a = numpy_helper.to_array(t).copy()
        flat = a.reshape(-1)
        if flat.size:
            extremes = (
                [np.nan, np.inf, 1e38, -1e38] if a.dtype.kind == "f" else [int(np.clip(e, np.iinfo(np.int8).min, 127)) for e in EXTENTS]
            )
            extremes = list(EXTENTS) if a.dtype == np.int64 else extremes
            flat[r.randrange(flat.size)] = r.choice(extremes)
        t.CopyFrom(numpy_helper.from_array(a, t.name))


def _strings(m: onnx.ModelProto, r: random.Random) -> None:
    if m.graph.initializer:
        t = r.choice(list(m.graph.initializer))
        words: list[Any] = [b"a", r.choice([b"b", b"\xff\x00"])]
        t.CopyFrom(helper.make_tensor(t.name, TensorProto.STRING, [2], words))


def _input_type(m: onnx.ModelProto, r: random.Random) -> None:
    r.choice(list(m.graph.input)).type.tensor_type.elem_type = r.choice(TYPES)


def _input_extent(m: onnx.ModelProto, r: random.Random) -> None:
    dims = r.choice(list(m.graph.input)).type.tensor_type.shape.dim
    if dims:
        dims[r.randrange(len(dims))].dim_value = r.choice(EXTENTS)


def _no_type(m: onnx.ModelProto, r: random.Random) -> None:
    value = r.choice(list(m.graph.input))
    value.ClearField("type") if r.random() < 0.5 else value.type.tensor_type.ClearField("shape")


def _attribute(m: onnx.ModelProto, r: random.Random) -> None:
    nodes = [n for n in m.graph.node if n.attribute]
    if not nodes:
        return
    n = r.choice(nodes)
    a = r.choice(list(n.attribute))
    kind = r.randrange(5)
    if kind == 0:
        n.attribute.remove(a)
    elif kind == 1 and a.ints:
        a.ints[r.randrange(len(a.ints))] = r.choice(EXTENTS)
    elif kind == 2:
        a.i = r.choice(EXTENTS)
    elif kind == 3:
        a.type = r.randrange(16)
    else:
        name = a.name
        a.CopyFrom(helper.make_attribute(name, r.choice([2.5, "text", [1, 2], [1.5], np.float32(np.nan).item(), [b"x"]])))


def _versions(m: onnx.ModelProto, r: random.Random) -> None:
    if r.random() < 0.5:
        m.ir_version = r.choice([0, 1, 3, 99, -1])
    else:
        m.opset_import[0].version = r.choice([0, 1, 6, 7, 9, 11, 13, 22, 999, -1])


def _nested(m: onnx.ModelProto, r: random.Random) -> None:
    inner = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "g", [], [helper.make_empty_tensor_value_info("o")])
    for _ in range(r.choice([3, 12, 22])):  # protobuf itself refuses 100 levels, four for each graph
        n = helper.make_node("If", ["b"], ["o"], then_branch=inner)
        inner = helper.make_graph([n], "g", [], [helper.make_empty_tensor_value_info("o")])
    m.graph.node.append(helper.make_node("If", ["b"], ["deep"], then_branch=inner, else_branch=inner))


STRUCTURAL: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _drop_node, _cycle, _rewire, _duplicate, _inputs, _outputs, _operator, _missing_weight, _weight_type, _weight_extent, _weight_values,
    _strings, _input_type, _input_extent, _no_type, _attribute, _attribute, _versions, _nested, _weight_values,
)  # fmt: skip


def _bytes(data: bytes, r: random.Random) -> bytes:
    damaged = bytearray(data)
    kind = r.randrange(8)
    if kind == 0:
        return bytes(damaged[: r.randrange(len(damaged))])
    if kind == 1:
        at = r.randrange(len(damaged))
        return bytes(damaged[:at] + damaged[at : at + r.randrange(60)] * 2 + damaged[at:])
    for _ in range(r.choice([1, 1, 1, 2, 8])):
        damaged[r.randrange(len(damaged))] = r.randrange(256)
    return bytes(damaged)


def damaged(seed: int) -> bytes:
    """Return a model file with one to three faults."""
    r = random.Random(seed)
    proto = MODELS[seed % len(MODELS)]()
    if seed % 5 == 0:
        return _bytes(proto.SerializeToString(), r)
    for _ in range(r.choice([1, 1, 2, 3])):
        if proto.graph.node and proto.graph.output and proto.graph.input:
            try:
                r.choice(STRUCTURAL)(proto, r)
            except (ValueError, IndexError, TypeError):  # a fault that no longer fits
                continue
    return bytes(proto.SerializeToString())
