"""Bad files and bad models: one line each, whatever is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusion_search.errors import FusionSearchError, ModelError, UnsupportedError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from tests.frontends.modeling import info, model, node, random

X = info("x", [2, 3])


def good() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"])], [X], constants={"w": random((3, 4))})


def broken(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto = good()
    change(proto)
    return proto


def short_weight(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]


def negative_extent(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = -3


def huge_extent(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].dims[0] = 2**40


def twice(proto: onnx.ModelProto) -> None:
    proto.graph.node[1].output[0] = "m"
    proto.graph.output[0].name = "m"


def no_rank(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.tensor_type.ClearField("shape")


def sparse(proto: onnx.ModelProto) -> None:
    proto.graph.input[0].type.sparse_tensor_type.elem_type = 1


def cyclic(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].input[1] = "y"


MODELS = {
    "oldest": (broken(lambda m: setattr(m.opset_import[0], "version", 0)), "supported: 1 to"),
    "newest": (broken(lambda m: setattr(m.opset_import[0], "version", 999)), "uses version 999"),
    "ir": (broken(lambda m: setattr(m, "ir_version", 99)), "IR version 99"),
    "no opset": (broken(lambda m: m.ClearField("opset_import")), "imports no version"),
    "cycle": (broken(cyclic), "cycle through n_m -> n_y -> n_m"),
    "dangling": (broken(lambda m: m.graph.node[1].input.__setitem__(0, "z")), "node 'n_y' (Relu): reads 'z', which nothing defines"),
    "twice": (broken(twice), "defines 'm', which node 'n_m' defines already"),
    "output": (broken(lambda m: setattr(m.graph.output[0], "name", "z")), "graph output 'z' is defined by no node"),
    "no outputs": (broken(lambda m: m.graph.ClearField("output")), "no outputs"),
    "short": (broken(short_weight), "initializer 'w': holds 44 bytes, its shape [3, 4] needs 48"),
    "negative": (broken(negative_extent), "negative extent"),
    "huge": (broken(huge_extent), "limit is 2**31"),
    "type": (broken(lambda m: setattr(m.graph.initializer[0], "data_type", 77)), "unknown element type 77"),
    "rank": (broken(no_rank), "no shape, not even a rank"),
    "sparse": (broken(sparse), "sparse tensor"),
    "shapes": (model([node("MatMul", ["x", "x"])], [X]), "node 'n_y' (MatMul): cannot multiply [2, 3] by [2, 3]"),
    "attribute": (model([node("Concat", ["x", "x"])], [X]), "Required attribute 'axis' is missing"),
    "unknown op": (model([node("Frobnicate", ["x"])], [X]), "no operator 'Frobnicate' in operator set 'ai.onnx' version 17"),
    "domain": (model([node("Relu", ["x"], domain="com.example")], [X]), "which the model does not import"),
    "reshape": (model([node("Reshape", ["x", "s"])], [X], constants={"s": np.array([4, -1])}), "cannot view [2, 3] as [4, -1]"),
    "expand": (model([node("Expand", ["x", "s"])], [X], constants={"s": np.array([2**33, 2, 3])}), "the limit is 2**31"),
    "fill": (model([node("ConstantOfShape", ["s"])], [X], constants={"s": np.array([2**20, 2**20])}), "the limit is 2**31"),
    "range": (
        model([node("Range", ["a", "b", "c"])], [X], constants={"a": np.float32(0), "b": np.float32(1), "c": np.float32(1e-30)}),
        "the limit is 2**31",
    ),
    "index": (model([node("Gather", ["x", "i"])], [X], constants={"i": np.array([5])}), "index 5 to 5 is outside of 2 elements"),
    "value": (model([node("Identity", ["x"])], [info("x", [2**20, 2**20])]), "takes 4.1e+03 GiB, the limit is 16 GiB"),
    "equation": (model([node("Einsum", ["x"], equation="..ii")], [X]), "node 'n_y' (Einsum): malformed equation '..ii'"),
    "random": (model([node("Scan", ["x"], body=helper.make_graph([], "b", [], []))], [X]), "n_y"),
}


@pytest.mark.parametrize("name", MODELS)
def test_bad_models_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    proto, text = MODELS[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(FusionSearchError) as caught:
        load_onnx(path)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


FILES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "no such file"),
    "empty": (b"", "is empty"),
    "text": (b"not a model at all", "is no ONNX model"),
    "zeros": (bytes(100), "is no ONNX model"),
    "truncated": (good().SerializeToString()[:-40], "is no ONNX model"),
    "no graph": (onnx.ModelProto(ir_version=8).SerializeToString(), "holds no graph"),
}


@pytest.mark.parametrize("name", FILES)
def test_bad_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, text = FILES[name]
    path = tmp_path / "model.onnx"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load_onnx(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        load_onnx(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_raise_nothing_else(tmp_path: Path) -> None:
    data = good().SerializeToString()
    path = tmp_path / "model.onnx"
    refused = accepted = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        bad = bytearray(data)
        for _ in range(int(rng.integers(1, 4))):
            bad[int(rng.integers(len(bad)))] = int(rng.integers(256))
        path.write_bytes(bytes(bad))
        try:
            graph = load_onnx(path)
        except FusionSearchError as error:
            refused += str(error).count("\n") == 0
        else:
            accepted += bool(graph.outputs)
    assert refused + accepted == 150
    assert min(refused, accepted) > 10


def test_nodes_in_any_order_are_sorted() -> None:
    proto = good()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    graph, straight = load_onnx(proto), load_onnx(good())
    assert graph.nodes == straight.nodes


def test_functions_are_inlined_and_recursion_is_refused() -> None:
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    twice_ = helper.make_function("local", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opset)
    call = helper.make_node("Twice", ["x"], ["y"], domain="local", name="call")
    graph = helper.make_graph([call], "g", [X], [info("y", [2, 3])])
    proto = helper.make_model(graph, functions=[twice_], opset_imports=opset, ir_version=9)
    x = random((2, 3))
    np.testing.assert_array_equal(evaluate(load_onnx(proto), {"x": x})["y"], x + x)
    again = helper.make_function("local", "Twice", ["a"], ["b"], [helper.make_node("Twice", ["a"], ["b"], domain="local")], opset)
    with pytest.raises(ModelError, match="calls itself"):
        load_onnx(helper.make_model(graph, functions=[again], opset_imports=opset, ir_version=9))


def external(folder: Path, **entries: str) -> Path:
    proto = good()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"head" + random((3, 4)).tobytes())
    graph = load_onnx(external(tmp_path, location="weights.bin", offset="4", length="48"))
    np.testing.assert_array_equal(graph.constants["w"], random((3, 4)))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({"location": "../weights.bin"}, "is refused"),
        ({"location": "/etc/passwd"}, "is refused"),
        ({"location": ""}, "is refused"),
        ({"location": "link.bin"}, "leads out of the model's folder"),
        ({"location": "none.bin"}, "cannot read external data"),
        ({"location": "sub"}, "no regular file"),
        ({"location": "short.bin"}, "needs 48 bytes at 0, the model says 8, the file has 8"),
        ({"location": "short.bin", "length": "48"}, "the file has 8"),
        ({"location": "short.bin", "offset": "-1"}, "needs 48 bytes"),
        ({"location": "short.bin", "offset": "many"}, "must be integers"),
    ],
)
def test_external_data_elsewhere_is_refused(entries: dict[str, str], text: str, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "weights.bin").write_bytes(random((3, 4)).tobytes())
    (folder / "short.bin").write_bytes(bytes(8))
    os.symlink(tmp_path / "weights.bin", folder / "link.bin")
    with pytest.raises(ModelError) as caught:
        load_onnx(external(folder, **entries))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sparse_initializers_become_dense() -> None:
    proto = good()
    del proto.graph.initializer[:]
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([[0, 1], [2, 3]]), "i")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 3] = 2, 3
    np.testing.assert_array_equal(load_onnx(proto).constants["w"], dense)


def test_what_the_reference_evaluator_lacks_is_unsupported() -> None:
    proto = model([node("Gradient", ["x"], domain="ai.onnx.preview.training", xs=["x"], y="x")], [X])
    proto.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    with pytest.raises(UnsupportedError, match="no reference implementation"):
        load_onnx(proto)
