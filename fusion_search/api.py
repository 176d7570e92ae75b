"""The whole line on one page: load, plan, check, compile, verify, measure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

import hardware_profiles
from fusion_search.distributing import distribute
from fusion_search.errors import FusionSearchError, PlanError, ProfileError, UsageError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.fusion.constraints import constrain
from fusion_search.fusion.demands import Constraint, fusion_off, keep, min_gain_s, must_fuse, never_fuse, peak_bytes
from fusion_search.fusion.reasons import Reason
from fusion_search.ir.graph import Graph
from fusion_search.passes import distributed_again, run_passes
from fusion_search.questions import assert_fused, explain, margins, pareto, sensitivity
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.measure import Measurement, Verification
from fusion_search.runtime.measure import measure as _measure
from fusion_search.runtime.measure import verify as _verify
from fusion_search.search.assemble import assemble, ordered_or_reasons
from fusion_search.search.check import Violation
from fusion_search.search.check import check as _check
from fusion_search.search.distribution import TriedSite
from fusion_search.search.explain import Bounds
from fusion_search.search.methods import METHODS, with_second_bound
from fusion_search.search.plan import Plan, profile_of
from fusion_search.search.plan_file import read_plan
from fusion_search.search.replay import Mismatch, Replay, replay_plan
from fusion_search.spaces import space_of
from hardware_profiles import Profile


def load(
    path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, values: Mapping[str, npt.ArrayLike] | None = None
) -> Graph:
    """Read an ONNX model and simplify it.

    Parameters
    ----------
    path : path
        The model file; external weights are read from its own folder only.
    dims : mapping of str to int, optional
        An extent for every symbolic dimension of the inputs.
    values : mapping of str to array_like, optional
        Elements of inputs that decide shapes or places (axes, shapes, repeats): without them the operators that read such an input
        are carried whole, and so is what follows where a shape is not known. `graph.source.asked` names them.

    Returns
    -------
    Graph
        Core operators in topological order; `graph.log` says what the passes changed.

    Raises
    ------
    ModelError
        When the file is missing, damaged, or no valid model.
    UsageError
        When a dimension is unbound or unknown, or `values` are of no input.
    """
    return run_passes(load_onnx(path, dims, values=values))


def load_profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """Load a hardware profile by name, or from a TOML file.

    Raises
    ------
    ProfileError
        When there is no such profile, or a number is missing, negative or unknown.
    """
    try:
        return hardware_profiles.load(name_or_path)
    except hardware_profiles.ProfileError as error:
        raise ProfileError(error.what, where=error.where, hint=error.hint) from None


def list_profiles() -> list[str]:
    """Return the names of the profiles that come with the package."""
    return hardware_profiles.names()


def methods() -> list[str]:
    """Return the names of the planning methods; ``"exact"`` comes first."""
    return list(METHODS)


def search(
    graph: Graph,
    profile: Profile,
    *,
    method: str = "exact",
    cost_model: str = "weighted",
    weights: Mapping[str, float] | None = None,
    constraints: Sequence[Constraint] = (),
    time_limit_s: float = 60.0,
    bound: str | None = None,
) -> Plan:
    """Find a fusion plan.

    Parameters
    ----------
    graph : Graph
    profile : Profile
        The machine that J is counted for.
    method : str
        One of :func:`methods`.
    cost_model : str
        ``"weighted"`` (J is the weighted sum of traffic, launch, spill and recompute, in seconds) or ``"roofline"``.
    weights : mapping of str to float, optional
        Weight of each term; 1 where none is given.
    constraints : sequence of Constraint
        What the plan must keep to: :func:`must_fuse`, :func:`never_fuse`, :func:`fusion_off`, :func:`keep`, :func:`min_gain_s`,
        :func:`peak_bytes`. The search stays exact: the certificate is for the plans that keep to them, and `plan.space` lists them.
    time_limit_s : float
        Budget of the search; when it is spent the best plan found is returned as ``"feasible"`` with a true lower bound.
    bound : str, optional
        ``"milp"`` asks an integer programming solver, which shares no code with the search, for a second bound, in as much time
        again: ``plan.statistics["milp"]`` then has ``lower_bound_s`` (true up to the solver's tolerances, about a millionth),
        ``cost_s`` of the solver's own plan if it has one, and ``closed``. It needs SciPy.

    Returns
    -------
    Plan
        ``plan.status == "optimal"`` means that the search closed: no plan of `plan.space` costs less.

    Raises
    ------
    UsageError
        For an unknown method, cost model, term, constraint or name; for constraints that contradict each other, or that no
        plan keeps to.

    Notes
    -----
    Exact because J is additive over groups: a dynamic program over covered sets, solved part by part, and again in
    execution order where parts wait for each other. Worst case exponential in the width of the graph.
    """
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}", hint=f"known methods: {', '.join(METHODS)}")
    if not time_limit_s > 0:
        raise UsageError(f"time_limit_s: expected a number > 0, got {time_limit_s}")
    if bound not in (None, "milp"):
        raise UsageError(f"unknown bound {bound!r}", hint="known bounds: milp")
    space = constrain(space_of(graph, profile, cost_model, weights), constraints)
    plan = METHODS[method](space, time_limit_s)
    return plan if bound is None else with_second_bound(space, plan, time_limit_s)


def price(
    graph: Graph,
    groups: Sequence[Sequence[str]],
    profile: Profile,
    *,
    cost_model: str = "weighted",
    weights: Mapping[str, float] | None = None,
    constraints: Sequence[Constraint] = (),
) -> Plan | list[Reason]:
    """Price a plan given as lists of core node names.

    Parameters
    ----------
    graph : Graph
    groups : sequence of sequence of str
    profile : Profile
    cost_model : str
    weights : mapping of str to float, optional
    constraints : sequence of Constraint
        A group that does not keep to them is illegal by the rule ``user``.

    Returns
    -------
    Plan or list of Reason
        The plan, its groups in an order in which they can run; or every reason why it is illegal.
    """
    space = constrain(space_of(graph, profile, cost_model, weights), constraints)
    found = ordered_or_reasons(space, groups)
    masks = [entry for entry in found if isinstance(entry, int)]
    if len(masks) != len(found) or (space.n and not found):
        return [entry for entry in found if isinstance(entry, Reason)]
    return assemble(space, masks, method="price")


def check(graph: Graph, plan: Plan) -> list[Violation]:
    """Check a plan with code that the search does not share; an empty list means that it is sound."""
    return _check(graph, plan)


def replay(plan: Plan | str | os.PathLike[str], graph: Graph, *, time_limit_s: float = 60.0) -> Replay:
    """Carry a plan over to a changed graph: keep every group that is still legal, and name every mismatch.

    Maps that the plan's graph has distributed over concats (:func:`distribute`) are distributed here as well, where that can be done.
    Nodes are matched by name, then by structure. A group is kept when its nodes are there and legal together; without the nodes that
    are gone, or with new ones that stand between its own, where that is legal. Nodes that are new, or whose group is no longer legal,
    are planned among themselves by the exact search; no kept group takes them in. Profile, cost model, weights and constraints are the
    plan's.

    Parameters
    ----------
    plan : Plan or path
        The plan, or its file.
    graph : Graph
        Other dims, renamed nodes, nodes more or fewer, other types: whatever `Plan.load` refuses.
    time_limit_s : float
        Budget for what is planned anew.

    Returns
    -------
    Replay
        `.plan`, sound on the graph; `.mismatches`; `.cost_then_s`. ``str()`` is the text for a person.

    Raises
    ------
    PlanError
        When the file is missing or no plan.
    """
    if isinstance(plan, Plan):
        record, profile = plan.record(), plan.profile
    else:
        record = read_plan(plan)
        profile = profile_of(record, plan)
    graph = distributed_again(graph, record.distributed)
    return replay_plan(
        record, profile, graph, lambda other, on: space_of(other, on, record.cost_model, record.weights), time_limit_s=time_limit_s
    )


def compile(plan: Plan, *, progress: Callable[[str], None] | None = None) -> CompiledPlan:
    """Compile a plan for this machine; compiling the same plan again gives the same object.

    Parameters
    ----------
    plan : Plan
    progress : callable, optional
        Told before each kernel which of how many it is; from an empty cache, one takes a fraction of a second or a few.

    Returns
    -------
    CompiledPlan
        ``run({"x": array}) -> {"y": array}`` for any shape that the model allows.
    """
    known = _compiled.get(id(plan))
    if known is None or known.plan is not plan:
        known = CompiledPlan(plan, progress=progress)
        _compiled[id(plan)] = known
    return known


def verify(plan: Plan, feeds: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Verification:
    """Run a plan and compare it with an independent reference.

    Parameters
    ----------
    plan : Plan
    feeds : mapping of str to numpy.ndarray, optional
        Seeded random inputs by default.

    Returns
    -------
    Verification
        `.ok`, `.max_abs`, `.max_rel`.
    """
    return _verify(compile(plan), feeds)


def measure(plan: Plan, feeds: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Measurement:
    """Time a plan on this machine: `.median_s`, `.groups`, `.peak_bytes`."""
    return _measure(compile(plan), feeds)


def tune(
    plan: Plan,
    feeds: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    trials: int = 32,
    groups: int = 8,
    seed: int = 0,
    time_limit_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Find schedules that this machine runs faster: block sizes, and from where on a kernel runs on several threads.

    The groups that take longest are measured in their place in the plan, each schedule in turn with the present one. Of equal groups
    one is tuned for all. Small spaces are measured whole, large ones by Optuna, which is told the present schedule and the cost
    model's choice first; a schedule whose scratch does not fit the profile's fast memory is not measured.

    Parameters
    ----------
    plan : Plan
        For a profile that runs here.
    feeds : mapping of str to numpy.ndarray, optional
        Inputs of the planned shapes; seeded random ones by default.
    trials : int
        Most schedules measured for a group.
    groups : int
        Most kinds of equal groups that are tuned.
    seed : int
        Of the sampler and of the default inputs. What is measured differs from run to run all the same.
    time_limit_s : float
        Budget of all measurements.
    progress : callable, optional
        Is told a line for each kind of group.

    Returns
    -------
    Plan
        The same groups, J and certificate. ``group.tuned`` is None, or has the schedule that now runs, its own price, and what it
        measured; ``plan.statistics["tuning"]`` has the medians before and after, their ratio and its quartiles for the whole plan.
        By that measure it is never slower than `plan`: if it were, no schedule is taken.

    Raises
    ------
    UsageError
        When the plan is for another machine, or a limit is not above 0.
    FeedError
        When feeds are wrong, or of other shapes than the planned ones.
    """
    from fusion_search.tune.tuning import tune_plan

    return tune_plan(
        plan, feeds, trials=trials, groups=groups, seed=seed, time_limit_s=time_limit_s, progress=progress or (lambda text: None)
    )


def sweep(
    graph: Graph | str | os.PathLike[str],
    profiles: Sequence[str | os.PathLike[str] | Profile],
    *,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    methods: Sequence[str] = ("exact",),
    weights: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
    cost_model: str = "weighted",
    time_limit_s: float = 60.0,
    executor: Executor | None = None,
) -> list[dict[str, Any]]:
    """Plan a model for every combination of extents, machines, methods and weights.

    Parameters
    ----------
    graph : Graph or path
        A graph is bound again to the extents; a path is read for them, in the process that plans.
    profiles : sequence of str, path or Profile
    dims : mapping of str to int or sequence of int, optional
        Extents of the symbolic dimensions. A graph keeps those that are not named.
    methods : sequence of str
        Of :func:`methods`.
    weights : mapping, or sequence of mappings, optional
        Weights of the terms, as for :func:`search`.
    cost_model : str
    time_limit_s : float
        Budget of each search.
    executor : concurrent.futures.Executor, optional
        Where the searches run; for one of processes give a path, since work is sent there by pickling.

    Returns
    -------
    list of dict
        One flat record a combination, units in the keys, extents outermost, then profiles, methods and weights in the order in which
        they were given; the same on every executor.

    Raises
    ------
    UsageError, ProfileError, ModelError
        For what is unknown or wrong, before anything is planned where that can be known.
    """
    from fusion_search.tune.sweep import sweep_records

    return sweep_records(
        graph,
        profiles,
        dims=dims,
        methods=methods,
        weights=weights,
        cost_model=cost_model,
        time_limit_s=time_limit_s,
        executor=executor,
    )


_compiled: WeakValueDictionary[int, CompiledPlan] = WeakValueDictionary()

__all__ = [
    "Bounds", "FusionSearchError", "Graph", "Mismatch", "Plan", "PlanError", "Profile", "Replay", "TriedSite", "assert_fused", "check",
    "compile", "distribute", "explain", "fusion_off", "keep", "list_profiles", "load", "load_profile", "margins", "measure", "methods",
    "min_gain_s", "must_fuse", "never_fuse", "pareto", "peak_bytes", "price", "replay", "search", "sensitivity", "sweep", "tune", "verify",
]  # fmt: skip
