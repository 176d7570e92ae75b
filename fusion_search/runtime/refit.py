"""Keeping a plan's groups when the model is bound to other extents."""

from __future__ import annotations

from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan
from fusion_search.search.quotient import execution_order


def refit(plan: Plan, graph: Graph) -> list[tuple[str, ...]]:
    """Return the plan's groups as groups of another binding of its model, in an order in which they can run.

    A node that the binding lost is dropped, one that it gained runs alone, and a group that is no longer legal is
    taken apart into its nodes.
    """
    import costmodels

    program = Program(graph)
    space = GroupSpace(program, plan.profile, costmodels.model(plan.cost_model, plan.weights))
    masks: list[int] = []
    taken = 0
    for group in plan.groups:
        mask = program.mask([name for name in group.nodes if name in program.position])
        if mask and not space.reasons(mask) and isinstance(space.priced(mask), Priced):
            masks.append(mask)
            taken |= mask
    masks += [1 << p for p in range(space.n) if not taken >> p & 1]
    order = execution_order(space.preds, masks)
    if order is None:  # cannot happen for groups of one plan unless the binding changed the edges between them
        order = [1 << p for p in range(space.n)]
    return [program.names(mask) for mask in order]
