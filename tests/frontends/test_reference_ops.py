"""The reference is tested too: loops, powers and functions as the standard has them, and limits on what a model may make it do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from scipy import special

import fusion_search as fs
from fusion_search.errors import UnsupportedError
from fusion_search.frontends.onnx import load_onnx, reference_ops
from fusion_search.ir.evaluate import evaluate
from fusion_search.passes import run_passes
from fusion_search.testing.agreement import same_bits
from tests.frontends.modeling import info, model, node, random

I64, BOOL = TensorProto.INT64, TensorProto.BOOL
FOR_EVER = np.int64(2**63 - 1)


def loop(trips: str, condition: str, *, last: int | None = None, scanned: bool = False, inner: onnx.NodeProto | None = None) -> Any:
    """v <- v + x in each iteration; goes on until iteration `last` says no; collects v."""
    nodes = [helper.make_node("Add", ["v", "x"], ["v2"])]
    if last is None:
        nodes.append(helper.make_node("Identity", ["c"], ["c2"]))
    else:
        limit = helper.make_tensor("limit", I64, [], [last])
        nodes += [helper.make_node("Constant", [], ["last"], value=limit), helper.make_node("Less", ["k", "last"], ["c2"])]
    nodes += [inner] if inner is not None else []
    results = [info("c2", [], BOOL), info("v2", [2, 3])]
    if scanned:
        nodes.append(helper.make_node("Identity", ["v2"], ["seen"]))
        results.append(info("seen", [2, 3]))
    body = helper.make_graph(nodes, "body", [info("k", [], I64), info("c", [], BOOL), info("v", [2, 3])], results)
    return node("Loop", [trips, condition, "x"], ["y", "all"] if scanned else ["y"], body=body)


X = {"x": random((2, 3))}


def both(proto: onnx.ModelProto) -> list[dict[str, Any]]:
    """What the opaque call gives, and the reference that results are verified against."""
    graph = load_onnx(proto)
    assert graph.source is not None
    return [evaluate(graph, X), graph.source.reference(X)]


@pytest.mark.parametrize("condition", ["", "yes"])
def test_a_condition_that_is_left_out_holds_for_ever(condition: str) -> None:
    for got in both(model([loop("n", condition)], X, constants={"n": np.int64(3), "yes": np.array(True)})):
        np.testing.assert_allclose(got["y"], 4 * X["x"], rtol=1e-6)


def test_a_condition_that_is_false_at_once() -> None:
    for got in both(model([loop("n", "no")], X, constants={"n": np.int64(3), "no": np.array(False)})):
        np.testing.assert_array_equal(got["y"], X["x"])


def test_outputs_of_iterations_are_stacked() -> None:
    proto = model([loop("n", "", scanned=True)], X, ("y", "all"), constants={"n": np.int64(3)})
    for got in both(proto):
        np.testing.assert_allclose(np.asarray(got["all"]), np.stack([(k + 2) * X["x"] for k in range(3)]), rtol=1e-6)


def test_no_iteration_collects_nothing() -> None:
    proto = model([loop("n", "", scanned=True)], X, ("y", "all"), constants={"n": np.int64(0)})
    for got in both(proto):
        np.testing.assert_array_equal(got["y"], X["x"])
        assert np.asarray(got["all"]).size == 0


def test_a_while_loop_may_ask_for_any_number_of_iterations() -> None:
    """Exporters write the largest integer where only the condition ends the loop."""
    for got in both(model([loop("n", "", last=4)], X, constants={"n": FOR_EVER})):
        np.testing.assert_allclose(got["y"], 6 * X["x"], rtol=1e-6)


def endless() -> onnx.ModelProto:
    return model([loop("n", "")], X, constants={"n": np.int64(2**22 - 1)})


def nested() -> onnx.ModelProto:
    inner = loop("n", "")
    inner.output[0] = "unused"
    return model([loop("n", "", inner=inner)], X, constants={"n": FOR_EVER})


def scan() -> onnx.ModelProto:
    body = helper.make_graph([helper.make_node("Add", ["s", "e"], ["s2"])], "body", [info("s", [1]), info("e", [1])], [info("s2", [1])])
    nodes = [
        node("Expand", ["zero", "many"], ["elements"]),
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node("Reshape", ["m", "one"], ["s"]),
    ]
    nodes.append(node("Scan", ["s", "elements"], ["y"], body=body, num_scan_inputs=1))
    return model(nodes, X, constants={"zero": np.zeros((1, 1), np.float32), "many": np.array([2**22, 1]), "one": np.array([1])})


@pytest.mark.parametrize("make", [endless, nested, scan])
def test_a_loop_that_would_run_for_hours_is_an_error_in_time(make: Callable[[], onnx.ModelProto], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(reference_ops, "LOOP_SECONDS", 50)
    monkeypatch.setattr(reference_ops, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    graph = run_passes(load_onnx(make()))
    assert graph.source is not None
    for run in (lambda: evaluate(graph, X), lambda: graph.source.reference(X)):  # type: ignore[union-attr]
        with pytest.raises(UnsupportedError, match=r"still running after 50 s and \d+ iterations"):
            run()


def test_a_loop_that_would_collect_all_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_ops, "LOOP_BYTES", 1000)
    proto = model([loop("n", "", scanned=True)], X, ("y", "all"), constants={"n": FOR_EVER})
    with pytest.raises(UnsupportedError, match="collects more than 1000 bytes in 42 iterations"):
        evaluate(load_onnx(proto), X)


def test_limits_are_below_what_hostile_input_may_cost() -> None:
    assert reference_ops.LOOP_SECONDS < 10
    assert reference_ops.LOOP_BYTES < 2 << 30


SPECIAL = np.array([-np.inf, -4.0, -1.0, -0.0, 0.0, 1.0, 4.0, np.inf, np.nan])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("exponent", [0.5, -0.5, 2.0, 3.0, 1.0, 0.0, -1.0, -2.0, 0.25, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("form", ["constant number", "constant of one", "input number", "input of one", "input"])
def test_powers_of_special_numbers(exponent: float, dtype: type, form: str) -> None:
    """IEEE 754: the root of -inf is a NaN, its power 0.5 is inf; whatever shape the exponent has."""
    x = SPECIAL.astype(dtype)
    shape = () if form.endswith("number") else (1,) if form.endswith("one") else x.shape
    y = np.full(shape, exponent, dtype)
    with np.errstate(all="ignore"):
        want = np.array([_power(float(a), exponent) for a in x]).astype(dtype)
    feeds = {"x": x} if form.startswith("constant") else {"x": x, "e": y}
    graph = run_passes(load_onnx(model([node("Pow", ["x", "e"])], feeds, constants={"e": y} if form.startswith("constant") else {})))
    assert graph.source is not None
    assert same_bits(np.asarray(graph.source.reference(feeds)["y"]), want)
    assert same_bits(evaluate(graph, feeds)["y"], want)


def _power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except (ValueError, OverflowError):  # where C gives a NaN or an infinity
        if a == 0:
            odd = b == int(b) and int(b) % 2 == 1
            return math.copysign(math.inf, a) if odd else math.inf
        return math.nan


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.25, 2.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_special_numbers_compiled(exponent: float, dtype: type) -> None:
    x = SPECIAL.astype(dtype)
    want = np.array([_power(float(a), exponent) for a in x]).astype(dtype)
    graph = run_passes(load_onnx(model([node("Pow", ["x", "e"])], {"x": x}, constants={"e": np.array(exponent, dtype)})))
    plan = fs.search(graph, fs.load_profile("local"))
    assert same_bits(fs.compile(plan)({"x": x})["y"], want)


#: Operators with float attributes, or functions, that an evaluator may compute in float32.
FUNCTIONS: dict[str, tuple[dict[str, float], Callable[[Any], Any]]] = {
    "Erf": ({}, special.erf),
    "Gelu": ({}, lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2)))),
    "LeakyRelu": ({}, lambda x: np.where(x < 0, float(np.float32(0.01)) * x, x)),
    "HardSigmoid": ({}, lambda x: np.clip(float(np.float32(0.2)) * x + 0.5, 0, 1)),
    "HardSwish": ({}, lambda x: x * np.clip(float(np.float32(1 / 6)) * x + 0.5, 0, 1)),
    "Selu": ({}, lambda x: float(np.float32(1.0507009873554805)) * np.where(x > 0, x, float(np.float32(1.6732632423543772)) * np.expm1(x))),
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_float64_is_float64(op: str) -> None:
    x = np.random.default_rng(0).normal(0, 2, 40)
    attrs, function = FUNCTIONS[op]
    graph = load_onnx(model([node(op, ["x"], **attrs)], {"x": x}, opset=20))
    assert graph.source is not None
    np.testing.assert_allclose(evaluate(graph, {"x": x})["y"], function(x), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(graph.source.reference({"x": x})["y"], function(x), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("spread", [0.0, 1e-7, 1e-4, 1.0])
@pytest.mark.parametrize("op", ["LayerNormalization", "InstanceNormalization", "GroupNormalization"])
def test_normalisations_of_nearly_constant_rows(op: str, spread: float, dtype: type) -> None:
    """Where a variance is far below epsilon, rounding of what comes before is multiplied by hundreds: deviations, not squares, are kept."""
    x = (1000.0 + spread * np.random.default_rng(0).normal(0, 1, (2, 4, 33))).astype(dtype)
    channels = 33 if op == "LayerNormalization" else 4
    constants = {"s": np.ones(channels, dtype), "b": np.zeros(channels, dtype)}
    attrs = {"num_groups": 4} if op == "GroupNormalization" else {}
    graph = run_passes(load_onnx(model([node(op, ["x", "s", "b"], **attrs)], {"x": x}, constants=constants, opset=21)))
    wide = x.astype(np.longdouble)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + float(np.float32(1e-5)))
    allowed = 4 * 1000 * np.finfo(dtype).eps / np.sqrt((centred**2).mean(axis=-1).min() + 1e-5)  # the mean's own rounding
    plan = fs.search(graph, fs.load_profile("local"))
    assert np.abs(fs.compile(plan)({"x": x})["y"] - want).max() <= allowed
    assert np.abs(evaluate(graph, {"x": x})["y"] - want).max() <= allowed
