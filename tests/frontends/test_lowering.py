"""Every lowering rule against onnxruntime, in the forms of old and new operator sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import run_passes
from tests.frontends.modeling import Array, model, node, random, run_onnxruntime

X = random((2, 6, 5, 7))
SMALL = random((3, 4))


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One operator on given operands; the arrays in `known` are initialisers."""

    op: str
    feeds: dict[str, Array]
    known: dict[str, Array] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] = ("y",)
    opaque: bool = False

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}-" + "-".join(f"{k}={v}" for k, v in self.attrs.items()).replace(" ", "")


def one(op: str, x: Array = SMALL, opset: int = 17, known: dict[str, Array] | None = None, **attrs: Any) -> Case:
    return Case(op, {"x": x}, known or {}, attrs, opset)


def two(op: str, a: Array, b: Array, opset: int = 17, **attrs: Any) -> Case:
    return Case(op, {"a": a, "b": b}, {}, attrs, opset)


CONV = {"w": random((8, 3, 3, 3), 1), "b": random((8,), 2)}
IMAGE = random((2, 3, 9, 11), 3)
POSITIVE = np.abs(SMALL) + 0.1
BN = {"s": random((6,), 1), "b": random((6,), 2), "m": random((6,), 3), "v": np.abs(random((6,), 4)) + 0.5}
INTS = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
BOOLS = SMALL > 0

CASES = [
    *(
        one(op)
        for op in ("Abs", "Neg", "Relu", "Floor", "Ceil", "Round", "Sign", "Exp", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Identity")
    ),
    *(one(op, POSITIVE) for op in ("Sqrt", "Log", "Reciprocal")),
    *(
        one(op, SMALL * 3)
        for op in ("Softplus", "Softsign", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Celu")
    ),
    one("Mish", SMALL * 3, 18),
    one("Elu", alpha=0.3),
    one("Gelu", opset=20),
    one("Gelu", opset=20, approximate="tanh"),
    one("Softplus", np.array([-200.0, -20, 0, 20, 80], np.float32)),
    one("IsNaN", np.array([1, np.nan, np.inf], np.float32)),
    one("IsInf", np.array([1, np.nan, np.inf, -np.inf], np.float32), detect_negative=0),
    one("Not", BOOLS),
    *(two(op, SMALL, random((4,), 5)) for op in ("Add", "Sub", "Mul", "Div")),
    two("Div", INTS, np.array([2, -3, 5, 7], np.int32)),
    *(two(op, SMALL, random((1, 4), 5)) for op in ("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")),
    *(two(op, BOOLS, BOOLS[:1]) for op in ("And", "Or", "Xor")),
    two("Mod", INTS, np.array([2, -3, 5, 7], np.int32)),
    two("Mod", SMALL, random((4,), 5), fmod=1),
    two("Pow", POSITIVE, random((4,), 6)),
    *(one("Pow", POSITIVE, known={"e": np.array(e, np.float32)}) for e in (1.0, 2.0, 3.0, 0.5, -1.0, 2.5)),
    one("Pow", SMALL, known={"e": np.array(3, np.int64)}),
    two("PRelu", X, np.abs(random((6, 1, 1), 3))),
    Case("Where", {"c": BOOLS, "a": SMALL, "b": random((4,), 2)}),
    *(Case(op, {"a": SMALL, "b": random((4,), 1), "c": random((3, 1), 2)}) for op in ("Sum", "Mean", "Max", "Min")),
    one("Clip", opset=6 + 1, min=-0.5, max=0.5),
    one("Clip", known={"lo": np.float32(-0.5), "hi": np.float32(0.25)}),
    Case("Clip", {"x": SMALL}, {"hi": np.float32(0.25)}, inputs=("x", "", "hi")),
    one("Cast", to=7),
    one("Cast", to=10),
    one("Cast", INTS, to=1),
    two("CastLike", SMALL, INTS),
    one("Dropout", opset=9),
    one("Dropout", opset=13),
    Case("Dropout", {"x": SMALL}, opset=13, outputs=("y", "mask")),
    # reductions: axes as attribute, as operand, all axes, no axes
    *(one(f"Reduce{k}", X, 11, axes=[1, -1], keepdims=keep) for k in ("Sum", "Mean", "Max", "Min", "Prod") for keep in (0, 1)),
    *(one(f"Reduce{k}", np.abs(X), 13, axes=[2]) for k in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare")),
    *(
        one(f"Reduce{k}", np.abs(X), 18, known={"axes": ints(-2, 1)})
        for k in ("Mean", "Max", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    ),
    one("ReduceSum", X, 13, known={"axes": ints(0, 2)}, keepdims=0),
    one("ReduceSum", X, 13),
    one("ReduceSum", X, 13, known={"axes": np.zeros(0, np.int64)}, noop_with_empty_axes=1),
    one("ReduceLogSumExp", np.array([[np.inf, 1], [-np.inf, -np.inf]], np.float32), 13, axes=[1]),
    # contractions
    two("MatMul", random((2, 1, 3, 4)), random((5, 4, 6), 1)),
    two("MatMul", random((4,)), random((4, 6), 1)),
    two("MatMul", random((5, 3, 4)), random((4,), 1)),
    two("MatMul", random((4,)), random((4,), 1)),
    Case(
        "Gemm", {"a": random((4, 3))}, {"b": random((5, 4), 1), "c": random((5,), 2)}, {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    ),
    Case("Gemm", {"a": SMALL, "b": random((4, 5), 1)}),
    Case("Gemm", {"a": SMALL, "b": random((4, 5), 1), "c": random((3, 1), 2)}, attrs={"beta": 0.25}),
    Case("Conv", {"x": IMAGE}, CONV, {"pads": [1, 2, 0, 1], "strides": [2, 1]}),
    Case("Conv", {"x": IMAGE}, CONV, {"dilations": [2, 3]}),
    Case("Conv", {"x": X}, {"w": random((9, 2, 3, 3), 1)}, {"group": 3, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("Conv", {"x": X}, {"w": random((6, 1, 2, 2), 1)}, {"group": 6, "auto_pad": "SAME_LOWER"}),
    Case("Conv", {"x": random((2, 3, 8)), "w": random((4, 3, 3), 1)}, {}, {"auto_pad": "VALID"}),
    Case("Conv", {"x": random((1, 2, 4, 5, 6))}, {"w": random((3, 2, 2, 2, 2), 1)}, {"pads": [1] * 6}),
    Case("ConvTranspose", {"x": IMAGE}, {"w": random((3, 4, 2, 2), 1), "b": random((4,), 2)}, {"strides": [2, 2]}),
    Case("ConvTranspose", {"x": X}, {"w": random((6, 2, 2, 3), 1), "b": random((4,), 2)}, {"strides": [2, 3], "group": 2}),
    Case(
        "ConvTranspose", {"x": IMAGE}, {"w": random((3, 4, 3, 3), 1)}, {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]}
    ),
    Case("ConvTranspose", {"x": IMAGE}, {"w": random((3, 4, 3, 2), 1)}, {"strides": [3, 1], "dilations": [1, 2], "pads": [0, 2, 1, 0]}),
    Case("ConvTranspose", {"x": IMAGE}, {"w": random((3, 4, 2, 2), 1)}, {"strides": [3, 3], "pads": [1, 0, 0, 1]}),
    Case("ConvTranspose", {"x": random((1, 4, 5))}, {"w": random((4, 1, 3), 1)}, {"group": 2, "strides": [2], "auto_pad": "SAME_UPPER"}),
    # pooling
    one("MaxPool", X, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    one("MaxPool", X, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1),
    one("MaxPool", X, kernel_shape=[2, 2], dilations=[2, 3]),
    one("MaxPool", X, kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
    one("AveragePool", X, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    one("AveragePool", X, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    one("AveragePool", X, 19, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
    one("AveragePool", X, kernel_shape=[2, 2]),
    one("AveragePool", X, kernel_shape=[3, 3], auto_pad="SAME_LOWER"),
    one("GlobalAveragePool", X),
    one("GlobalMaxPool", X),
    one("LRN", X, size=3, alpha=0.01, beta=0.75, bias=1.5),
    one("LRN", X, size=5, alpha=0.02, beta=0.5),
    # normalisations
    one("Softmax", X, axis=1),
    one("Softmax", X, 11, axis=2),
    one("Softmax", X, 9),
    one("LogSoftmax", X, axis=-1),
    one("LogSoftmax", X, 11, axis=1),
    Case("BatchNormalization", {"x": X}, BN, {"epsilon": 1e-3}, 15),
    Case("BatchNormalization", {"x": X}, BN, {}, 9),
    Case("BatchNormalization", {"x": X, **BN}, {}, {}, 15),
    Case("InstanceNormalization", {"x": X}, {"s": BN["s"], "b": BN["b"]}),
    Case("GroupNormalization", {"x": X}, {"s": BN["s"], "b": BN["b"]}, {"num_groups": 3}, 21),
    Case("GroupNormalization", {"x": X}, {"s": BN["s"][:3], "b": BN["b"][:3]}, {"num_groups": 3}, 18),
    Case("LayerNormalization", {"x": X}, {"s": random((7,), 1), "b": random((7,), 2)}),
    Case("LayerNormalization", {"x": X}, {"s": random((5, 7), 1)}, {"axis": 2}, outputs=("y", "mean", "inv")),
    Case("RMSNormalization", {"x": X}, {"s": random((7,), 1)}, {}, 23),
    one("MeanVarianceNormalization", X, 13),
    # layout
    one("Reshape", X, known={"s": ints(0, -1, 7)}),
    one("Reshape", random((0, 3)), known={"s": ints(3, 0)}, allowzero=1, opset=14),
    *(one("Flatten", X, axis=a) for a in (0, 1, -1, 4)),
    one("Squeeze", X[:1, :, :1], 11, axes=[0, -2]),
    one("Squeeze", X[:1, :, :1], 13),
    one("Squeeze", X[:1, :, :1], 13, known={"a": ints(-2)}),
    one("Unsqueeze", X, 11, axes=[0, 3]),
    one("Unsqueeze", X, 13, known={"a": ints(-1, 1)}),
    one("Transpose", X),
    one("Transpose", X, perm=[0, 2, 3, 1]),
    one("Slice", X, 9, starts=[1, -3], ends=[9, 2**60], axes=[1, 3]),
    one("Slice", X, known={"s": ints(-1, 5), "e": ints(-(2**62), 1), "a": ints(1, -1), "t": ints(-2, -1)}),
    one("Slice", X, known={"s": ints(4), "e": ints(2), "a": ints(1)}),
    Case("Split", {"x": X}, attrs={"axis": 1, "split": [1, 5]}, opset=11, outputs=("p", "q")),
    Case("Split", {"x": X}, {"s": ints(4, 2)}, {"axis": -3}, 13, outputs=("p", "q")),
    Case("Split", {"x": X}, attrs={"axis": 3, "num_outputs": 3}, opset=18, outputs=("p", "q", "r")),
    Case("Concat", {"a": X, "b": X[:, :2]}, {"c": X[:, :1]}, {"axis": -3}),
    one("Pad", X, 10, pads=[0, 1, 0, 2, 0, -1, 3, 0], value=1.5),
    one("Pad", X, known={"p": ints(0, 0, 1, 2, 0, 0, 2, 1), "v": np.float32(-2)}),
    Case("Pad", {"x": X}, {"p": ints(1, 2), "a": ints(2)}, opset=18, inputs=("x", "p", "", "a")),
    *(one("Pad", X, known={"p": ints(0, 0, 1, 2, 0, 0, 2, 1)}, mode=m) for m in ("edge", "reflect")),
    one("Pad", X, 19, known={"p": ints(0, 0, 1, 2, 0, 0, 2, 1)}, mode="wrap"),
    one("Expand", X[:, :, :1], known={"s": ints(3, 1, 1, 4, 1)}),
    one("Tile", SMALL, known={"r": ints(2, 3)}),
    *(one("DepthToSpace", random((1, 8, 2, 3)), blocksize=2, mode=m) for m in ("DCR", "CRD")),
    one("SpaceToDepth", random((1, 2, 4, 6)), blocksize=2),
    # reads by index, shapes
    two("Gather", X, np.array([[2, -1], [0, 3]]), axis=1),
    *(one("Gather", X, known={"i": i}, axis=2) for i in (np.int64(-2), ints(3, 2, 1), ints(1, 1, 4), ints(-1, 0))),
    two("GatherElements", SMALL, np.array([[0, -1], [2, 1], [1, 0]]), axis=1),
    two("GatherND", X, np.array([[0, 1], [1, -2]])),
    one("Shape", X, 15, start=1, end=-1),
    one("Size", X),
    Case("Range", {}, {"s": np.int64(9), "l": np.int64(-2), "d": np.int64(-3)}),
    Case("Range", {}, {"s": np.float32(0.5), "l": np.float32(4), "d": np.float32(0.75)}),
    one("Trilu", SMALL, upper=0),
    one("Trilu", random((2, 4, 3)), known={"k": np.int64(1)}),
    Case(
        "OneHot",
        {"i": np.array([[0, -1], [2, 7]]), "v": np.array([0.5, 2], np.float32)},
        {"d": np.int64(4)},
        {"axis": 1},
        inputs=("i", "d", "v"),
    ),
    # resizing
    *(
        Case(
            "Resize",
            {"x": IMAGE},
            {"s": np.array([1, 1, 2, 1.5], np.float32)},
            {"mode": m, "coordinate_transformation_mode": c},
            18,
            ("x", "", "s"),
        )
        for m in ("nearest", "linear", "cubic")
        for c in ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ),
    *(
        Case(
            "Resize",
            {"x": IMAGE},
            {"n": ints(2, 3, 18, 5)},
            {"mode": m, "coordinate_transformation_mode": "align_corners"},
            18,
            ("x", "", "", "n"),
        )
        for m in ("nearest", "linear")
    ),
    *(
        Case(
            "Resize", {"x": IMAGE}, {"s": np.array([1, 1, 0.6, 2], np.float32)}, {"mode": "nearest", "nearest_mode": n}, 13, ("x", "", "s")
        )
        for n in ("floor", "ceil", "round_prefer_ceil", "round_prefer_floor")
    ),
    one("Resize", IMAGE, 10, known={"s": np.array([1, 1, 2, 2], np.float32)}),
    one("Upsample", IMAGE, 7, scales=[1.0, 1.0, 2.0, 3.0]),
    one("Upsample", IMAGE, 9, known={"s": np.array([1, 1, 2, 2], np.float32)}, mode="linear"),
    # no rule: the reference evaluator
    Case("CumSum", {"x": SMALL}, {"a": ints(1).reshape(())}),
    Case("TopK", {"x": SMALL}, {"k": ints(2)}, outputs=("v", "i"), opaque=True),
    one("ArgMax", SMALL, axis=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_agrees_with_onnxruntime(case: Case) -> None:
    names = case.inputs or (*case.feeds, *case.known)
    proto = model([node(case.op, names, case.outputs, **case.attrs)], case.feeds, case.outputs, case.known, opset=case.opset)
    want = run_onnxruntime(proto, case.feeds)
    graph = load_onnx(proto)
    verify_graph(graph)
    for form in (graph, run_passes(graph)):
        got = evaluate(form, case.feeds)
        assert set(got) == set(want)
        for name, array in want.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-5)
    if case.op not in ("ArgMax",):
        assert any(n.op == "Opaque" for n in graph.nodes) == case.opaque


@pytest.mark.parametrize(
    ("op", "known", "attrs"),
    [
        ("Softmax", {}, {}),
        ("LayerNormalization", {"s": random((4,), 1), "b": random((4,), 2)}, {}),
        ("ReduceL2", {}, {"axes": [1]}),
        ("HardSwish", {}, {}),
        ("Softplus", {}, {}),
        ("Gemm", {"w": random((4, 5), 1), "c": random((5,), 2)}, {"alpha": 0.7}),
    ],
)
def test_composites_of_16_bit_floats_round_once(op: str, known: dict[str, Array], attrs: dict[str, Any]) -> None:
    x = random((3, 4)).astype(np.float16)
    known = {name: array.astype(np.float16) for name, array in known.items()}
    proto = model([node(op, ["x", *known], **attrs)], {"x": x}, constants=known)
    graph = load_onnx(proto)
    got = evaluate(graph, {"x": x})["y"]
    wide = {name: array.astype(np.float32) for name, array in known.items()}
    exact = run_onnxruntime(
        model([node(op, ["x", *known], **attrs)], {"x": x.astype(np.float32)}, constants=wide), {"x": x.astype(np.float32)}
    )["y"]
    assert got.dtype == np.float16
    # one rounding: half a unit in the last place, and a little for float32
    np.testing.assert_array_less(
        np.abs(got.astype(np.float64) - exact), np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64) * 0.51 + 1e-6
    )


def test_sequences_of_known_length_are_lists() -> None:
    nodes = [
        node("SplitToSequence", ["x", "s"], ["q"], axis=1),
        node("SequenceAt", ["q", "one"], ["b"]),
        node("SequenceInsert", ["q", "b"], ["q2"]),
        node("SequenceErase", ["q2", "zero"], ["q3"]),
        node("SequenceLength", ["q3"], ["n"]),
        node("ConcatFromSequence", ["q3"], ["y"], axis=1),
    ]
    known = {"s": ints(1, 3), "one": np.int64(1), "zero": np.int64(0)}
    proto = model(nodes, {"x": SMALL}, ["y", "n", "b"], known)
    graph = load_onnx(proto)
    assert [n.op for n in graph.nodes] == ["Slice", "Slice", "Concat"]
    got, want = evaluate(graph, {"x": SMALL}), run_onnxruntime(proto, {"x": SMALL})
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_nodes_remember_where_they_come_from() -> None:
    graph = load_onnx(model([node("Softmax", ["x"], ["y"])], {"x": SMALL}))
    assert [n.name for n in graph.nodes] == ["n_y/max", "n_y/sub", "n_y/exp", "n_y/sum", "n_y/inverse", "n_y/normalise"]
    assert {(n.origin, n.origin_op) for n in graph.nodes} == {("n_y", "Softmax")}
    assert graph.nodes[-1].output == "y"


def test_shape_arithmetic_leaves_no_node() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Concat", ["n1", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ]
    proto = model(nodes, {"x": X}, constants={"zero": np.int64(0), "axis": ints(0), "rest": ints(-1)})
    graph = run_passes(load_onnx(proto))
    assert [n.op for n in graph.nodes] == ["Relu"]
    assert graph.outputs[0].shape == (2, 210)
