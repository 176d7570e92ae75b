"""Numbers of less than 16 bits: every code read, every edge written, against ml_dtypes and the standard's evaluator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fusion_search import api
from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import run_passes
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.steps import CallStep
from fusion_search.testing.interpreter import interpret

Array = np.ndarray[Any, Any]
finfo: Any = ml_dtypes.finfo
FLOAT8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
FLOATS = (*FLOAT8, "FLOAT4E2M1")
INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name)))


def node_model(node: onnx.NodeProto, feeds: dict[str, Array], known: dict[str, Array] | None = None) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
    weights = [numpy_helper.from_array(v, k) for k, v in (known or {}).items()]
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info(node.output[0])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)


def check(node: onnx.NodeProto, feeds: dict[str, Array], known: dict[str, Array] | None = None, *, kernels: bool = False) -> None:
    """Compare the bits of a node's result with the evaluator's; NaN is NaN, whatever its sign."""
    proto = node_model(node, feeds, known)
    graph = run_passes(load_onnx(proto))
    verify_graph(graph)
    assert [n for n in graph.nodes if n.op == "Opaque"] == []
    with np.errstate(all="ignore"):
        (want,) = ReferenceEvaluator(proto).run(None, dict(feeds))
    results = [evaluate(graph, feeds)[node.output[0]]]
    if kernels:
        plan = api.search(graph, api.load_profile("local"), time_limit_s=1.0)
        assert api.check(graph, plan) == []
        run = CompiledPlan(plan)
        assert not any(isinstance(step, CallStep) for step in run.planned.steps)
        results += [run(feeds)[node.output[0]], interpret(graph, [group.nodes for group in plan.groups], feeds)[node.output[0]]]
    for got in results:
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        a, b = (v.view(np.uint8) if v.itemsize == 1 else v for v in (got, want))
        with np.errstate(all="ignore"):
            wide_a, wide_b = got.astype(np.float32), want.astype(np.float32)
        same = (a == b) | (np.isnan(wide_a) & np.isnan(wide_b))
        assert same.all(), [(v[~same][:5]) for v in (*feeds.values(), got, want) if v.shape == same.shape]


def edges(name: str) -> Array:
    """Every number of a format, what lies half-way between neighbours and just beside that, and what is too large."""
    dtype = dtype_of(name)
    with np.errstate(all="ignore"):
        numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    halves = (numbers[1:] + numbers[:-1]) / 2
    near = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    large = np.array([numbers[-1] * f for f in (1.02, 1.0625, 1.1, 1.25, 2, 1e6)], np.float32)
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-45, 3e38], np.float32)
    return np.concatenate([numbers, halves, *near, large, -large, special]).astype(np.float32)


@pytest.mark.parametrize("to", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"])
@pytest.mark.parametrize("name", [*FLOATS, "FLOAT8E8M0"])
def test_every_code_of_a_float_is_read(name: str, to: str) -> None:
    x = np.arange(256, dtype=np.uint8)
    x = (x % 16 if name == "FLOAT4E2M1" else x).view(dtype_of(name))
    check(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(to)), {"x": x}, kernels=to == "FLOAT")


@pytest.mark.parametrize("to", ["FLOAT", "INT8", "UINT8", "INT32", "FLOAT16"])
@pytest.mark.parametrize("name", INTEGERS)
def test_every_code_of_an_integer_is_read(name: str, to: str) -> None:
    x = np.arange(16 if name.endswith("4") else 4, dtype=np.uint8).view(dtype_of(name))
    check(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(to)), {"x": x}, kernels=to == "INT8")


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_rounded_to_even(name: str, saturate: int) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(name), saturate=saturate)
    x = edges(name)
    check(node, {"x": x}, kernels=True)
    with np.errstate(all="ignore"):
        check(node, {"x": x.astype(np.float16)})
        check(node, {"x": x.astype(np.float64)})


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_exponents_alone(saturate: int, mode: str) -> None:
    powers = np.ldexp(np.float32(1), np.arange(-126, 128)).astype(np.float32)
    x = np.concatenate([powers, powers * np.float32(1.5), powers * np.float32(1.25), np.nextafter(powers, np.float32(np.inf))])
    x = np.concatenate([x, np.array([0, 1e-45, 3e-39, 6e-39, np.inf, np.nan, np.finfo(np.float32).max], np.float32)]).astype(np.float32)
    check(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0, saturate=saturate, round_mode=mode), {"x": x})


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_cut_to_their_bits(name: str) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(name))
    check(node, {"x": np.arange(-40, 40, dtype=np.int8)}, kernels=True)
    check(node, {"x": np.arange(0, 200, dtype=np.uint8)})
    check(node, {"x": np.array([-3.7, -0.5, 0.5, 3.2, 7.6, 1.0, 2.99], np.float32)})


@pytest.mark.parametrize("pair", [("FLOAT8E5M2", "FLOAT8E4M3FN"), ("INT4", "FLOAT8E4M3FN"), ("FLOAT4E2M1", "INT4"), ("INT4", "FLOAT8E5M2")])
def test_from_one_narrow_format_to_another(pair: tuple[str, str]) -> None:
    x = np.arange(256 if "8" in pair[0] else 16, dtype=np.uint8).view(dtype_of(pair[0]))
    if pair[0] == "FLOAT4E2M1":
        x = x[:8]
    check(helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(pair[1])), {"x": x})


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_quantisation(name: str) -> None:
    dtype = dtype_of(name)
    x, scale = np.linspace(-9, 9, 37).astype(np.float32).reshape(1, 37), np.array(0.75, np.float32)
    zero = np.zeros((), dtype) if name in FLOATS else np.ones((), np.int8).astype(dtype)
    check(helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"]), {"x": x, "s": scale}, {"z": zero}, kernels=name == "INT4")
    codes = np.arange(16 if "8" not in name else 256, dtype=np.uint8)
    codes = (codes[:4] if name.endswith("2") else codes).view(dtype)[None]
    check(helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"]), {"x": codes, "s": scale}, {"z": zero})
