"""Public fault cases A18 to A25: what floating point must keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cases.harness import check, model, node

F = np.float32
NAN, INF = np.nan, np.inf
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow):RuntimeWarning")


@pytest.mark.parametrize("spelled", [False, True])
def test_a18_variance_survives_a_large_mean(spelled: bool) -> None:
    for x, right in (
        (np.array([[40000, 40001, 40002, 40003]], F), [[-1.3416354, -0.4472118, 0.4472118, 1.3416354]]),
        (np.full((1, 256), 1234, F), np.zeros((1, 256))),
    ):
        constants = {"g": np.ones(x.shape[-1], F), "two": 2.0, "eps": 1e-5}
        nodes = [node("LayerNormalization", "x g", "y", axis=-1, epsilon=1e-5)]
        if spelled:
            nodes = [node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "d"), node("Pow", "d two", "s")]
            nodes += [node("ReduceMean", "s", "v", axes=[-1]), node("Add", "v eps", "e"), node("Sqrt", "e", "r"), node("Div", "d r", "y")]
        check(model(nodes, {"x": x}, constants=constants), {"x": x}, {"y": np.asarray(right, F)}, rtol=1e-6, atol=1e-7)


def softmax(x: Any) -> Any:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(F)


def masked_row() -> Any:
    row = np.full((1, 2048), -INF, F)
    row[0, 1500:1504] = [1, 2, 3, 4]
    return row


@pytest.mark.parametrize(
    "x", [masked_row(), np.full((1, 4), -INF, F), np.array([[0, -INF, 3, 1, 2]], F), np.array([[INF, 1]], F), np.array([[NAN, 1, 2]], F)]
)
@pytest.mark.parametrize("spelled", [False, True])
def test_a19_masked_rows_of_a_softmax(x: Any, spelled: bool) -> None:
    nodes = [node("Softmax", "x", "y", axis=-1)]
    if spelled:
        nodes = [node("ReduceMax", "x", "m", axes=[-1]), node("Sub", "x m", "d"), node("Exp", "d", "e")]
        nodes += [node("ReduceSum", "e ax", "s"), node("Div", "e s", "y")]
    want = softmax(x)
    if x.shape[1] == 2048:
        np.testing.assert_allclose(want[0, 1500:1504], [0.0320586, 0.0871443, 0.2368828, 0.6439143], rtol=1e-5)
    check(model(nodes, {"x": x}, constants={"ax": np.array([-1])}), {"x": x}, {"y": want}, rtol=2e-6, atol=1e-12)


def test_a20_squares_of_16_bit_values() -> None:
    """Spelled out, every operator rounds to float16, as the standard's reference does; a composite computes in float32 inside."""
    x = np.array([[8000, -8000, 100, 1]], np.float16)
    nodes = [node("Mul", "x x", "s"), node("ReduceMean", "s", "m", axes=[-1]), node("Add", "m eps", "e"), node("Sqrt", "e", "r")]
    nodes.append(node("Div", "x r", "y"))
    check(model(nodes, {"x": x}, constants={"eps": np.float16(1e-3)}), {"x": x}, {"y": np.array([[0, -0.0, 0, 0]], np.float16)})
    whole = model([node("RMSNormalization", "x g", "y", epsilon=1e-3)], {"x": x}, constants={"g": np.ones(4, np.float16)}, opset=23)
    check(whole, {"x": x}, {"y": np.array([[1.41416, -1.41416, 0.0176770, 0.000176770]], np.float16)}, rtol=1e-3)
    layer = model([node("LayerNormalization", "x g", "y", epsilon=1e-3)], {"x": x}, constants={"g": np.ones(4, np.float16)})
    wide = x.astype(np.float64) - x.astype(np.float64).mean()
    check(layer, {"x": x}, {"y": (wide / np.sqrt((wide**2).mean() + 1e-3)).astype(np.float16)}, rtol=1e-3)


A21 = np.array([NAN, -1, 0, 3], F)


@pytest.mark.parametrize(
    ("nodes", "right"),
    [
        ([node("Relu", "x", "y")], [NAN, 0, 0, 3]),
        ([node("Clip", "x lo hi", "y")], [NAN, -0.5, 0, 2]),
        ([node("Max", "x half", "y")], [NAN, 0.5, 0.5, 3]),
        ([node("Max", "half x", "y")], [NAN, 0.5, 0.5, 3]),
        ([node("Min", "x half", "y")], [NAN, -1, 0, 0.5]),
        ([node("Min", "half x", "y")], [NAN, -1, 0, 0.5]),
        ([node("ReduceMax", "x", "y", keepdims=0)], NAN),
        ([node("ReduceMin", "x", "y", keepdims=0)], NAN),
        ([node("Max", "p q", "y"), node("Min", "p q", "z0")], [NAN, NAN]),
        ([node("LeakyRelu", "x", "y", alpha=0.5)], [NAN, -0.5, 0, 3]),
        ([node("Abs", "x", "a"), node("Sqrt", "a", "r"), node("Max", "r lo half", "y"), node("Floor", "y", "z")], [NAN, 1, 0, 1]),
        ([node("Reshape", "x four", "r"), node("MaxPool", "r", "y", kernel_shape=[2])], [[[NAN, 0, 3]]]),
        ([node("Sign", "x", "y")], [NAN, -1, 0, 1]),
        ([node("HardSigmoid", "x", "h"), node("Relu", "h", "y")], [NAN, 0.3, 0.5, 1.0]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a21_nan_survives_selections(nodes: Any, right: Any, dtype: Any) -> None:
    constants = {"lo": -0.5, "hi": 2.0, "half": 0.5, "p": [0.0, NAN], "q": [NAN, 0.0]}
    typed: dict[str, Any] = {name: np.asarray(a, dtype) for name, a in constants.items()}
    x = A21.astype(dtype)
    want = np.asarray(right, dtype)
    if nodes[0].op_type == "HardSigmoid":  # alpha is a float32 attribute
        check(model(nodes, {"x": x}, constants=typed), {"x": x}, {"y": want}, rtol=1e-3)
        return
    name = "z" if nodes[-1].output[0] == "z" else "y"
    check(model(nodes, {"x": x}, name, typed | {"four": np.array([1, 1, 4])}), {"x": x}, {name: want})


@pytest.mark.parametrize(
    ("op", "operands", "right"),
    [
        ("Mul", "x zero", [NAN, NAN, 0]),
        ("Mul", "zero x", [NAN, NAN, 0]),
        ("Sub", "x x", [NAN, NAN, 0]),
        ("Div", "zero x", [0, NAN, 0]),
        ("Div", "x x", [NAN, NAN, 1]),
        ("Add", "x zero", [INF, NAN, 1]),
        ("Pow", "x zero", [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
def test_a22_no_algebra_on_floats(op: str, operands: str, right: Any, constant: bool) -> None:
    x, zero = np.array([INF, NAN, 1], F), np.zeros(3 if not constant else (), F)
    feeds = {"x": x} if constant else {"x": x, "zero": zero}
    check(model([node(op, operands, "y")], feeds, constants={"zero": zero} if constant else {}), feeds, {"y": np.asarray(right, F)})


def test_a22_adding_zero_keeps_or_drops_the_sign_as_ieee_says() -> None:
    x = np.array([-0.0, 0.0, 1], F)
    constants = {"z": 0.0, "nz": -0.0, "one": 1.0}
    nodes = [node("Add", "x z", "a"), node("Add", "x nz", "b"), node("Mul", "x one", "c"), node("Sub", "x z", "d"), node("Neg", "x", "e")]
    check(model(nodes, {"x": x}, "a b c d e", constants), {"x": x}, {"a": x + F(0), "b": x, "c": x, "d": x, "e": -x})


@pytest.mark.parametrize("n", [9, 1, 33])
@pytest.mark.parametrize("op", ["GreaterOrEqual", "Less", "Equal"])
def test_a23_a_mask_is_exactly_one_or_zero(n: int, op: str) -> None:
    x = np.arange(-1, n - 1, dtype=F)
    mask = {"GreaterOrEqual": x >= 0, "Less": x < 0, "Equal": x == 0}[op]
    nodes = [node(op, "x zero", "m"), node("Cast", "m", "f", to=1), node("Mul", "x f", "y"), node("Not", "m", "k")]
    nodes += [node("Cast", "k", "i", to=7), node("ReduceSum", "i", "n", keepdims=0)]
    want = {"y": x * mask.astype(F), "n": np.int64((~mask).sum())}
    check(model(nodes, {"x": x}, "y n", {"zero": 0.0}, opset=13), {"x": x}, want)


def test_a24_tests_for_nan_and_infinity_are_real() -> None:
    x = np.array([NAN, 1, INF, -INF, -0.0], F)
    nodes = [node("IsNaN", "x", "n"), node("Where", "n zero x", "w"), node("IsInf", "x", "i"), node("IsInf", "x", "p", detect_negative=0)]
    nodes += [node("Equal", "x x", "e"), node("Max", "w zero", "m")]
    w = np.where(np.isnan(x), F(0), x)
    want = {"n": np.isnan(x), "w": w, "i": np.isinf(x), "p": np.isposinf(x), "e": x == x, "m": np.maximum(w, F(0))}
    check(model(nodes, {"x": x}, " ".join(want), {"zero": 0.0}), {"x": x}, want)


@pytest.mark.parametrize("n", [1, 8, 67])
def test_a25_nothing_is_contracted(n: int) -> None:
    def full(v: float) -> Any:
        return np.full(n, v, F)

    nodes = [node("Mul", "a c", "p"), node("Mul", "b d", "q"), node("Sub", "p q", "y")]
    for a, c in ((2396747, 7), (0.1, 0.1), (1 / 3, 3e-5)):
        feeds = {"a": full(a), "b": full(a), "c": full(c), "d": full(c)}
        check(model(nodes, feeds), feeds, {"y": full(0)})
    x = full(0.1)
    check(model([node("Mul", "x x", "p"), node("Mul", "x x", "q"), node("Sub", "p q", "y")], {"x": x}), {"x": x}, {"y": full(0)})
    feeds = {"a": full(1e20), "b": full(-1e20), "c": full(1e10)}
    nodes = [node("Mul", "a c", "p"), node("Mul", "b c", "q"), node("Add", "p q", "y")]
    check(model(nodes, feeds), feeds, {"y": full(0)})


@pytest.mark.parametrize("seed", range(4))
def test_a25_arithmetic_chains_have_the_bits_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = (rng.standard_normal((5, 37)).astype(F) for _ in range(3))
    nodes = [node("Mul", "a b", "p"), node("Add", "p c", "s"), node("Div", "s b", "d"), node("Sub", "d p", "t"), node("Mul", "t t", "u")]
    nodes += [node("Sqrt", "u", "r"), node("Add", "r s", "y")]
    p = a * b
    s = p + c
    t = s / b - p
    feeds = {"a": a, "b": b, "c": c}
    check(model(nodes, feeds), feeds, {"y": np.sqrt(t * t) + s})
