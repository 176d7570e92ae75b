"""A partition that changes: merge groups while the quotient graph stays acyclic. Used by baselines and heuristics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusion_search.search.quotient import execution_order
from fusion_search.search.space import Facts, GroupSpace, bits, structurally_fit

__all__ = ["Partition"]


@dataclass(frozen=True, slots=True)
class _Group:
    """One group with the unions over its nodes that merging needs."""

    mask: int
    above: int
    below: int
    near: int
    barred: int
    outputs: int


class Partition:
    """An acyclic partition of all nodes; a group is named by its smallest node.

    Parameters
    ----------
    space, facts : GroupSpace, Facts
        The space and its closures.
    groups : sequence of int, optional
        The partition to start from, which must be acyclic; by default every node alone.
    deadline : float
        On the clock of `time.monotonic`: from then on `joint`, `joint_of` and `merge_maximally` find nothing more to merge.
    """

    __slots__ = ("_facts", "_groups", "_owner", "_place", "_slots", "_space", "deadline")

    def __init__(self, space: GroupSpace, facts: Facts, groups: Sequence[int] | None = None, deadline: float = float("inf")) -> None:
        self._space, self._facts, self.deadline = space, facts, deadline
        self._owner = list(range(space.n))
        self._groups: dict[int, _Group] = {}
        order = [1 << v for v in range(space.n)] if groups is None else execution_order(space.preds, groups)
        if order is None:
            raise ValueError("groups that wait for each other are no partition to start from")
        #: Names in an order in which the groups can run, -1 where there is none any more, and where each name is.
        self._slots = [self._add(mask) for mask in order]
        self._place = {name: slot for slot, name in enumerate(self._slots)}

    def _add(self, mask: int) -> int:
        facts, succs = self._facts, self._space.succs
        above = below = near = barred = outputs = 0
        name = (mask & -mask).bit_length() - 1
        for v in bits(mask):
            above |= facts.ancestors[v]
            below |= facts.descendants[v]
            near |= facts.joins[v]
            barred |= facts.clash[v]
            outputs |= succs[v]
            self._owner[v] = name
        self._groups[name] = _Group(mask, above, below, near & ~mask, barred, outputs & ~mask)
        return name

    @property
    def names(self) -> list[int]:
        """Names of the groups, ascending."""
        return sorted(self._groups)

    @property
    def masks(self) -> list[int]:
        """The groups, by smallest node."""
        return [self._groups[name].mask for name in self.names]

    def mask(self, name: int) -> int:
        """Return one group, 0 when there is none of that name."""
        group = self._groups.get(name)
        return 0 if group is None else group.mask

    def owner(self, node: int) -> int:
        """Name of the group that holds a node."""
        return self._owner[node]

    def near(self, name: int, within: int = -1) -> Iterator[int]:
        """Yield the names of groups that hold a node of `within` next to this group, by that node."""
        seen = {name}
        for v in bits(self._groups[name].near & within):
            other = self._owner[v]
            if other not in seen:
                seen.add(other)
                yield other

    def union(self, a: int, b: int) -> int:
        """Return the union of two groups if structure allows it as a group, else 0. Says nothing of its cost."""
        one, two = self._groups[a], self._groups[b]
        mask = one.mask | two.mask
        if one.barred & two.mask or mask.bit_count() > self._space.max_nodes:
            return 0
        if self._space.crowded(mask):
            return 0
        return 0 if (one.below & two.above | two.below & one.above) & ~mask else mask

    def operands(self, name: int) -> list[int]:
        """Names of the groups that a group reads from, ascending."""
        mask, inputs = self._groups[name].mask, 0
        for v in bits(mask):
            inputs |= self._space.preds[v]
        return sorted({self._owner[v] for v in bits(inputs & ~mask)})

    def readers(self, name: int) -> list[int]:
        """Names of the groups that read from a group, ascending."""
        return sorted({self._owner[v] for v in bits(self._groups[name].outputs)})

    def joint(self, a: int, b: int) -> int:
        """Return the union of two groups if it is a legal group and no group would wait for itself, else 0."""
        if not self._groups[a].near & self._groups[b].mask or time.monotonic() > self.deadline:
            return 0
        mask = self.union(a, b)
        # An order is found sooner than a price.
        return mask if mask and not self.waits(mask) and self._space.cost(mask) is not None else 0

    def joint_of(self, names: Sequence[int]) -> int:
        """Return the union of several groups under the conditions of `joint`, else 0."""
        mask = 0
        for name in names:
            mask |= self._groups[name].mask
        if time.monotonic() > self.deadline:
            return 0
        fit = structurally_fit(self._space, self._facts, mask) and not self.waits(mask)
        return mask if fit and self._space.cost(mask) is not None else 0

    def waits(self, mask: int) -> bool:
        """Whether merging the groups inside `mask` would make a cycle: a path leaves the set and comes back.

        O(groups between the first and the last of them in the order that is kept). `mask` must be a union of groups.
        """
        members = self._names_in(mask)
        return self._behind(members, max(self._place[name] for name in members)) is None

    def merge(self, mask: int) -> int:
        """Replace the groups inside `mask`, of which it must be the union, by one. Returns its name.

        The order is kept as Pearce and Kelly do ("A dynamic topological sort algorithm for directed acyclic graphs", 2006): between
        the first and the last of the groups, what depends on them goes after the new one and everything else before it.
        """
        members = self._names_in(mask)
        low, high = (pick(self._place[name] for name in members) for pick in (min, max))
        behind = self._behind(members, high)
        assert behind is not None, "groups that wait for each other are not merged"
        between = [name for name in self._slots[low : high + 1] if name >= 0 and name not in members]
        for name in members:
            del self._groups[name], self._place[name]
        merged = self._add(mask)
        order = [name for name in between if name not in behind] + [merged] + [name for name in between if name in behind]
        self._slots[low : high + 1] = order + [-1] * (high + 1 - low - len(order))
        for slot, name in enumerate(order, low):
            self._place[name] = slot
        return merged

    def _names_in(self, mask: int) -> set[int]:
        return {self._owner[v] for v in bits(mask)}

    def _behind(self, members: set[int], high: int) -> set[int] | None:
        """Groups up to a place in the order that depend on some groups; None when one of these depends on them too."""
        found: set[int] = set()
        todo = list(members)
        while todo:
            start = todo.pop()
            for v in bits(self._groups[start].outputs):
                name = self._owner[v]
                if name in members:
                    if start not in members:
                        return None
                elif name not in found and self._place[name] <= high:
                    found.add(name)
                    todo.append(name)
        return found

    def merge_maximally(self, within: int) -> None:
        """Merge neighbouring groups inside `within` in canonical order until no legal acyclic merge is left.

        Several groups at a time as long as that is legal, twice as many after each success: a group of hundreds of nodes is
        not priced at each of its sizes.
        """
        changed = True
        while changed:
            changed = False
            for start in self.names:
                name = start
                while self.mask(name) & within:
                    before = self.mask(name)
                    if self._merge_many(name, within) != name:
                        changed = True
                        break
                    mask = next((mask for other in self.near(name, within) if (mask := self.joint(name, other))), 0)
                    changed |= bool(mask) or self.mask(name) != before
                    if not mask or self.merge(mask) != name:
                        break

    def _merge_many(self, name: int, within: int) -> int:
        """Merge a group with its nearest groups and all between, 2, 4, 8, ... at a time; return the name of the result."""
        step = 2
        while step > 1:
            names, mask = self._nearest(name, step, within)
            mask = self.joint_of(names) if len(names) > 2 and mask.bit_count() <= self._space.max_nodes else 0
            if mask:
                name = self.merge(mask)
                step *= 2
            else:
                step = min(step, len(names) - 1) // 2
        return name

    def _nearest(self, name: int, count: int, within: int) -> tuple[list[int], int]:
        """A group, so many groups next to it or to each other that may join it, and those on paths between them; and their union."""
        most = self._space.max_nodes
        found, mask, near, above, below, barred = [], 0, 0, 0, 0, 0

        def take(other: int) -> None:
            nonlocal mask, near, above, below, barred
            group = self._groups[other]
            found.append(other)
            mask, near, barred = mask | group.mask, near | group.near, barred | group.barred
            above, below = above | group.above, below | group.below

        take(name)
        left = within
        while len(found) <= count and (fresh := near & left & ~mask & ~barred):
            other = self._owner[(fresh & -fresh).bit_length() - 1]
            new = self._groups[other].mask
            if new & barred or (mask | new).bit_count() > most:
                left &= ~new
                continue
            take(other)
            while (between := above & below & ~mask) and mask.bit_count() <= most:
                take(self._owner[(between & -between).bit_length() - 1])
        return found, mask
