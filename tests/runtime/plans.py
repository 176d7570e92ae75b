"""Small models and plans for the tests of the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import fusion_search as fs
from fusion_search.ir.graph import Graph
from fusion_search.runtime.compiled import CompiledPlan
from tests.frontends.modeling import info, model, node, random

Array = np.ndarray[Any, Any]


def planned(graph: Graph, method: str = "exact") -> fs.Plan:
    return fs.search(graph, fs.load_profile("local"), method=method)


def compiled(proto: onnx.ModelProto, dims: Mapping[str, int] | None = None, method: str = "exact") -> CompiledPlan:
    return CompiledPlan(planned(fs.load(proto, dims=dims), method))  # type: ignore[arg-type]


def classifier() -> onnx.ModelProto:
    """x [batch, 24] -> softmax(relu(x @ w + b)); batch is free."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=1),
    ]
    constants = {"w": random((24, 10), 1), "b": random((10,), 2)}
    return model(nodes, [info("x", ["batch", 24])], constants=constants)


def classify(x: Array) -> Array:
    r = np.maximum(x @ random((24, 10), 1) + random((10,), 2), 0)
    e = np.exp(r - r.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)
