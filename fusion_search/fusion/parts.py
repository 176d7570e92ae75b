"""Chains of maps that are evaluated where a concat or a pad reads them, part by part.

A pad reads its operand shifted, and each part of a concat lies elsewhere in the result than in its operand. As loops of one group these
are two, and what the operand's producers compute would have to wait in scratch, whole. But a map that nobody else needs can as well be
computed at the point of the result that reads it: each element is read once, so nothing is computed twice. Its loops are then those of
the result, shifted.

A member is evaluated in a part when it is a map, or a layout that is one index map; it is not stored; one operand of one member reads it,
in the shape in which it is made: a concat of few parts or a pad, or, with equal extents and at its own point, a member that is itself
evaluated in a part; and all that it reads of the group is evaluated there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusion_search.fusion.loops import GroupLoops, Read
from fusion_search.fusion.program import Member

__all__ = ["InPart", "evaluate_in_parts", "in_parts", "is_expression", "joins_few_parts", "joins_parts"]

#: Parts of a concat, at most, whose maps are evaluated in them: each part has a text of its own.
FEW_PARTS = 4


@dataclass(frozen=True, slots=True)
class InPart:
    """Where a member is evaluated.

    Attributes
    ----------
    host, operand : int
        The concat or pad, an index in the group, and the operand that the chain of the member ends in.
    shift : tuple of int
        For each loop of the member, its index less that of the host's loop.
    """

    host: int
    operand: int
    shift: tuple[int, ...]


def in_parts(members: Sequence[Member], loops: GroupLoops, stored: set[int]) -> dict[int, InPart]:
    """Find the members that are evaluated in parts.

    Parameters
    ----------
    members : sequence of Member
        In canonical order.
    loops : GroupLoops
    stored : set of int
        Members that are written to memory.

    Notes
    -----
    Linear in members and reads times rank.
    """
    if loops.conflicts or not any(joins_few_parts(member) for member in members):
        return {}
    readers: dict[int, list[Read]] = {}
    sources: dict[int, list[int]] = {}
    for read in loops.reads:
        if read.producer >= 0:
            readers.setdefault(read.producer, []).append(read)
            sources.setdefault(read.reader, []).append(read.producer)
    found: dict[int, InPart] = {}
    for i in reversed(range(len(members))):
        reads = readers.get(i, ())
        if len(reads) == 1 and i not in stored and is_expression(members[i]):
            place = _place(members, loops, i, reads[0], found)
            if place is not None:
                found[i] = place
    for i in sorted(found):
        if any(source not in found for source in sources.get(i, ())):
            del found[i]
    for i in sorted(found, reverse=True):
        reader = readers[i][0].reader
        if not joins_few_parts(members[reader]) and reader not in found:
            del found[i]
    return found


def evaluate_in_parts(members: Sequence[Member], loops: GroupLoops, found: Mapping[int, InPart]) -> GroupLoops:
    """Return the loops of a group whose members are evaluated in parts: theirs are those of their hosts."""
    if not found:
        return loops
    table = list(loops.loops)
    for i, place in found.items():
        table[i] = loops.loops[place.host]
    reads = []
    for read in loops.reads:
        here, made = read.reader in found, read.producer in found
        if here:
            dims = members[read.reader].domain.reads[read.operand].dims
            atoms = frozenset([atom for dim in dims for loop, _ in dim.terms for atom in table[read.reader][loop]])
            read = Read(read.reader, read.operand, read.producer, made, frozenset(), atoms)
        elif made:
            read = Read(read.reader, read.operand, read.producer, True, frozenset(), read.atoms)
        reads.append(read)
    return GroupLoops(loops.extents, tuple(table), tuple(reads), loops.conflicts)


def joins_parts(member: Member, k: int) -> bool:
    """Whether a member evaluates what its operand k is computed by, if all else allows that."""
    operand = member.operands[k]
    return joins_few_parts(member) and operand.shape == operand.base_shape


def joins_few_parts(member: Member) -> bool:
    """Whether a member is a pad, or a concat of so few parts that each may have a text of its own."""
    return member.spec.name == "Pad" or (member.spec.name == "Concat" and len(member.operands) <= FEW_PARTS)


def is_expression(member: Member) -> bool:
    """Whether a member may be evaluated at any one point of its result."""
    return member.spec.kind == "map" or (member.spec.kind == "layout" and member.spec.body is not None)


def _place(members: Sequence[Member], loops: GroupLoops, i: int, read: Read, found: Mapping[int, InPart]) -> InPart | None:
    reader = members[read.reader]
    operand, access = reader.operands[read.operand], reader.domain.reads[read.operand]
    if operand.shape != operand.base_shape:
        return None
    if read.reader in found:
        return found[read.reader] if read.identity and reader.shape == members[i].shape else None
    if not joins_few_parts(reader):
        return None
    mine, theirs = loops.loops[i], loops.loops[read.reader]
    if any(a != b and len(b) > 1 for a, b in zip(mine, theirs, strict=True)):
        return None  # a view cuts the loop that is shifted
    return InPart(read.reader, read.operand, tuple([dim.offset for dim in access.dims]))
