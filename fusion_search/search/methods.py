"""The planning methods by name: the exact search and the baselines, all on one space and one J."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from fusion_search.errors import UsageError
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.constraints import ConstrainedSpace, constrain
from fusion_search.fusion.demands import fusion_off
from fusion_search.fusion.program import bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.search import baselines
from fusion_search.search.assemble import assemble
from fusion_search.search.exact import exact
from fusion_search.search.plan import Plan
from fusion_search.search.policies import POLICIES

Method = Callable[[GroupSpace, float], Plan]


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
    with collector_paused():
        while True:
            coarse = CoarseSpace(space)
            found = exact(coarse, time_limit_s=time_limit_s, floors_of=coarse.floors)
            groups = [coarse.expand(group) for group in found.groups]
            if not isinstance(space, ConstrainedSpace) or not space.breaks(groups):
                break
            if found.status != "optimal" or space.penalty >= space.most_penalty:
                raise _no_plan(space, groups, "exact" if found.status == "optimal" else "exact, in the time it had,")
            space = ConstrainedSpace(space.base, space.constraints, penalty=space.most_penalty)
        statistics: dict[str, Any] = {"chains": coarse.n, **asdict(found.statistics)}
        return assemble(space, groups, method="exact", status=found.status, lower_bound=found.lower_bound, statistics=statistics)


def _no_plan(space: ConstrainedSpace, groups: Sequence[int], method: str) -> NoPlanError:
    mask = space.breaks(groups)
    reasons = tuple(space.reasons(mask))
    said = " and ".join(str(constraint) for constraint in space.demanding(mask))
    error = NoPlanError(f"{said}: {method} finds no plan that does it", hint="; ".join(map(str, reasons[:3])))
    error.reasons = reasons
    return error


def _baseline(space: GroupSpace, name: str, make: Callable[[CoarseSpace], tuple[int, ...]]) -> Plan:
    """Run a baseline on the nodes and what the user joins."""
    coarse = CoarseSpace(space, chained=False)
    groups = [coarse.expand(group) for group in make(coarse)]
    if isinstance(space, ConstrainedSpace) and space.breaks(groups):
        raise _no_plan(space, groups, name)
    return assemble(space, groups, method=name)


def _unfused(space: GroupSpace, time_limit_s: float) -> Plan:
    return _baseline(space, "unfused", baselines.unfused)


def _per_operator(space: GroupSpace, time_limit_s: float) -> Plan:
    def groups(coarse: CoarseSpace) -> tuple[int, ...]:
        origins: dict[str, int] = {}
        nodes = [space.program.members[bits(cluster)[0]].node for cluster in coarse.clusters]
        return baselines.per_operator(coarse, [origins.setdefault(node.origin or node.name, len(origins)) for node in nodes])

    return _baseline(space, "per-operator", groups)


def _fuse_all(space: GroupSpace, time_limit_s: float) -> Plan:
    return _baseline(space, "fuse-all", baselines.fuse_all)


def _policy(name: str) -> Method:
    def plan(space: GroupSpace, time_limit_s: float) -> Plan:
        if isinstance(space, ConstrainedSpace):
            raise NoPlanError(f"{name} is a published policy and takes no demands", hint="use exact, or one of the plain baselines")
        # None of the published rules puts two contractions into one kernel.
        plain = constrain(space, [fusion_off(rule="cross-block")])
        return assemble(space, POLICIES[name](plain), method=name)

    return plan


METHODS: dict[str, Method] = {
    "exact": _exact,
    "unfused": _unfused,
    "per-operator": _per_operator,
    "fuse-all": _fuse_all,
    **{name: _policy(name) for name in POLICIES},
}
