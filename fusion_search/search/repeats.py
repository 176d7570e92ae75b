"""Growth that need not be repeated: the groups of a node whose surroundings look like those of another node.

Let the growth from a root r (`enumerate`) have looked at no node above r + k, and let the descriptions of r, ..., r + k equal
those of s, ..., s + k, where descriptions are complete over k nodes (`GroupSpace.descriptions`) and each holds the distance to the
highest node that its node joins, if that is at most k. Then growth from s yields the sets that grow from r, shifted by s - r,
legal and dominated alike, at the same cost. *By induction over the sets grown:*

* Candidates: a set T + (s - r) has as candidates the nodes above s that its members join. Its members lie in the stretch, so
  the highest nodes that they join lie where those of T do, at most at s + k; and whether a node of the stretch joins another
  depends on `neighbours` between the two and on a clash of the two. A clash of u and w depends on heavy and solo marks of the
  two, and on the nodes and edges of the paths between them; nodes are numbered topologically, so these paths lie between u and w, in the
  stretch.
* Convexity: a node between two members of a set lies on a path between them, so in the stretch, by the same argument.
* Size, `crowded`, and cost are the stretch's own.

Nodes that growth never joins do not matter, however far they reach: a mask that all layers read, say, is only "far". So that it
is far in short graphs too, nodes are described for stretches of several lengths, and a growth is kept with the shortest
that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Growth", "Repeats"]

# Descriptions by which an earlier root is looked up, and how many of those that share them are compared.
_KEY, _MOST = 6, 8
# Lengths of the stretches for which nodes are described.
_REACHES = (16, 64, 256)


@dataclass(frozen=True, slots=True)
class Growth:
    """What grew from one root.

    Attributes
    ----------
    groups : tuple of (int, int)
        Sets relative to the root, whose bit is the lowest, and their costs; the root alone is left out.
    grown, dominated : int
        Sets visited, legal groups dropped.
    extent : int
        How far above the root the highest node is that was looked at.
    """

    groups: tuple[tuple[int, int], ...]
    grown: int
    dominated: int
    extent: int


class Repeats:
    """Growths by the looks of their surroundings.

    Parameters
    ----------
    descriptions : callable
        Descriptions of all nodes of the space, complete over the given number of nodes (`GroupSpace.descriptions`).
    joins : sequence of int
        Nodes that growth may add next to each node.
    """

    __slots__ = ("_known", "_looks")

    def __init__(self, descriptions: Callable[[int], Sequence[int] | None], joins: Sequence[int]) -> None:
        #: Reach, and for each node a number that stands for its description and the distance to the highest node that it joins.
        self._looks: list[tuple[int, list[int]]] = []
        for reach in _REACHES:
            described = descriptions(reach)
            if described is not None:
                numbers: dict[Hashable, int] = {}
                tops = [max(0, min(near.bit_length() - 1 - v, reach + 1)) for v, near in enumerate(joins)]
                looks = [numbers.setdefault(look, len(numbers)) for look in zip(described, tops, strict=True)]
                self._looks.append((reach, looks))
        self._known: dict[tuple[int, ...], list[tuple[int, Growth]]] = {}

    def find(self, root: int) -> Growth | None:
        """Return what grows from a root, if something that looks the same has been grown."""
        for reach, looks in self._looks:
            for size in (_KEY, 1):
                for other, growth in self._known.get((reach, *looks[root : root + size]), ()):
                    stop = growth.extent + 1
                    if looks[root : root + stop] == looks[other : other + stop]:
                        return growth
        return None

    def add(self, root: int, growth: Growth) -> None:
        """Remember what grew from a root."""
        for reach, looks in self._looks:
            if growth.extent <= reach:
                # A short growth may end before the descriptions that it would be looked up by do.
                size = _KEY if growth.extent + 1 >= _KEY else 1
                alike = self._known.setdefault((reach, *looks[root : root + size]), [])
                alike.insert(0, (root, growth))
                del alike[_MOST:]
                break
