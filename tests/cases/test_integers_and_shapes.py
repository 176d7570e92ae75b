"""Public fault cases A26 to A32: integers, broadcasts, scalars, empty tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cases.harness import check, load, model, node, profile, value

F = np.float32
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow):RuntimeWarning")


@pytest.mark.parametrize("inner", [3, 5, 7, 67])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint8])
def test_a26_no_lane_beyond_the_end_divides(inner: int, dtype: Any) -> None:
    x = (np.arange(2 * inner) % 100).reshape(2, inner).astype(dtype)
    sixteen = np.full(inner, 16, dtype)
    check(model([node("Mod", "x m", "r")], {"x": x, "m": sixteen}, "r"), {"x": x, "m": sixteen}, {"r": x % sixteen})
    d = (np.arange(inner) % 3).astype(dtype)
    nodes = [node("Equal", "d zero", "e"), node("Not", "e", "ne"), node("Div", "x d", "q"), node("Where", "ne q zero", "y")]
    want = np.where(d != 0, x // np.where(d == 0, 1, d), 0).astype(dtype)
    check(model(nodes, {"x": x, "d": d}, constants={"zero": np.zeros((), dtype)}), {"x": x, "d": d}, {"y": want})


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_a27_integer_division_never_traps(dtype: Any) -> None:
    low = np.iinfo(dtype).min
    cases = {
        "Mod": [(-4, 3, 2), (-4, -3, -1), (4, 3, 1), (4, -3, -2), (low, -1, 0), (-5, 0, 0), (5, 0, 0)],
        "Div": [(-3, 2, -1), (-1, 2, 0), (1, 2, 0), (3, 2, 1), (3, -2, -1), (low, -1, low), (low, 1, low), (5, 0, 0)],
    }
    for op, rows in cases.items():
        a, b, want = (np.array(column, dtype) for column in zip(*rows, strict=True))
        check(model([node(op, "a b", "y")], {"a": a, "b": b}), {"a": a, "b": b}, {"y": want})
    a, b = np.array([-4, -4, 4, 4, low], dtype), np.array([3, -3, 3, -3, -1], dtype)
    check(model([node("Mod", "a b", "y", fmod=1)], {"a": a, "b": b}), {"a": a, "b": b}, {"y": np.array([-1, -1, 1, 1, 0], dtype)})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_a27_integers_wrap(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.max, limits.min, 70000 & limits.max, 3], dtype)
    b = np.array([limits.max, limits.max, 70000 & limits.max, 5], dtype)
    nodes = [node("Mul", "a b", "p"), node("Add", "a b", "s"), node("Sub", "a b", "d"), node("Add", "p s", "t"), node("Abs", "a", "m")]
    want = {"p": a * b, "s": a + b, "d": a - b, "t": a * b + (a + b), "m": np.abs(a)}
    check(model(nodes, {"a": a, "b": b}, " ".join(want)), {"a": a, "b": b}, want)
    if dtype == np.int32:
        assert int((a * b)[2]) == 605032704


@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization", "Softmax", "spelled"])
@pytest.mark.parametrize(("shape", "scale"), [((1, 1), (2,)), ((1, 1), (3, 1)), ((2, 1), (1, 4)), ((1, 3), (2, 3)), ((1, 1), (2, 1, 3))])
def test_a28_an_operand_that_expands_the_shape(operator: str, shape: Any, scale: Any) -> None:
    x = np.arange(1, np.prod(shape) + 1, dtype=F).reshape(shape)
    s = np.arange(2, np.prod(scale) + 2, dtype=F).reshape(scale)
    head = {
        "LayerNormalization": [node("LayerNormalization", "x g", "n", axis=-1)],
        "RMSNormalization": [node("RMSNormalization", "x g", "n", axis=-1)],
        "Softmax": [node("Softmax", "x", "n", axis=-1)],
        "spelled": [node("ReduceMean", "x ax", "m"), node("Sub", "x m", "n")],
    }[operator]
    wide = x.astype(np.float64)
    d = wide - wide.mean(-1, keepdims=True)
    n = {
        "LayerNormalization": d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5),
        "RMSNormalization": wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5),
        "Softmax": np.exp(wide) / np.exp(wide).sum(-1, keepdims=True),
        "spelled": d,
    }[operator]
    proto = model(
        [*head, node("Mul", "n s", "y")], {"x": x, "s": s}, constants={"g": np.ones(shape[-1], F), "ax": np.array([-1])}, opset=23
    )
    check(proto, {"x": x, "s": s}, {"y": (n * s).astype(F)}, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("n", [3, 4, 64])
def test_a29_a_mean_without_its_axis_broadcasts_along_rows(keepdims: int, axis: int, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((n, n)).astype(F)
    nodes = [node("ReduceMean", "x", "m", axes=[axis], keepdims=keepdims), node("Sub", "x m", "d"), node("Pow", "d two", "s")]
    nodes += [node("ReduceMean", "s", "v", axes=[axis], keepdims=keepdims), node("Add", "v eps", "e"), node("Sqrt", "e", "r")]
    nodes += [node("Div", "d r", "q"), node("Mul", "q g", "w"), node("Add", "w b", "y")]
    g, b = np.linspace(1, 2, n).astype(F), np.linspace(-1, 1, n).astype(F)
    wide = x.astype(np.float64)
    d = wide - wide.mean(axis, keepdims=bool(keepdims))
    want = d / np.sqrt((d**2).mean(axis, keepdims=bool(keepdims)) + 1e-5) * g + b
    check(
        model(nodes, {"x": x}, constants={"two": 2.0, "eps": 1e-5, "g": g, "b": b}), {"x": x}, {"y": want.astype(F)}, rtol=2e-4, atol=2e-5
    )


@pytest.mark.parametrize(
    ("nodes", "right"),
    [
        ([node("ReduceMean", "x all", "y", keepdims=0)], 3),
        ([node("ReduceSum", "x all", "y", keepdims=1)], 3),
        ([node("ReduceMax", "x", "y", keepdims=0)], 3),
        ([node("Mul", "x k", "a"), node("Add", "a k", "b"), node("Relu", "b", "y")], 8),
        ([node("Reshape", "x one", "r"), node("Add", "r k", "s"), node("Squeeze", "s", "y")], 5),
        ([node("Transpose", "x", "flat"), node("Neg", "flat", "y")], -3),
        ([node("Reshape", "x one", "r"), node("CumSum", "r zero", "c"), node("Reshape", "c none", "y")], 3),
        ([node("Reshape", "x one", "r"), node("Softmax", "r", "c", axis=-1), node("ReduceSum", "c", "y", keepdims=0)], 1),
        ([node("Where", "t x k", "y")], 3),
        ([node("Expand", "x two", "e"), node("ReduceSum", "e", "y", keepdims=0)], 6),
    ],
)
@pytest.mark.parametrize("constant", [True, False])
def test_a30_scalars_stay_scalars(nodes: Any, right: float, constant: bool) -> None:
    x = np.asarray(3, F)
    fixed: dict[str, Any] = {"k": 2.0, "one": np.array([1]), "zero": np.asarray(0), "none": np.zeros(0, np.int64), "two": np.array([2])}
    fixed |= {"t": np.asarray(True), "all": np.zeros(0, np.int64)}
    proto = model(nodes, {} if constant else {"x": x}, constants=fixed | ({"x": x} if constant else {}), opset=18)
    check(proto, {} if constant else {"x": x}, {"y": np.asarray(right, F)})


@pytest.mark.parametrize(
    ("operator", "right"),
    [
        (node("ReduceMean", "x first", "y"), 3),
        (node("ReduceSum", "x last", "y", keepdims=0), 3),
        (node("CumSum", "x zero", "y"), 3),
        (node("Softmax", "x", "y", axis=-1), 1),
        (node("Softmax", "x", "y", axis=0), 1),
        (node("LogSoftmax", "x", "y", axis=0), 0),
    ],
)
def test_a30_axes_0_and_minus_1_of_a_scalar(operator: Any, right: float) -> None:
    constants = {"zero": np.asarray(0), "first": np.array([0]), "last": np.array([-1])}
    check(model([operator], {"x": np.asarray(3, F)}, constants=constants, opset=18), {"x": np.asarray(3, F)}, {"y": np.asarray(right, F)})


def test_a31_reshapes_with_zeros() -> None:
    x = np.zeros((0, 6, 2), F)
    nodes = [node("Reshape", "x a", "r"), node("Reshape", "r b", "y", allowzero=1), node("Add", "y k", "z")]
    constants = {"a": np.array([3, 2, 0]), "b": np.array([0, 0, 3]), "k": 1.0}
    nodes[0] = node("Reshape", "x a", "r", allowzero=1)
    check(model(nodes, {"x": x}, "y z", constants), {"x": x}, {"y": np.zeros((0, 0, 3), F), "z": np.zeros((0, 0, 3), F)})
    x = np.arange(24, dtype=F).reshape(2, 3, 4)
    check(model([node("Reshape", "x s", "y")], {"x": x}, constants={"s": np.array([0, -1])}), {"x": x}, {"y": x.reshape(2, 12)})


def test_a31_minus_one_on_an_empty_tensor_divides_by_nothing() -> None:
    x = np.zeros((0, 6, 2), F)
    nodes = [node("Reshape", "x a", "r"), node("Relu", "r", "y")]
    check(model(nodes, {"x": x}, constants={"a": np.array([3, 2, -1])}), {"x": x}, {"y": np.zeros((3, 2, 0), F)})


EMPTY = {"ReduceSum": 0, "ReduceProd": 1, "ReduceMean": np.nan, "ReduceMax": -np.inf, "ReduceMin": np.inf}


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op", EMPTY)
@pytest.mark.parametrize("then", [False, True])
def test_a32_reductions_over_nothing(op: str, keepdims: int, then: bool) -> None:
    x = np.zeros((3, 0, 4), F)
    nodes = [node("Neg", "x", "n"), node(op, "n ax" if then else "x ax", "r", keepdims=keepdims), node("Add", "r zero", "y")]
    want = np.full((3, 1, 4) if keepdims else (3, 4), EMPTY[op], F)
    check(model(nodes if then else nodes[1:], {"x": x}, "y", {"ax": np.array([1]), "zero": 0.0}, opset=18), {"x": x}, {"y": want})


def test_a32_everything_else_that_is_empty() -> None:
    x = np.zeros(0, F)
    check(model([node("ReduceSum", "x", "y", keepdims=1)], {"x": x}), {"x": x}, {"y": np.zeros(1, F)})
    x = np.zeros((0, 3), F)
    nodes = [node("Mul", "x k", "a"), node("Exp", "a", "b"), node("Add", "b x", "y"), node("Softmax", "x", "s", axis=-1)]
    check(model(nodes, {"x": x}, "y s", {"k": 2.0}), {"x": x}, {"y": x, "s": x})
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "y")]
    x = np.zeros((2, 0), F)
    check(model(nodes, {"x": x}, constants={"w": np.zeros((0, 3), F), "b": np.ones(3, F)}), {"x": x}, {"y": np.ones((2, 3), F)})
    x = np.arange(4, dtype=F)
    check(model([node("ReduceSum", "x", "y", noop_with_empty_axes=1)], {"x": x}), {"x": x}, {"y": x})


def test_a32_a_symbolic_extent_of_zero() -> None:
    import fusion_search as fs

    nodes = [node("ReduceMax", "x ax", "m"), node("Sub", "x m", "d"), node("Exp", "d", "y")]
    graph = load(model(nodes, [value("x", ("n", 5))], "y", {"ax": np.array([1])}, opset=18), {"n": 4})
    run = fs.compile(fs.search(graph, profile()))
    assert run({"x": np.zeros((0, 5), F)})["y"].shape == (0, 5)
