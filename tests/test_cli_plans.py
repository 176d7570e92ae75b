"""Plan files and limits on the command line: `replay`, `check` on another model, `--peak-bytes`, `--min-gain`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from fusion_search import cli
from tests.frontends.modeling import info, model, node

ON_H100 = ("--profile", "nvidia-h100-sxm")


@pytest.fixture
def path(tmp_path: Path) -> str:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"]), node("Softmax", ["r"], ["s"], axis=1)]
    nodes.append(node("MatMul", ["s", "v"], ["y"]))
    constants = {"w": np.ones((12, 20), np.float32), "v": np.ones((20, 8), np.float32)}
    where = tmp_path / "small.onnx"
    onnx.save(model(nodes, [info("x", ["batch", 12])], constants=constants), where)
    return str(where)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_replay(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, again = str(tmp_path / "plan.json"), str(tmp_path / "again.json")
    assert run(capsys, "plan", path, "--dim", "batch=4", "--save", saved, *ON_H100)[0] == 0
    status, out, _ = run(capsys, "replay", path, saved, "--dim", "batch=4")
    assert (status, out.count("\n")) == (0, 1)
    status, out, _ = run(capsys, "replay", path, saved, "--dim", "batch=9", "--save", again)
    assert status == 0
    assert "groups kept" in out
    assert "dims: batch was 4, is 9" in out
    assert run(capsys, "check", path, again, "--dim", "batch=9")[0] == 0
    status, out, _ = run(capsys, "replay", path, saved, "--dim", "batch=9", "--json")
    facts = json.loads(out)
    assert facts["groups_kept"] == facts["groups"]
    assert facts["mismatches"][0]["kind"] == "dims"
    assert facts["violations"] == []
    status, _, err = run(capsys, "check", path, saved, "--dim", "batch=9")
    assert status == 1
    assert "it was made for batch=4, the graph has batch=9 (" in err


def test_limits(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "plan", path, "--dim", "batch=4", "--peak-bytes", "100000", "--min-gain", "1e-6", "--json", *ON_H100)
    assert status == 0, err
    facts = json.loads(out)
    assert [c["kind"] for c in facts["space"]["constraints"]] == ["peak_bytes", "min_gain_s"]
    assert facts["violations"] == []
    status, _, err = run(capsys, "plan", path, "--dim", "batch=4", "--peak-bytes", "100", *ON_H100)
    assert status == 2
    assert "peak_bytes(100): no plan keeps within the memory (the plan that needs least needs " in err
    assert run(capsys, "plan", path, "--dim", "batch=4", "--min-gain", "-1")[0] == 2
