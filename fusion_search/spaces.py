"""The space of groups that a graph has on a machine; the latest are kept, since one plan brings many questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import costmodels
from fusion_search.codegen.capability import can_emit, plainly_emitted
from fusion_search.errors import UsageError
from fusion_search.fusion.copies import copyable
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan
from hardware_profiles import Profile


class _Programs:
    """Each graph's program, kept as long as the graph."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Graph, Program]] = {}

    def of(self, graph: Graph) -> Program:
        known = self._known.get(id(graph))
        if known is None or known[0] is not graph:
            if len(self._known) >= 4:
                self._known.pop(next(iter(self._known)))
            plain = Program(graph)
            copied = copyable(plain)
            known = self._known[id(graph)] = (graph, Program(graph, copied) if copied else plain)
        return known[1]


_programs = _Programs()


@lru_cache(maxsize=8)
def _space_on(program: Program, profile: Profile, model: costmodels.CostModel) -> GroupSpace:
    return GroupSpace(program, profile, model, can_emit if profile.runs_here else None, plainly_emitted if profile.runs_here else None)


def space_like(plan: Plan) -> Callable[[Graph, Profile], GroupSpace]:
    """The space of groups of a graph on a profile, on the cost model of a plan."""
    return lambda graph, profile: space_of(graph, profile, plan.cost_model, plan.weights)


def space_of(graph: Graph, profile: Profile, cost_model: str, weights: Mapping[str, float] | None) -> GroupSpace:
    """The space of groups of a graph on a profile and a cost model; the same object when asked again soon."""
    try:
        model = costmodels.model(cost_model, weights)
    except costmodels.CostModelError as error:
        raise UsageError(error.what, where=error.where, hint=error.hint) from None
    return _space_on(_programs.of(graph), profile, model)
