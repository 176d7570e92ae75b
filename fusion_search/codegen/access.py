"""Linear reads and writes of a group, with loops that need not be apart joined into one.

Every operand in memory is addressed as ``offset + sum(stride[atom] * index[atom])``. Two atoms become one loop when
every address steps through them as through one; a flat elementwise group ends up with a single loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.loops import segments
from fusion_search.fusion.parts import InPart
from fusion_search.fusion.program import Member, Operand, Program

Shape = tuple[int, ...]


@dataclass(slots=True)
class Linear:
    """An address: element strides by atom and a constant offset."""

    strides: dict[int, int]
    offset: int = 0


@dataclass(slots=True)
class MemberLoops:
    """The atoms of one member after joining, in the order of its own dimensions."""

    parallel: list[int]
    reduced: list[int]

    @property
    def all(self) -> set[int]:
        return {*self.parallel, *self.reduced}


@dataclass(slots=True)
class GroupAccess:
    """A group with its loops joined.

    Attributes
    ----------
    members : list of Member
    loops : list of MemberLoops
    extents : dict of int to int
        Extent of each atom that is left.
    outer : set of int
        Atoms of L that are left.
    pieces : dict of int to tuple of int
        The original atoms that each one stands for, outermost first.
    reads : dict of (int, int) to Linear
        For each (member, operand) that is read from a tensor of its own (a live-in, or another member's result laid
        out in full): its address. Operands inside the group are addressed the same way when they are live-outs.
    writes : list of Linear
        Each member's result laid out in full.
    producers : dict of (int, int) to int
        The member that computes an operand.
    identity : dict of (int, int) to bool
        For operands inside the group, whether the read is the identity.
    original : tuple
        The atoms of each member's loops before joining.
    pinned : set of int
        Atoms that are joined with no other.
    in_parts : mapping of int to InPart
        Members that are evaluated where a concat or a pad reads them.
    """

    members: list[Member]
    loops: list[MemberLoops]
    extents: dict[int, int]
    outer: set[int]
    pieces: dict[int, tuple[int, ...]]
    reads: dict[tuple[int, int], Linear]
    writes: list[Linear]
    producers: dict[tuple[int, int], int]
    identity: dict[tuple[int, int], bool]
    original: tuple[tuple[tuple[int, ...], ...], ...]
    pinned: set[int] = field(default_factory=set)
    in_parts: Mapping[int, InPart] = field(default_factory=dict)


def row_major(shape: Shape) -> list[int]:
    """Element strides of a row-major tensor."""
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d] = step
        step *= shape[d]
    return strides


def group_access(program: Program, analysis: Analysis) -> GroupAccess:
    """Derive the addresses of a group and join its loops. Linear in members times rank, times pairs of loops."""
    members = [program.members[p] for p in analysis.positions]
    table = analysis.loops
    extents = dict(enumerate(table.extents))
    reads: dict[tuple[int, int], Linear] = {}
    producers: dict[tuple[int, int], int] = {}
    identity: dict[tuple[int, int], bool] = {}
    pinned = set(table.conflicts)
    for read in table.reads:
        member = members[read.reader]
        operand, access = member.operands[read.operand], member.domain.reads[read.operand]
        where = (read.reader, read.operand)
        linear = Linear({})
        for dim, step in zip(access.dims, row_major(operand.shape), strict=True):
            linear.offset += dim.offset * step
            for loop, coefficient in dim.terms:
                _spread(linear, table.loops[read.reader][loop], extents, coefficient * step)
                if read.reader in analysis.in_parts:
                    linear.offset += coefficient * step * analysis.in_parts[read.reader].shift[loop]
            if (access.guarded and dim.offset) or len(dim.terms) > 1:
                pinned |= {a for loop, _ in dim.terms for a in table.loops[read.reader][loop]}
        if member.spec.name in ("Concat", "Pad"):
            pinned |= _guarded_atoms(member, analysis, read.reader)
        reads[where] = linear
        if read.producer >= 0:
            producers[where] = read.producer
            identity[where] = read.identity
            if not read.identity:
                pinned |= read.barred | read.atoms
    writes = []
    for i, member in enumerate(members):
        if member.spec.kind in ("contract", "window", "scatter"):  # they read a parameter where it lies
            reads |= {(i, k): Linear({}) for k, operand in enumerate(member.operands) if operand.parameter}
        linear = Linear({})
        for loop, step in enumerate(row_major(member.shape)):
            _spread(linear, table.loops[i][loop], extents, step)
        writes.append(linear)
        kernel = library_kernel(member)
        if kernel == "tile":
            pinned |= {a for loop in table.loops[i][2:] for a in loop}
        elif kernel == "pool" or member.spec.kind == "scatter":
            pinned |= {a for loop in table.loops[i] for a in loop}
        elif member.spec.kind == "window" and not kernel:
            pinned |= {a for loop in table.loops[i] for a in loop}
            # what is clipped is clipped by its own axis
            pinned |= {a for dim in member.domain.reads[0].dims if dim.loop is None for loop, _ in dim.terms for a in table.loops[i][loop]}
    loops = [
        MemberLoops(
            [a for loop in table.loops[i][: m.domain.rank] for a in loop],
            [a for loop in table.loops[i][m.domain.rank :] for a in loop],
        )
        for i, m in enumerate(members)
    ]
    result = GroupAccess(
        members,
        loops,
        extents,
        set(analysis.outer),
        {a: (a,) for a in extents},
        reads,
        writes,
        producers,
        identity,
        table.loops,
        pinned,
        analysis.in_parts,
    )
    _join(result)
    return result


def _spread(linear: Linear, atoms: Sequence[int], extents: dict[int, int], step: int) -> None:
    """Add a loop, cut into atoms (outermost first), to an address."""
    for atom in reversed(atoms):
        linear.strides[atom] = linear.strides.get(atom, 0) + step
        step *= extents[atom]


def _guarded_atoms(member: Member, analysis: Analysis, i: int) -> set[int]:
    """The loops along which a concat or pad has parts."""
    if member.spec.name == "Concat":
        dims = [member.node.attr("axis")]
    else:
        dims = [d for d, (b, a) in enumerate(zip(member.node.attr("before"), member.node.attr("after"), strict=True)) if b or a]
    return {atom for d in dims for atom in analysis.loops.loops[i][d]}


def library_kernel(member: Member) -> str:
    """Return what computes a contraction or window.

    ``product`` (a matrix product), ``tile`` (a convolution), ``pool`` (over planes), or nothing: loops.
    """
    if any(dtype not in ("float32", "float64") for dtype in member.dtypes):
        return ""
    if member.spec.kind == "contract":
        return "product"
    if member.spec.name in ("MaxPool", "SumPool") and member.dtypes == ("float32",) and len(member.shape) == 4:
        dims = member.domain.reads[0].dims
        lead = {name: tuple(member.node.attr(name)[:2]) for name in ("kernel", "strides", "before", "after")}
        planes = lead["kernel"] == lead["strides"] == (1, 1) and lead["before"] == lead["after"] == (0, 0)
        # a window that moves has a tensor of its own as its operand; along a dimension that is only passed through, rows could be cut
        moves = [dim.loop is None and bool(dim.terms or dim.offset) for dim in dims[2:]]
        sizes = member.operands[0].shape[2:]
        passed = [n != 1 and dim.loop is not None and dim.loop < member.domain.rank for dim, n in zip(dims[2:], sizes, strict=True)]
        return "pool" if planes and any(moves) and not any(passed) else ""
    if member.spec.name != "Conv" or len(member.shape) not in (4, 5):
        return ""
    if pointwise_window(member):
        return "product" if member.dtypes == ("float32",) else ""
    return "tile" if member.dtypes == ("float32",) else ""


def pointwise_window(member: Member) -> bool:
    """True for a convolution whose kernel is one point: a contraction in all but name."""
    return member.spec.name == "Conv" and all(dim.loop is not None or not (dim.terms or dim.offset) for dim in member.domain.reads[0].dims)


def _join(group: GroupAccess) -> None:
    """Join pairs of atoms until none can be."""
    addresses = [*group.reads.values(), *group.writes]
    changed = True
    while changed:
        changed = False
        atoms = sorted(group.extents)
        for a in atoms:
            for b in atoms:
                if a != b and a in group.extents and b in group.extents and _joinable(group, addresses, a, b):
                    _merge(group, addresses, a, b)
                    changed = True


def _joinable(group: GroupAccess, addresses: Sequence[Linear], a: int, b: int) -> bool:
    if a in group.pinned or b in group.pinned or (a in group.outer) != (b in group.outer):
        return False
    extent = group.extents[b]
    for linear in addresses:
        if linear.strides.get(a, 0) != linear.strides.get(b, 0) * extent:
            return False
    for loops in group.loops:
        for side in (loops.parallel, loops.reduced):
            if (a in side) != (b in side):
                return False
            if a in side and side.index(b) != side.index(a) + 1:
                return False
    return True


def _merge(group: GroupAccess, addresses: Sequence[Linear], a: int, b: int) -> None:
    """Let `b` stand for the loop pair (a outside, b inside)."""
    group.extents[b] *= group.extents.pop(a)
    group.pieces[b] = (*group.pieces.pop(a), *group.pieces[b])
    group.outer.discard(a)
    for linear in addresses:
        linear.strides.pop(a, None)
    for loops in group.loops:
        for side in (loops.parallel, loops.reduced):
            if a in side:
                side.remove(a)


def plain_view(operand: Operand) -> bool:
    """True when a view only adds or drops extents of 1."""
    return all(len(a) == 1 and len(b) == 1 for a, b in segments(operand.base_shape, operand.shape)) and prod(operand.shape) == prod(
        operand.base_shape
    )
