"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusion_search import api, cli
from fusion_search.errors import ModelError, UsageError
from fusion_search.frontends.light import light_names, seeded_light

ROOT = Path(__file__).resolve().parents[1]
ESCAPE = "\x1b[31m"
MANY = tuple(f"n{k}" for k in range(9))


# ---------------------------------------------------------------- against a stand-in for the public interface


@dataclass
class FakePlan:
    """Two groups with names that a careless printer would trip over."""

    method: str = "exact"
    cost_s: float = 3e-6
    lower_bound_s: float = 3e-6
    gap: float = 0.0
    status: str = "optimal"
    bytes_moved: int = 4096
    launches: int = 2
    terms: dict[str, float] = field(default_factory=lambda: {"traffic": 2e-6, "launch": 1e-6})
    space: dict[str, Any] = field(default_factory=lambda: {"name": "small/1", "refused": {"emit": 3}})

    @property
    def graph(self) -> SimpleNamespace:
        return SimpleNamespace(nodes=[SimpleNamespace(name=name, origin_op="Add", op="add") for name in MANY])

    @property
    def cost_as(self) -> int:
        return 3_000_000_000_000

    @property
    def groups(self) -> list[SimpleNamespace]:
        terms = {"traffic": 1e-6, "launch": 5e-7}
        cost = {"cost_s": 1.5e-6, "cost_as": 1_500_000_000_000}
        return [SimpleNamespace(nodes=nodes, origin=nodes, terms=terms, **cost) for nodes in (MANY, ("[red]x", f"{ESCAPE}y"))]

    def records(self) -> list[dict[str, Any]]:
        return [{"kernel": k, "cost_s": np.float64(1.5e-6)} for k in range(2)]

    def save(self, path: str) -> None:
        Path(path).write_text("{}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the public interface; tests change the answers through what this returns."""
    answers = SimpleNamespace(violations=[], ok=True, raises=None, dims=None)

    def load(path: str, *, dims: dict[str, int], values: object = None) -> SimpleNamespace:
        answers.dims = dims
        if answers.raises is not None:
            raise answers.raises
        return SimpleNamespace(source=None)

    def measure(plan: FakePlan, feeds: object = None) -> SimpleNamespace:
        return SimpleNamespace(median_s=1e-3 if plan.method == "exact" else 3e-3, groups=(1e-4, 2e-4), peak_bytes=1000)

    public = {
        "load": load,
        "load_profile": lambda name: name,
        "methods": lambda: ["exact", "unfused"],
        "search": lambda graph, profile, *, method, **_: FakePlan(method),
        "check": lambda graph, plan: answers.violations,
        "compile": lambda plan: None,
        "verify": lambda plan, feeds: SimpleNamespace(ok=answers.ok, max_abs=1e-7, max_rel=1e-6, reference="arithmetic"),
        "measure": measure,
        "Plan": SimpleNamespace(load=lambda path, graph: FakePlan()),
    }
    for name, value in public.items():
        monkeypatch.setattr(api, name, value)
    return answers


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "a model.onnx"
    path.write_bytes(b"")
    return str(path)


def test_plan_prints_the_certificate_and_every_group(fake: SimpleNamespace, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", file, "--dim", "batch=8", "--dim", "a=b=2"]) == 0
    out, err = capsys.readouterr()
    assert fake.dims == {"batch": 8, "a=b": 2}
    assert "certificate   optimal: J 3 us, lower bound 3 us, gap 0.00%, small/1 space; check finds nothing\n" in out
    assert "a model, batch=8, a=b=2 on local, exact" in out
    assert "refused       emit 3" in out
    assert re.search(r"^ +0 +Add +n0, n1, n2, n3 and 5 more +9 +1.5 us +50.0% +1 us +500 ns *$", out, re.MULTILINE)
    assert re.search(r"^ +all +2 launches +4.1 kB moved +11 +3 us +100% +2 us +1 us *$", out, re.MULTILINE)
    assert re.search(r"^ unfused +3 us +1.00 +2 +4.1 kB *$", out, re.MULTILINE)
    assert "[red]x" in out
    assert "\x1b" not in out
    assert "search exact" in err


def test_top_shows_the_groups_that_cost_most(fake: SimpleNamespace, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", file, "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "n0, n1" in out
    assert "[red]x" not in out
    assert "not shown     and 1 groups that cost less" in out


@pytest.mark.parametrize("command", ["plan", "run"])
def test_json_is_one_object_on_stdout(fake: SimpleNamespace, file: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, file, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "optimal"
    assert facts["groups"][1] == {"kernel": 1, "cost_s": 1.5e-6}
    assert facts["baselines"]["unfused"] == {"cost_s": 3e-6, "bytes_moved": 4096, "launches": 2}
    if command == "run":
        assert facts["verify"]["ok"]
        assert facts["measure"]["speedup"] == pytest.approx(3.0)
        assert facts["measure"]["fused_groups_s"] == [1e-4, 2e-4]


def test_run_measures_in_pairs(fake: SimpleNamespace, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", file, "--pairs", "3"]) == 0
    out = capsys.readouterr().out
    assert "verified      agrees with arithmetic, at most 1e-07 absolute" in out
    assert "fused         1 ms measured in 2 launches, 1 kB at peak" in out
    assert "speed-up      3.00 times, from 3.00 to 3.00 over 3 pairs" in out


def test_wrong_numbers_are_a_failure(fake: SimpleNamespace, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake.ok = False
    assert cli.main(["run", file, "--json"]) == cli.FAILURE
    out, err = capsys.readouterr()
    assert json.loads(out)["verify"]["ok"] is False
    assert err.splitlines()[-1].startswith("error: results differ from the reference")


@pytest.mark.parametrize("command", ["plan", "run", "check"])
def test_an_unsound_plan_ends_with_3(fake: SimpleNamespace, file: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    fake.violations = ["node 'x' is computed by no group"]
    arguments = [command, file, file] if command == "check" else [command, file]
    assert cli.main(arguments) == cli.UNSOUND
    assert "node 'x' is computed by no group" in capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == cli.UNSOUND
    assert json.loads(capsys.readouterr().out)["violations"] == fake.violations


def test_a_plan_is_saved_where_asked(fake: SimpleNamespace, file: str, tmp_path: Path) -> None:
    assert cli.main(["plan", file, "--save", str(tmp_path / "plan.json")]) == 0
    assert (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ModelError("not an ONNX file", where="x.onnx", hint="export it again"), 1, "error: x.onnx: not an ONNX file (export it again)"),
        (UsageError("unknown weight 'a'"), 2, "error: unknown weight 'a'"),
        (PermissionError(13, "Permission denied", "plan.json"), 1, "error: plan.json: Permission denied"),
        (KeyError("two\nlines"), 1, r"error: KeyError: 'two\nlines' (not expected; --debug shows where)"),
        (KeyboardInterrupt(), 1, "error: interrupted"),
    ],
)
def test_every_error_is_one_line(
    fake: SimpleNamespace, file: str, error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.raises = error
    assert cli.main(["plan", file]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip().startswith(line)
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["--debug", "plan"], ["plan", "--debug"]])
def test_debug_shows_the_traceback(fake: SimpleNamespace, file: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fake.raises = KeyError("x")
    assert cli.main([*words, file]) == cli.FAILURE
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["plan"],
        ["plan", "no-such-file.onnx"],
        ["plan", "{file}", "--dim", "batch"],
        ["plan", "{file}", "--dim", "=3"],
        ["plan", "{file}", "--dim", "batch=0"],
        ["plan", "{file}", "--dim", "batch=-1"],
        ["plan", "{file}", "--dim", "batch=1e3"],
        ["plan", "{file}", "--dim", "batch=1", "--dim", "batch=2"],
        ["plan", "{file}", "--value", "axes"],
        ["plan", "{file}", "--value", "axes=a"],
        ["plan", "{file}", "--value", "axes=1", "--value", "axes=1"],
        ["plan", "{file}", "--method", "magic"],
        ["plan", "{file}", "--time-limit", "0"],
        ["plan", "{file}", "--top", "-1"],
        ["plan", "{file}", "--save", "{file}/plan.json"],
        ["run", "{file}", "--feeds", "no-such-file.npz"],
        ["run", "{file}", "--pairs", "0"],
        ["demo", "--model", "no-such-network"],
        ["no-such-command"],
        ["--no-such-option"],
    ],
)
def test_wrong_usage_is_one_line_and_ends_with_2(
    fake: SimpleNamespace, file: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word.format(file=file) for word in words]) == cli.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"error: .+ \(try 'fusion-search.* --help'\)\n", err)


# ---------------------------------------------------------------- the whole line


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


# ---------------------------------------------------------------- the demo's models, and what the README says


def test_light_networks_are_seeded() -> None:
    first, same, other = seeded_light("squeezenet"), seeded_light("squeezenet"), seeded_light("squeezenet", seed=1)
    assert first.SerializeToString(deterministic=True) == same.SerializeToString(deterministic=True)
    assert first.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True)
    onnx.checker.check_model(first, full_check=True)
    with pytest.raises(ValueError, match="there are: bvlc_alexnet"):
        seeded_light("no-such-network")


@pytest.mark.parametrize("name", ["densenet121", "shufflenet", "squeezenet"])
def test_light_networks_have_one_input_and_telling_outputs(name: str) -> None:
    import onnxruntime

    assert name in light_names()
    session = onnxruntime.InferenceSession(seeded_light(name).SerializeToString(), providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    (scores,) = session.run(None, {source.name: np.random.default_rng(0).standard_normal(source.shape).astype(np.float32)})
    assert np.isfinite(scores).all()
    assert np.unique(scores).size > 500


def readme_blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_readme_names_only_commands_that_exist() -> None:
    blocks = readme_blocks()
    assert [len(block.strip().splitlines()) for block in blocks[:2]] == [1, 1]
    used = set(re.findall(r"(?:^|[\s/])fusion-search ([a-z]+)", "\n".join(blocks), re.MULTILINE))
    assert used
    assert used <= set(cli.cli.list_commands(click.Context(cli.cli)))


def test_ci_runs_the_second_command_of_the_readme() -> None:
    done = subprocess.run([str(ROOT / ".ci" / "run"), "--print-test-command"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == readme_blocks()[1].strip()
