"""What the generator can emit, said cheaply: the search asks it for every group on a profile that runs here."""

from __future__ import annotations

from fusion_search.codegen.writer import STORAGE
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.loops import segments
from fusion_search.fusion.program import Member, Operand, Program
from fusion_search.fusion.reasons import Reason


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
            operand = members[read.reader].operands[read.operand]
            if not plain(operand):
                return Reason("emit", (members[read.reader].node.name,), remedy="a reshaped value is read out of order")
            if members[read.reader].spec.kind in ("contract", "window"):
                return Reason("emit", (members[read.reader].node.name,), remedy="a contraction's operand is read out of order")
    return _flat_reductions(program, analysis, members)


def plain(operand: Operand) -> bool:
    """True when a view only adds or drops extents of 1."""
    pairs = segments(operand.base_shape, operand.shape)
    covered = sum(len(a) for a, _ in pairs)
    return covered == sum(n != 1 for n in operand.base_shape) and all(len(a) == 1 and len(b) == 1 for a, b in pairs)


def _member(program: Program, analysis: Analysis, i: int, member: Member) -> str:
    values = program.graph.values
    strange = sorted(set(member.dtypes).difference(STORAGE))
    if strange:
        return f"no kernels for {strange[0]}"
    loops = analysis.loops.loops[i]
    kind, name = member.spec.kind, member.spec.name
    dtype = values[member.node.output].dtype.name
    if kind == "opaque":
        return "an operator without a spec"
    if kind in ("contract", "window", "reduce") and dtype == "bool":
        return f"no {name} kernel for bool"
    if kind == "window" and any(len(atoms) > 1 for atoms in loops):
        return "a window's loop is cut by a reshape"
    if name in ("Concat", "Pad") and any(len(atoms) > 1 for atoms in loops):
        return "a part's loop is cut by a reshape"
    return ""


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
