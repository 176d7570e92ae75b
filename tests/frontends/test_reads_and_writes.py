"""Operators that read between elements, write by index, or are sums against a known matrix: each against the standard's evaluator.

No node is carried whole, and the values are awkward: places outside, on borders and halves, duplicates, infinities and NaN.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fusion_search.errors import FusionSearchError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import run_passes

Array = np.ndarray[Any, Any]
TRAINING = "ai.onnx.preview.training"
#: Operators whose results the evaluator leaves in float64, where the standard says the operands' dtype.
_PROMOTED = ("Adam", "Adagrad", "Momentum")


def proto_of(
    op: str,
    feeds: Mapping[str, Array],
    known: Mapping[str, Array] | None = None,
    *,
    order: str = "",
    outputs: int = 1,
    opset: int = 22,
    domain: str = "",
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node; its operands in the given order, one letter each, a blank for one that is left out."""
    known = known or {}
    names = [name.strip() for name in (order or "".join([*feeds, *known]))]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, name="n", domain=domain, **attrs)
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in known.items()]
    graph = helper.make_graph([node], "one", inputs, [helper.make_empty_tensor_value_info(r) for r in results], weights)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def lowered(proto: onnx.ModelProto) -> Graph:
    """The graph, with nothing carried whole."""
    graph = run_passes(load_onnx(proto))
    verify_graph(graph)
    assert [node.origin_op for node in graph.nodes if node.op == "Opaque"] == []
    return graph


def compare(op: str, feeds: Mapping[str, Array], known: Mapping[str, Array] | None = None, *, rtol: float = 1e-5, **rest: Any) -> None:
    proto = proto_of(op, feeds, known, **rest)
    got = evaluate(lowered(proto), feeds)
    with np.errstate(all="ignore"):
        want = ReferenceEvaluator(proto).run(None, dict(feeds))
    for name, expected in zip(got, want, strict=True):
        if op in _PROMOTED:
            expected = expected.astype(got[name].dtype)
        assert (got[name].dtype, got[name].shape) == (expected.dtype, expected.shape)
        scale = max(1.0, float(np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=0)))
        np.testing.assert_allclose(got[name].astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=rtol * scale)


def draw(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


# ---------------------------------------------------------------------- reads between elements

#: Corners, borders, halves, and far outside on both sides.
COORDINATES = np.array([-1, 1, 0, -0.5, 0.999, -1.2, 1.2, 1.5, -3.7, 9.25, 0.25, -0.125], np.float32)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, padding: str, aligned: int) -> None:
    attrs: dict[str, Any] = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    flat = np.stack(np.meshgrid(COORDINATES, COORDINATES), -1)[None]
    compare("GridSample", {"x": draw((1, 2, 4, 3)), "g": flat}, **attrs)
    compare("GridSample", {"x": draw((2, 1, 5, 2), 1), "g": (draw((2, 3, 4, 2), 2) * 2).astype(np.float32)}, **attrs)
    compare("GridSample", {"x": draw((1, 2, 5)), "g": COORDINATES.reshape(1, -1, 1)}, **attrs)
    compare("GridSample", {"x": draw((1, 1, 3, 2, 4)), "g": (draw((1, 2, 3, 2, 3), 3) * 1.5).astype(np.float32)}, **attrs)
    compare("GridSample", {"x": draw((1, 1, 4, 3), 4, np.float64), "g": flat}, **attrs)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_a_grid_of_nan_and_infinities_reads_nothing_outside(padding: str) -> None:
    x = draw((1, 2, 4, 3))
    grid = np.array([np.nan, np.inf, -np.inf, 1e30, 0.0], np.float32)
    grid = np.stack(np.meshgrid(grid, grid), -1)[None]
    graph = lowered(proto_of("GridSample", {"x": x, "g": grid}, mode="linear", padding_mode=padding))
    with np.errstate(all="ignore"):
        got = evaluate(graph, {"x": x, "g": grid})["y0"]
    assert np.isfinite(got[..., -1, -1]).all()


def test_a_gather_that_reads_an_infinity_with_no_weight_gives_nan_as_the_evaluator_does() -> None:
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    compare("GridSample", {"x": x, "g": np.zeros((1, 1, 1, 2), np.float32)}, mode="linear", align_corners=1)


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 2, 3)])
@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grid(aligned: int, size: tuple[int, ...]) -> None:
    rank = len(size) - 2
    compare("AffineGrid", {"t": draw((size[0], rank, rank + 1))}, {"s": np.array(size, np.int64)}, align_corners=aligned)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [1, 3])
def test_roi_align(samples: int, coordinates: str, mode: str) -> None:
    rois = np.array([[0, 0, 3, 4], [-5, -5, 2, 2], [4, 3, 90, 80], [1, 1, 1, 1], [3, 4, 1, 0.5]], np.float32)
    feeds = {"x": draw((2, 3, 6, 7)), "r": rois, "b": np.array([0, 1, 1, 0, 1], np.int64)}
    attrs = {"output_height": 2, "output_width": 3, "sampling_ratio": samples, "spatial_scale": 0.75}
    compare("RoiAlign", feeds, mode=mode, coordinate_transformation_mode=coordinates, **attrs)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
def test_deform_conv(parts: int, group: int) -> None:
    geometry: dict[str, Any] = {"strides": [2, 1], "pads": [1, 0, 1, 1], "kernel_shape": [3, 2], "dilations": [1, 2]}
    sizes = [(6 + 2 - 3) // 2 + 1, (5 + 1 - 3) // 1 + 1]
    feeds = {"x": draw((2, 4, 6, 5)), "w": draw((6, 4 // group, 3, 2), 1), "m": draw((2, parts * 6, *sizes), 3)}
    feeds["o"] = (draw((2, parts * 12, *sizes), 2) * 3).astype(np.float32)
    compare("DeformConv", feeds, {"b": draw((6,), 4)}, order="xwobm", group=group, offset_group=parts, rtol=1e-4, **geometry)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes(mode: str, policy: str) -> None:
    x = draw((1, 2, 7, 5))
    for sizes, antialias in product(((3, 4), (14, 5), (2, 11), (1, 1)), (0, 1)):
        if mode == "nearest" and antialias:
            continue
        known = {"s": np.array(sizes, np.int64)}
        attrs = {"mode": mode, "keep_aspect_ratio_policy": policy, "antialias": antialias, "axes": [2, 3]}
        compare("Resize", {"x": x}, known, order="x  s", opset=19, **attrs)


@pytest.mark.parametrize("outside", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_against_aliasing(mode: str, outside: int) -> None:
    for scales in ((0.3, 0.6), (0.21, 1.7), (1.0, 0.5)):
        known = {"s": np.array([1, 1, *scales], np.float32)}
        attrs = {"mode": mode, "antialias": 1, "exclude_outside": outside, "cubic_coeff_a": -0.5}
        compare("Resize", {"x": draw((1, 2, 10, 9))}, known, order="x s", opset=19, **attrs)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_a_part(mode: str) -> None:
    for roi in ((0.2, 0.3, 0.8, 0.9), (-0.5, 0, 1.5, 1), (0.9, 0.1, 0.1, 1.2), (0, 0, 1, 1)):
        known = {"r": np.array(roi, np.float32), "s": np.array([4, 3], np.int64)}
        attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5, "axes": [2, 3]}
        compare("Resize", {"x": draw((1, 2, 5, 6))}, known, order="xr s", opset=19, rtol=1e-4, **attrs)


# ---------------------------------------------------------------------- writes by index


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("known", [False, True])
def test_scatter_elements(known: bool, reduction: str) -> None:
    rng = np.random.default_rng(1)
    for shape, axis, cut in (((4, 5, 3), 1, 0), ((4, 5, 3), -3, 0), ((4, 5, 3), 2, 1), ((6,), 0, 0), ((1, 4), 0, 0)):
        given = tuple(n if d in (axis, axis % len(shape)) else n - cut for d, n in enumerate(shape))
        given = tuple(2 * n if d == axis % len(shape) else n for d, n in enumerate(given))  # more updates than places
        index = rng.integers(-shape[axis], shape[axis], given)
        feeds = {"x": draw(shape), "u": draw(given, 1)}
        if known:
            compare("ScatterElements", feeds, {"i": index}, order="xiu", axis=axis, reduction=reduction, opset=18)
        else:
            compare("ScatterElements", {**feeds, "i": index}, order="xiu", axis=axis, reduction=reduction, opset=18)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.bool_])
def test_scatter_of_every_kind_of_element(dtype: Any) -> None:
    x, u = (np.random.default_rng(k).integers(0, 3, (3, 4)).astype(dtype) for k in range(2))
    index = np.array([[0, 2, 1, 0], [-1, 0, 0, 2], [1, 1, -3, 0]], np.int32)
    for reduction in ("none",) if dtype is np.bool_ else ("none", "add", "max"):
        compare("ScatterElements", {"x": x, "i": index, "u": u}, axis=0, reduction=reduction, opset=18)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction: str) -> None:
    rng = np.random.default_rng(2)
    for shape, depth, lead in (((4, 5, 3), 1, (7,)), ((4, 5, 3), 2, (2, 3)), ((4, 5, 3), 3, (9,)), ((6,), 1, (4,))):
        index = np.stack([rng.integers(0 if reduction == "none" else -n, n, lead) for n in shape[:depth]], -1)
        updates = draw((*lead, *shape[depth:]), 5)
        compare("ScatterND", {"x": draw(shape), "i": index, "u": updates}, reduction=reduction, opset=18)
        compare("ScatterND", {"x": draw(shape), "u": updates}, {"i": index}, order="xiu", reduction=reduction, opset=18)


@pytest.mark.parametrize("place", [(0, 5), (4, 0), (0, -6), (-5, 0), (1, 2**40)])
def test_one_coordinate_outside_is_outside_whatever_the_others_say(place: tuple[int, int]) -> None:
    from fusion_search import api
    from fusion_search.errors import FeedError
    from fusion_search.runtime.compiled import CompiledPlan

    feeds = {"x": draw((4, 5)), "i": np.array([[1, 1], place]), "u": draw((2,))}
    graph = lowered(proto_of("ScatterND", feeds, opset=18))
    with pytest.raises(FeedError, match="outside"):
        CompiledPlan(api.search(graph, api.load_profile("local")))(feeds)
    with pytest.raises(FusionSearchError):
        load_onnx(proto_of("ScatterND", {k: feeds[k] for k in "xu"}, {"i": feeds["i"]}, order="xiu", opset=18))


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    start = np.array([0, 3], np.int64) if mode == "linear" else np.array([4, 11], np.int64)
    for cache, update, axis in (((2, 3, 6, 4), (2, 3, 2, 4), -2), ((2, 6), (2, 3), 1), ((2, 6, 3, 2), (2, 3, 3, 2), 1)):
        compare("TensorScatter", {"x": draw(cache), "u": draw(update, 1), "i": start}, opset=24, mode=mode, axis=axis)
    compare("TensorScatter", {"x": draw((2, 3, 6, 4)), "u": draw((2, 3, 2, 4), 1)}, opset=24, mode=mode)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_col2im(dtype: Any) -> None:
    for image, block, attrs in (
        ((5, 5), (2, 3), {}),
        ((6, 7), (3, 3), {"pads": [1, 0, 2, 1], "strides": [2, 2]}),
        ((7, 7), (2, 2), {"dilations": [2, 3]}),
        ((4,), (2,), {}),
    ):
        rank = len(image)
        pads, strides, dilations = attrs.get("pads", [0] * 2 * rank), attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
        counts = [
            (n + pads[d] + pads[d + rank] - dilations[d] * (k - 1) - 1) // strides[d] + 1
            for d, (n, k) in enumerate(zip(image, block, strict=True))
        ]
        x = draw((2, 3 * int(np.prod(block)), int(np.prod(counts)))).astype(dtype)
        known = {"i": np.array(image, np.int64), "b": np.array(block, np.int64)}
        compare("Col2Im", {"x": x}, known, rtol=1e-5 if dtype is np.float32 else 4e-3, **attrs)


def test_max_unpool() -> None:
    pooled, full = draw((1, 2, 2, 2)), np.array([1, 2, 5, 6], np.int64)
    index = np.array([0, 5, 9, 15, 16, 22, 27, 31], np.int64).reshape(1, 2, 2, 2)
    compare("MaxUnpool", {"x": pooled, "i": index}, kernel_shape=[2, 2], strides=[2, 2])
    compare("MaxUnpool", {"x": pooled, "i": index}, {"s": full}, kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_places_of_a_pool(dtype: Any, order: int) -> None:
    x = np.random.default_rng(0).integers(-3, 3, (2, 3, 6, 7)).astype(dtype)  # many equal: the first one counts
    geometry = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 1, 1, 0], "dilations": [1, 2]}
    compare("MaxPool", {"x": x}, outputs=2, storage_order=order, **geometry)
    compare("MaxPool", {"x": np.full((1, 1, 4, 4), -np.inf, np.float32)}, outputs=2, kernel_shape=[2, 2], strides=[2, 1])


# ---------------------------------------------------------------------- sums against known matrices


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [None, 7, 12])
def test_dft(length: int | None, parts: int, onesided: int) -> None:
    known = {"l": np.array(length, np.int64)} if length else {}
    for axis in (1, 2):
        x = draw((2, 9, 8, parts))
        compare("DFT", {"x": x}, {**known, "a": np.array(axis, np.int64)}, order="xla" if length else "x a", opset=20, onesided=onesided)
        compare("DFT", {"x": x}, known, opset=17, axis=axis, onesided=onesided)


@pytest.mark.parametrize("length", [None, 7, 12])
def test_one_sided_inverse_dft(length: int | None) -> None:
    known = {"l": np.array(length, np.int64)} if length else {}
    compare("DFT", {"x": draw((2, 9, 8, 2))}, known, opset=17, axis=1, onesided=1, inverse=1)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided: int) -> None:
    x, known = draw((2, 30)), {"s": np.array(4, np.int64), "l": np.array(12, np.int64)}
    window = np.hanning(12).astype(np.float32)
    graph = lowered(proto_of("STFT", {"x": x, "w": window}, known, order="xswl", opset=17, onesided=onesided))
    frames = np.stack([x[:, k : k + 12] * window for k in range(0, 19, 4)], 1)
    want = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    got = evaluate(graph, {"x": x, "w": window})["y0"]
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_det(n: int) -> None:
    compare("Det", {"x": draw((3, n, n))})
    compare("Det", {"x": draw((n, n), 1, np.float64)})


# ---------------------------------------------------------------------- other reads by index, and arithmetic


def test_reverse_sequence() -> None:
    lengths = np.array([1, 4, 0, 3], np.int64)
    compare("ReverseSequence", {"x": draw((5, 4, 2)), "l": lengths}, time_axis=0, batch_axis=1)
    compare("ReverseSequence", {"x": draw((4, 5)), "l": lengths}, time_axis=1, batch_axis=0)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    attrs = {} if axis is None else {"axis": axis}
    for condition in ([True, True], [False], [False, True]):
        compare("Compress", {"x": draw((3, 4, 2))}, {"c": np.array(condition)}, **attrs)


def test_one_hot_of_floats() -> None:
    known = {"d": np.array(4.0, np.float32), "v": np.array([-1, 5], np.int32)}
    compare("OneHot", {"x": np.array([0, 3, -1, -4, 7], np.float32)}, known, axis=0, opset=11)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("tensors", [1, 2])
def test_optimisers(tensors: int, count: int) -> None:
    rate, updates = np.array(0.1, np.float32), np.array(count, np.int64)
    shapes = [(3, 2), (4,)][:tensors]

    def feeds(moments: int) -> dict[str, Array]:
        found = {"r": rate, "t": updates}
        for k in range(2 + moments):
            for j, shape in enumerate(shapes):
                found["abcdefgh"[k * tensors + j]] = np.abs(draw(shape, k)) if k > 1 else draw(shape, k)
        return found

    attrs = {"norm_coefficient": 0.01, "domain": TRAINING}
    compare("Adam", feeds(2), outputs=3 * tensors, alpha=0.9, beta=0.99, epsilon=1e-4, norm_coefficient_post=0.02, **attrs)
    compare("Adagrad", feeds(1), outputs=2 * tensors, decay_factor=0.1, epsilon=1e-4, **attrs)
    for mode in ("standard", "nesterov"):
        compare("Momentum", feeds(1), outputs=2 * tensors, alpha=0.9, beta=0.5, mode=mode, **attrs)


@pytest.mark.parametrize("periodic", [0, 1, None])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows_are_constants(op: str, periodic: int | None) -> None:
    attrs = {} if periodic is None else {"periodic": periodic}
    graph = lowered(proto_of(op, {}, {"n": np.array(9, np.int64)}, opset=17, **attrs))
    assert graph.nodes == ()


def test_a_scan_of_known_length_is_its_steps() -> None:
    state, step = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("s", "x"))
    body = helper.make_graph(
        [helper.make_node("Mul", ["s", "f"], ["m"]), helper.make_node("Add", ["m", "x"], ["t"]), helper.make_node("Neg", ["t"], ["o"])],
        "body",
        [state, step],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t", "o")],
    )
    nodes = [helper.make_node("Scan", ["s0", "xs"], ["end", "out"], name="scan", body=body, num_scan_inputs=1, scan_input_directions=[1])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("s0", [2]), ("xs", [5, 2]), ("f", [2]))]
    graph_proto = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info(name) for name in ("end", "out")])
    proto = helper.make_model(graph_proto, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    feeds = {"s0": draw((2,)), "xs": draw((5, 2), 1), "f": draw((2,), 2)}
    got = evaluate(lowered(proto), feeds)
    total, outs = feeds["s0"], []
    for item in feeds["xs"][::-1]:
        total = total * feeds["f"] + item
        outs.append(-total)
    np.testing.assert_allclose(got["end"], total, rtol=1e-6)
    np.testing.assert_allclose(got["out"], np.stack(outs), rtol=1e-6)


@pytest.mark.parametrize(
    "proto",
    [
        proto_of("AffineGrid", {"t": draw((1, 2, 3))}, {"s": np.array([1, 1, 2**30, 2**30])}),
        proto_of("STFT", {"x": draw((1, 200_000))}, {"s": np.array(1), "l": np.array(100_000)}, order="xs l", opset=17),
        proto_of(
            "RoiAlign", {"x": draw((1, 1, 4, 4)), "r": draw((1, 4)), "b": np.zeros(1, np.int64)}, output_height=2**40, sampling_ratio=2
        ),
        proto_of("RoiAlign", {"x": draw((1, 1, 4, 4)), "r": draw((1, 4)), "b": np.zeros(1, np.int64)}, sampling_ratio=2**40),
        proto_of("DFT", {"x": draw((1, 8, 1))}, {"l": np.array(2**35)}, opset=17),
        proto_of("MaxUnpool", {"x": draw((1, 1, 2, 2)), "i": np.zeros((1, 1, 2, 2), np.int64)}, kernel_shape=[2**30, 2**30]),
        proto_of(
            "Resize",
            {"x": draw((1, 1, 4, 4))},
            {"r": np.array([0, 0, 0, 0, 1, 1, 1, 2**30], np.float32), "s": np.array([1, 1, 1, 2.0**-29], np.float32)},
            order="xrs",
            mode="linear",
            antialias=1,
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
    ],
    ids=["grid", "frames", "bins", "samples", "transform", "unpool", "taps"],
)
def test_a_small_file_makes_nothing_large(proto: onnx.ModelProto) -> None:
    """It is refused or carried whole, in little time and memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(FusionSearchError):
        load_onnx(proto)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # a GiB, in KiB
