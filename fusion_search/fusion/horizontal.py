"""Horizontal groups: more contractions than other groups may hold, because all of them read one value in the same way.

Q, K and V are one wider contraction: what a block reads of their input serves all three. A group of so many contractions is kept
narrow, since sets of nodes are as many as the choices among what stands beside them:

* its contractions are of one *family*: all nodes that read one value, larger than a cache line, as the same view and through the same map,
  which is no window and follows a loop of more than one step that they carry in parallel. A family of more than `MAX_SIBLINGS`
  members does not count, for its subsets are too many;
* no contraction reads what the group computes, and the group computes at most one reader of its result;
* every other member is a map, a gather or a layout (no concat, no pad), reads one other member, and has at most one reader in the
  group: what follows a contraction is a chain. Copies of a node (`fusion.copies`) are one member.

Why growth reaches them
-----------------------
Take a sink away from such a set. No member that stays reads what went, so each still has the one member that it read, and no new
reader: what stays obeys these rules, or holds no more contractions than any group may. It is convex, because a sink lies
inside no path; and it is connected, because every chain still begins at its contraction, and any two contractions are
joined by the value that they read. A set of several nodes has a sink other than its lowest node. So `search.enumerate`, which adds one
node after the other to the lowest, may end where these rules are broken.

A path within such a set meets at most one contraction, so two nodes with more contractions between them than other groups may hold
share no group of this kind either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from fusion_search.fusion.analysis import pointwise, slides
from fusion_search.fusion.program import Program, bits

__all__ = ["MAX_SIBLINGS", "Families"]

#: Contractions that read one value through the same map, at most, for a group to hold more of them than of others.
MAX_SIBLINGS = 4


class Families:
    """The families of a program, and what breaks the rule on horizontal groups.

    Parameters
    ----------
    program : Program
    shares : callable
        Whether a value, by its number, joins its readers.
    plain : int
        Contractions that any group may hold; a family has more.
    most : int
        And no more than these.

    Attributes
    ----------
    masks : tuple of int
        Each family as a set of positions.
    """

    __slots__ = ("_chained", "_kin", "_program", "masks", "most")

    def __init__(self, program: Program, shares: Callable[[int], bool], plain: int, most: int = MAX_SIBLINGS) -> None:
        self._program, self.most = program, most
        self._chained = sum(1 << p for p, member in enumerate(program.members) if pointwise(member))
        self._kin: dict[int, int] = {}
        found: dict[Hashable, int] = {}
        for p, member in enumerate(program.members):
            if member.spec.kind not in ("contract", "window"):
                continue
            rank, extents = member.domain.rank, member.domain.extents
            for k, (operand, access) in enumerate(zip(member.operands, member.domain.reads, strict=True)):
                carried = any(dim.loop is not None and dim.loop < rank and extents[dim.loop] > 1 for dim in access.dims)
                if carried and not operand.parameter and not slides(member, k) and shares(operand.base):
                    way = (operand.base, operand.shape, access, rank)
                    found[way] = found.get(way, 0) | 1 << p
        self.masks = tuple(sorted({mask for mask in found.values() if plain < mask.bit_count() <= most}))

    def kin(self, heads: int) -> int:
        """Return the members of the families that hold all of some contractions; 0 when none does."""
        if not self.masks:
            return 0
        found = self._kin.get(heads)
        if found is None:
            found = 0
            for mask in self.masks:
                if not heads & ~mask:
                    found |= mask
            self._kin[heads] = found
        return found

    def strange(self, group: int, heads: int, added: int | None = None) -> int:
        """Return the members of a group that are no part of a chain behind one of its contractions `heads`.

        Linear in members; in the neighbours of `added` where the group is known to have no such members without these.
        """
        program, found = self._program, 0
        asked = group if added is None else added
        if added is not None:
            for q in bits(added):
                asked |= program.preds[q] | program.succs[q]
            asked &= group
        for p in program.distinct(asked):
            own = program.copies.get(p, 1 << p) & group
            before = after = 0
            for q in bits(own):
                before |= program.preds[q]
                after |= program.succs[q]
            reads, readers = len(program.distinct(before & group)), len(program.distinct(after & group))
            most, right = (0, True) if heads >> p & 1 else (1, bool(self._chained >> p & 1))
            if not right or reads != most or readers > 1:
                found |= own
        return found
