"""Public fault cases A14 to A17: casts and quantisation are semantics, in their order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from tests.cases.harness import check, model, node

F = np.float32
F16, BF16, F32 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT


def test_a14_a_pair_of_casts_rounds() -> None:
    x = np.array([1 / 7, 65520, 2049, 1e-8], F)
    nodes = [node("Cast", "x", "h", to=F16), node("Cast", "h", "y", to=F32), node("ReduceSum", "y", "s", keepdims=0)]
    y = np.array([0.142822265625, np.inf, 2048, 0], F)
    check(model(nodes, {"x": x}, "y s"), {"x": x}, {"y": y, "s": F(np.inf)})


@pytest.mark.parametrize("to", ["float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "float64"])
@pytest.mark.parametrize("source", ["float32", "float64", "float16"])
def test_a14_no_pair_of_casts_is_removed(source: str, to: str) -> None:
    low, there = np.dtype(source), np.dtype(ml_dtypes.bfloat16 if to == "bfloat16" else to)
    codes = {"float16": F16, "bfloat16": BF16, "float32": F32, "float64": TensorProto.DOUBLE, "bool": TensorProto.BOOL}
    codes |= {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int32": TensorProto.INT32, "int64": TensorProto.INT64}
    x = np.array([0, 0.5, 1.4999, 2.5, 3.99, 100.0625, 7.1, 1 / 3], low)
    if np.issubdtype(there, np.signedinteger) or there.kind == "V" or there.kind == "f":
        x = np.concatenate([x, -x])
    nodes = [node("Add", "x zero", "a"), node("Cast", "a", "h", to=codes[to]), node("Cast", "h", "b", to=codes[source])]
    nodes.append(node("Mul", "b two", "y"))
    want = (x + low.type(0)).astype(there).astype(low) * low.type(2)
    check(model(nodes, {"x": x}, constants={"zero": np.zeros((), low), "two": np.full((), 2, low)}), {"x": x}, {"y": want})


@pytest.mark.parametrize("zero", [None, np.int8(0), np.int8(-3)])
def test_a15_dequantised_negatives_survive_a_reshape(zero: Any) -> None:
    q = np.array([12, -45, 7, -3], np.int8)
    nodes = [node("DequantizeLinear", "q s" if zero is None else "q s z", "d"), node("Reshape", "d shape", "y")]
    constants = {"s": 0.02, "shape": np.array([2, 2])} | ({} if zero is None else {"z": np.asarray(zero)})
    want = ((q.astype(np.int32) - int(zero or 0)).astype(F) * F(0.02)).reshape(2, 2)
    check(model(nodes, {"q": q}, constants=constants), {"q": q}, {"y": want})
    if not zero:
        np.testing.assert_allclose(want, [[0.24, -0.90], [0.14, -0.06]], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_a15_a_round_trip_saturates_and_rounds_to_even(kind: Any) -> None:
    x = np.array([-300, -128.5, -1.5, -0.5, 0.5, 1.5, 2.5, 127.5, 128, 255.5, 300], F)
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    limits = np.iinfo(kind)
    want = np.clip(np.rint(x), limits.min, limits.max).astype(kind).astype(F)
    check(model(nodes, {"x": x}, "y q", {"s": 1.0, "z": kind(0)}), {"x": x}, {"y": want, "q": want.astype(kind)})


def test_a16_resize_between_quantisations_is_computed_in_float() -> None:
    x = np.array([[[2, 6, 4]]], F)
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d")]
    nodes += [node("Resize", "d - - sizes", "r", mode="linear", coordinate_transformation_mode="half_pixel")]
    nodes += [node("QuantizeLinear", "r s z", "q2"), node("DequantizeLinear", "q2 s z", "y")]
    constants = {"s": 1.0, "z": np.int8(0), "sizes": np.array([1, 1, 6])}
    want = {"y": np.array([[[2, 3, 5, 6, 4, 4]]], F), "r": np.array([[[2, 3, 5, 5.5, 4.5, 4]]], F)}
    check(model(nodes, {"x": x}, "y r", constants), {"x": x}, want)


@pytest.mark.parametrize("second", ["Identity", "Transpose", "Relu"])
@pytest.mark.parametrize("low", [F16, BF16])
def test_a17_every_reader_sees_the_rounded_value(second: str, low: int) -> None:
    dtype = np.dtype(np.float16 if low == F16 else ml_dtypes.bfloat16)
    a = np.array([1.001, 3.3, 0.1234], F).astype(dtype)
    nodes = [node("Mul", "a a", "p"), node("Cast", "p", "p1", to=F32), node(second, "p", "t"), node("Cast", "t", "p2", to=F32)]
    nodes.append(node("Sub", "p1 p2", "q"))
    p = (a.astype(F) * a.astype(F)).astype(dtype)
    if low == F16:
        assert float(p[0]) == 1.001953125
    check(model(nodes, {"a": a}, "p q"), {"a": a}, {"p": p, "q": np.zeros(3, F)})
    check(model(nodes, {"a": a}, "q"), {"a": a}, {"q": np.zeros(3, F)})
