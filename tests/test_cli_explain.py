"""`explain`, and what `plan` demands and asserts: exit statuses and where the text goes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from fusion_search import cli
from tests.frontends.modeling import info, model, node

ON_H100 = ("--profile", "nvidia-h100-sxm")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"]), node("Softmax", ["r"], ["s"], axis=1)]
    nodes += [node("Reshape", ["s", "shape"], ["f"]), node("MatMul", ["f", "v"], ["y"])]
    constants = {"w": np.ones((12, 20), np.float32), "v": np.ones((80, 8), np.float32), "shape": np.array([1, 80])}
    where = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(model(nodes, [info("x", ["batch", 12])], constants=constants), where)
    return str(where)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main([*words, "--dim", "batch=4"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_explain_two_nodes(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "explain", path, "n_m", "n_r", *ON_H100)
    assert status == 0
    assert out.startswith("n_m and n_r share one kernel (group 0).\nKept apart, J is ")
    assert "batch" in out
    assert "explain" in err


def test_explain_as_json(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", path, "n_m", "n_y", "--json", *ON_H100)
    facts = json.loads(out)
    assert status == 0
    assert facts["fused"] is False
    assert [reason["rule"] for reason in facts["reasons"]] == ["shared-outer-loop"]
    assert facts["forced_cost_s"] is None
    status, out, _ = run(capsys, "explain", path, "--json", *ON_H100)
    facts = json.loads(out)
    assert {"fusions", "dearest", "edges"} <= facts.keys()


def test_explain_wants_two_nodes_or_none(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "explain", path, "n_m")[0] == 2
    status, _, err = run(capsys, "explain", path, "n_m", "n_q", *ON_H100)
    assert status == 2
    assert "no node 'n_q'" in err


def test_assert_fused_decides_the_exit_status(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "plan", path, "--assert-fused", "n_m,n_r", *ON_H100)[0] == 0
    status, out, err = run(capsys, "plan", path, "--assert-fused", "n_m,n_r", "--assert-fused", "n_m,n_y", *ON_H100)
    assert status == 1
    assert "certificate" in out
    assert "n_m and n_y are in different kernels (One kernel for both is illegal: shared-outer-loop" in err


def test_demands(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.json"
    status, _, err = run(capsys, "plan", path, "--never-fuse", "n_m,n_r", "--must-fuse", "n_r,n_s", "--save", str(saved), *ON_H100)
    assert status == 0, err
    plan = json.loads(saved.read_text())
    assert [set(group["origin"]) & {"n_m", "n_r", "n_s"} for group in plan["groups"]] == [{"n_m"}, {"n_r", "n_s"}]
    assert [c["kind"] for c in plan["space"]["constraints"]] == ["must_fuse", "never_fuse"]
    assert run(capsys, "check", path, str(saved))[0] == 0
    status, _, err = run(capsys, "plan", path, "--must-fuse", "n_m,n_y", *ON_H100)
    assert status == 2
    assert "must_fuse('n_m', 'n_y'): exact finds no plan that does it (shared-outer-loop" in err
    status, _, err = run(capsys, "plan", path, "--must-fuse", "n_m", *ON_H100)
    assert status == 2
    assert "expected names of nodes with commas between" in err
    status, out, _ = run(capsys, "plan", path, "--keep", "m", "--fusion-off", "Softmax", "--json", *ON_H100)
    assert status == 0
    assert {tuple(group["origin"].split()) for group in json.loads(out)["groups"]} == {("n_m",), ("n_r",), ("n_s",), ("n_y",)}
