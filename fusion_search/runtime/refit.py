"""Keeping a plan's groups when the model is bound to other extents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import costmodels
from fusion_search.codegen.capability import can_emit
from fusion_search.fusion.analysis import live_outs
from fusion_search.fusion.copies import apart, place
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan
from fusion_search.search.quotient import execution_order


def space_of(plan: Plan, graph: Graph, copied: frozenset[str] = frozenset()) -> GroupSpace:
    """Return the space in which a plan was made, for another binding of its model."""
    model = costmodels.model(plan.cost_model, plan.weights)
    return GroupSpace(Program(graph, copied), plan.profile, model, can_emit if plan.profile.runs_here else None)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """What a kernel computes and stores, by name."""

    nodes: tuple[str, ...]
    stores: tuple[str, ...]


def recomputed(groups: Iterable[Sequence[str]]) -> frozenset[str]:
    """Return the nodes that several groups, given by their nodes, compute."""
    count = Counter(name for group in groups for name in group)
    return frozenset(name for name, times in count.items() if times > 1)


def refit(plan: Plan, groups: Sequence[RunGroup], graph: Graph) -> list[RunGroup]:
    """Return groups of a plan as groups of another binding of its model, in an order in which they can run.

    Legality is checked again for the extents of that binding: a group that is no longer legal is taken apart into its nodes. A node
    that the binding lost is dropped, one that it gained runs alone.
    """
    space = space_of(plan, graph, recomputed(group.nodes for group in groups))
    program = space.program
    here = [[name for name in group.nodes if name in program.position] for group in groups]
    placed = place(program, here, [group.stores for group in groups])
    assert not isinstance(placed, frozenset), "the program has copies of what the plan computes twice"
    masks: list[int] = []
    taken = 0
    for mask in placed:
        if mask and not space.reasons(mask) and isinstance(space.priced(mask), Priced):
            masks.append(mask)
            taken |= mask
    masks += apart(program, (1 << space.n) - 1 & ~taken)
    order = execution_order(space.preds, masks)
    if order is None:  # cannot happen for groups of one plan unless the binding changed the edges between them
        order = apart(program, (1 << space.n) - 1)
    return [RunGroup(program.names(mask), stored(program, mask)) for mask in order]


def stored(program: Program, mask: int) -> tuple[str, ...]:
    """Return the values that leave a group."""
    return tuple(program.value_name[value] for _, value in live_outs(program, program.distinct(mask), mask))
