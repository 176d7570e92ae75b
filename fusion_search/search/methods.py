"""The planning methods by name: the exact search and the baselines, all on one space and one J."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.space import GroupSpace
from fusion_search.search import baselines
from fusion_search.search.assemble import assemble
from fusion_search.search.exact import exact
from fusion_search.search.plan import Plan
from fusion_search.search.policies import POLICIES

Method = Callable[[GroupSpace, float], Plan]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the cycle collector from walking the search's many small, long-lived and acyclic records again and again.

    It took a quarter of the time of a search.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _exact(space: GroupSpace, time_limit_s: float) -> Plan:
    with _collector_paused():
        coarse = CoarseSpace(space)
        found = exact(coarse, time_limit_s=time_limit_s, floors_of=coarse.floors)
    statistics: dict[str, Any] = {"chains": coarse.n, **asdict(found.statistics)}
    groups = [coarse.expand(group) for group in found.groups]
    return assemble(space, groups, method="exact", status=found.status, lower_bound=found.lower_bound, statistics=statistics)


def _unfused(space: GroupSpace, time_limit_s: float) -> Plan:
    return assemble(space, baselines.unfused(space), method="unfused")


def _per_operator(space: GroupSpace, time_limit_s: float) -> Plan:
    origins: dict[str, int] = {}
    operator_of = [origins.setdefault(member.node.origin or member.node.name, len(origins)) for member in space.program.members]
    return assemble(space, baselines.per_operator(space, operator_of), method="per-operator")


def _fuse_all(space: GroupSpace, time_limit_s: float) -> Plan:
    return assemble(space, baselines.fuse_all(space), method="fuse-all")


def _policy(name: str) -> Method:
    def plan(space: GroupSpace, time_limit_s: float) -> Plan:
        return assemble(space, POLICIES[name](space), method=name)

    return plan


METHODS: dict[str, Method] = {
    "exact": _exact,
    "unfused": _unfused,
    "per-operator": _per_operator,
    "fuse-all": _fuse_all,
    **{name: _policy(name) for name in POLICIES},
}
