"""Questions about plans: why, how firmly, and what else could have been chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusion_search.errors import UsageError
from fusion_search.fusion.demands import Constraint
from fusion_search.ir.graph import Graph
from fusion_search.passes import run_passes
from fusion_search.search.explain import Bounds, Explanation, constraints_of, explain_pair
from fusion_search.search.explain import assert_fused as _assert_fused
from fusion_search.search.overview import Overview, overview
from fusion_search.search.pareto import ParetoPoint
from fusion_search.search.pareto import pareto as _pareto
from fusion_search.search.plan import Plan
from fusion_search.search.sensitivity import Margin, Sensitivity, axis_of, envelope
from fusion_search.search.sensitivity import margins as _margins
from fusion_search.spaces import space_like, space_of
from hardware_profiles import Profile


def explain(
    plan: Plan, a: str | None = None, b: str | None = None, *, flips: bool = True, bounds: Bounds | None = None, time_limit_s: float = 60.0
) -> Explanation | Overview:
    """Say why two nodes share a kernel or do not; or, without nodes, what a plan is made of.

    Parameters
    ----------
    plan : Plan
    a, b : str, optional
        Core nodes, or nodes of the model, which stand for all their core nodes.
    flips : bool
        Also look for where the decision flips along memory bandwidth, launch overhead and symbolic dimensions.
    bounds : Bounds, optional
        Where to look for flips, and how closely.
    time_limit_s : float
        Budget of each search.

    Returns
    -------
    Explanation or Overview
        With two nodes: `.fused`, `.reasons`, `.delta_cost_s`, `.delta_terms`, `.forced_plan`, `.flips`. Without: `.fusions`,
        `.dearest`, `.edges`. ``str()`` of either is the text for a person.

    Raises
    ------
    UsageError
        When a name is unknown, only one is given, or both stand for one node.
    """
    space_for = space_like(plan)
    if a is None and b is None:
        return overview(plan, space_for(plan.graph, plan.profile), constraints_of(plan), time_limit_s=time_limit_s)
    if a is None or b is None:
        raise UsageError("explain: expected two nodes, or none", hint='such as explain(plan, "a", "b")')
    source = plan.graph.source

    def rebound(name: str, extent: int) -> Graph:
        assert source is not None
        return run_passes(source.bind({**source.dims, name: extent}, {}))

    return explain_pair(
        plan, a, b, space_for, time_limit_s=time_limit_s, bounds=(bounds or Bounds()) if flips else None, rebind=rebound if source else None
    )


def assert_fused(plan: Plan, a: str, b: str, *, time_limit_s: float = 60.0) -> None:
    """Raise PlanError, with the reason or the price, unless one kernel of a plan computes both nodes.

    Raises
    ------
    PlanError
        When no group holds all core nodes of both.
    UsageError
        When a name is unknown.
    """
    _assert_fused(plan, a, b, space_like(plan), time_limit_s=time_limit_s)


def sensitivity(
    graph: Graph,
    profile: Profile,
    parameter: str,
    *,
    low: float | None = None,
    high: float | None = None,
    cost_model: str = "weighted",
    weights: Mapping[str, float] | None = None,
    constraints: Sequence[Constraint] = (),
    time_limit_s: float = 60.0,
) -> Sensitivity:
    """Find the least J along one parameter, with every value at which the best plan changes.

    Parameters
    ----------
    graph : Graph
    profile : Profile
    parameter : str
        A weight, such as ``"launch"``, or a number of the profile that terms are linear in, or in whose reciprocal they are.
    low, high : float, optional
        The range; by default up to 16 times the value, and down to 0 or a sixteenth of it.
    cost_model, weights, constraints
        As for :func:`fusion_search.search`.
    time_limit_s : float
        Budget of each search.

    Returns
    -------
    Sensitivity
        `.breakpoints`, `.pieces`, `.cost_s(value)`; exact, not sampled: a lower envelope of lines, closed by a search at each crossing.

    Raises
    ------
    UsageError
        When J of a fixed plan is not linear along the parameter, or there is none of that name.
    """
    axis = axis_of(space_of(graph, profile, cost_model, weights), parameter, low, high)
    return envelope(axis, constraints, time_limit_s=time_limit_s)


def margins(plan: Plan, names: Sequence[str] | None = None, *, time_limit_s: float = 60.0) -> Mapping[str, Margin]:
    """Say how far each weight and each number of the profile may move, one at a time, before another plan wins.

    Parameters
    ----------
    plan : Plan
    names : sequence of str, optional
        The parameters; by default all along which J of a fixed plan is linear.
    time_limit_s : float
        Budget of each search.

    Returns
    -------
    mapping of str to Margin
        `.low`, `.high`, and the plans that win `.below` and `.above`, None at an end of the range that was looked at.
    """
    space = space_of(plan.graph, plan.profile, plan.cost_model, plan.weights)
    return _margins(space, plan, constraints_of(plan), names=names, time_limit_s=time_limit_s)


def pareto(
    graph: Graph, profile: Profile, *, constraints: Sequence[Constraint] = (), time_limit_s: float = 60.0
) -> tuple[ParetoPoint, ...]:
    """Find the plans that trade traffic, launches and spill against each other.

    Parameters
    ----------
    graph : Graph
    profile : Profile
    constraints : sequence of Constraint
    time_limit_s : float
        Budget of each search.

    Returns
    -------
    tuple of ParetoPoint
        The supported points: those that are best for some weights. Plans that no weights make best are not found, although no
        other plan may be better in all three.
    """
    return _pareto(space_of(graph, profile, "weighted", None), constraints, time_limit_s=time_limit_s)
