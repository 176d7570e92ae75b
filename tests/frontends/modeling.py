"""Small ONNX models for tests, and their outputs by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
F32 = TensorProto.FLOAT


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attrs: Any) -> onnx.NodeProto:
    """Make a node that is named after its first output."""
    return helper.make_node(op, list(inputs), list(outputs), name=f"n_{outputs[0] or outputs[-1]}", **attrs)


def info(name: str, shape: Sequence[int | str | None] | None, dtype: int = F32) -> onnx.ValueInfoProto:
    """Describe an input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array] | Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str | onnx.ValueInfoProto] = ("y",),
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 9,
    **rest: Any,
) -> onnx.ModelProto:
    """Make a model; inputs may be given as the arrays that will be fed."""
    if isinstance(inputs, Mapping):
        inputs = [info(name, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for name, a in inputs.items()]
    results = [helper.make_empty_tensor_value_info(o) if isinstance(o, str) else o for o in outputs]
    weights = [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version, **rest)


def run_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Any]:
    """Return what onnxruntime gives without its optimisations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def random(shape: Sequence[int], seed: int = 0, dtype: Any = np.float32) -> Array:
    """Seeded normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(tuple(shape)).astype(dtype)
