"""The command line: what it prints where, and how it ends, against a stand-in for the public interface."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusion_search import api, cli
from fusion_search.errors import ModelError, UsageError

ESCAPE = "\x1b[31m"
MANY = tuple(f"n{k}" for k in range(9))


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
        return [SimpleNamespace(nodes=nodes, origin=nodes, terms=terms, alias=False, **cost) for nodes in (MANY, ("[red]x", f"{ESCAPE}y"))]

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
        "compile": lambda plan, **_: None,
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
