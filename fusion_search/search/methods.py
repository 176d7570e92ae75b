"""The planning methods by name: the exact search and the baselines, all on one space and one J.

The exact search never answers with a plan that costs more than one of the others finds, whatever time it has: when it does not close,
each of them is run to its end on graphs of up to `COMPARED` nodes, and the best plan of all is improved and returned. That may
take longer than the time that was given, by what they take: seconds at most. Larger graphs get the comparison with those whose work grows
with the edges, again to their ends, and with the others for as long as the search itself took, while the time lasts; where its gap is
rounding, there is nothing that those could find.
"""

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
from fusion_search.fusion.copies import place
from fusion_search.fusion.demands import fusion_off
from fusion_search.fusion.program import bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.search import baselines
from fusion_search.search.assemble import assemble
from fusion_search.search.exact import SAME, exact
from fusion_search.search.improve import improve
from fusion_search.search.peak import fitting_order, peak_of, plan_within
from fusion_search.search.plan import Plan
from fusion_search.search.policies import POLICIES
from fusion_search.search.quotient import execution_order
from fusion_search.search.space import derive_facts

Method = Callable[[GroupSpace, float], Plan]
#: Gives the space that it planned in, the given one or that without copies, and groups in execution order.
Rule = Callable[[GroupSpace, float], tuple[GroupSpace, list[int]]]

#: Most nodes for which a search that did not close is compared with every other method, whatever the time; the share of its time that
#: is left for that.
COMPARED, _SHARE = 2048, 0.15
#: Methods whose work does not grow with the merges that they try.
_LINEAR = ("unfused", "per-operator", "linear-clusters")


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
    budget_s = time_limit_s if space.n > COMPARED else time_limit_s * (1 - _SHARE)
    with collector_paused():
        while True:
            coarse = CoarseSpace(space)
            found = exact(coarse, time_limit_s=budget_s, floors_of=coarse.floors)
            groups = [coarse.expand(group) for group in found.groups]
            if not isinstance(space, ConstrainedSpace) or not space.breaks(groups):
                break
            if found.status != "optimal":
                # What it did not find in its time another method may.
                other = _best_rule(space, float("inf"), started + time_limit_s)
                if other is not None:
                    groups = other
                    break
            if found.status != "optimal" or space.penalty >= space.most_penalty:
                raise _no_plan(space, groups, "exact" if found.status == "optimal" else "exact, in the time it had,")
            space = ConstrainedSpace(space.base, space.constraints, penalty=space.most_penalty, held=space.held)
        statistics: dict[str, Any] = {"chains": coarse.n, **asdict(found.statistics)}
        if isinstance(space, ConstrainedSpace) and space.limit_bytes is not None:
            left = max(time_limit_s - (time.monotonic() - started), time_limit_s * 0.2)
            return _exact_within(space, groups, found.lower_bound, left, statistics)
        if found.status != "optimal":
            took_s = time.monotonic() - started
            closed = found.cost - found.lower_bound <= found.cost * SAME
            groups = _no_worse(space, groups, started + min(time_limit_s, took_s if closed else 2 * took_s))
        status = "optimal" if sum(space.cost(group) or 0 for group in groups) == found.lower_bound else "feasible"
        return assemble(space, groups, method="exact", status=status, lower_bound=found.lower_bound, statistics=statistics)


def _best_rule(space: GroupSpace, cost: float, deadline: float) -> list[int] | None:
    """Return the groups of the cheapest plan of the other methods that does what is demanded, if it costs less than `cost`."""
    best: tuple[GroupSpace, list[int]] | None = None
    for name in sorted(_RULES, key=lambda name: (name not in _LINEAR, name)):
        whole = space.n <= COMPARED or name in _LINEAR
        left_s = float("inf") if whole else max(deadline - time.monotonic(), 0.0)
        if not left_s:
            continue
        try:
            where, groups = _RULES[name](space, left_s)
        except NoPlanError:  # it does not do what is demanded
            continue
        found = sum(where.cost(group) or 0 for group in groups)
        if found < cost:
            cost, best = found, (where, groups)
    if best is None or best[0].program is space.program:
        return None if best is None else best[1]
    masks = place(space.program, [best[0].program.names(group) for group in best[1]])
    assert not isinstance(masks, frozenset), "no rule computes a node twice"
    return masks


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
    if not found.closed:
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


def _baseline(space: GroupSpace, name: str, make: Callable[[CoarseSpace], tuple[int, ...]]) -> tuple[GroupSpace, list[int]]:
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
    return space, groups


def _unfused(space: GroupSpace, time_limit_s: float) -> tuple[GroupSpace, list[int]]:
    return _baseline(space, "unfused", baselines.unfused)


def _per_operator(space: GroupSpace, time_limit_s: float) -> tuple[GroupSpace, list[int]]:
    deadline = time.monotonic() + time_limit_s

    def groups(coarse: CoarseSpace) -> tuple[int, ...]:
        origins: dict[str, int] = {}
        nodes = [coarse.fine.program.members[bits(cluster)[0]].node for cluster in coarse.clusters]
        operators = [origins.setdefault(node.origin or node.name, len(origins)) for node in nodes]
        return baselines.per_operator(coarse, operators, deadline=deadline)

    return _baseline(space, "per-operator", groups)


def _fuse_all(space: GroupSpace, time_limit_s: float) -> tuple[GroupSpace, list[int]]:
    deadline = time.monotonic() + time_limit_s
    return _baseline(space, "fuse-all", lambda coarse: baselines.fuse_all(coarse, deadline=deadline))


def _policy(name: str) -> Rule:
    def groups(space: GroupSpace, time_limit_s: float) -> tuple[GroupSpace, list[int]]:
        if isinstance(space, ConstrainedSpace):
            raise NoPlanError(f"{name} is a published policy and takes no demands", hint="use exact, or one of the plain baselines")
        # None of the published rules puts two contractions into one kernel, or weighs computing a value again.
        space = space.plain
        plain = constrain(space, [fusion_off(rule="cross-block")])
        return space, list(POLICIES[name](plain, time.monotonic() + time_limit_s))

    return groups


def _plan_of(name: str) -> Method:
    def plan(space: GroupSpace, time_limit_s: float) -> Plan:
        where, groups = _RULES[name](space, time_limit_s)
        return assemble(where, groups, method=name)

    return plan


_RULES: dict[str, Rule] = {
    "unfused": _unfused,
    "per-operator": _per_operator,
    "fuse-all": _fuse_all,
    **{name: _policy(name) for name in POLICIES},
}
METHODS: dict[str, Method] = {"exact": _exact, **{name: _plan_of(name) for name in _RULES}}
