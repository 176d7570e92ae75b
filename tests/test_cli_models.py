"""The command line on model files: sound ones from end to end, and one line for every one that is not."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusion_search import cli

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A dense layer and a softmax over a symbolic batch."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8,))]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "dense"),
            helper.make_node("Add", ["h", "b"], ["z"], "bias"),
            helper.make_node("Softmax", ["z"], ["y"], "softmax", axis=-1),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(weight, name) for weight, name in zip(weights, "wb", strict=True)],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def program(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusion_search", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)


def test_run_then_check_a_real_model(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    done = program("run", str(model), "--dim", "batch=4", "--pairs", "1", "--save", str(saved), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["status"] == "optimal"
    assert facts["cost_s"] == facts["lower_bound_s"]
    assert facts["verify"]["ok"]
    assert program("check", str(model), str(saved), "--dim", "batch=4").returncode == 0


def test_profiles_lists_every_profile_and_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profiles", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["profiles"]]
    assert {"local", "nvidia-h100-sxm", "amd-epyc-9654", "raspberry-pi-5"} <= set(names)
    for name in names:
        assert cli.main(["profiles", name, "--json"]) == 0
        assert all(figure["source"] for figure in json.loads(capsys.readouterr().out)["figures"])
    assert cli.main(["profiles"]) == 0
    assert "nvidia-h100-sxm" in capsys.readouterr().out


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command that has to fail; return its status and the one line that says why."""
    status = cli.main(words)
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (out, len(errors)) == ("", 1), words
    assert err.splitlines()[-1] == errors[0]
    assert "Traceback" not in err
    assert "not expected" not in errors[0]
    return status, errors[0]


def save_nodes(path: Path, *nodes: tuple[str, list[str], str]) -> str:
    """Write a model whether it is well formed or not."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in "xy"]
    made = [helper.make_node(op, inputs, [output], f"{op.lower()}_{output}") for op, inputs, output in nodes]
    graph = helper.make_graph(made, path.stem, ends[:1], ends[1:])
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return str(path)


@pytest.mark.parametrize(
    ("kept", "line"),
    [(0, "is empty"), (1, "is no ONNX model"), (40, "is no ONNX model"), (-40, "is no ONNX model"), (-3, "is no ONNX model")],
)
def test_a_truncated_model(model: Path, kept: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    model.write_bytes(model.read_bytes()[:kept])
    status, said = refused(["plan", str(model), "--dim", "batch=4"], capsys)
    assert (status, said.startswith(f"error: {model}: {line}")) == (cli.FAILURE, True)


@pytest.mark.parametrize("data", [b"no model\n", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(range(256))])
def test_a_file_that_is_no_model(tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(data)
    status, said = refused(["run", str(path)], capsys)
    assert (status, said.startswith(f"error: {path}: is no ONNX model")) == (cli.FAILURE, True)


@pytest.mark.parametrize(
    ("nodes", "parts"),
    [
        ([("Add", ["x", "b"], "a"), ("Relu", ["a"], "b"), ("Exp", ["b"], "y")], ["cycle", "add_a", "relu_b"]),
        ([("Add", ["x", "nothing"], "y")], ["add_y", "'nothing'"]),
        ([("Relu", ["x"], "z")], ["output 'y'"]),
        ([("NoSuchOperator", ["x"], "y")], ["'NoSuchOperator'"]),
    ],
)
def test_a_model_that_is_not_well_formed(
    tmp_path: Path, nodes: list[tuple[str, list[str], str]], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = refused(["plan", save_nodes(tmp_path / "bad.onnx", *nodes), "--dim", "batch=4"], capsys)
    assert status == cli.FAILURE
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "error: dims: dimension 'batch' of input 'x' ['batch', 16] is not bound (pass --dim batch=1)"),
        (["--dim", "rows=4", "--dim", "batch=4"], "error: dims: the model has no symbolic dimension 'rows' (it has 'batch')"),
    ],
)
def test_dimensions_that_do_not_fit(model: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = refused(["plan", str(model), *words], capsys)
    assert (status, said.startswith(line)) == (cli.USAGE, True), said


def test_inputs_that_decide_shapes_are_bound_by_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sum.onnx"
    inputs = [helper.make_tensor_value_info(*each) for each in (("x", TensorProto.FLOAT, [4, 8]), ("axes", TensorProto.INT64, [1]))]
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], name="sum", keepdims=0)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    assert cli.main(["plan", str(path)]) == 0
    assert "input 'axes' decides shapes or places; what reads it is not planned unless --value axes=... binds it" in capsys.readouterr().err
    saved = str(tmp_path / "plan.json")
    assert cli.main(["plan", str(path), "--value", "axes=1", "--save", saved]) == 0
    assert "--value" not in capsys.readouterr().err
    assert cli.main(["check", str(path), saved, "--value", "axes=1"]) == 0
    capsys.readouterr()
    status, said = refused(["plan", str(path), "--value", "axes=1,2"], capsys)
    assert (status, said.startswith("error: values: elements of input 'axes' must be int64[1]")) == (cli.USAGE, True), said


PROFILE = (ROOT / "hardware_profiles" / "data" / "local.toml").read_text()
BANDWIDTH = r"(?<=\[dram_bandwidth_bytes_per_s\]\nvalue = )\S+"


@pytest.mark.parametrize("command", ["plan", "profiles"])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (re.sub(BANDWIDTH, "-1", PROFILE), "dram_bandwidth_bytes_per_s: expected a number > 0, got -1"),
        (re.sub(BANDWIDTH, "nan", PROFILE), "dram_bandwidth_bytes_per_s: expected a number > 0, got nan"),
        (re.sub(BANDWIDTH, "'fast'", PROFILE), "dram_bandwidth_bytes_per_s: expected a number > 0, got 'fast'"),
        (re.sub(r"\[line_bytes\]\n(.+\n)+", "", PROFILE), "line_bytes: missing"),
        (f"colour = 'red'\n{PROFILE}", "colour: unknown key (known keys: "),
        ("name = ", "not TOML"),
    ],
)
def test_a_wrong_profile(model: Path, tmp_path: Path, command: str, text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    words = ["plan", str(model), "--dim", "batch=4", "--profile", str(path)] if command == "plan" else ["profiles", str(path)]
    status, said = refused(words, capsys)
    assert (status, said.startswith(f"error: {path}: {line}")) == (cli.FAILURE, True), said


def test_an_unknown_profile(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["plan", str(model), "--dim", "batch=4", "--profile", "abacus"], ["profiles", "abacus"]):
        status, said = refused(words, capsys)
        assert status == cli.FAILURE
        assert said.startswith("error: unknown hardware profile 'abacus' (known profiles: amd-epyc-9654, ")


@pytest.mark.parametrize(
    ("feeds", "line"),
    [
        ({"z": np.zeros((4, 16), np.float32)}, "feeds: missing x (the inputs are x)"),
        ({"x": np.zeros((4, 16), np.float32), "z": np.zeros(1)}, "feeds: unknown name z (the inputs are x)"),
        ({"x": np.zeros((4, 16))}, "input 'x': has dtype float64, expected float32"),
        ({"x": np.zeros((4, 15), np.float32)}, "input 'x': has shape [4, 15], expected [batch, 16]"),
        ({"x": np.zeros(4, np.float32)}, "input 'x': has shape [4], expected [batch, 16]"),
    ],
)
def test_feeds_that_do_not_fit(
    model: Path, tmp_path: Path, feeds: dict[str, np.ndarray[Any, Any]], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "feeds.npz"
    np.savez(path, allow_pickle=False, **feeds)
    status, said = refused(["run", str(model), "--dim", "batch=4", "--feeds", str(path)], capsys)
    assert (status, said.startswith(f"error: {line}")) == (cli.FAILURE, True), said


@pytest.mark.parametrize("data", [b"", b"no arrays", b"PK\x03\x04", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_feeds_that_are_no_arrays(model: Path, tmp_path: Path, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "feeds.npz"
    path.write_bytes(data)
    status, said = refused(["run", str(model), "--dim", "batch=4", "--feeds", str(path)], capsys)
    assert (status, said.startswith(f"error: {path}: ")) == (cli.FAILURE, True), said


def test_run_takes_feeds(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "feeds.npz"
    np.savez(path, allow_pickle=False, x=np.ones((4, 16), np.float32))
    assert cli.main(["run", str(model), "--dim", "batch=4", "--feeds", str(path), "--pairs", "1"]) == 0
    out = capsys.readouterr().out
    for label in ("certificate   optimal", "verified      agrees with", "fused         ", "unfused       ", "speed-up      "):
        assert label in out


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '{"format": "fusion-search-plan/0"}'])
def test_check_refuses_what_is_no_plan(model: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    status, said = refused(["check", str(model), str(plan), "--dim", "batch=4"], capsys)
    assert (status, said.startswith(f"error: {plan}: ")) == (cli.FAILURE, True), said


def test_check_finds_what_was_changed_by_hand(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert cli.main(["plan", str(model), "--dim", "batch=4", "--save", str(path)]) == 0
    facts = json.loads(path.read_text())
    facts["cost_as"] -= 1
    path.write_text(json.dumps(facts))
    capsys.readouterr()
    assert cli.main(["check", str(model), str(path), "--dim", "batch=4", "--json"]) == cli.UNSOUND
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert found["violations"]


def test_a_failure_leaves_no_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("os.replace", full)
    status, said = refused(["plan", str(model), "--dim", "batch=4", "--save", str(tmp_path / "plan.json")], capsys)
    assert (status, "No space left" in said) == (cli.FAILURE, True)
    assert sorted(tmp_path.iterdir()) == before


def test_no_traceback_from_a_process(model: Path, tmp_path: Path) -> None:
    for words, status in ((["plan", str(model)], cli.USAGE), (["plan", str(tmp_path / "none.onnx")], cli.USAGE)):
        done = program(*words)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (status, "", 1)
        assert done.stderr.startswith("error: ")
