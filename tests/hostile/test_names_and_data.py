"""Hostile names, external data, extents and feeds."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusion_search as fs
from fusion_search.errors import FeedError, FusionSearchError, ModelError
from fusion_search.runtime.measure import example_feeds
from fusion_search.runtime.steps import KernelStep
from tests.cases.harness import assert_bits, load, model, node, outputs, plans, profile, value
from tests.hostile.seeds import control

F = np.float32
NAMES = [
    "../../etc/passwd",
    "__import__('os').system('false')", "a\nimport os", "'''", '"; raise SystemExit', "\\", "x" * 3000, "lambda", "é漢🙂",
    "{0}", "%s", "@gemm_f32", "n0", "T", "item", "A, S, lo, hi", "\t", " ", "\x00", "scratch0",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_reach_neither_source_nor_paths(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x = np.arange(6, dtype=F).reshape(2, 3)
    first = helper.make_node("Mul", [name, name + "k"], [name + "m"], name=name)
    second = helper.make_node("ReduceMax", [name + "m"], [name + "r"], name=name, axes=[1], keepdims=1)
    third = helper.make_node("Sub", [name + "m", name + "r"], [name + "y"], name=name)
    proto = model([first, second, third], {name: x}, constants={name + "k": 2.0}, outputs="y")
    proto.graph.output[0].name = name + "y"
    proto.graph.name = proto.producer_name = proto.doc_string = name
    graph = load(proto)
    for label, plan in plans(graph):
        assert str(plan.records()) is not None
        run = fs.compile(plan)
        assert_bits(run({name: x})[name + "y"], x * 2 - (x * 2).max(1, keepdims=True), label)
        for step in run.planned.steps:
            if isinstance(step, KernelStep):
                assert step.kernel.source.isascii()
                assert len(name) < 5 or name == "A, S, lo, hi" or name not in step.kernel.source
    written = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.startswith(("fusion_search_kernel_", ".tmp_")) for path in written), written


def external(folder: Path, **entries: str) -> Path:
    """Write a model whose weight of 8 floats lies beside it, as these entries say."""
    proto = model([node("Add", "x w", "y")], {"x": np.zeros(8, F)}, constants={"w": np.zeros(8, F)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    path = folder / "m.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "../secret.bin"},
        {"location": "sub/../../secret.bin"},
        {"location": "/etc/passwd"},
        {"location": "link.bin"},
        {"location": "linked/secret.bin"},
        {"location": "."},
        {"location": ""},
        {"location": "w\x00.bin"},
        {"location": "gone.bin"},
        {"location": "pipe"},
        {"location": "w.bin", "offset": "-4"},
        {"location": "w.bin", "offset": "8"},
        {"location": "w.bin", "offset": "99999999999999999999"},
        {"location": "w.bin", "length": "64"},
        {"location": "w.bin", "length": "-32"},
        {"location": "w.bin", "length": "many"},
        {"location": "w.bin", "offset": "1e1"},
        {},
    ],
    ids=str,
)
def test_external_data_stays_in_the_folder(entries: dict[str, str], tmp_path: Path) -> None:
    import os

    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    (folder / "w.bin").write_bytes(bytes(32))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "linked").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelError) as caught:
        fs.load(external(folder, **entries))
    assert "\n" not in str(caught.value)


def test_external_data_that_overlaps_is_read_twice(tmp_path: Path) -> None:
    data = np.arange(12, dtype=F)
    (tmp_path / "w.bin").write_bytes(data.tobytes())
    proto = model(
        [node("Add", "x w", "a"), node("Mul", "a v", "y")], {"x": np.zeros(8, F)}, constants={"w": np.zeros(8, F), "v": np.zeros(8, F)}
    )
    for tensor, offset in zip(proto.graph.initializer, ("0", "16"), strict=True):
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "w.bin"), ("offset", offset), ("length", "32")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, text
    onnx.save(proto, tmp_path / "m.onnx")
    run = fs.compile(fs.search(fs.load(tmp_path / "m.onnx"), profile()))
    assert_bits(run({"x": np.ones(8, F)})["y"], (data[:8] + 1) * data[4:])


HUGE = 1 << 40


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Expand", "x big", "e"), node("ReduceSum", "e", "y", keepdims=0)],
        [node("Expand", "x big", "y")],
        [node("Tile", "x big", "y")],
        [node("ConstantOfShape", "big", "c"), node("Add", "c x", "y")],
        [node("ConstantOfShape", "big", "y")],
        [node("Range", "zero limit one", "r"), node("Cast", "r", "y", to=1)],
        [node("Pad", "x pads", "y")],
        [node("OneHot", "index depth values", "y")],
        [node("Resize", "x4 - scales", "y")],
        [node("Expand", "x big", "e"), node("NonZero", "e", "i"), node("Cast", "i", "y", to=1)],
        [node("ConstantOfShape", "big", "c"), node("MatMul", "c c", "y")],
        [node("EyeLike", "wide", "y")],
    ],
    ids=lambda nodes: "-".join(n.op_type for n in nodes),
)
def test_sizes_are_checked_before_anything_is_allocated(nodes: Any) -> None:
    constants: dict[str, Any] = {"big": np.array([HUGE]), "zero": np.asarray(0), "limit": np.asarray(HUGE), "one": np.asarray(1)}
    constants |= {"pads": np.array([0, HUGE]), "index": np.array([1]), "depth": np.asarray(HUGE), "values": np.array([0, 1], F)}
    constants |= {"x4": np.ones((1, 1, 4, 4), F), "scales": np.array([1, 1, 1e6, 1e6], F)}
    if nodes[0].op_type == "EyeLike":
        nodes = [node("Expand", "x square", "wide"), *nodes]
        constants["square"] = np.array([1 << 20, 1 << 20])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = np.ones(1, F)
    with pytest.raises(FusionSearchError) as caught:
        outputs(model(nodes, {"x": x}, constants=constants), {"x": x})
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "kibibytes"


@pytest.mark.parametrize("shape", [(HUGE,), (1 << 20, 1 << 20), (1 << 31, 4), (HUGE, 0), (HUGE, HUGE)])
def test_huge_declared_inputs(shape: tuple[int, ...]) -> None:
    """Planning what no machine could run is fine; running it is an error in one line."""
    proto = model([node("Relu", "x", "a"), node("Exp", "a", "b"), node("Add", "b a", "y")], [value("x", shape)])
    try:
        run = fs.compile(fs.search(load(proto), profile()))
    except FusionSearchError as error:
        message = str(error)
    else:
        with pytest.raises(FeedError) as caught:
            run({"x": np.ones(3, F)})
        message = str(caught.value)
        if 0 in shape:
            assert run({"x": np.zeros(shape, F)})["y"].shape == shape
    assert "\n" not in message


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"x": np.ones((2, 3))},
        {"x": np.ones(6, F)},
        {"x": np.ones((3, 2), F)},
        {"x": np.ones((2, 3), F), "z": 1},
        {"x": None},
        {"x": "text"},
        {"x": [[1, 2, 3], [4, 5]]},
        {"x": np.ones((2, 3), complex)},
        {"x": np.array([["a"] * 3] * 2)},
        {"x": np.ones((0, 3), F)},
        {3: np.ones((2, 3), F)},
        {"x": np.array([[object()] * 3] * 2)},
        {"x": np.ones((2, 3), ">f4")},
        [],
        None,
    ],
    ids=range(16),
)
def test_feeds_that_do_not_fit(feeds: Any) -> None:
    run = fs.compile(fs.search(load(model([node("Relu", "x", "y")], {"x": np.ones((2, 3), F)})), profile()))
    with pytest.raises(FeedError) as caught:
        run(feeds)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", ["F", "strided", "reversed", "readonly", "unaligned"])
def test_feeds_of_any_layout(order: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 10)).astype(F)
    x[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    odd = np.zeros(x.nbytes + 1, np.uint8)
    odd[1:] = np.frombuffer(x.tobytes(), np.uint8)
    fed = {
        "F": np.asfortranarray(x),
        "strided": np.repeat(x, 2, 1)[:, ::2],
        "reversed": x[::-1][::-1],
        "readonly": x.copy(),
        "unaligned": odd[1:].view(F).reshape(x.shape),
    }[order]
    fed.setflags(write=False)
    for got in outputs(model([node("Mul", "x x", "m"), node("Neg", "m", "y")], {"x": x}), {"x": fed}).values():
        assert_bits(got["y"], -(x * x))


def test_gathers_beyond_the_end_are_errors_and_read_nothing() -> None:
    nodes = [node("Gather", "t i", "g"), node("Neg", "g", "y")]
    graph = load(model(nodes, [value("i", (3,), np.int64)], constants={"t": np.arange(5, dtype=F)}))
    for _, plan in plans(graph):
        run = fs.compile(plan)
        for index in ([0, 5, 1], [-6, 0, 0], [1 << 62, 0, 0], [-(1 << 63), 0, 0]):
            with pytest.raises(FeedError):
                run({"i": np.array(index)})
        assert_bits(run({"i": np.array([4, -5, 0])})["y"], np.array([-4, -0.0, -0.0], F))


@pytest.mark.parametrize("trips", [1 << 40, np.iinfo(np.int64).max])
def test_loops_that_would_not_end_are_refused(trips: int) -> None:
    proto = control()
    for tensor in proto.graph.initializer:
        if tensor.name == "trips":
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(trips), "trips"))
    run = fs.compile(fs.search(load(proto), profile()))
    with pytest.raises(FusionSearchError, match="iterations"):
        run({"x": np.ones(4, F)})


def test_example_feeds_of_every_dtype() -> None:
    for dtype in (np.bool_, np.uint8, np.int64, np.float16, np.float64):
        graph = load(model([node("Identity", "x", "y")], [value("x", (2, 0), dtype)]))
        assert example_feeds(graph)["x"].shape == (2, 0)
