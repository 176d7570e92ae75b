"""Sweeps: one record for every combination of extents, machine, method and weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from pickle import PicklingError
from typing import Any

import costmodels
import hardware_profiles
from fusion_search.codegen.capability import can_emit
from fusion_search.errors import ProfileError, UsageError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.passes import run_passes
from fusion_search.search.methods import METHODS
from fusion_search.search.plan import Plan
from hardware_profiles import Profile

Extents = int | Sequence[int]
Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """One record to make. Small enough to send to another process when the model is a path."""

    model: str | Graph
    dims: tuple[tuple[str, int], ...]
    profile: Profile
    method: str
    cost_model: str
    weights: tuple[tuple[str, float], ...]
    time_limit_s: float


def sweep_records(
    graph: Graph | str | os.PathLike[str],
    profiles: Sequence[str | os.PathLike[str] | Profile],
    *,
    dims: Mapping[str, Extents] | None = None,
    methods: Sequence[str] = ("exact",),
    weights: Weights | Sequence[Weights] | None = None,
    cost_model: str = "weighted",
    time_limit_s: float = 60.0,
    executor: Executor | None = None,
) -> list[dict[str, Any]]:
    """Plan every combination; see :func:`fusion_search.sweep`."""
    jobs = list(_jobs(graph, profiles, dims or {}, methods, weights, cost_model, time_limit_s))
    if executor is None:
        return [record_of(job) for job in jobs]
    futures = [executor.submit(record_of, job) for job in jobs]
    try:
        return [future.result() for future in futures]  # in the order of the jobs, whichever is done first
    except (PicklingError, TypeError, AttributeError) as error:
        if isinstance(graph, Graph) and "pickle" in str(error):
            raise UsageError("this graph cannot be sent to another process", hint="give the model's path") from None
        raise
    finally:
        for future in futures:
            future.cancel()


def _jobs(
    graph: Graph | str | os.PathLike[str],
    profiles: Sequence[str | os.PathLike[str] | Profile],
    dims: Mapping[str, Extents],
    methods: Sequence[str],
    weights: Weights | Sequence[Weights] | None,
    cost_model: str,
    time_limit_s: float,
) -> Iterator[Job]:
    for what, given in (("profiles", profiles), ("methods", methods)):
        if isinstance(given, str) or not given:
            raise UsageError(f"{what}: expected a list of names, got {given!r}")
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise UsageError(f"unknown method {unknown[0]!r}", hint=f"known methods: {', '.join(METHODS)}")
    weighted: Sequence[Weights] = [weights or {}] if weights is None or isinstance(weights, Mapping) else weights
    for one in weighted:
        try:
            costmodels.model(cost_model, one)
        except costmodels.CostModelError as error:
            raise UsageError(error.what, where=error.where, hint=error.hint) from None
    machines = [_profile(profile) for profile in profiles]
    model = graph if isinstance(graph, Graph) else str(Path(graph).absolute())
    names = sorted(dims)
    choices = [_extents(name, dims[name]) for name in names]
    for extents, machine, method, one in product(product(*choices), machines, methods, weighted):
        yield Job(model, tuple(zip(names, extents, strict=True)), machine, method, cost_model, tuple(sorted(one.items())), time_limit_s)


def _extents(name: str, given: Extents) -> tuple[int, ...]:
    extents = (given,) if isinstance(given, int) else tuple(given)
    if not extents or not all(isinstance(extent, int) for extent in extents):
        raise UsageError(f"dims: {name!r}: expected a whole number or several, got {given!r}")
    return extents


def _profile(profile: str | os.PathLike[str] | Profile) -> Profile:
    if isinstance(profile, Profile):
        return profile
    try:
        return hardware_profiles.load(profile)
    except hardware_profiles.ProfileError as error:
        raise ProfileError(error.what, where=error.where, hint=error.hint) from None


def record_of(job: Job) -> dict[str, Any]:
    """Plan one combination and return its flat record, units in the keys."""
    program = _program(job)
    model = costmodels.model(job.cost_model, dict(job.weights))
    space = GroupSpace(program, job.profile, model, can_emit if job.profile.runs_here else None)
    return as_record(METHODS[job.method](space, job.time_limit_s))


def as_record(plan: Plan) -> dict[str, Any]:
    """Return what a plan comes to as one flat record."""
    return {
        "model": plan.graph.name,
        **{f"dim_{name}": extent for name, extent in sorted(plan.dims.items())},
        "profile": plan.profile.name,
        "method": plan.method,
        "cost_model": plan.cost_model,
        **{f"weight_{name}": weight for name, weight in plan.weights.items()},
        "status": plan.status,
        "cost_s": plan.cost_s,
        "lower_bound_s": plan.lower_bound_s,
        "gap": plan.gap,
        **{f"{name}_s": seconds for name, seconds in plan.terms.items()},
        "nodes": len(plan.graph.nodes),
        "launches": plan.launches,
        "moved_bytes": plan.bytes_moved,
    }


def _program(job: Job) -> Program:
    if isinstance(job.model, Graph):
        return _rebound(job.model, job.dims)
    status = Path(job.model).stat() if Path(job.model).exists() else None
    return _loaded(job.model, job.dims, (status.st_mtime_ns, status.st_size) if status else (0, 0))


@lru_cache(maxsize=2)
def _loaded(path: str, dims: tuple[tuple[str, int], ...], stamp: tuple[int, int]) -> Program:
    """Read a model once for all machines, methods and weights; a file that was written again is another one."""
    return Program(run_passes(load_onnx(path, dict(dims))))


def _rebound(graph: Graph, dims: tuple[tuple[str, int], ...]) -> Program:
    here = dict(graph.source.dims) if graph.source else {}
    unknown = [name for name, _ in dims if name not in here]
    if unknown:
        raise UsageError(f"dims: {graph.name} has no symbolic dimension {unknown[0]!r}", hint=f"it has {', '.join(here) or 'none'}")
    wanted = {**here, **dict(dims)}
    if wanted == here or graph.source is None:
        return Program(graph)
    return Program(run_passes(graph.source.bind(wanted, {})))
