"""The commands tune and sweep."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import fusion_search as fs
from fusion_search import cli
from tests.runtime.plans import classifier


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(classifier(), tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


QUICK = ["--trials", "4", "--groups", "1", "--tune-limit", "2"]


def test_tune_prints_what_was_gained_and_keeps_the_plan(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "tuned.json"
    assert cli.main(["tune", model, "--dim", "batch=64", *QUICK, "--save", str(saved), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["dims"] == {"batch": 64}
    assert found["violations"] == []
    assert found["verify"]["ok"]
    assert found["tuning"]["ratio"] <= 1.0
    assert len(found["groups"]) == (1 if found["tuning"]["kept"] else 0)
    for line in ("search exact", "compile", "schedules measured", "tune", "check", "verify"):
        assert line in err
    plan = fs.Plan.load(saved, fs.load(model, dims={"batch": 64}))
    assert plan.statistics["tuning"] == found["tuning"]
    assert fs.check(plan.graph, plan) == []
    assert cli.main(["tune", model, "--dim", "batch=64", *QUICK, "--plan", str(saved)]) == 0
    out, err = capsys.readouterr()
    assert "whole plan: " in out
    assert "search" not in err


def test_tune_refuses_a_plan_for_another_machine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", model, "--dim", "batch=8", "--profile", "nvidia-h100-sxm"]) == 2
    assert "is another machine" in capsys.readouterr().err


def test_tune_refuses_a_plan_that_is_not_sound(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = fs.search(fs.load(model, dims={"batch": 8}), fs.load_profile("local"))
    path = tmp_path / "plan.json"
    plan.save(path)
    path.write_text(path.read_text().replace(f'"cost_as": {plan.cost_as}', f'"cost_as": {plan.cost_as - 1}'))
    assert cli.main(["tune", model, "--dim", "batch=8", "--plan", str(path)]) == 3
    assert "cost" in capsys.readouterr().out


def test_sweep_prints_one_record_a_combination(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", model, "--profiles", "local,nvidia-h100-sxm", "--dims", "batch=1,8", "--methods", "exact", "--methods", "unfused"]
    assert cli.main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["records"]
    want = fs.sweep(model, ["local", "nvidia-h100-sxm"], dims={"batch": [1, 8]}, methods=["exact", "unfused"])
    assert rows == want
    assert cli.main(words) == 0
    table = capsys.readouterr().out
    assert all(word in table for word in ("dim_batch", "nvidia-h100-sxm", "unfused", "moved_bytes"))
    assert "weight_" not in table


def test_sweep_takes_weights_and_processes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", model, "--dims", "batch=2", "--weights", "launch=2", "--weights", "launch=0,spill=4", "--json"]
    assert cli.main([*words, "--jobs", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)["records"]
    assert [(row["weight_launch"], row["weight_spill"]) for row in rows] == [(2.0, 1.0), (0.0, 4.0)]
    assert rows == fs.sweep(model, ["local"], dims={"batch": 2}, weights=[{"launch": 2.0}, {"launch": 0.0, "spill": 4.0}])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--dims", "batch"], "expected NAME=EXTENT,EXTENT with whole numbers from 1, such as batch=1,8; got 'batch'"),
        (["--dims", "batch=1,"], "got 'batch=1,'"),
        (["--dims", "batch=0"], "got 'batch=0'"),
        (["--dims", "batch=1", "--dims", "batch=2"], "'batch' is given twice"),
        (["--dims", "batch=1", "--weights", "launch"], "expected TERM=WEIGHT,TERM=WEIGHT, such as launch=2,spill=0; got 'launch'"),
        (["--dims", "batch=1", "--weights", "launch=x"], "got 'launch=x'"),
        (["--dims", "batch=1", "--weights", "lunch=1"], "unknown term 'lunch'"),
        (["--dims", "batch=1", "--methods", "best"], "unknown method 'best'"),
        (["--dims", "batch=1", "--profiles", ","], "profiles: expected a list of names"),
        ([], "--dim batch=1"),
    ],
)
def test_sweep_refuses_in_one_line(model: str, words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", model, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert err.rstrip("\n").splitlines()[-1].startswith("error: ")
