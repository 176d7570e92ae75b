"""From sets of nodes to plans: schedules, stores, terms and totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any

from costmodels import CostModel
from fusion_search.errors import PlanError
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.constraints import ConstrainedSpace
from fusion_search.fusion.copies import MAX_HEAVY_USES, MAX_USES, place
from fusion_search.fusion.demands import as_record
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import MAX_NODES, GroupSpace, Priced
from fusion_search.search.peak import fitting_order
from fusion_search.search.plan import OuterLoop, Plan, PlanGroup, Schedule, Tile
from fusion_search.search.quotient import execution_order

#: Choices of who stores a value that several groups compute, tried by `price`.
_MOST_CHOICES = 256


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
        "name": space.name,
        "kinds": ["vertical", "siblings of a shared live-in", "multi-output", "cross-block over a shared outer loop", "horizontal"],
        "recomputation": f"of {len(set(space.program.copies.values()))} nodes, by each of up to {MAX_USES} uses, "
        f"{MAX_HEAVY_USES} with contractions",
        "reductions_split_over_blocks": False,
        "aliases": f"{len(space.program.names(space.aliases))} concats that their producers can write" if space.aliasing else "off",
        "max_nodes": MAX_NODES,
        "max_contractions": space.max_heavy,
        "max_siblings": space.families.most if space.max_heavy > 1 else space.max_heavy,
        "nodes": space.n,
        "emittable_only": space.can_emit is not None,
        "refused": dict(sorted(space.refusals.items())),
    }
    if isinstance(space, ConstrainedSpace):
        described["constraints"] = [as_record(constraint) for constraint in space.constraints]
        if space.refused_by_user:
            described["refused"]["user"] = space.refused_by_user
    return described


def masks_of(space: GroupSpace, plan: Plan) -> list[int]:
    """Return a plan's groups as sets of the space's positions, in order.

    Raises
    ------
    PlanError
        When the plan computes a node twice that the space has no copies of.
    """
    found = place(space.program, [group.nodes for group in plan.groups], [group.stores for group in plan.groups])
    if isinstance(found, frozenset):
        raise PlanError(f"several groups compute {sorted(found)[0]!r}, which this space does not", hint="plan the model again")
    return found


def ordered_or_reasons(space: GroupSpace, groups: Sequence[Sequence[str]]) -> list[int] | list[Reason]:
    """Turn lists of node names into sets in execution order, or say why they are no plan."""
    program = space.program
    reasons: list[Reason] = []
    strange = sorted({name for group in groups for name in group if name not in program.position})
    if strange:
        return [Reason("unknown-node", tuple(strange), remedy="name core nodes, as in graph.nodes")]
    present = {name for group in groups for name in group}
    missing = [name for name in program.position if name not in present]
    if missing:
        return [Reason("cover", tuple(missing), remedy="add them, each alone or to a group")]
    groups = [group for group in groups if group]
    best: tuple[int, list[int]] | None = None
    for stores in _who_stores(program, groups):
        masks = place(program, groups, stores)
        if isinstance(masks, frozenset):
            return [Reason("recomputation", tuple(sorted(masks)), remedy="take each of them into one group")]
        found, order = _judged(space, groups, masks)
        if found:
            reasons = reasons or found
            continue
        cost = sum(space.cost(mask) or 0 for mask in order)
        if best is None or cost < best[0]:
            best = cost, order
    return reasons if best is None else list(best[1])


def _who_stores(program: Program, groups: Sequence[Sequence[str]]) -> Iterator[list[list[str]]]:
    """Every choice of who stores what several groups compute, up to a limit; the first of the groups in the first choice."""
    homes: dict[str, list[int]] = {}
    for k, group in enumerate(groups):
        for name in dict.fromkeys(group):
            homes.setdefault(name, []).append(k)
    several = {name: where for name, where in homes.items() if len(where) > 1}
    for chosen in islice(product(*several.values()), _MOST_CHOICES):
        stores: list[list[str]] = [[] for _ in groups]
        for name, k in zip(several, chosen, strict=True):
            stores[k] += [program.value_name[value] for value in program.members[program.position[name]].outputs]
        yield stores


def _judged(space: GroupSpace, groups: Sequence[Sequence[str]], masks: list[int]) -> tuple[list[Reason], list[int]]:
    """Every reason why these groups are no plan, and an order in which they run."""
    reasons = []
    for group, mask in zip(groups, masks, strict=True):
        idle = set(group).difference(space.program.names(mask))
        if idle:
            reasons.append(Reason("cover", tuple(sorted(idle)), remedy="take them out where nothing needs them"))
    if reasons:
        return reasons, []
    for mask in masks:
        reasons += space.reasons(mask)
    order = execution_order(space.preds, masks)
    if order is None and not any(reason.rule == "convex" for reason in reasons):
        reasons.append(Reason("order", tuple(name for group in groups for name in group)[:12], remedy="the groups wait for each other"))
    if reasons or order is None:
        return reasons, []
    if isinstance(space, ConstrainedSpace) and space.limit_bytes is not None and space.memory is not None:
        order, proved = fitting_order(space.memory, space.preds, masks, space.limit_bytes)
        if order is None:
            why = "no order of the groups keeps" if proved else "no order of the groups was found that keeps"
            names = tuple(name for group in groups for name in group)[:12]
            return [Reason("memory", names, remedy=f"{why} to {space.limit_bytes} bytes")], []
    return reasons, list(order)


def _model_name(model: CostModel) -> str:
    return type(model).name


def _group(space: GroupSpace, mask: int) -> PlanGroup:
    program = space.program
    priced = space.priced(mask)
    assert isinstance(priced, Priced), f"an illegal group came out of the search: {priced}"
    analysis = space.analysis(mask)
    nodes = program.names(mask)
    free = space.free(mask)
    origin = tuple(dict.fromkeys(program.members[p].node.origin for p in bits(mask)))
    return PlanGroup(
        nodes,
        origin,
        tuple(program.value_name[value] for value in analysis.live_outs),
        Schedule() if free else _schedule(program, analysis, priced.tiling),
        priced.terms,
        priced.cost,
        0 if free else int(analysis.features.bytes_read),
        0 if free else int(analysis.features.bytes_written),
        alias=free,
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
