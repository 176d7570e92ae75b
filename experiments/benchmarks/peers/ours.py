"""This project, fused and unfused: the model file in, the plan searched and compiled."""

from __future__ import annotations

import inspect
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import fusion_search as fs
from experiments.benchmarks.case import Case
from experiments.benchmarks.peers.base import Runner


@dataclass(frozen=True)
class Planned:
    """A plan, compiled and ready to run.

    Attributes
    ----------
    plan : Plan
    runner : Runner
    peak_bytes : int
        Planned memory, scratch included.
    """

    plan: fs.Plan
    runner: Runner
    peak_bytes: int


def read(model: onnx.ModelProto) -> fs.Graph:
    """Read a model the way a model file is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        return fs.load(path)


def plan_of(graph: fs.Graph, profile: fs.Profile, case: Case, method: str, *, time_limit_s: float = 60.0) -> Planned:
    """Plan and compile a graph by one method."""
    plan = fs.search(graph, profile, method=method, time_limit_s=time_limit_s)
    run: Any = fs.compile(plan)
    feeds = dict(case.feeds)

    def fresh() -> Any:
        return tuple(run(feeds).values())

    preallocated = None
    if "out" in inspect.signature(run.__call__).parameters:
        out = {name: np.empty_like(array) for name, array in zip(case.output_names, fresh(), strict=True)}

        def preallocated() -> Any:
            return tuple(run(feeds, out=out).values())

    return Planned(plan, Runner(fresh, preallocated), int(run.peak_bytes))
