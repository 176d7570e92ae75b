"""A partition that changes: merge groups while the quotient graph stays acyclic. Used by baselines and heuristics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """

    __slots__ = ("_facts", "_groups", "_owner", "_space")

    def __init__(self, space: GroupSpace, facts: Facts, groups: Sequence[int] | None = None) -> None:
        self._space, self._facts = space, facts
        self._owner = list(range(space.n))
        self._groups: dict[int, _Group] = {}
        for mask in [1 << v for v in range(space.n)] if groups is None else groups:
            self._add(mask)

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
        if (mask & self._space.heavy).bit_count() > self._space.max_heavy:
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
        if not self._groups[a].near & self._groups[b].mask:
            return 0
        mask = self.union(a, b)
        return mask if mask and self._space.cost(mask) is not None and not self.waits(mask) else 0

    def joint_of(self, names: Sequence[int]) -> int:
        """Return the union of several groups under the conditions of `joint`, else 0."""
        mask = 0
        for name in names:
            mask |= self._groups[name].mask
        fit = structurally_fit(self._space, self._facts, mask) and self._space.cost(mask) is not None
        return mask if fit and not self.waits(mask) else 0

    def waits(self, mask: int) -> bool:
        """Whether merging the groups inside `mask` would make a cycle: a path leaves the set and comes back.

        O(groups reached). `mask` must be a union of groups.
        """
        todo = 0
        for v in bits(mask):
            todo |= self._space.succs[v]
        todo &= ~mask
        seen = mask
        while todo:
            group = self._groups[self._owner[(todo & -todo).bit_length() - 1]]
            if group.outputs & mask:
                return True
            seen |= group.mask
            todo = (todo | group.outputs) & ~seen
        return False

    def merge(self, mask: int) -> int:
        """Replace the groups inside `mask`, of which it must be the union, by one. Returns its name."""
        for v in bits(mask):
            self._groups.pop(v, None)
        return self._add(mask)

    def merge_maximally(self, within: int) -> None:
        """Merge neighbouring groups inside `within` in canonical order until no legal acyclic merge is left."""
        changed = True
        while changed:
            changed = False
            for name in self.names:
                while self.mask(name) & within:
                    for other in self.near(name, within):
                        mask = self.joint(name, other)
                        if mask:
                            break
                    else:
                        break
                    changed = True
                    if self.merge(mask) != name:
                        break
