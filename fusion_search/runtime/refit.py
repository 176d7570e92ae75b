"""Keeping a plan's groups when the model is bound to other extents."""

from __future__ import annotations

from collections.abc import Sequence

import costmodels
from fusion_search.codegen.capability import can_emit
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan
from fusion_search.search.quotient import execution_order


def space_of(plan: Plan, graph: Graph) -> GroupSpace:
    """Return the space in which a plan was made, for another binding of its model."""
    model = costmodels.model(plan.cost_model, plan.weights)
    return GroupSpace(Program(graph), plan.profile, model, can_emit if plan.profile.runs_here else None)


def refit(plan: Plan, groups: Sequence[Sequence[str]], graph: Graph) -> list[tuple[str, ...]]:
    """Return groups of a plan as groups of another binding of its model, in an order in which they can run.

    Legality is checked again for the extents of that binding: a group that is no longer legal is taken apart into its nodes. A node
    that the binding lost is dropped, one that it gained runs alone.
    """
    space = space_of(plan, graph)
    program = space.program
    masks: list[int] = []
    taken = 0
    for group in groups:
        mask = program.mask([name for name in group if name in program.position])
        if mask and not space.reasons(mask) and isinstance(space.priced(mask), Priced):
            masks.append(mask)
            taken |= mask
    masks += [1 << p for p in range(space.n) if not taken >> p & 1]
    order = execution_order(space.preds, masks)
    if order is None:  # cannot happen for groups of one plan unless the binding changed the edges between them
        order = [1 << p for p in range(space.n)]
    return [program.names(mask) for mask in order]
