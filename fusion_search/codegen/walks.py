"""Stages that one loop over their rows walks together: a row is in the first-level cache from the first of them to the last.

The rows of a block that a product made, for a softmax or a normalisation, would pass through the second-level cache once for each
stage. What one stage hands to the next within the walk is a row, or a number, instead of one for each row of the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from fusion_search.codegen.access import GroupAccess
from fusion_search.codegen.blocks import by_lanes, is_reduce
from fusion_search.codegen.stages import Stage


@dataclass(frozen=True, slots=True)
class Walk:
    """Stages that follow each other, and the loops that are around all of them.

    Attributes
    ----------
    first, last : int
        The stages' numbers.
    atoms : tuple of int
        Outermost first; none where each stage has loops of its own.
    """

    first: int
    last: int
    atoms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Walks:
    """What the walks of a group mean for where its values lie.

    Attributes
    ----------
    group : GroupAccess
    walks : sequence of Walk
        Every stage is in one.
    stage_of : mapping of int to int
        The stage of each member.
    reads : mapping of int to set of (int, int)
        Who reads a member's value, and in which stage; those that are read through left out.
    """

    group: GroupAccess
    walks: Sequence[Walk]
    stage_of: Mapping[int, int]
    reads: Mapping[int, set[tuple[int, int]]]

    def around(self, i: int) -> tuple[int, ...]:
        """Return the loops around a member and all its readers: its value is there for one step of them at a time."""
        walk = self._of(self.stage_of[i])
        return walk.atoms if all(walk.first <= at <= walk.last for _, at in self.reads.get(i, ())) else ()

    def lifetime(self, i: int) -> tuple[int, int]:
        """Return the first and the last stage that need a member's value; for all rows of a walk, none is done before the last."""
        first = self.stage_of[i]
        last = max((at for _, at in self.reads.get(i, ())), default=first)
        return (first, last) if self.around(i) else (self._of(first).first, self._of(last).last)

    def passed(self, i: int, before: Iterable[int]) -> list[int]:
        """Find values from before a member's walk whose rows nothing needs any more once the member's own is written.

        Parameters
        ----------
        i : int
        before : iterable of int
            Members among which to look.
        """
        walk = self._of(self.stage_of[i])
        if not walk.atoms:
            return []
        rows = set(walk.atoms)  # what all rows read is needed to the end
        return [
            j for j in before if rows <= set(self.group.loops[j].parallel) and self.stage_of[j] < walk.first and self._passed(j, i, walk)
        ]

    def _passed(self, j: int, i: int, walk: Walk) -> bool:
        reads, now = self.reads.get(j, set()), self.stage_of[i]
        readers = {r for r, _ in reads}
        alike = all(self.group.identity[where] for where, producer in self.group.producers.items() if producer == j and where[0] in readers)
        before = all(walk.first <= at <= now for _, at in reads)
        return bool(reads) and alike and before and all(self._leads_to(r, i) for r, at in reads if at == now)

    def _leads_to(self, r: int, i: int) -> bool:
        """Whether a member is made from another one of its own stage, in whose iteration it is then written."""
        now = self.stage_of[i]
        return r == i or any(self._leads_to(reader, i) for reader, at in self.reads.get(r, ()) if at == now and reader <= i)

    def _of(self, stage: int) -> Walk:
        return next(walk for walk in self.walks if walk.first <= stage <= walk.last)


def find_walks(group: GroupAccess, stages: Sequence[Stage], skip: Set[int]) -> list[Walk]:
    """Join stages around their reductions, as many as have loops in common, and take these loops from the stages' own.

    What a stage of a walk reads of another one has to be of the same row.

    Parameters
    ----------
    group : GroupAccess
    stages : sequence of Stage
        The loops of a walk are taken out of their `order`.
    skip : set of int
        Members that others read through.
    """
    walks: list[Walk] = []
    loops = [_parallel(group, stage) for stage in stages]
    at = 0
    while at < len(stages):
        end, atoms = at, _around(loops[at : at + 1], stages[at : at + 1])
        common = loops[at]
        while end + 1 < len(stages) and _same_rows(group, stages[at : end + 2], skip):
            longer = _common(common, loops[end + 1])
            wider = _around([longer], stages[at : end + 2])
            if not wider or (end > at and wider != atoms):
                break
            end, common, atoms = end + 1, longer, wider
        reduces = any(is_reduce(group.members[i]) for stage in stages[at : end + 1] for i in stage.members)
        if end == at or not reduces:
            end, atoms = at, ()
        for stage in stages[at : end + 1]:
            stage.order = stage.order[len(atoms) :]
        walks.append(Walk(at, end, atoms))
        at = end + 1
    return walks


def _parallel(group: GroupAccess, stage: Stage) -> tuple[int, ...]:
    """The loops of a stage that can be around others.

    None where sums of columns go on from row to row, or where something is read across its rows, of which whole blocks are turned.
    """
    if stage.kind != "loop" or stage.inside or not stage.order:
        return ()
    inside = set(stage.members)
    addresses = [group.reads[where].strides for where in group.reads if where[0] in inside and group.producers.get(where) not in inside]
    if any(strides.get(stage.order[-1], 0) > 1 for strides in addresses):
        return ()
    reducers = [i for i in stage.members if is_reduce(group.members[i])]
    if not reducers:
        return tuple(stage.order)
    reduced = group.loops[reducers[0]].reduced
    return tuple(a for a in stage.order if a not in reduced) if by_lanes(group.members[reducers[0]]) else ()


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return left[:same]


def _around(loops: Sequence[tuple[int, ...]], stages: Sequence[Stage]) -> tuple[int, ...]:
    """What of the loops in common can be around: the innermost one of the deepest stage is worked on in vectors."""
    return loops[0][: max(len(stage.order) for stage in stages) - 1]


def _same_rows(group: GroupAccess, stages: Sequence[Stage], skip: Set[int]) -> bool:
    members = {i for stage in stages for i in stage.members}
    last = set(stages[-1].members)
    return all(
        group.identity[where]
        for where, producer in group.producers.items()
        if where[0] in last and producer in members and producer not in skip
    )
