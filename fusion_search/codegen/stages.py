"""Placing a group's members into stages: loop nests that run one after the other for each block.

Members share a nest when they run over the same loops and no one needs another's finished result. What a later stage
needs lives in memory between them (or in a local variable when it spans no loop).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from fusion_search.codegen.access import GroupAccess, Linear, library_kernel
from fusion_search.codegen.blocks import by_lanes, is_reduce
from fusion_search.fusion.parts import joins_few_parts
from fusion_search.fusion.program import Member

#: Definitions, at most, of a nest that is written once for each part of a concat or pad.
FEW_DEFINITIONS = 16
#: Elements of a part's row, at least, for which the nest around it is cut: one vector.
PART_ROW = 16


@dataclass(slots=True)
class Stage:
    """One loop nest, or one call of a library kernel.

    Attributes
    ----------
    kind : str
        ``loop``, ``parts`` (a concat or pad, and maps that read it), ``heavy`` (contraction, window) or ``scatter``.
    members : list of int
        In canonical order.
    space : frozenset of int
        The loops it runs over, fixed ones left out.
    order : list of int
        Those loops, outermost first.
    inside : list of int
        Members that are evaluated in the loops of its parts.
    again : list of int
        Members of earlier stages that are computed once more, since what they are made from is there.
    """

    kind: str
    members: list[int]
    space: frozenset[int]
    order: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)

    @property
    def defined(self) -> list[int]:
        """All members that it computes, in canonical order."""
        return sorted([*self.members, *self.again])


def absorbed(group: GroupAccess, live_out: set[int]) -> set[int]:
    """Return the members that a matrix product reads through: transposes of live-ins that nothing else needs."""
    found = set()
    for i, member in enumerate(group.members):
        if member.spec.name != "Transpose" or i in live_out or (i, 0) in group.producers:
            continue
        readers = [where for where, producer in group.producers.items() if producer == i]
        if readers and all(library_kernel(group.members[r]) == "product" and group.identity[(r, k)] for r, k in readers):
            found.add(i)
    return found


def place(group: GroupAccess, tiled: set[int], skip: set[int], live_out: set[int]) -> list[Stage]:
    """Assign members to stages, in order.

    Parameters
    ----------
    group : GroupAccess
    tiled : set of int
        Blocked outer atoms.
    skip : set of int
        Members that another member reads through (a transpose absorbed by a contraction): no stage of their own.
    live_out : set of int
        Members that others read from memory in any case.
    """
    stages: list[Stage] = []
    stage_of: dict[int, int] = {}
    fixed = group.outer - tiled
    for i, member in enumerate(group.members):
        if i in skip or i in group.in_parts:
            continue
        space = frozenset(group.loops[i].all - fixed)
        kind = _kind(member)
        first = 0
        for k in range(len(member.operands)):
            producer = group.producers.get((i, k))
            if producer is None or producer in skip or producer in group.in_parts:
                continue
            maker = group.members[producer]
            at = stage_of[producer]
            after = (
                stages[at].kind != "loop" or is_reduce(maker) or not group.identity[(i, k)] or stages[at].space != space or kind != "loop"
            )
            first = max(first, at + 1 if after else at)
        for at in range(first, len(stages)):
            if kind == "loop" and stages[at].kind == "loop" and stages[at].space == space and _compatible(group, stages[at], i):
                break
        else:
            at = len(stages)
            stages.append(Stage(kind, [], space))
        stages[at].members.append(i)
        stages[at].inside += [p for p, part in group.in_parts.items() if part.host == i]
        stage_of[i] = at
    _sink(group, stages, stage_of, live_out)
    _join_readers(group, stages, stage_of, live_out)
    stages = [stage for stage in stages if stage.members]
    for stage in stages:
        stage.members.sort()
        stage.inside.sort()
        stage.order = _order(group, stage, live_out)
    _compute_again(group, stages, skip, live_out)
    return stages


def _sink(group: GroupAccess, stages: list[Stage], stage_of: dict[int, int], live_out: set[int]) -> None:
    """Move maps into the nests of their readers, where their values stay in registers.

    Placed as early as it can be, the map of a live-in would wait in scratch for what its reader also needs: all of an image, for
    the root of one variance. A map moves when what it reads of its own nest and would then have to be stored is not more than the
    value that need no longer be.
    """
    readers: dict[int, list[tuple[int, int]]] = {}
    for (reader, k), producer in group.producers.items():
        if reader in stage_of and producer in stage_of:
            readers.setdefault(producer, []).append((reader, k))

    def joins(i: int, reader: int, k: int) -> bool:
        """True when a map can be in the very nest of one that reads it."""
        stage = stages[stage_of[reader]]
        return group.identity[(reader, k)] and stage.kind == "loop" and stage.space == stages[stage_of[i]].space

    def crosses(i: int) -> bool:
        """True when a later stage reads a member's value, so that it is stored anyway."""
        return any(stage_of[r] != stage_of[i] for r, _ in readers[i])

    for i in sorted(stage_of, reverse=True):
        now = stage_of[i]
        if i in live_out or is_reduce(group.members[i]) or stages[now].kind != "loop" or i not in readers:
            continue
        last = min(stage_of[r] if joins(i, r, k) else stage_of[r] - 1 for r, k in readers[i])
        fits = (s for s in range(last, now, -1) if stages[s].kind == "loop" and stages[s].space == stages[now].space)
        at = next(fits, now)
        made_here = {p for (reader, _), p in group.producers.items() if reader == i and stage_of.get(p) == now}
        stored = [p for p in made_here if not crosses(p) and any(stage_of[r] == now and r != i for r, _ in readers[p])]
        if at > now and len(stored) <= 1:
            stages[now].members.remove(i)
            stages[at].members.append(i)
            stage_of[i] = at


def _join_readers(group: GroupAccess, stages: list[Stage], stage_of: dict[int, int], live_out: set[int]) -> None:
    """Move concats and pads into the nests that read them, where these are maps over the same loops.

    The nest is then written for each part, and takes the part's elements from registers: no row of the result waits in scratch.
    """
    readers: dict[int, list[tuple[int, int]]] = {}
    for where, producer in group.producers.items():
        readers.setdefault(producer, []).append(where)
    for stage in stages:
        if stage.kind != "parts" or not stage.space or not joins_few_parts(group.members[stage.members[0]]):
            continue
        (i,) = stage.members
        nests = {stage_of.get(reader) for reader, _ in readers.get(i, ())}
        at = nests.pop() if len(nests) == 1 else None
        if at is None or stages[at].space != stage.space or not all(group.identity[where] for where in readers[i]):
            continue
        nest = stages[at]
        if nest.kind == "loop" and _may_be_cut(group, nest, i, live_out) and _long_rows(group, i, _order(group, nest, live_out)[-1]):
            nest.kind, nest.inside = "parts", stage.inside
            nest.members.append(i)
            stage.members, stage.inside = [], []
            stage_of[i] = at


def _may_be_cut(group: GroupAccess, nest: Stage, i: int, live_out: set[int]) -> bool:
    """Whether a nest may be written for each part of a member that it reads: few simple maps, connected, that read nothing across its rows.

    Special functions are worth whole rows of several vectors.
    """
    members = [group.members[i] for i in nest.members]
    inner = _order(group, nest, live_out)[-1]
    return (
        len(members) <= FEW_DEFINITIONS
        and all(not is_reduce(member) and member.spec.flop_class != "special" for member in members)
        and all(group.reads[where].strides.get(inner, 0) <= 1 for where in group.reads if where[0] in nest.members)
        and len(components(group, [*nest.members, i])) == 1
    )


def _long_rows(group: GroupAccess, i: int, inner: int) -> bool:
    """Whether the parts of a concat or pad leave whole vectors of the innermost loop."""
    member = group.members[i]
    cut = [d for d, loops in enumerate(group.original[i]) if loops and set(loops) & set(group.pieces[inner])]
    return all(operand.shape[d] >= PART_ROW or operand.shape[d] == member.shape[d] for d in cut for operand in member.operands)


def _compute_again(group: GroupAccess, stages: list[Stage], skip: set[int], live_out: set[int]) -> None:
    """Let maps be computed again where that spares a store: of one value that waits anyway, and of what a whole row has in common.

    What a layer norm divides by its deviation is its row less the mean, and the row is there.
    """
    stage_of = {i: at for at, stage in enumerate(stages) for i in (*stage.members, *stage.inside)}
    for i, now in stage_of.items():
        readers = [(r, k) for (r, k), producer in group.producers.items() if producer == i and r not in skip]
        later = {stage_of[r] for r, _ in readers} - {now}
        if i in live_out or i in group.in_parts or not later or stages[now].kind != "loop":
            continue
        if not all(group.identity[where] for where in readers) or not _of_one_value(group, stages, stage_of, i, skip):
            continue
        if all(_takes_again(group, stages[at], stages[now]) for at in later):
            for at in later:
                stages[at].again.append(i)


def _takes_again(group: GroupAccess, stage: Stage, before: Stage) -> bool:
    maps = all(group.members[i].spec.kind == "map" for i in stage.members)
    return stage.kind == "loop" and maps and not stage.inside and stage.space == before.space and stage.order[-1:] == before.order[-1:]


def _of_one_value(group: GroupAccess, stages: list[Stage], stage_of: dict[int, int], i: int, skip: set[int]) -> bool:
    """Whether a simple map is made of one value in memory, contiguous and of its own place, and of what does not change along a row."""
    member, now = group.members[i], stage_of[i]
    inner = stages[now].order[-1] if stages[now].order else None
    if member.spec.kind != "map" or member.spec.flop_class != "simple" or inner is None:
        return False
    streams = 0
    for k, operand in enumerate(member.operands):
        if operand.parameter:
            continue
        producer = group.producers.get((i, k))
        if producer is not None and (producer in skip or producer in group.in_parts or stage_of[producer] == now):
            return False
        if producer is not None and any(producer in stage.again for stage in stages):
            return False  # it is computed again itself, and lies nowhere
        linear = group.reads.get((i, k)) if producer is None else group.writes[producer]
        if linear is None or (producer is not None and not group.identity[(i, k)]):
            return False
        if linear.strides.get(inner, 0):
            streams += 1
            if linear.strides[inner] != 1:
                return False
    return streams == 1


def components(group: GroupAccess, members: Sequence[int]) -> list[list[int]]:
    """Some members of a group by who reads whom among them."""
    of = {i: i for i in members}
    for (reader, _), producer in group.producers.items():
        if reader in of and producer in of and of[reader] != of[producer]:
            old, new = of[reader], of[producer]
            of = {i: new if root == old else root for i, root in of.items()}
    return [[i for i in members if of[i] == root] for root in dict.fromkeys(of.values())]


def _kind(member: Member) -> str:
    if member.spec.kind in ("contract", "window"):
        return "heavy"
    if member.spec.kind == "scatter":
        return "scatter"
    return "parts" if member.spec.kind == "layout" and member.spec.body is None else "loop"


def _compatible(group: GroupAccess, stage: Stage, i: int) -> bool:
    """Reductions of one nest must reduce the same loops in the same way."""
    if not is_reduce(group.members[i]):
        return True
    for other in stage.members:
        if is_reduce(group.members[other]):
            same = group.loops[other].reduced == group.loops[i].reduced
            if not same or by_lanes(group.members[other]) != by_lanes(group.members[i]):
                return False
    return True


def _order(group: GroupAccess, stage: Stage, live_out: set[int]) -> list[int]:
    """Loops of a stage, outermost first."""
    reducers = [i for i in stage.members if is_reduce(group.members[i])]
    lead, units = _lead(group, stage), _stage_units(group, stage, live_out)
    ordered = sorted(stage.space, key=lambda a: (-lead.strides.get(a, 0), a))
    if reducers:
        reduced = group.loops[reducers[0]].reduced
        parallel = [a for a in ordered if a not in reduced]
        if by_lanes(group.members[reducers[0]]) or not parallel:
            return parallel + reduced
        innermost = max(parallel, key=lambda a: (units[a], group.extents[a], -a))
        return [a for a in parallel if a != innermost] + reduced + [innermost]
    if not ordered:
        return []
    innermost = max(ordered, key=lambda a: (units[a], group.extents[a], -a))
    return [a for a in ordered if a != innermost] + [innermost]


def _lead(group: GroupAccess, stage: Stage) -> Linear:
    """The address whose order of loops the nest follows: the largest member's result."""
    best = max(stage.members, key=lambda i: (prod(group.extents[a] for a in group.loops[i].parallel), -i))
    reads = [group.reads[(best, k)] for k in range(len(group.members[best].operands)) if (best, k) in group.reads]
    if is_reduce(group.members[best]) and reads:
        return reads[0]
    return group.writes[best]


def _stage_units(group: GroupAccess, stage: Stage, live_out: set[int]) -> dict[int, int]:
    """How many elements of memory are read or written one beside the other along each loop; writes count twice.

    What stays in registers has no say, and a vector that a whole image reads has little.
    """
    inside = set(stage.members)
    readers: dict[int, set[int]] = {}
    for (reader, _), producer in group.producers.items():
        readers.setdefault(producer, set()).add(reader)
    units = dict.fromkeys(stage.space, 0)
    for i in stage.members:
        addresses = [
            (group.reads[(i, k)], 1)
            for k in range(len(group.members[i].operands))
            if (i, k) in group.reads and group.producers.get((i, k)) not in inside
        ]
        if i in live_out or not readers.get(i, set()) <= inside:
            addresses.append((group.writes[i], 2))
        for linear, weight in addresses:
            elements = prod(group.extents[a] for a in units if linear.strides.get(a, 0))
            for atom in units:
                units[atom] += weight * elements * (linear.strides.get(atom, 0) == 1)
    return units
