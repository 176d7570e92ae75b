"""Public fault cases A08 to A13: loop dependence, in-place writes, dynamic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusion_search as fs
from tests.cases.harness import assert_bits, check, load, model, node, plans, profile, value

F = np.float32


@pytest.mark.parametrize("n", [3, 1, 64, 65, 1025, 40_000])
@pytest.mark.parametrize("reduction", ["ReduceMax", "ReduceMin", "ReduceSum"])
def test_a08_a_reduction_is_read_after_its_whole_loop(n: int, reduction: str) -> None:
    x = np.array([0, 1.5, 3], F) if n == 3 else np.random.default_rng(n).permutation(np.arange(1, n + 1)).astype(F)
    proto = model([node(reduction, "x", "m", keepdims=0), node("Div", "x m", "y")], {"x": x})
    m = {"ReduceMax": x.max(), "ReduceMin": x.min(), "ReduceSum": x.astype(np.float64).sum().astype(F)}[reduction]
    with np.errstate(all="ignore"):
        if reduction == "ReduceSum":
            check(proto, {"x": x}, {"y": x / m}, rtol=1e-5)
        else:
            check(proto, {"x": x}, {"y": x / m})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(7, 33), (1, 5), (128, 3)])
def test_a08_reductions_of_rows_and_columns(axis: int, shape: tuple[int, int]) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(shape)).astype(F) + F(0.1)
    nodes = [node("ReduceMax", "x", "m", axes=[axis], keepdims=1), node("Div", "x m", "d")]
    nodes += [node("ReduceMin", "d", "n", axes=[1 - axis], keepdims=1), node("Sub", "d n", "y")]
    d = x / x.max(axis, keepdims=True)
    check(model(nodes, {"x": x}), {"x": x}, {"y": d - d.min(1 - axis, keepdims=True)})


@pytest.mark.parametrize("n", [4, 1, 1000, 4099])
def test_a09_a_value_read_at_another_index_is_finished_first(n: int) -> None:
    x = np.arange(1, n + 1, dtype=F)
    back = np.arange(n)[::-1].astype(np.int64)
    proto = model([node("Mul", "x x", "sq"), node("Gather", "sq i", "g"), node("Add", "sq g", "y")], {"x": x}, constants={"i": back})
    check(proto, {"x": x}, {"y": x * x + (x * x)[::-1]})


@pytest.mark.parametrize(
    ("reader", "right"),
    [
        (node("Transpose", "sq", "g", perm=[1, 0]), lambda s: s.T),
        (node("Slice", "sq last first axis back", "g"), lambda s: s[::-1]),
        (node("Concat", "tail head", "g", axis=0), lambda s: np.concatenate([s[3:], s[:3]])),
        (node("Reshape", "sqt shape", "g"), lambda s: s.T.reshape(6, 6)),
    ],
)
def test_a09_every_way_of_reading_elsewhere(reader: Any, right: Any) -> None:
    x = np.random.default_rng(3).standard_normal((6, 6)).astype(F)
    nodes = [node("Mul", "x x", "sq"), node("Transpose", "sq", "sqt", perm=[1, 0]), node("Split", "sq", "head tail", axis=0)]
    nodes += [reader, node("Add", "sq g", "s"), node("Relu", "sqt", "z0"), node("Sub", "head tail", "z1")]
    constants = {"last": np.array([5]), "first": np.array([-7]), "axis": np.array([0]), "back": np.array([-1]), "shape": np.array([6, 6])}
    sq = x * x
    want = {"s": sq + right(sq), "z0": sq.T.copy(), "z1": sq[:3] - sq[3:]}
    check(model(nodes, {"x": x}, "s z0 z1", constants, opset=13), {"x": x}, want)


@pytest.mark.parametrize("n", [2048, 1, 17])
def test_a10_shifted_slices_accumulate(n: int) -> None:
    a = np.arange(n + 2, dtype=F)
    constants = {f"c{i}": np.array([i]) for i in range(n + 3)} if n < 20 else {f"c{i}": np.array([i]) for i in (0, 1, 2, n, n + 1, n + 2)}
    nodes = [node("Slice", f"a c{i} c{n + i}", f"s{i}") for i in range(3)]
    nodes += [node("Add", "s0 s1", "t"), node("Add", "t s2", "b")]
    check(model(nodes, {"a": a}, "b", constants), {"a": a}, {"b": 3 * np.arange(n, dtype=F) + 3})


def test_a10_an_output_that_overlaps_its_input() -> None:
    b = np.arange(300, dtype=F)
    nodes = [node("Relu", "b", "r"), node("Slice", "r zero end", "head"), node("Slice", "r zero one", "first")]
    nodes += [node("Add", "head k", "moved"), node("Concat", "first moved", "y", axis=0), node("Slice", "y one big", "tail")]
    constants = {"zero": np.array([0]), "one": np.array([1]), "end": np.array([-1]), "big": np.array([1 << 40]), "k": 1.0}
    moved = np.concatenate([b[:1], b[:-1] + 1])
    check(model(nodes, {"b": b}, "y tail", constants), {"b": b}, {"y": moved, "tail": moved[1:]})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(6, 2), (5, 7), (64, 64)])
def test_a11_a_mirrored_operand_is_never_overwritten(axis: int, shape: tuple[int, int]) -> None:
    x = np.arange(np.prod(shape), dtype=F).reshape(shape)
    nodes = [node("Slice", "x s e a st", "f"), node("Add", "x f", "x2"), node("Slice", "x2 s e a st", "f2"), node("Sub", "x2 f2", "y")]
    constants = {"s": np.array([-1]), "e": np.array([-(1 << 31)]), "a": np.array([axis]), "st": np.array([-1])}
    x2 = x + np.flip(x, axis)
    if shape == (6, 2) and axis == 0:
        np.testing.assert_array_equal(x2, np.tile(np.array([10, 12], F), (6, 1)))
    check(model(nodes, {"x": x}, "y x2", constants), {"x": x}, {"y": x2 - np.flip(x2, axis), "x2": x2})


@pytest.mark.parametrize("chain", ["where", "cast"])
def test_a12_runs_of_other_lengths_leave_earlier_results_alone(chain: str) -> None:
    nodes = (
        [node("Greater", "x zero", "c"), node("Where", "c x zero", "y")]
        if chain == "where"
        else [node("Cast", "x", "h", to=10), node("Cast", "h", "f", to=1), node("Add", "f zero", "y")]
    )
    graph = load(model(nodes, [value("x", (1, "S", 8))], constants={"zero": 0.0}), {"S": 32})
    rng = np.random.default_rng(0)

    def right(x: Any) -> Any:
        return np.where(x > 0, x, F(0)) if chain == "where" else x.astype(np.float16).astype(F) + F(0)

    for name, plan in plans(graph):
        run = fs.compile(plan)
        kept = []
        for length in (32, 1, 32, 0, 7, 32):
            x = rng.standard_normal((1, length, 8)).astype(F)
            before = x.copy()
            got = run({"x": x})["y"]
            kept.append((got, right(x)))
            assert_bits(x, before, f"{name}: input")
        for got, want in kept:
            assert_bits(got, want, name)
        assert run.compilations <= 2 * len(plan.groups), name


@pytest.mark.parametrize("planned", [4, 8])
def test_a13_a_symbolic_dimension_may_be_one(planned: int) -> None:
    nodes = [node("Reshape", "x s", "a"), node("Reshape", "y s", "b"), node("Mul", "a b", "p"), node("Add", "p one", "z")]
    proto = model(nodes, [value("x", ("n",)), value("y", ("m",))], "z", {"s": np.array([-1, 4]), "one": 1.0})
    graph = load(proto, {"n": planned, "m": 8})
    for name, plan in plans(graph):
        run = fs.compile(plan)
        for n, m in ((4, 8), (8, 8), (8, 4), (4, 4), (4, 8), (12, 4)):
            x, y = np.arange(n, dtype=F), np.arange(m, dtype=F) - 2
            assert_bits(run({"x": x, "y": y})["z"], x.reshape(-1, 4) * y.reshape(-1, 4) + 1, f"{name} {n} {m}")


@pytest.mark.parametrize("size", [0, 1, 2, 65])
def test_a13_every_extent_serves_one_compiled_plan(size: int) -> None:
    nodes = [node("Mul", "x w", "a"), node("ReduceSum", "a ax", "s", keepdims=1), node("Sub", "a s", "d"), node("Relu", "d", "y")]
    proto = model(nodes, [value("x", ("n", 3)), value("w", ("n", 1))], "y s", {"ax": np.array([1])}, opset=13)
    for planned in (1, 4):
        run = fs.compile(fs.search(load(proto, {"n": planned}), profile()))
        x, w = np.arange(3 * size, dtype=F).reshape(size, 3), np.arange(size, dtype=F).reshape(size, 1)
        a = x * w
        s = (a[:, :1] + a[:, 1:2]) + a[:, 2:]
        got = run({"x": x, "w": w})
        np.testing.assert_allclose(got["s"], s, rtol=1e-6)
        np.testing.assert_allclose(got["y"], np.maximum(a - s, 0), rtol=1e-6, atol=1e-6)
