"""Where a value can lie before its group is done with it: in the place of a result that is made from it, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from fusion_search.codegen.access import GroupAccess, library_kernel
from fusion_search.codegen.blocks import is_reduce
from fusion_search.codegen.stages import Stage


@dataclass(frozen=True, slots=True)
class Lying:
    """What decides which values may lie in the place of a result.

    Every element of such a value is read by the very iteration that overwrites it, and by none after that.

    Attributes
    ----------
    group : GroupAccess
    stages : sequence of Stage
    stage_of : mapping of int to int
        The stage of each member.
    live_out, skip : set of int
        Members that store their result; members that others read through.
    codes : mapping of int to str
        The storage code of each member's result.
    """

    group: GroupAccess
    stages: Sequence[Stage]
    stage_of: Mapping[int, int]
    live_out: set[int]
    skip: set[int]
    codes: Mapping[int, str]

    def blocks(self) -> dict[int, int]:
        """Find products and convolutions of which one map reads every element where it, or a map behind it, writes a result."""
        found: dict[int, int] = {}
        for i, member in enumerate(self.group.members):
            readers = self._readers(i)
            if library_kernel(member) not in ("product", "tile") or i in self.live_out or len({reader for reader, _ in readers}) != 1:
                continue
            if i in self._read_again():
                continue
            stage = self.stages[self.stage_of[min(readers)[0]]]
            if stage.kind != "loop" or any(self.group.members[j].spec.kind != "map" for j in stage.members):
                continue
            if same := self._overwriters(i, stage, readers, self.live_out - set(found.values())):
                found[i] = same[0]
        return found

    def maps(self, taken: Set[int] = frozenset()) -> dict[int, int]:
        """Find maps whose values wait for a reduction, and are read once more after it on the way to a result.

        A softmax's exponentials lie where its quotients will: a long row passes through the cache once less. One value a result: with
        what the exponentials are made from there as well, every stage would overwrite what it reads, which is slower than scratch.

        Parameters
        ----------
        taken : set of int
            Results in whose place another value lies.
        """
        found: dict[int, int] = {}
        passing = {i for stage in self.stages for i in stage.again} | self._read_again()
        for i in reversed(range(len(self.group.members))):
            if i in self.live_out | self.skip | passing or i in self.group.in_parts or self.group.members[i].spec.kind != "map":
                continue
            readers = {(reader, k) for reader, k in self._readers(i) if self.stage_of.get(reader) != self.stage_of[i]}
            after = {self.stage_of[reader] for reader, _ in readers if reader in self.stage_of}
            if len(after) != 1 or not set(self.group.loops[i].all) >= self.group.outer:
                continue  # an item that computes what another one does as well must not see it overwritten
            stage = self.stages[min(after)]
            if stage.kind != "loop" or any(is_reduce(self.group.members[reader]) for reader, _ in readers):
                continue  # a reduction reads whole strips, of which some would be overwritten
            if same := self._overwriters(i, stage, readers, self.live_out - taken - set(found.values())):
                found[i] = same[0]
        return found

    def _read_again(self) -> set[int]:
        """What is read once more behind its readers, where one of them is computed again."""
        again = {i for stage in self.stages for i in stage.again}
        return {producer for (reader, _), producer in self.group.producers.items() if reader in again}

    def _readers(self, i: int) -> set[tuple[int, int]]:
        return {where for where, producer in self.group.producers.items() if producer == i and where[0] not in self.skip}

    def _overwriters(self, i: int, stage: Stage, readers: set[tuple[int, int]], among: set[int]) -> list[int]:
        """The members of a stage that are made from a value and written where it would lie, of its dtype and over its loops."""
        group = self.group
        if not all(group.identity[where] for where in readers):
            return []
        behind = {reader for reader, _ in readers}
        for j in stage.members:
            if any(at == j and producer in behind for (at, _), producer in group.producers.items()):
                behind.add(j)
        return [
            j
            for j in stage.members
            if j in behind & among
            and group.members[j].spec.kind == "map"
            and group.writes[j] == group.writes[i]
            and set(group.loops[j].parallel) == set(group.loops[i].parallel)
            and self.codes[j] == self.codes[i]
        ]
