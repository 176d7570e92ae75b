"""The space of groups that a graph has on a machine; the latest are kept, since one plan brings many questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from threading import Lock

import costmodels
from fusion_search.codegen.capability import can_emit, plainly_emitted
from fusion_search.errors import UsageError
from fusion_search.fusion.copies import copyable
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan
from hardware_profiles import Profile

#: Graphs whose spaces are kept, with their weights, and spaces that are kept of each.
_GRAPHS, _SPACES = 2, 8


@dataclass(frozen=True, eq=False)
class _Known:
    """A graph, its program, and its spaces by what they were asked for."""

    graph: Graph
    program: Program
    spaces: dict[Hashable, GroupSpace] = field(default_factory=dict)


class _Latest:
    """What is known of the graphs that were asked about last."""

    def __init__(self) -> None:
        self._known: list[_Known] = []
        self._lock = Lock()

    def space(self, graph: Graph, profile: Profile, model: costmodels.CostModel) -> GroupSpace:
        with self._lock:
            spaces = self._of(graph).spaces
            space = spaces.pop((profile, model), None)
            if space is None:
                while len(spaces) >= _SPACES:
                    del spaces[next(iter(spaces))]
                emitted = (can_emit, plainly_emitted) if profile.runs_here else (None, None)
                space = GroupSpace(self._known[0].program, profile, model, *emitted)
            spaces[profile, model] = space
            return space

    def _of(self, graph: Graph) -> _Known:
        """Return what is known of a graph, which is the first from now on."""
        found = next((known for known in self._known if known.graph is graph), None)
        others = [known for known in self._known if known is not found]
        self._known = others[: _GRAPHS - 1]  # what goes need not wait for what comes
        self._known.insert(0, found or _Known(graph, _program(graph)))
        return self._known[0]


def _program(graph: Graph) -> Program:
    plain = Program(graph)
    copied = copyable(plain)
    return Program(graph, copied) if copied else plain


_latest = _Latest()


def space_like(plan: Plan) -> Callable[[Graph, Profile], GroupSpace]:
    """The space of groups of a graph on a profile, on the cost model of a plan."""
    return lambda graph, profile: space_of(graph, profile, plan.cost_model, plan.weights)


def space_of(graph: Graph, profile: Profile, cost_model: str, weights: Mapping[str, float] | None) -> GroupSpace:
    """The space of groups of a graph on a profile and a cost model; the same object when asked again soon."""
    try:
        model = costmodels.model(cost_model, weights)
    except costmodels.CostModelError as error:
        raise UsageError(error.what, where=error.where, hint=error.hint) from None
    return _latest.space(graph, profile, model)
