"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import fusion_search
from fusion_search import cli
from fusion_search.errors import ModelError, UsageError
from fusion_search.frontends.light import light_names, seeded_light

ROOT = Path(__file__).resolve().parents[1]
ESCAPE = "\x1b[31m"


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
    space: dict[str, Any] = field(default_factory=lambda: {"version": 1})

    @property
    def groups(self) -> list[SimpleNamespace]:
        terms = {"traffic": 1e-6, "launch": 5e-7}
        many = tuple(f"n{k}" for k in range(9))
        return [SimpleNamespace(nodes=nodes, origin=nodes, terms=terms, cost_s=1.5e-6) for nodes in (many, ("[red]x", f"{ESCAPE}y"))]

    def records(self) -> list[dict[str, Any]]:
        return [{"kernel": k, "cost_s": np.float64(1.5e-6)} for k in range(2)]

    def save(self, path: str) -> None:
        Path(path).write_text("{}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the public interface; tests change the answers through what this returns."""
    answers = SimpleNamespace(violations=[], ok=True, raises=None, dims=None)

    def load(path: str, *, dims: dict[str, int]) -> str:
        answers.dims = dims
        if answers.raises is not None:
            raise answers.raises
        return "graph"

    def measure(plan: FakePlan) -> SimpleNamespace:
        return SimpleNamespace(median_s=1e-3 if plan.method == "exact" else 3e-3, groups=(), peak_bytes=1000)

    public = {
        "load": load,
        "load_profile": lambda name: name,
        "methods": lambda: ["exact", "unfused"],
        "search": lambda graph, profile, *, method, **_: FakePlan(method),
        "check": lambda graph, plan: answers.violations,
        "compile": lambda plan: None,
        "verify": lambda plan: SimpleNamespace(ok=answers.ok, max_abs=1e-7, max_rel=1e-6),
        "measure": measure,
        "Plan": SimpleNamespace(load=lambda path, graph: FakePlan()),
    }
    for name, value in public.items():
        monkeypatch.setattr(fusion_search, name, value, raising=False)
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
    for line in ("status        optimal", "J             3 us", "lower bound   3 us", "gap           0.00%", "4,096 bytes in 2 launches"):
        assert line in out
    assert "n0, n1, n2, n3 and 5 more" in out
    assert "[red]x" in out
    assert "\x1b" not in out
    assert "search exact" in err


@pytest.mark.parametrize("command", ["plan", "run"])
def test_json_is_one_object_on_stdout(fake: SimpleNamespace, file: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, file, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == "optimal"
    assert facts["groups"][1] == {"kernel": 1, "cost_s": 1.5e-6}
    if command == "run":
        assert facts["verify"]["ok"]
        assert facts["measure"]["speedup"] == pytest.approx(3.0)


def test_run_measures_in_pairs(fake: SimpleNamespace, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", file, "--pairs", "3"]) == 0
    assert "3.00 times (from 3.00 to 3.00 over 3 pairs)" in capsys.readouterr().out


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
        ["plan", "{file}", "--method", "magic"],
        ["plan", "{file}", "--time-limit", "0"],
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


def test_bad_input_is_one_line_on_stderr(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn, text, profile, plan = (tmp_path / name for name in ("torn.onnx", "text.onnx", "bad.toml", "plan.json"))
    torn.write_bytes(model.read_bytes()[:-40])
    text.write_text("no model\n")
    profile.write_text("name = 'bad'\n")
    plan.write_text("{")
    bound = ["--dim", "batch=4"]
    before = sorted(tmp_path.iterdir())
    for words in (
        ["plan", str(torn)],
        ["plan", str(text)],
        ["plan", str(model), "--dim", "rows=4"],
        ["plan", str(model), *bound, "--profile", "no-such-profile"],
        ["plan", str(model), *bound, "--profile", str(profile)],
        ["check", str(model), str(plan), *bound],
        ["plan", str(model), *bound, "--save", str(tmp_path / "no-such-folder" / "plan.json")],
    ):
        assert cli.main(words) in (cli.FAILURE, cli.USAGE), words
        out, err = capsys.readouterr()
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (out, len(errors)) == ("", 1), words
        assert "not expected" not in errors[0], words
    assert sorted(tmp_path.iterdir()) == before


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
    assert used <= set(cli.cli.commands)


def test_ci_runs_the_second_command_of_the_readme() -> None:
    done = subprocess.run([str(ROOT / ".ci" / "run"), "--print-test-command"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == readme_blocks()[1].strip()
