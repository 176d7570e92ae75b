"""The planning methods by name: the exact search and the baselines, all on one space and one J."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from costmodels import ATTOSECONDS_PER_S
from fusion_search.errors import UsageError
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.constraints import ConstrainedSpace, constrain
from fusion_search.fusion.demands import fusion_off
from fusion_search.fusion.program import bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.search import baselines
from fusion_search.search.assemble import assemble, masks_of
from fusion_search.search.exact import exact
from fusion_search.search.improve import improve
from fusion_search.search.peak import fitting_order, peak_of, plan_within
from fusion_search.search.plan import Plan
from fusion_search.search.policies import POLICIES
from fusion_search.search.quotient import execution_order
from fusion_search.search.space import derive_facts

Method = Callable[[GroupSpace, float], Plan]

#: Most nodes for which a search that did not close is compared with the simple rules beside it, and the share of its time kept for that.
_COMPARED, _SHARE = 400, 0.15
#: Rules that try many merges, asked last; on so few nodes each has all the time it wants.
_MERGING, _FEW = ("xla-instruction", "fuse-all", "xla-priority"), 100


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cycle collector from walking many small, long-lived and acyclic records again and again.

    It took a quarter of the time of a search, and a third of that of compiling from a warm cache.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class NoPlanError(UsageError):
    """No plan of the method does what the user demands.

    Attributes
    ----------
    reasons : tuple of Reason
        What makes a demanded kernel illegal.
    """

    reasons: tuple[Reason, ...] = ()


def _exact(space: GroupSpace, time_limit_s: float) -> Plan:
    started = time.monotonic()
    budget_s = time_limit_s if space.n > _COMPARED else time_limit_s * (1 - _SHARE)
    with collector_paused():
        while True:
            coarse = CoarseSpace(space)
            found = exact(coarse, time_limit_s=budget_s, floors_of=coarse.floors)
            groups = [coarse.expand(group) for group in found.groups]
            if not isinstance(space, ConstrainedSpace) or not space.breaks(groups):
                break
            if found.status != "optimal" or space.penalty >= space.most_penalty:
                raise _no_plan(space, groups, "exact" if found.status == "optimal" else "exact, in the time it had,")
            space = ConstrainedSpace(space.base, space.constraints, penalty=space.most_penalty, held=space.held)
        statistics: dict[str, Any] = {"chains": coarse.n, **asdict(found.statistics)}
        if isinstance(space, ConstrainedSpace) and space.limit_bytes is not None:
            left = max(time_limit_s - (time.monotonic() - started), time_limit_s * 0.2)
            return _exact_within(space, groups, found.lower_bound, left, statistics)
        if found.status != "optimal" and space.n <= _COMPARED:
            groups = _no_worse(space, groups, started + time_limit_s)
        status = "optimal" if sum(space.cost(group) or 0 for group in groups) == found.lower_bound else "feasible"
        return assemble(space, groups, method="exact", status=status, lower_bound=found.lower_bound, statistics=statistics)


def _best_rule(space: GroupSpace, cost: int, deadline: float) -> list[int] | None:
    """Return the groups of the cheapest plan of a simple rule, if it costs less than `cost`."""
    best = None
    quick = [name for name in METHODS if name not in ("exact", *_MERGING)]
    for name in (*quick, *_MERGING):
        left_s = float("inf") if space.n <= _FEW else max(deadline - time.monotonic(), 1.0)
        try:
            other = METHODS[name](space, left_s)
        except NoPlanError:  # the rule does not do what is demanded
            continue
        if other.cost_as < cost:
            cost, best = other.cost_as, other
    return None if best is None else masks_of(space, best)


def _no_worse(space: GroupSpace, groups: list[int], deadline: float) -> list[int]:
    """Take the plan of a simple rule where it beats what a search that did not close has found, and improve on it."""
    best = _best_rule(space, sum(space.cost(group) or 0 for group in groups), deadline)
    if best is None:
        return groups
    coarse = CoarseSpace(space, chained=False)
    home = {p: 1 << c for c, cluster in enumerate(coarse.clusters) for p in bits(cluster)}
    masks = [sum({home[p] for p in bits(mask)}) for mask in best]
    until = max(deadline, time.monotonic() + 0.1)
    better = [coarse.expand(mask) for mask in improve(coarse, derive_facts(coarse), masks, until)]
    order = execution_order(space.preds, better)
    assert order is not None, "improvement keeps the quotient graph acyclic"
    return order


def _exact_within(space: ConstrainedSpace, relaxed: Sequence[int], bound: int, time_limit_s: float, statistics: dict[str, Any]) -> Plan:
    """Search on under the limit on live memory, from the best plan without it."""
    found = plan_within(space, relaxed, bound, time_limit_s)
    if not found.closed and space.n <= _COMPARED:
        cost = space.most_penalty if found.groups is None else sum(space.cost(group) or 0 for group in found.groups)
        rule = _best_rule(space, cost, time.monotonic())
        found = found if rule is None else replace(found, groups=tuple(rule))
    if found.groups is None:
        raise _no_room(space, "no plan" if found.closed else "exact, in the time it had, finds no plan that", found.least_peak_bytes)
    if space.breaks(found.groups):
        raise _no_plan(space, found.groups, "exact" if found.closed else "exact, in the time it had,")
    assert space.memory is not None
    statistics |= {"down_sets": found.states, "peak_bytes": peak_of(space.memory, found.groups)}
    status = "optimal" if found.closed else "feasible"
    return assemble(space, found.groups, method="exact", status=status, lower_bound=found.bound, statistics=statistics)


def _no_room(space: ConstrainedSpace, who: str, least: int | None) -> NoPlanError:
    """No plan keeps to the limit on live memory."""
    said = " and ".join(str(constraint) for constraint in space.constraints)
    needed = f"the plan that needs least needs {least} bytes" if least else "raise the limit"
    error = NoPlanError(f"{said}: {who} keeps within the memory", hint=needed)
    error.reasons = (Reason("memory", (), remedy=needed),)
    return error


def _no_plan(space: ConstrainedSpace, groups: Sequence[int], method: str) -> NoPlanError:
    mask = space.breaks(groups)
    reasons = tuple(space.reasons(mask))
    said = " and ".join(str(constraint) for constraint in space.demanding(mask))
    error = NoPlanError(f"{said}: {method} finds no plan that does it", hint="; ".join(map(str, reasons[:3])))
    error.reasons = reasons
    return error


def _without_copies(space: GroupSpace) -> GroupSpace:
    """The space in which no node is computed twice, with the same demands."""
    if not space.copied:
        return space
    return ConstrainedSpace(space.base.plain, space.constraints) if isinstance(space, ConstrainedSpace) else space.plain


def with_second_bound(space: GroupSpace, plan: Plan, time_limit_s: float) -> Plan:
    """Return a plan with what an integer programming solver says of the same space, in its statistics."""
    from fusion_search.search.milp import milp_plan  # few ask for it

    coarse = CoarseSpace(space)
    found = milp_plan(coarse, time_limit_s=time_limit_s)
    said = {
        "lower_bound_s": found.lower_bound / ATTOSECONDS_PER_S,
        "cost_s": None if found.cost is None else found.cost / ATTOSECONDS_PER_S,
        "closed": found.closed,
    }
    return replace(plan, statistics={**plan.statistics, "milp": said})


def _baseline(space: GroupSpace, name: str, make: Callable[[CoarseSpace], tuple[int, ...]]) -> Plan:
    """Run a baseline on the nodes and what the user joins."""
    space = _without_copies(space)
    coarse = CoarseSpace(space, chained=False)
    groups = [coarse.expand(group) for group in make(coarse)]
    if isinstance(space, ConstrainedSpace) and space.breaks(groups):
        raise _no_plan(space, groups, name)
    if isinstance(space, ConstrainedSpace) and space.limit_bytes is not None:
        assert space.memory is not None
        order, _ = fitting_order(space.memory, space.preds, groups, space.limit_bytes)
        if order is None:
            raise _no_room(space, f"{name} finds no order in which its plan", None)
        groups = order
    return assemble(space, groups, method=name)


def _unfused(space: GroupSpace, time_limit_s: float) -> Plan:
    return _baseline(space, "unfused", baselines.unfused)


def _per_operator(space: GroupSpace, time_limit_s: float) -> Plan:
    deadline = time.monotonic() + time_limit_s

    def groups(coarse: CoarseSpace) -> tuple[int, ...]:
        origins: dict[str, int] = {}
        nodes = [coarse.fine.program.members[bits(cluster)[0]].node for cluster in coarse.clusters]
        operators = [origins.setdefault(node.origin or node.name, len(origins)) for node in nodes]
        return baselines.per_operator(coarse, operators, deadline=deadline)

    return _baseline(space, "per-operator", groups)


def _fuse_all(space: GroupSpace, time_limit_s: float) -> Plan:
    deadline = time.monotonic() + time_limit_s
    return _baseline(space, "fuse-all", lambda coarse: baselines.fuse_all(coarse, deadline=deadline))


def _policy(name: str) -> Method:
    def plan(space: GroupSpace, time_limit_s: float) -> Plan:
        if isinstance(space, ConstrainedSpace):
            raise NoPlanError(f"{name} is a published policy and takes no demands", hint="use exact, or one of the plain baselines")
        # None of the published rules puts two contractions into one kernel, or weighs computing a value again.
        space = space.plain
        plain = constrain(space, [fusion_off(rule="cross-block")])
        return assemble(space, POLICIES[name](plain, time.monotonic() + time_limit_s), method=name)

    return plan


METHODS: dict[str, Method] = {
    "exact": _exact,
    "unfused": _unfused,
    "per-operator": _per_operator,
    "fuse-all": _fuse_all,
    **{name: _policy(name) for name in POLICIES},
}
