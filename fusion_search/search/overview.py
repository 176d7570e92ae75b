"""What a plan is made of, in order of worth: fusions that gain most, groups that cost most, edges whose cut costs most."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from fusion_search.errors import UsageError
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.constraints import ConstrainedSpace, constrain
from fusion_search.fusion.demands import Constraint, NeverFuse
from fusion_search.fusion.program import bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.search.assemble import masks_of
from fusion_search.search.exact import exact
from fusion_search.search.plan import ATTOSECOND, Plan
from fusion_search.search.wording import names, seconds, signed

__all__ = ["CutEdge", "Fusion", "Overview", "overview"]

_MOST = 10


@dataclass(frozen=True, slots=True)
class Fusion:
    """A group of several nodes and what it is worth.

    Attributes
    ----------
    group : int
        Its index in the plan.
    gain_as : int
        What its nodes cost alone, less what it costs, in attoseconds.
    """

    group: int
    gain_as: int

    @property
    def gain_s(self) -> float:
        """The gain in seconds."""
        return self.gain_as * ATTOSECOND


@dataclass(frozen=True, slots=True)
class CutEdge:
    """An edge inside a group, and what it costs to keep its ends apart.

    Attributes
    ----------
    producer, consumer : str
        Core nodes.
    value : str
        What the consumer reads.
    group : int
        The group's index in the plan.
    delta_cost_as : int
        What the group's nodes cost more when they are partitioned anew, as well as can be, with the ends apart and with the other
        groups as they are.
    """

    producer: str
    consumer: str
    value: str
    group: int
    delta_cost_as: int

    @property
    def delta_cost_s(self) -> float:
        """The same in seconds."""
        return self.delta_cost_as * ATTOSECOND


@dataclass(frozen=True)
class Overview:
    """A plan explained as a whole.

    Attributes
    ----------
    plan : Plan
    fusions : tuple of Fusion
        The ten that gain most, best first.
    dearest : tuple of int
        The ten groups that cost most.
    edges : tuple of CutEdge
        The ten edges whose cut costs most.
    complete : bool
        False when time was up before all edges that could be among the ten were cut.
    """

    plan: Plan
    fusions: tuple[Fusion, ...]
    dearest: tuple[int, ...]
    edges: tuple[CutEdge, ...]
    complete: bool

    def __str__(self) -> str:
        plan = self.plan
        lines = [f"{plan.graph.name} on {plan.profile.name}: J {seconds(plan.cost_s)} in {plan.launches} launches, {plan.status}"]
        if self.fusions:
            lines.append("most valuable fusions (J of the nodes alone, less J of the group)")
            lines += [f"  {seconds(f.gain_s):>8}  {self._group(f.group)}" for f in self.fusions]
        lines.append("dearest groups")
        lines += [f"  {seconds(plan.groups[k].cost_s):>8}  {self._share(k):>5}  {self._group(k)}" for k in self.dearest]
        if self.edges:
            partly = "" if self.complete else "; time was up before all were tried"
            lines.append(f"edges whose cut costs most (the other groups as they are{partly})")
            lines += [f"  {signed(e.delta_cost_s):>8}  {e.producer} -> {e.consumer} ({e.value}, group {e.group})" for e in self.edges]
        return "\n".join(lines)

    def _share(self, k: int) -> str:
        return f"{self.plan.groups[k].cost_as / self.plan.cost_as:.1%}" if self.plan.cost_as else "-"

    def _group(self, k: int) -> str:
        group = self.plan.groups[k]
        nodes = "1 node" if len(group.nodes) == 1 else f"{len(group.nodes)} nodes"
        nodes += " written by its producers" if group.alias else ""
        return f"group {k}, {nodes}: {names(name for name in group.origin if name) or names(group.nodes)}"


def overview(plan: Plan, space: GroupSpace, demands: Sequence[Constraint], *, time_limit_s: float = 60.0) -> Overview:
    """Explain a plan as a whole.

    Parameters
    ----------
    plan : Plan
    space : GroupSpace
        The groups of its graph on its profile and cost model, without demands.
    demands : sequence of Constraint
        What the plan keeps to; edges are cut under the same demands.
    time_limit_s : float
        Budget for the edges.

    Notes
    -----
    A group's edges are looked at in order of its gain, which is the most that any cut of it can cost unless a demand stands in the
    way; once ten edges cost at least as much as the next group gains, no other can be among the ten.
    """
    program = space.program
    masks = masks_of(space, plan)
    alone = [sum(space.cost(1 << p) or 0 for p in program.distinct(mask)) for mask in masks]
    gains = [apart - group.cost_as for apart, group in zip(alone, plan.groups, strict=True)]
    wide = sorted((k for k, mask in enumerate(masks) if mask & (mask - 1)), key=lambda k: (-gains[k], k))
    dearest = sorted(range(len(masks)), key=lambda k: (-plan.groups[k].cost_as, k))
    deadline = time.monotonic() + time_limit_s
    edges: list[CutEdge] = []
    complete = True
    for k in wide:
        if not demands and len(edges) >= _MOST and edges[_MOST - 1].delta_cost_as >= gains[k]:
            break
        for u, v, value in _inner_edges(space, masks[k]):
            if time.monotonic() > deadline:
                complete = False
                break
            cost = _cost_apart(space, demands, masks[k], program.names(1 << u)[0], program.names(1 << v)[0], deadline)
            if cost is not None:
                delta = cost - plan.groups[k].cost_as
                edges.append(CutEdge(program.names(1 << u)[0], program.names(1 << v)[0], program.value_name[value], k, delta))
        edges.sort(key=lambda edge: -edge.delta_cost_as)
    return Overview(plan, tuple(Fusion(k, gains[k]) for k in wide[:_MOST]), tuple(dearest[:_MOST]), tuple(edges[:_MOST]), complete)


def _inner_edges(space: GroupSpace, group: int) -> list[tuple[int, int, int]]:
    """Producer, consumer and value of each edge inside a group."""
    found: dict[tuple[int, int, int], None] = {}
    for v in bits(group):
        for operand in space.program.members[v].operands:
            if operand.producer >= 0 and group >> operand.producer & 1:
                found[operand.producer, v, operand.base] = None
    return list(found)


def _cost_apart(space: GroupSpace, demands: Sequence[Constraint], group: int, u: str, v: str, deadline: float) -> int | None:
    """What the nodes of one group cost at least with two of them apart; None when demands do not allow it."""
    try:
        demanded = constrain(space, [*demands, NeverFuse((u, v))])
    except UsageError:
        return None
    coarse = CoarseSpace(demanded, group)
    found = exact(coarse, time_limit_s=max(deadline - time.monotonic(), 0.1))
    groups = [coarse.expand(mask) for mask in found.groups]
    if found.status != "optimal" or (isinstance(demanded, ConstrainedSpace) and demanded.breaks(groups)):
        return None
    return found.cost
