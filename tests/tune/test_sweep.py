"""Sweeps: every combination, in one order, the same on every executor."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import onnx
import pytest

import fusion_search as fs
from fusion_search.errors import ModelError, ProfileError, UsageError
from fusion_search.tune import sweep as sweeping
from tests.runtime.plans import classifier
from tests.runtime.test_memory import attention

PROFILES = ["nvidia-h100-sxm", "local"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(classifier(), tmp_path / "classifier.onnx")
    return tmp_path / "classifier.onnx"


def sweep(model: Any, executor: Executor | None = None) -> list[dict[str, Any]]:
    weights = [{}, {"launch": 3.0}]
    return fs.sweep(model, PROFILES, dims={"batch": [8, 2]}, methods=["unfused", "exact"], weights=weights, executor=executor)


def test_every_combination_in_the_order_given(path: Path) -> None:
    rows = sweep(path)
    keys = ("dim_batch", "profile", "method", "weight_launch")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        (batch, profile, method, weight)
        for batch in (8, 2)
        for profile in PROFILES
        for method in ("unfused", "exact")
        for weight in (1.0, 3.0)
    ]
    assert all(isinstance(value, str | int | float) for row in rows for value in row.values())
    assert len({tuple(row) for row in rows}) == 1
    for row in rows:
        graph = fs.load(path, dims={"batch": row["dim_batch"]})
        weights = {"launch": row["weight_launch"]}
        plan = fs.search(graph, fs.load_profile(row["profile"]), method=row["method"], weights=weights)
        assert (row["cost_s"], row["launches"], row["moved_bytes"]) == (plan.cost_s, plan.launches, plan.bytes_moved)
        assert {f"{name}_s": seconds for name, seconds in plan.terms.items()}.items() <= row.items()


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_executors_give_the_same_records(path: Path, pool: str) -> None:
    made: AbstractContextManager[Executor] = (
        ThreadPoolExecutor(3) if pool == "threads" else ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    )
    with made as executor:
        assert sweep(path, executor) == sweep(path)


def test_a_graph_is_bound_again(path: Path) -> None:
    graph = fs.load(path, dims={"batch": 5})
    assert sweep(graph) == sweep(path)
    with ThreadPoolExecutor(2) as executor:
        assert sweep(graph, executor) == sweep(path)
    (kept,) = fs.sweep(graph, ["local"])
    assert kept["dim_batch"] == 5
    built = attention(8, 8)
    (row,) = fs.sweep(built, ["local"])
    assert row["nodes"] == len(built.nodes)


def test_work_for_other_processes_is_small(path: Path) -> None:
    jobs = list(sweeping._jobs(path, PROFILES, {"batch": [1, 2]}, ["exact"], None, "weighted", 60.0))
    assert len(jobs) == 4
    assert all(len(pickle.dumps(job)) < 4096 for job in jobs)
    assert [pickle.loads(pickle.dumps(job)) for job in jobs] == jobs


def test_a_file_that_was_written_again_is_read_again(path: Path) -> None:
    (before,) = fs.sweep(path, ["local"], dims={"batch": 1})
    proto = classifier()
    proto.graph.node.pop()
    proto.graph.node[-1].output[0] = "y"
    onnx.save(proto, path)
    (after,) = fs.sweep(path, ["local"], dims={"batch": 1})
    assert after["nodes"] < before["nodes"]


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        ({"profiles": []}, UsageError, r"profiles: expected a list of names, got \[\]"),
        ({"profiles": "local"}, UsageError, "profiles: expected a list of names, got 'local'"),
        ({"profiles": ["nowhere"]}, ProfileError, "nowhere"),
        ({"methods": ["best"]}, UsageError, r"unknown method 'best' \(known methods: exact"),
        ({"weights": [{"lunch": 1.0}]}, UsageError, "unknown term 'lunch'"),
        ({"cost_model": "none"}, UsageError, "unknown cost model 'none'"),
        ({"dims": {"batch": []}}, UsageError, r"dims: 'batch': expected a whole number or several, got \[\]"),
        ({"dims": {"batch": ["x"]}}, UsageError, "expected a whole number or several"),
        ({"dims": {"n": 1}}, UsageError, "'?n'?"),
        ({"dims": None}, UsageError, "batch"),
    ],
)
def test_what_is_wrong_is_named(path: Path, options: dict[str, Any], error: type[Exception], line: str) -> None:
    given = {"profiles": ["local"], "dims": {"batch": 2}} | options
    with pytest.raises(error, match=line):
        fs.sweep(path, given.pop("profiles"), **given)


def test_a_graph_has_only_its_own_dimensions(path: Path) -> None:
    with pytest.raises(UsageError, match=r"dims: .* has no symbolic dimension 'n' \(it has batch\)"):
        fs.sweep(fs.load(path, dims={"batch": 1}), ["local"], dims={"n": 2})
    with pytest.raises(ModelError):
        fs.sweep(path.with_name("none.onnx"), ["local"])
