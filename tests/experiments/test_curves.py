"""The notebook runs, its curves have the properties that theory gives them, and its files are complete."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import fusion_search as fs
from experiments.curves import METHODS, cost_over_bandwidth, cost_over_length, projection_chain, read, series, staircase, write_csv

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "experiments").glob("*.ipynb"))

# A process of its own, because clients of kernels leave sockets to the garbage collector. Without folders of kernels the one
# that is left is that of the running interpreter.
EXECUTE = """
import sys, nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
kernels = AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
NotebookClient(nbformat.read(sys.argv[1], 4), km=kernels, timeout=60, resources={"metadata": {"path": sys.argv[2]}}).execute()
"""


@pytest.fixture(scope="module")
def profile() -> fs.Profile:
    return fs.load_profile("local")


def test_models_are_seeded() -> None:
    first, same, other = projection_chain(2), projection_chain(2), projection_chain(2, seed=1)
    assert first.SerializeToString(deterministic=True) == same.SerializeToString(deterministic=True)
    assert first.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True)


def test_a_longer_chain_costs_more_and_exact_costs_least(profile: fs.Profile) -> None:
    lines = series(cost_over_length((1, 2, 3), profile), "length")
    assert tuple(lines) == METHODS
    for x, y in lines.values():
        assert x == [1, 2, 3]
        assert y == sorted(set(y))
        assert all(best <= cost for best, cost in zip(lines["exact"][1], y, strict=True))
    assert lines["per-operator"][1] < lines["unfused"][1]


def test_more_bandwidth_never_costs_more(profile: fs.Profile) -> None:
    rows = cost_over_bandwidth(read(projection_chain(2)), profile, [1e9, 1e10, 1e12])
    for _, y in series(rows, "dram_bandwidth_bytes_per_s").values():
        assert y == sorted(y, reverse=True)
    assert {row["status"] for row in rows if row["method"] == "exact"} == {"optimal"}


def test_the_staircase_goes_down_to_the_optimum(profile: fs.Profile) -> None:
    graph = read(projection_chain(3))
    steps = staircase(graph, profile)
    costs = [float(step["cost_s"]) for step in steps]
    savings = [before - after for before, after in itertools.pairwise(costs)]
    assert steps[0]["percent"] == 100.0
    assert costs[0] == fs.search(graph, profile, method="unfused").cost_s
    assert costs[-1] == fs.search(graph, profile).cost_s
    assert savings == pytest.approx(sorted(savings, reverse=True))
    assert min(savings) >= 0.0


def test_rows_are_written_whole(tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    assert (tmp_path / "rows.csv").read_text().split() == ["a,b", "1,x", "2,y"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "experiments" / "fusion_curves.ipynb", as_version=4)
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
    parameters.source += f"\nout = {str(tmp_path / 'out')!r}\nlengths = (1, 2, 4)"
    nbformat.write(notebook, tmp_path / "given.ipynb")
    command = [sys.executable, "-c", EXECUTE, str(tmp_path / "given.ipynb"), str(ROOT / "experiments")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

    written = {file.name: file for file in (tmp_path / "out").iterdir()}
    assert set(written) == {"cost_over_length.csv", "cost_over_bandwidth.csv", "staircase.csv", "found.json", "fusion_curves.png"}
    assert written["fusion_curves.png"].read_bytes().startswith(b"\x89PNG")
    with written["staircase.csv"].open(newline="") as file:
        percent = [float(row["percent"]) for row in csv.DictReader(file)]
    assert percent[0] == 100.0
    assert percent == sorted(percent, reverse=True)
    found = json.loads(written["found.json"].read_text())
    assert min(found["chain_cost_over_exact"].values()) == found["chain_cost_over_exact"]["exact"] == 1.0
    assert found["optimum_percent_of_unfused"] == pytest.approx(percent[-1])
