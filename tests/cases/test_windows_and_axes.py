"""Public fault cases A33 to A38: convolutions, pools, pads, axes, attributes of fused operators."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.cases.harness import check, model, node

F = np.float32
rng = np.random.default_rng(7)


def test_a33_a_pad_before_an_average_pool_stays_a_pad() -> None:
    x = np.ones((1, 1, 2, 2), F)
    nodes = [node("Pad", "x p", "q"), node("AveragePool", "q", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0)]
    c, e, m = 0.25, F(2) / F(6), F(4) / F(9)
    want = np.array([[[[c, e, e, c], [e, m, m, e], [e, m, m, e], [c, e, e, c]]]], F)
    check(model(nodes, {"x": x}, constants={"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}), {"x": x}, {"y": want}, rtol=1e-6)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("fill", [0.0, -1.5])
def test_a33_pads_of_every_kind_before_an_average_pool(include: int, ceil: int, fill: float) -> None:
    x = rng.standard_normal((1, 2, 5, 6)).astype(F)
    pool: dict[str, Any] = {
        "kernel_shape": [3, 2],
        "pads": [1, 0, 1, 1],
        "strides": [2, 2],
        "count_include_pad": include,
        "ceil_mode": ceil,
    }
    nodes = [node("Pad", "x p v", "q"), node("AveragePool", "q", "y", **pool)]
    proto = model(nodes, {"x": x}, constants={"p": np.array([0, 0, 1, 0, 0, 0, 0, 1]), "v": fill}, opset=19)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    check(proto, {"x": x}, {"y": want}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("fill", "right"), [(0.0, 0), (-np.inf, -1), (5.0, 5)])
def test_a34_a_pad_before_a_max_pool(fill: float, right: float) -> None:
    x = np.full((1, 1, 2, 2), -1, F)
    nodes = [node("Pad", "x p v", "q"), node("MaxPool", "q", "y", kernel_shape=[2, 2], strides=[2, 2])]
    proto = model(nodes, {"x": x}, constants={"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": fill})
    check(proto, {"x": x}, {"y": np.full((1, 1, 2, 2), right, F)})


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a34_other_modes_are_never_folded(mode: Literal["reflect", "edge", "wrap"], pool: str) -> None:
    x = -np.arange(1, 17, dtype=F).reshape(1, 1, 4, 4)
    q = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode=mode)
    nodes = [node("Pad", "x p", "q", mode=mode), node(pool, "q", "y", kernel_shape=[2, 2], strides=[2, 2])]
    blocks = q.reshape(1, 1, 3, 2, 3, 2)
    want = blocks.max((3, 5)) if pool == "MaxPool" else blocks.mean((3, 5), dtype=F)
    check(model(nodes, {"x": x}, constants={"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}, opset=19), {"x": x}, {"y": want}, rtol=1e-6)


def test_a35_same_upper_puts_the_odd_pad_at_the_end() -> None:
    x, w = np.arange(9, dtype=F).reshape(1, 1, 3, 3), np.arange(1, 10, dtype=F).reshape(1, 1, 3, 3)
    full = np.zeros((1, 1, 7, 7), F)
    for i in range(3):
        for j in range(3):
            full[0, 0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += x[0, 0, i, j] * w[0, 0]
    for pad, want in (("SAME_UPPER", full[:, :, :6, :6]), ("SAME_LOWER", full[:, :, 1:, 1:])):
        proto = model([node("ConvTranspose", "x w", "y", strides=[2, 2], auto_pad=pad)], {"x": x}, constants={"w": w})
        check(proto, {"x": x}, {"y": want.copy()}, rtol=1e-6)


@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (1, 4)])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_a35_every_auto_pad(pad: str, kernel: tuple[int, int], op: str) -> None:
    x, w = rng.standard_normal((1, 1, 5, 5)).astype(F), rng.standard_normal((1, 1, *kernel)).astype(F)
    stride = 2

    def split(n: int, k: int) -> tuple[int, int]:
        total = max((-(-n // stride) - 1) * stride + k - n, 0) if pad.startswith("SAME") else 0
        return (total // 2, total - total // 2) if pad == "SAME_UPPER" else (total - total // 2, total // 2)

    (top, bottom), (left, right) = (split(5, k) for k in kernel)
    fill = {"Conv": 0.0, "MaxPool": -np.inf, "AveragePool": np.nan}[op]
    q = np.pad(x[0, 0].astype(np.float64), ((top, bottom), (left, right)), constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(q, kernel)[::stride, ::stride]
    want = {"Conv": lambda v: (v * w[0, 0]).sum((2, 3)), "MaxPool": lambda v: v.max((2, 3)), "AveragePool": lambda v: np.nanmean(v, (2, 3))}
    attrs = {"strides": [stride, stride], "auto_pad": pad, "kernel_shape": list(kernel)}
    proto = model([node(op, "x w" if op == "Conv" else "x", "y", **attrs)], {"x": x}, constants={"w": w} if op == "Conv" else {})
    check(proto, {"x": x}, {"y": want[op](views)[None, None].astype(F)}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [4, 6])
@pytest.mark.parametrize("perm", [[0, 1], [1, 0]])
def test_a36_a_transpose_is_judged_by_its_perm(perm: list[int], n: int) -> None:
    a, w, b = (rng.standard_normal(s).astype(F) for s in ((n, 4) if perm == [0, 1] else (4, n), (4, 5), (5,)))
    nodes = [node("Transpose", "a", "t", perm=perm), node("MatMul", "t w", "m"), node("Add", "m b", "y")]
    want = a.astype(np.float64).transpose(perm) @ w + b
    check(model(nodes, {"a": a}, constants={"w": w, "b": b}), {"a": a}, {"y": want.astype(F)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("perm", [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0]])
def test_a36_batched_products_with_transposed_operands(perm: list[int]) -> None:
    a, w = (rng.standard_normal((3, 3, 3)).astype(F) for _ in range(2))
    nodes = [node("Transpose", "a", "t", perm=perm), node("Transpose", "w", "u", perm=perm), node("MatMul", "t u", "y")]
    want = a.astype(np.float64).transpose(perm) @ w.astype(np.float64).transpose(perm)
    check(model(nodes, {"a": a, "w": w}), {"a": a, "w": w}, {"y": want.astype(F)}, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a37_cumulative_sums(axis: int, exclusive: int, reverse: int, dtype: Any) -> None:
    x = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], dtype)
    flipped = np.flip(x, axis) if reverse else x
    want = np.cumsum(flipped, axis, dtype=dtype) - (flipped if exclusive else 0)
    want = np.flip(want, axis) if reverse else want
    if (axis, exclusive, reverse) == (1, 1, 1):
        np.testing.assert_array_equal(want, [[9, 7, 4, 0], [21, 15, 8, 0]])
    nodes = [node("Neg", "x", "n"), node("CumSum", "n ax", "c", exclusive=exclusive, reverse=reverse), node("Add", "c zero", "y")]
    constants = {"ax": np.asarray(axis), "zero": np.zeros((), dtype)}
    check(model(nodes, {"x": x}, constants=constants), {"x": x}, {"y": np.ascontiguousarray(0 - want).astype(dtype)})


LOWEST = -(1 << 63)


@pytest.mark.parametrize(
    ("n", "start", "end", "step", "right"),
    [
        (10, 0, 5, -1, []),
        (4, -1, LOWEST + 1, -1, [3, 2, 1, 0]),
        (4, -1, LOWEST, -1, [3, 2, 1, 0]),
        (4, 100, -100, -2, [3, 1]),
        (4, 0, (1 << 63) - 1, 3, [0, 3]),
        (4, -100, 100, 1, [0, 1, 2, 3]),
        (4, 3, 1, 1, []),
        (5, 3, -5, -1, [3, 2, 1]),
        (5, -2, 1, -1, [3, 2]),
    ],
)
def test_a37_slices(n: int, start: int, end: int, step: int, right: list[int]) -> None:
    x = np.arange(n, dtype=F)
    nodes = [node("Neg", "x", "m"), node("Slice", "m s e a st", "t"), node("Neg", "t", "y")]
    constants = {"s": np.array([start]), "e": np.array([end]), "a": np.array([0]), "st": np.array([step])}
    check(model(nodes, {"x": x}, constants=constants), {"x": x}, {"y": np.array(right, F)})


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("form", ["node", "initializer"])
@pytest.mark.parametrize(
    ("low", "high", "right"),
    [(-1, 1, [0, 0.5, 1]), (0.25, None, [0.25, 0.5, 3]), (None, 0.25, [0, 0.25, 0.25]), (None, None, [0, 0.5, 3]), (2, -2, [-2, -2, -2])],
)
def test_a38_relu_then_clip(dtype: Any, form: str, low: Any, high: Any, right: Any) -> None:
    x = np.array([-2, 0.5, 3], dtype)
    bounds = {name: np.asarray(v, dtype) for name, v in (("lo", low), ("hi", high)) if v is not None}
    nodes = [helper.make_node("Constant", [], [name], value=numpy_helper.from_array(v)) for name, v in bounds.items() if form == "node"]
    inputs = f"r {'lo' if low is not None else '-'} {'hi' if high is not None else '-'}".removesuffix(" -").removesuffix(" -")
    nodes += [node("Relu", "x", "r"), node("Clip", inputs, "y")]
    check(model(nodes, {"x": x}, constants=bounds if form == "initializer" else {}), {"x": x}, {"y": np.array(right, dtype)})
