"""From sets of nodes to plans: schedules, stores, terms and totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from costmodels import CostModel
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.constraints import ConstrainedSpace
from fusion_search.fusion.demands import as_record
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import MAX_NODES, SPACE, GroupSpace, Priced
from fusion_search.search.peak import fitting_order
from fusion_search.search.plan import OuterLoop, Plan, PlanGroup, Schedule, Tile
from fusion_search.search.quotient import execution_order


def assemble(
    space: GroupSpace,
    groups: Sequence[int],
    *,
    method: str,
    status: str = "feasible",
    lower_bound: int = 0,
    statistics: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan of legal groups that are given in an order in which they can run."""
    made = tuple(_group(space, group) for group in groups)
    return Plan(
        space.program.graph,
        space.profile,
        _model_name(space.model),
        dict(space.model.weights),
        method,
        made,
        status,
        sum(group.cost_as for group in made),
        lower_bound,
        describe(space),
        dict(statistics or {}),
    )


def describe(space: GroupSpace) -> dict[str, Any]:
    """Name the space that was searched: kinds of group, limits, and what was refused by rule."""
    described: dict[str, Any] = {
        "name": SPACE,
        "kinds": ["vertical", "siblings of a shared live-in", "multi-output", "cross-block over a shared outer loop"],
        "recomputation": "within a group only",
        "reductions_split_over_blocks": False,
        "max_nodes": MAX_NODES,
        "max_contractions": space.max_heavy,
        "nodes": space.n,
        "emittable_only": space.can_emit is not None,
        "refused": dict(sorted(space.refusals.items())),
    }
    if isinstance(space, ConstrainedSpace):
        described["constraints"] = [as_record(constraint) for constraint in space.constraints]
        if space.refused_by_user:
            described["refused"]["user"] = space.refused_by_user
    return described


def ordered_or_reasons(space: GroupSpace, groups: Sequence[Sequence[str]]) -> list[int] | list[Reason]:
    """Turn lists of node names into sets in execution order, or say why they are no plan."""
    program = space.program
    reasons: list[Reason] = []
    strange = sorted({name for group in groups for name in group if name not in program.position})
    if strange:
        return [Reason("unknown-node", tuple(strange), remedy="name core nodes, as in graph.nodes")]
    masks = [program.mask(list(group)) for group in groups if group]
    covered = 0
    for mask in masks:
        if covered & mask:
            reasons.append(Reason("cover", program.names(covered & mask), remedy="take each node into one group"))
        covered |= mask
    missing = (1 << space.n) - 1 & ~covered
    if missing:
        reasons.append(Reason("cover", program.names(missing), remedy="add them, each alone or to a group"))
    if reasons:
        return reasons
    for mask in masks:
        reasons += space.reasons(mask)
    order = execution_order(space.preds, masks)
    if order is None and not any(reason.rule == "convex" for reason in reasons):
        reasons.append(Reason("order", tuple(name for group in groups for name in group)[:12], remedy="the groups wait for each other"))
    if reasons or order is None:
        return reasons
    if isinstance(space, ConstrainedSpace) and space.limit_bytes is not None and space.memory is not None:
        order, proved = fitting_order(space.memory, space.preds, masks, space.limit_bytes)
        if order is None:
            why = "no order of the groups keeps" if proved else "no order of the groups was found that keeps"
            return [Reason("memory", tuple(name for group in groups for name in group)[:12], remedy=f"{why} to {space.limit_bytes} bytes")]
    return list(order)


def _model_name(model: CostModel) -> str:
    return type(model).name


def _group(space: GroupSpace, mask: int) -> PlanGroup:
    program = space.program
    priced = space.priced(mask)
    assert isinstance(priced, Priced), f"an illegal group came out of the search: {priced}"
    positions = tuple(bits(mask))
    analysis = space.analysis(mask)
    nodes = program.names(mask)
    origin = tuple(dict.fromkeys(program.members[p].node.origin for p in positions))
    return PlanGroup(
        nodes,
        origin,
        tuple(program.value_name[value] for value in analysis.live_outs),
        _schedule(program, analysis, priced.tiling),
        priced.terms,
        priced.cost,
        int(analysis.features.bytes_read),
        int(analysis.features.bytes_written),
    )


def _schedule(program: Program, analysis: Analysis, tiling: int) -> Schedule:
    tiles = [
        Tile(tile, tuple(_outer_loop(program, analysis, atom) for atom in knob))
        for knob, tile in zip(analysis.knobs, analysis.tilings[tiling], strict=True)
    ]
    named = {atom for knob in analysis.knobs for atom in knob}
    tiles += [Tile(1, (_outer_loop(program, analysis, atom),)) for atom in analysis.outer if atom not in named]
    return Schedule(tuple(tiles))


def _outer_loop(program: Program, analysis: Analysis, atom: int) -> OuterLoop:
    carried: dict[str, tuple[int, int]] = {}
    extents = analysis.loops.extents
    for p, loops in zip(analysis.positions, analysis.loops.loops, strict=True):
        for loop, atoms in enumerate(loops):
            if atom in atoms:
                inside = prod(extents[a] for a in atoms[atoms.index(atom) + 1 :])
                carried[program.members[p].node.name] = (loop, inside)
    return OuterLoop(extents[atom], carried)
