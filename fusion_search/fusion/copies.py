"""Recomputation: which nodes several groups may compute, and a plan's groups as sets of copies.

The program gives a node that may be recomputed one position, a *copy*, for each of its uses (`Program.copies`). Putting a copy into its
reader's group means computing the value there; leaving it in another group means that this one stores the value and the reader
reads it. So the plans with recomputation, decided for each consumer, are the partitions of the positions, and everything that is
exact about partitions holds for them.

A node gets copies when

* it is elementwise, a layout or a gather with one result, and has two to `MAX_USES` uses, or `MAX_HEAVY_USES` where a contraction or a
  window reads it;
* some plan can gain from it. Let an operand be computed by another node, for this one alone, and be at least as large as the result. Then
  whoever computes the operand might as well compute and store the result in its place, and nobody has to compute it again, unless
  the whole chain comes from less than the result, as what is expanded from a row does;
* the copies need not agree (section *Numerics* below).

**Numerics.** Where a statistic of one copy meets another copy, as in ``exp(x*c - max(x*c))``, both must be the same to the last bit, or
the difference may lose its sign. Kernels here give a map the same bits everywhere, other compilers contract and reassociate, and
a plan is for any of them. So no node gets copies from whose one use a reduction descends that meets what descends from another
use, as far as both go through elementwise nodes, layouts, gathers and reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from fusion_search.fusion.program import Operand, Program, bits

__all__ = ["MAX_HEAVY_USES", "MAX_USES", "apart", "copyable", "place"]

#: Uses of a node that gets copies, at most: groups grow with the subsets of them, and more so behind contractions, whose groups take
#: in what follows as well.
MAX_USES, MAX_HEAVY_USES = 4, 2
#: Graphs of more core nodes are planned without recomputation.
MAX_PROGRAM = 4096

_POINTWISE = ("map", "layout", "gather")


def copyable(program: Program) -> frozenset[str]:
    """Return the names of the nodes that several groups may compute, of a program without copies.

    Linear in the edges, times the uses of the nodes that are looked at closely.
    """
    if len(program.members) > MAX_PROGRAM:
        return frozenset()
    uses: dict[int, int] = {}
    found = []
    for p in reversed(range(len(program.members))):
        member = program.members[p]
        if member.spec.kind not in _POINTWISE or len(member.outputs) != 1:
            continue
        value = member.outputs[0]
        readers = bits(program.readers[value])
        count = sum(uses.get(r, 1) for r in readers) + (value in program.kept)
        heavy = any(program.members[r].spec.kind in ("contract", "window") for r in readers)
        few = 2 <= count <= (MAX_HEAVY_USES if heavy else MAX_USES)
        if few and not _in_place_of_operand(program, p) and not _copies_must_agree(program, p):
            uses[p] = count
            found.append(member.node.name)
    return frozenset(found)


def _in_place_of_operand(program: Program, p: int) -> bool:
    """Whether an operand is computed for this value alone and is no smaller, and the value does not come from less."""
    member = program.members[p]
    size = member.output_bytes[0]
    own = [o for o in member.operands if _alone(program, o, p) and _nbytes(o) >= size]
    return bool(own) and _source_bytes(program, p) >= size


def _alone(program: Program, operand: Operand, reader: int) -> bool:
    return operand.producer >= 0 and program.readers[operand.base] == 1 << reader and operand.base not in program.kept


def _nbytes(operand: Operand) -> int:
    return operand.itemsize * prod(operand.base_shape)


def _source_bytes(program: Program, p: int) -> int:
    """Bytes from which a value comes through elementwise nodes, layouts and gathers that nobody else reads."""
    found: dict[int, int] = {}
    todo = [p]
    while todo:
        q = todo.pop()
        for operand in program.members[q].operands:
            if _alone(program, operand, q) and program.members[operand.producer].spec.kind in _POINTWISE:
                todo.append(operand.producer)
            elif not operand.parameter:
                found[operand.base] = _nbytes(operand)
    return sum(found.values())


def _copies_must_agree(program: Program, p: int) -> bool:
    """Whether a reduction that descends from one use meets what descends from another."""
    members, succs = program.members, program.succs
    #: For each node behind p: the uses from which it descends, and those from which it descends through a reduction.
    plain: dict[int, int] = {}
    reduced: dict[int, int] = {}
    uses = {r: 1 << k for k, r in enumerate(bits(succs[p]))}
    todo = succs[p]
    while todo:
        v = (todo & -todo).bit_length() - 1
        todo &= todo - 1
        # An operand that is p itself belongs to the use that v is.
        raw, through = [uses.get(v, 0)], [0]
        for u in bits(program.preds[v]):
            if u != p and u in plain:
                raw.append(plain[u])
                through.append(reduced[u])
        for i, mine in enumerate(through):
            others = [raw[j] | through[j] for j in range(len(raw)) if j != i]
            if any((mine | other).bit_count() > 1 for other in others if mine and other):
                return True
        kind = members[v].spec.kind
        if kind not in (*_POINTWISE, "reduce"):
            continue
        everything = 0
        for a, b in zip(raw, through, strict=True):
            everything |= a | b
        plain[v] = 0 if kind == "reduce" else _union(raw)
        reduced[v] = everything if kind == "reduce" else _union(through)
        todo |= succs[v]
    return False


def _union(masks: Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def apart(program: Program, nodes: int) -> list[int]:
    """Return every node of a set as a group of its own, its copies in one."""
    return list(dict.fromkeys(program.copies.get(p, 1 << p) & nodes for p in bits(nodes)))


def place(program: Program, groups: Sequence[Sequence[str]], stores: Sequence[Sequence[str]] | None = None) -> list[int] | frozenset[str]:
    """Return groups given by node names as sets of positions.

    Parameters
    ----------
    program : Program
    groups : sequence of sequence of str
        In the order in which they run; names that the program has.
    stores : sequence of sequence of str, optional
        Values that each group stores; by default the first group that computes a value stores it for those that do not.

    Returns
    -------
    list of int or frozenset of str
        A mask for each group; or the nodes that are in several groups though the program has no copies of them.
    """
    homes: dict[str, list[int]] = {}
    for k, group in enumerate(groups):
        for name in dict.fromkeys(group):
            homes.setdefault(name, []).append(k)
    masks = [0] * len(groups)
    strange = set()
    for name, where in homes.items():
        p = program.position[name]
        if len(where) == 1:
            masks[where[0]] |= program.mask([name])
        elif p not in program.copies:
            strange.add(name)
    if strange:
        return frozenset(strange)
    home_of = {p: k for k, mask in enumerate(masks) for p in bits(mask)}
    # Readers come after what they read, so their own copies are placed before.
    for name in sorted((name for name, where in homes.items() if len(where) > 1), key=program.position.__getitem__, reverse=True):
        where, first = homes[name], program.position[name]
        value = program.value_name[program.members[first].outputs[0]]
        storing = where[:1] if stores is None else [k for k in where if value in stores[k]] or where[:1]
        outside = []
        for q in bits(program.copies[first]):
            home = next((home_of[r] for r in bits(program.succs[q])), len(groups))
            if home in where:
                home_of[q] = home
            else:
                outside.append((home, q))
        # Who reads last reads from the group that stores last, so that nobody waits for more than the plan makes him wait for.
        for k, (_, q) in enumerate(sorted(outside, reverse=True)):
            home_of[q] = storing[-1 - k] if k < len(storing) else storing[0]
        for q in bits(program.copies[first]):
            masks[home_of[q]] |= 1 << q
    return masks
