"""Verifying a compiled plan against a reference, and measuring it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion_search.errors import UnsupportedError
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.passes.audit import FoldedWeights, audit_folding
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.program import Array, BoundPlan
from fusion_search.runtime.steps import AliasStep, CallStep

#: Largest difference that still counts as equal: relative, and relative to the output's largest magnitude.
RTOL, ATOL = 1e-3, 1e-4


@dataclass(frozen=True, slots=True)
class OutputReport:
    """How one output compares: largest differences, and whether all are within tolerance."""

    name: str
    ok: bool
    max_abs: float
    max_rel: float


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of :func:`verify`.

    Attributes
    ----------
    ok : bool
        Every output within tolerance, non-finite values in the same places.
    max_abs, max_rel : float
        Largest differences over all outputs; `max_rel` is relative to each output's largest magnitude.
    reference : str
        What the plan was compared with.
    outputs : tuple of OutputReport
    folded : tuple of FoldedWeights
        Every convolution whose weights were folded, compared with the model's channel by channel.
    """

    ok: bool
    max_abs: float
    max_rel: float
    reference: str
    outputs: tuple[OutputReport, ...]
    folded: tuple[FoldedWeights, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of :func:`measure`.

    Attributes
    ----------
    median_s : float
        Median of whole runs, new outputs allocated in each.
    runs : int
    groups : tuple of float
        Median of each group by itself, in seconds, in plan order.
    peak_bytes : int
        Planned buffers, results and scratch.
    """

    median_s: float
    runs: int
    groups: tuple[float, ...]
    peak_bytes: int


def example_feeds(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Make inputs: standard normal floats, small non-negative integers, ones for masks, and what is bound as it is."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    source = graph.source
    for value in graph.inputs:
        if source is not None and value.name in source.values:
            feeds[value.name] = source.values[value.name]
            continue
        if source is not None and value.name in source.asked:
            raise UnsupportedError(
                f"the elements of input {value.name!r} decide shapes or places", hint="pass feeds=, or load with values="
            )
        if value.dtype == RUNTIME:
            raise UnsupportedError(f"input {value.name!r} has no plain tensor type", hint="pass feeds=")
        if value.dtype.kind in "fV":
            feeds[value.name] = rng.standard_normal(value.shape).astype(value.dtype)
        elif value.dtype.kind == "b" or "mask" in value.name:
            feeds[value.name] = np.ones(value.shape, value.dtype)
        else:
            feeds[value.name] = rng.integers(0, 64, value.shape).astype(value.dtype)
    return feeds


def verify(run: CompiledPlan, feeds: Mapping[str, Array] | None = None) -> Verification:
    """Compare a compiled plan with the model's own reference evaluator.

    That evaluator sees the model as it was read, weights not folded; where it cannot run a model, the core graph is
    evaluated node by node in NumPy instead.
    """
    graph = run.plan.graph
    feeds = dict(feeds) if feeds is not None else example_feeds(graph)
    got = run(feeds)
    reference = "onnx.reference"
    try:
        if graph.source is None:
            raise UnsupportedError("no source")
        want = graph.source.reference(feeds)
    except UnsupportedError:
        reference = "core graph in NumPy"
        want = evaluate(run.for_feeds(run.checked(feeds)).graph, feeds)
    reports = tuple(_compare(name, np.asarray(got[name]), np.asarray(want[name])) for name in want)
    source = graph.source
    folded = audit_folding(source.bind(source.dims, {}), graph) if source is not None else ()
    return Verification(
        all(report.ok for report in reports) and all(weights.ok for weights in folded),
        max((report.max_abs for report in reports), default=0.0),
        max((report.max_rel for report in reports), default=0.0),
        reference,
        reports,
        folded,
    )


def _compare(name: str, got: Array, want: Array) -> OutputReport:
    if got.shape != want.shape or got.dtype != want.dtype:
        return OutputReport(name, False, float("inf"), float("inf"))
    if want.dtype.kind not in "fV":
        same = np.array_equal(got, want)
        return OutputReport(name, same, 0.0 if same else float("inf"), 0.0 if same else float("inf"))
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return OutputReport(name, False, float("inf"), float("inf"))
    scale = float(np.abs(b[finite]).max(initial=0.0))
    difference = np.abs(a[finite] - b[finite])
    most = float(difference.max(initial=0.0))
    ok = bool(np.all(difference <= RTOL * np.abs(b[finite]) + ATOL * scale + 1e-30))
    return OutputReport(name, ok, most, most / scale if scale else most)


def measure(run: CompiledPlan, feeds: Mapping[str, Any] | None = None, *, runs: int = 15, budget_s: float = 2.0) -> Measurement:
    """Time whole runs and each group, interleaved, and report medians.

    Parameters
    ----------
    run : CompiledPlan
    feeds : mapping of str to numpy.ndarray, optional
    runs : int
        Most rounds; fewer when `budget_s` is spent, at least three.
    """
    feeds = dict(feeds) if feeds is not None else example_feeds(run.plan.graph)
    bound = run.for_feeds(run.checked(feeds))
    run(feeds)
    whole: list[float] = []
    parts: list[list[float]] = []
    started = time.perf_counter()
    while len(whole) < runs and (len(whole) < 3 or time.perf_counter() - started < budget_s):
        begun = time.perf_counter()
        run(feeds)
        whole.append(time.perf_counter() - begun)
        parts.append(group_times(bound, feeds))
    medians = [statistics.median(column) for column in zip(*parts, strict=True)] if parts and parts[0] else []
    return Measurement(statistics.median(whole), len(whole), tuple(medians), bound.peak_bytes)


def group_times(bound: BoundPlan, feeds: Mapping[str, Any]) -> list[float]:
    """Run a plan step by step and return the seconds of each; 0 for a step with nothing to do."""
    times: list[float] = []
    with bound.workspace() as space:
        bound.begin(feeds, space)
        pieces = iter([piece for segment in bound.segments for piece in _steps_of(segment)])
        for step in bound.steps:
            if isinstance(step, AliasStep):
                times.append(0.0)
                continue
            piece = next(pieces)
            begun = time.perf_counter()
            bound.run_segment(piece, space)
            times.append(time.perf_counter() - begun)
    return times


def _steps_of(segment: tuple[int, int] | CallStep) -> list[tuple[int, int] | CallStep]:
    return [(k, k + 1) for k in range(*segment)] if isinstance(segment, tuple) else [segment]
