"""What the search needs to know about a graph: the space of fusion groups, and facts derived from it once.

A *set* is a Python int used as a bitmask over the nodes ``0..n-1``, which are numbered in a topological order. The
search sees nothing of a graph but this protocol, so that it can be tested on spaces that no graph produces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Facts", "GroupSpace", "Tiebreak", "bits", "derive_facts", "structurally_fit"]


class GroupSpace(Protocol):
    """Legal fusion groups of one graph and what each costs.

    A legal group is connected in `neighbours`, convex in the whole graph, not `crowded`, and holds no node of `solo` unless alone, no
    blocked edge and at most `max_nodes` nodes. Singletons are always legal. Every further rule lives in `cost` and need not be
    monotone: a superset of an illegal set may be legal.
    """

    @property
    def n(self) -> int:
        """Number of nodes."""

    @property
    def preds(self) -> Sequence[int]:
        """Direct predecessors of each node, as a set."""

    @property
    def succs(self) -> Sequence[int]:
        """Direct successors of each node, as a set."""

    @property
    def neighbours(self) -> Sequence[int]:
        """Nodes that may be joined with each node directly. Symmetric, and holds `preds` and `succs`."""

    @property
    def heavy(self) -> int:
        """Nodes of which a group holds at most `max_heavy`, unless `crowded` allows more."""

    @property
    def max_heavy(self) -> int:
        """Most nodes of `heavy` in a group with anything else, and on a path within a group; at least one."""

    @property
    def solo(self) -> int:
        """Nodes that are always alone."""

    @property
    def max_nodes(self) -> int:
        """Most nodes of a group."""

    def key(self, group: int) -> Hashable:
        """Structural key: equal keys promise equal cost and legality."""

    def cost(self, group: int) -> int | None:
        """Cost in attoseconds (at least 0), or None when the group is illegal. Asked of structurally fit sets only."""

    def crowded(self, group: int) -> bool:
        """Whether a group holds more nodes of `heavy` than it may: more than `max_heavy`, but for groups that the space names.

        A connected and convex set of several nodes that is not crowded has a node other than its lowest without which it is
        connected, convex and not crowded. With `max_heavy` of 1 the space names none.
        """

    def room(self, group: int, candidates: int) -> int:
        """Those of some nodes with each of which a group that is not crowded would not be crowded either."""

    def computed(self, group: int) -> int:
        """How many nodes a group's kernel computes, copies of one node once; 0 when it is no kernel."""

    def hopeless(self, group: int) -> bool:
        """Whether neither an illegal group nor any that holds it is legal, as far as the space can tell cheaply."""

    def blocked(self, u: int, v: int) -> bool:
        """Whether no legal group holds both ends of the edge ``u -> v``."""

    def descriptions(self, reach: int) -> Sequence[int] | None:
        """For each node a number that says what it is and how it stands to the nodes around it; None when nothing is known.

        Two stretches of at most `reach` consecutive nodes with equal descriptions have the same `preds`, `neighbours`,
        `heavy`, `solo` and `blocked` among their own nodes, and the same `crowded`, cost and legality for each set inside them.
        """


def bits(mask: int) -> Iterator[int]:
    """Yield the members of a set in ascending order."""
    if not mask:
        return
    # Most sets lie close together, far up: what is below them is not carried along.
    base = (mask & -mask).bit_length() - 1
    mask >>= base
    while mask:
        low = mask & -mask
        yield base + low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True, slots=True)
class Facts:
    """Closures of a space that the whole search shares.

    Attributes
    ----------
    ancestors, descendants : tuple of int
        Strict ancestors and descendants of each node.
    clash : tuple of int
        Nodes that no legal group holds together with each node, as far as structure alone tells.
    joins : tuple of int
        `GroupSpace.neighbours` without the clashing ones.
    """

    ancestors: tuple[int, ...]
    descendants: tuple[int, ...]
    clash: tuple[int, ...]
    joins: tuple[int, ...]


def _one_way(space: GroupSpace, forward: bool) -> tuple[list[int], list[int]]:
    """Nodes strictly behind each node along one direction, and those of them that clash with it.

    If a group holds u and w and some path u ~> w exists, convexity puts the whole path in the group. So u and w
    clash when the path has a blocked edge, a solo node or more heavy nodes than a group holds.
    """
    n, heavy, solo = space.n, space.heavy, space.solo
    following = space.succs if forward else space.preds
    reach = [0] * n  # the node itself included
    cut = [0] * n  # reached over a blocked edge or a solo node
    # passed[k]: reached over a path, ends included, with more than k heavy nodes.
    passed = [[0] * n for _ in range(space.max_heavy + 1)]
    for v in reversed(range(n)) if forward else range(n):
        reach_v, cut_v, passed_v = 1 << v, 0, [0] * len(passed)
        for w in bits(following[v]):
            reach_v |= reach[w]
            for k, masks in enumerate(passed):
                passed_v[k] |= masks[w]
            edge = (v, w) if forward else (w, v)
            cut_v |= reach[w] if (solo >> w | solo >> v) & 1 or space.blocked(*edge) else cut[w]
        if heavy >> v & 1:
            passed_v = [reach_v, *passed_v[:-1]]
        reach[v], cut[v] = reach_v, cut_v
        for masks, mask in zip(passed, passed_v, strict=True):
            masks[v] = mask
    return [reach[v] ^ (1 << v) for v in range(n)], [cut[v] | passed[-1][v] for v in range(n)]


def derive_facts(space: GroupSpace) -> Facts:
    """Compute the closures. O(edges) operations on n-bit integers."""
    n = space.n
    below, clash_below = _one_way(space, True)
    above, clash_above = _one_way(space, False)
    everything = (1 << n) - 1
    clash = []
    for v in range(n):
        bit = 1 << v
        mask = clash_below[v] | clash_above[v] | space.solo
        if space.heavy & bit and space.max_heavy == 1:
            mask |= space.heavy
        if space.solo & bit:
            mask = everything
        clash.append(mask & ~bit)
    joins = tuple(space.neighbours[v] & ~clash[v] & ~(1 << v) for v in range(n))
    return Facts(tuple(above), tuple(below), tuple(clash), joins)


def structurally_fit(space: GroupSpace, facts: Facts, group: int) -> bool:
    """Whether a set is connected, convex, free of clashes and small enough: what `GroupSpace.cost` may take for granted.

    O(nodes) operations on n-bit integers.
    """
    above = below = barred = 0
    for v in bits(group):
        above |= facts.ancestors[v]
        below |= facts.descendants[v]
        barred |= facts.clash[v]
    if not group or barred & group or above & below & ~group or group.bit_count() > space.max_nodes:
        return False
    if space.crowded(group):
        return False
    reached, fresh = 0, group & -group
    while fresh:
        reached |= fresh
        near = 0
        for v in bits(fresh):
            near |= facts.joins[v]
        fresh = near & group & ~reached
    return reached == group


def _text(key: Hashable) -> str:
    # repr() of a frozenset follows the hash seed, everything else in a key is ordered.
    if isinstance(key, frozenset):
        return "{" + ",".join(sorted(_text(part) for part in key)) + "}"
    if isinstance(key, tuple):
        return "(" + ",".join(_text(part) for part in key) + ")"
    return repr(key)


class Tiebreak:
    """An additive secondary cost that makes the multiset of group keys of a best plan unique.

    Among plans of equal cost the one with fewest kernels wins, then the one whose kernels compute fewest nodes, then the one with the
    smallest sum of 62-bit fingerprints of the structural keys. All are sums over groups that know nothing of node numbers, so that
    the winner's multiset of keys does not change when nodes are numbered otherwise (but for a collision of two sums).
    """

    __slots__ = ("_seen", "_space")

    def __init__(self, space: GroupSpace) -> None:
        self._space = space
        self._seen: dict[Hashable, int] = {}

    def __call__(self, group: int) -> int:
        """Return the secondary cost of one group."""
        key = self._space.key(group)
        value = self._seen.get(key)
        if value is None:
            digest = hashlib.blake2b(_text(key).encode(), digest_size=8).digest()
            fingerprint = int.from_bytes(digest, "big") >> 2
            nodes = self._space.computed(group)
            value = self._seen[key] = (bool(nodes) << 104) + (nodes << 80) + fingerprint
        return value
