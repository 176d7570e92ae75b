"""What the generator can emit, said cheaply: the search asks it for every group on a profile that runs here."""

from __future__ import annotations

from fusion_search.codegen.writer import STORAGE
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.loops import matched_operands, segments
from fusion_search.fusion.pieces import Pieces
from fusion_search.fusion.program import Member, Operand, Program
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import Plainly


def can_emit(program: Program, analysis: Analysis) -> Reason | None:
    """Return why the generator cannot emit a group, or None when it can."""
    members = [program.members[p] for p in analysis.positions]
    if analysis.loops.conflicts:
        names = program.names(sum(1 << p for p in analysis.positions))
        return Reason("emit", names, remedy="a value is needed in two orders at once")
    for i, member in enumerate(members):
        why = _member(program, analysis, i, member)
        if why:
            return Reason("emit", (member.node.name,), remedy=why)
    for read in analysis.loops.reads:
        if read.producer >= 0 and not read.identity:
            reader = members[read.reader]
            why = _out_of_order(reader, reader.operands[read.operand])
            if why:
                return Reason("emit", (reader.node.name,), remedy=why)
    return _flat_reductions(program, analysis, members)


def plainly_emitted(program: Program, pieces: Pieces) -> Plainly:
    """Tell what nodes and edges alone say of groups, so that few have to be analysed to know whether they can be emitted."""
    nodes, edges, cutters = 0, {}, {}
    for p, member in enumerate(program.members):
        reduced = sum(len(loop) for loop in pieces.loops[p][member.domain.rank :])
        if not _never(program, member) and (member.spec.kind != "reduce" or reduced < 2):
            nodes |= 1 << p
        if _has_own_loops(member) and pieces.cutters[p]:
            cutters[p] = pieces.cutters[p]
        for operand, match in zip(member.operands, matched_operands(program, p), strict=True):
            why = _out_of_order(member, operand) if operand.producer >= 0 and match.others else ""
            if why:
                edges[operand.producer, p] = Reason("emit", (member.node.name,), remedy=why)
    return Plainly(nodes, edges, cutters)


def _out_of_order(reader: Member, operand: Operand) -> str:
    """Why a node cannot take from a member of its group what it reads in any order but its own."""
    if not plain(operand):
        return "a reshaped value is read out of order"
    if reader.spec.kind in ("contract", "window"):
        return "a contraction's operand is read out of order"
    return ""


def plain(operand: Operand) -> bool:
    """True when a view only adds or drops extents of 1."""
    pairs = segments(operand.base_shape, operand.shape)
    covered = sum(len(a) for a, _ in pairs)
    return covered == sum(n != 1 for n in operand.base_shape) and all(len(a) == 1 and len(b) == 1 for a, b in pairs)


def _member(program: Program, analysis: Analysis, i: int, member: Member) -> str:
    never = _never(program, member)
    if never:
        return never
    if _has_own_loops(member) and any(len(atoms) > 1 for atoms in analysis.loops.loops[i]):
        return f"a {'window' if member.spec.kind == 'window' else 'part'}'s loop is cut by a reshape"
    return ""


def _never(program: Program, member: Member) -> str:
    """Why a node is not emitted in whatever group."""
    strange = sorted(set(member.dtypes).difference(STORAGE))
    if strange:
        return f"no kernels for {strange[0]}"
    kind = member.spec.kind
    if kind == "opaque":
        return "an operator without a spec"
    if kind in ("contract", "window", "reduce") and program.graph.values[member.node.output].dtype.name == "bool":
        return f"no {member.spec.name} kernel for bool"
    return ""


def _has_own_loops(member: Member) -> bool:
    """Whether a node's loops may not be cut."""
    return member.spec.kind == "window" or member.spec.name in ("Concat", "Pad")


def _flat_reductions(program: Program, analysis: Analysis, members: list[Member]) -> Reason | None:
    """A reduction's order is fixed by its shape: its loops must join in the group as they do alone."""
    for i, member in enumerate(members):
        if member.spec.kind != "reduce" or len(members) == 1:
            continue
        # several axes, or one that a reshape elsewhere in the group cuts
        if sum(len(atoms) for atoms in analysis.loops.loops[i][member.domain.rank :]) < 2:
            continue
        from fusion_search.codegen.access import group_access

        alone = group_access(program, _single(program, analysis.positions[i]))
        if len(group_access(program, analysis).loops[i].reduced) != len(alone.loops[0].reduced):
            return Reason("emit", (member.node.name,), remedy="the reduced loops cannot be walked in the order that its shape fixes")
    return None


def _single(program: Program, position: int) -> Analysis:
    from fusion_search.fusion.analysis import analyse

    return analyse(program, 1 << position, 64)
