"""What published rules ask of a node or a group, derived from operator descriptions; and the frame that all policies share."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from fusion_search.fusion.program import Member, Program, bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.search.partition import Partition
from fusion_search.search.quotient import execution_order
from fusion_search.search.space import derive_facts

__all__ = ["Board", "reads_evenly", "reuses"]


@dataclass(slots=True)
class Board:
    """A partition under construction, with the masks of nodes by kind.

    Parameters
    ----------
    space : GroupSpace
    deadline : float
        When to merge no more, on the clock of `time.monotonic`.

    Attributes
    ----------
    partition : Partition
        Every node alone at first.
    reduces, maps, layouts : int
        Nodes of that kind; layouts include gathers. `space.heavy` and `space.solo` complete them.
    """

    space: GroupSpace
    deadline: float = float("inf")
    partition: Partition = field(init=False)
    reduces: int = field(init=False)
    maps: int = field(init=False)
    layouts: int = field(init=False)

    def __post_init__(self) -> None:
        self.partition = Partition(self.space, derive_facts(self.space), deadline=self.deadline)
        self.reduces, self.maps, self.layouts = self._of("reduce"), self._of("map"), self._of("layout", "gather")

    def _of(self, *kinds: str) -> int:
        return sum(1 << v for v, member in enumerate(self.program.members) if member.spec.kind in kinds)

    @property
    def program(self) -> Program:
        """The program behind the space."""
        return self.space.program

    def cost(self, mask: int) -> int:
        """Cost of a group that is known to be legal."""
        cost = self.space.cost(mask)
        assert cost is not None, "groups of a partition are legal"
        return cost

    def gain(self, names: list[int], mask: int) -> int:
        """What one group in place of several saves."""
        return sum(self.cost(self.partition.mask(name)) for name in names) - self.cost(mask)

    def leaves(self, v: int) -> bool:
        """Whether a value of a node is returned to the caller."""
        return any(value in self.program.kept for value in self.program.members[v].outputs)

    def only_reader(self, v: int) -> int:
        """The one node that reads what a node computes, -1 when there are more or fewer or the caller gets it too."""
        readers = self.space.succs[v]
        return readers.bit_length() - 1 if readers and not readers & (readers - 1) and not self.leaves(v) else -1

    def join(self, a: int, b: int) -> bool:
        """Merge the groups of two nodes if the space allows it."""
        one, two = self.partition.owner(a), self.partition.owner(b)
        mask = self.partition.joint(one, two) if one != two else 0
        if mask:
            self.partition.merge(mask)
        return bool(mask)

    def join_epilogues(self, most: int) -> None:
        """Give contractions and windows the cheap maps that follow them one by one, at most so many: bias, residual, activation."""
        for head in bits(self.space.heavy):
            v = head
            for _ in range(most):
                reader = self.only_reader(v)
                if reader < 0 or not self.maps >> reader & 1 or self.program.members[reader].spec.flop_class == "special":
                    break
                if not self.join(head, reader):
                    break
                v = reader

    def groups(self) -> tuple[int, ...]:
        """The partition in execution order."""
        order = execution_order(self.space.preds, self.partition.masks)
        assert order is not None, "Partition keeps the quotient graph acyclic"
        return tuple(order)


def reads_evenly(reader: Member, producer: int) -> bool:
    """Whether every read of a producer's value by a map has the reader's own shape: elementwise, not a broadcast."""
    return all(operand.shape == reader.shape for operand in reader.operands if operand.producer == producer)


def reuses(reader: Member, producer: int) -> bool:
    """Whether a reader uses some elements of a producer's value several times."""
    if reader.spec.kind in ("contract", "window"):
        return True
    points = prod(reader.domain.extents)
    return any(points > prod(operand.shape) for operand in reader.operands if operand.producer == producer)
