"""The loops of a whole program, cut once wherever any of its views cuts one.

A group cuts its loops where the views inside it do (`fusion.loops`). Cut everywhere, a loop may be in more pieces than a group
needs; pieces that no member tells apart have equal effect, so they make one knob, and all products over them are the same. So the
counts of a group may be taken over these pieces, which are known before there is a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fusion_search.fusion.loops import Unifier, matched_operands
from fusion_search.fusion.program import Program, bits

__all__ = ["Pieces", "cut_everywhere"]

Slots = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Numbered pieces of all loops, ascending with positions; copies of a node have the same.

    Attributes
    ----------
    loops : tuple of tuple of tuple of int
        For each position and each loop of its domain the pieces, outermost first.
    extents : tuple of int
        Of each piece.
    made : tuple of tuple of (int, int)
        For each position the dimensions of its first value, cut the same way and numbered, each with the piece of its own loops.
    read : tuple of tuple of (tuple of (int, int) or None)
        For each position and operand: dimensions of the value, numbered like that, and the pieces that step through the same
        elements; None where a view cannot be matched piece by piece.
    cutters : tuple of tuple of (int, int, int)
        For each position what can cut one of its loops: a position that reads through a view, and two pieces, one of its own and one of
        this node, before the cut. A group that holds the other position cuts the loop there only if these pieces are one loop in it.
    """

    loops: tuple[tuple[tuple[int, ...], ...], ...]
    extents: tuple[int, ...]
    made: tuple[Slots, ...]
    read: tuple[tuple[Slots | None, ...], ...]
    cutters: tuple[tuple[tuple[int, int, int], ...], ...]


def cut_everywhere(program: Program) -> Pieces:
    """Cut the loops of a program. Near-linear in its operands."""
    whole = (1 << len(program.members)) - 1
    positions = program.distinct(whole)
    home = {q: i for i, p in enumerate(positions) for q in bits(program.copies.get(p, 1 << p))}
    unifier = Unifier(program, positions, home, -1, set())
    cut = unifier.cut_all()
    numbers: list[tuple[tuple[int, ...], ...]] = []
    extents: list[int] = []

    def sizes(element: int) -> list[int]:
        """Extents of the pieces of a loop or dimension."""
        if unifier.extent[element] == 1:
            return []
        root = unifier.sets.find(element)
        return [size for _, size in unifier.numbering[root]] if root in unifier.numbering else [unifier.extent[root]]

    for member, first in zip(unifier.members, unifier.first, strict=True):
        loops = []
        for loop in range(len(member.domain.extents)):
            mine = sizes(first + loop)
            loops.append(tuple(range(len(extents), len(extents) + len(mine))))
            extents += mine
        numbers.append(tuple(loops))
    owner = {(i, k): first for i, k, first, _ in unifier.edges}
    reads: list[tuple[Slots | None, ...]] = []
    for i, member in enumerate(unifier.members):
        found: list[Slots | None] = []
        for k, operand in enumerate(member.operands):
            if operand.parameter:
                found.append(())
                continue
            first = owner[i, k]
            if first < 0:  # nobody else reads it, so no group joins anything by it
                found.append(())
                continue
            places, at = [], 0
            for d in range(len(operand.base_shape)):
                count = len(sizes(first + d))
                places.append(range(at, at + count))
                at += count
            slots: list[tuple[int, int]] | None = []
            for base_dims, own in matched_operands(program, positions[i])[k].pairs:
                a = [place for d in base_dims for place in places[d]]
                b = [piece for loop in own for piece in numbers[i][loop]]
                if len(base_dims) > 1 or len(own) > 1:
                    theirs = [size for d in base_dims for size in sizes(first + d)]
                    mine = [size for loop in own for size in sizes(unifier.first[i] + loop)]
                    if not cut or theirs != mine:
                        slots = None
                        break
                assert slots is not None
                slots += zip(a, b, strict=True)
            found.append(None if slots is None else tuple(slots))
        reads.append(tuple(found))
    made = tuple(
        tuple(enumerate(piece for loop in loops[: len(member.shape)] for piece in loop)) if member.outputs else ()
        for member, loops in zip(unifier.members, numbers, strict=True)
    )
    everywhere: Sequence[int] = [home[p] for p in range(len(program.members))]
    cutters = _cutters(program, unifier, positions, numbers) if unifier.numbering else [()] * len(positions)
    return Pieces(
        tuple(numbers[i] for i in everywhere),
        tuple(extents),
        tuple(made[i] for i in everywhere),
        tuple(reads[i] for i in everywhere),
        tuple(cutters[i] for i in everywhere),
    )


def _cutters(
    program: Program, unifier: Unifier, positions: Sequence[int], numbers: Sequence[tuple[tuple[int, ...], ...]]
) -> list[tuple[tuple[int, int, int], ...]]:
    """For each member the views that end a loop or dimension where one of its own loops is cut."""
    atoms = unifier.atoms
    assert atoms is not None, "cut"
    at: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def gaps(elements: Sequence[int]) -> tuple[list[tuple[int, int]], set[int]]:
        """Neighbouring pieces of a row of loops or dimensions, and the places where one ends."""
        row: list[int] = []
        ends = set()
        for element in elements:
            if unifier.extent[element] != 1:
                row += [atoms.find(atom) for atom, _ in unifier.numbering.get(unifier.sets.find(element), ())]
                ends.add(len(row) - 1)
        return list(pairwise(row)), ends

    for i, k, first, _ in unifier.edges:
        for base_dims, loops in unifier.matches[i][k].pairs if first >= 0 else ():
            if len(base_dims) > 1 or len(loops) > 1:
                found, ends = gaps([unifier.first[i] + loop for loop in loops])
                _, others = gaps([first + d for d in base_dims])
                own = [piece for loop in loops for piece in numbers[i][loop]]
                for place in (ends | others) & set(range(len(found))):
                    readers = bits(program.copies.get(positions[i], 1 << positions[i]))
                    at.setdefault(found[place], []).extend((q, own[place]) for q in readers)
    cutters = []
    for i, (member, first) in enumerate(zip(unifier.members, unifier.first, strict=True)):
        mine = [
            (q, piece, numbers[i][loop][k])
            for loop in range(len(member.domain.extents))
            for k, gap in enumerate(gaps([first + loop])[0])
            for q, piece in at.get(gap, ())
        ]
        cutters.append(tuple(dict.fromkeys(mine)))
    return cutters
