"""The table of policies: right numbers, right form."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import fusion_search as fs
from experiments import policies
from experiments.curves import projection_chain


def test_rows_compare_every_method_with_the_optimum(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(projection_chain(2), path)
    graph, profile = policies.read(str(path)), fs.load_profile("nvidia-a100-sxm")
    row = policies.ratios(graph, profile, name="chain")
    assert list(row) == ["model", "profile", "status", *fs.methods()[1:]]
    assert (row["model"], row["profile"], row["status"]) == ("chain", "nvidia-a100-sxm", "optimal")
    assert min(float(row[method]) for method in fs.methods()[1:]) >= 1.0
    assert row["unfused"] == fs.search(graph, profile, method="unfused").cost_s / fs.search(graph, profile).cost_s


def test_markdown() -> None:
    rows: list[policies.Row] = [
        {"model": "a", "profile": "p", "status": "optimal", "unfused": 2.04, "tvm": 1.0},
        {"model": "a", "profile": "q", "status": "feasible", "unfused": 1.02, "tvm": 1.0951},
    ]
    assert policies.markdown(rows).splitlines() == [
        "| network | profile | unfused | tvm |",
        "|---|---|---|---|",
        "| a | `p` | 2.0 | 1 |",
        "|  | `q` | ~1.02 | ~1.1 |",
    ]


def test_summary_and_data(tmp_path: Path) -> None:
    rows: list[policies.Row] = [
        {"model": "a", "profile": "p", "status": "optimal", "unfused": 4.0, "tvm": 1.0},
        {"model": "b", "profile": "p", "status": "optimal", "unfused": 1.0, "tvm": 1.0},
        {"model": "a", "profile": "q", "status": "feasible", "unfused": 1.02, "tvm": 1.0951},
    ]
    assert policies.summary(rows).splitlines() == [
        "| profile | unfused | tvm |",
        "|---|---|---|",
        "| `p` | 2.0 (4.0) | 1 (1) |",
        "| `q` ~ | 1.02 (1.02) | 1.1 (1.1) |",
    ]
    policies.write_data(rows, tmp_path / "rows.csv")
    assert policies.read_data(tmp_path / "rows.csv") == rows


def test_the_command_line_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(projection_chain(1), path)
    policies.main([str(path), "--profile", "local", "--profile", "rockchip-rk3588-npu"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| chain | `local` | ")
    assert lines[3].startswith("|  | `rockchip-rk3588-npu` | ")


def test_the_readme_shows_the_data() -> None:
    root = Path(__file__).parents[2]
    rows = policies.read_data(root / "experiments" / "policies.csv")
    assert policies.summary(rows) in (root / "README.md").read_text()
    assert {str(row["profile"]) for row in rows} == set(fs.list_profiles())
