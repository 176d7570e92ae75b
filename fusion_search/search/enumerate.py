"""All groups that a plan of least cost can hold: connected, convex sets, grown one node at a time.

Why growth reaches every group
------------------------------
Let S be connected (in `neighbours`) and convex, of two nodes or more, and r any node of S. Then some v != r of S
leaves S \\ {v} connected and convex. *Convex*: if v is a source or a sink of the subgraph of S, it lies inside no path
between other nodes of S (such a path would be in S, and v have both a predecessor and a successor there), so taking it
away opens no gap. *Connected*: take a leaf block B of the block-cut tree of S with cut node c (if S is one block, B = S
and there is no c). Every node of B but c is no cut node and has all its neighbours in B, its predecessors and
successors among them. The first and the last node of B in topological order are distinct; the one that is not c is
therefore a source or a sink of S, and may go. If S has several leaf blocks, r is such a node in at most one of them, so
take another; if S is one block, both first and last may go, and one of them is not r. By induction every such set
grows from *its own lowest node* through connected convex sets. All other limits used here (solo, blocked,
clashes, size, `hopeless`) pass to subsets, so they may stop growth; `cost` being None may not. So may `crowded`: a number
of heavy nodes passes to subsets, and of the groups with more the space promises that such a v exists (`fusion.horizontal`).

Why dominated groups may go
---------------------------
Let g be a group of a plan, and P a partition of exactly g into legal groups, acyclic among themselves. Replacing g by P
keeps the quotient acyclic: contract P back to g, and a cycle that visits an outside group becomes a closed walk
through g and that group, so a cycle of the old quotient; a cycle that does not lies inside P. So when P is strictly
cheaper, g is in no plan of least cost. The P tried here is the cheapest that splits off sources and sinks one by one
on the way g was grown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusion_search.search.repeats import Growth, Repeats
from fusion_search.search.space import Facts, GroupSpace, bits

__all__ = ["Enumeration", "enumerate_groups", "join_components"]

# Bits of all sets that grow from one node: on very wide graphs each step costs more and each group takes more memory.
_MOST_BITS = 1 << 28
# The dynamic programs take long for more.
_MOST_GROUPS = 2_000_000


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Groups of one connected piece of a space.

    Attributes
    ----------
    groups : tuple of (int, int)
        Set and cost of every legal group that is not dominated, singletons first, then by descending lowest node.
    complete : bool
        False when a budget ended the growth: groups are then missing, and nothing may be concluded from that.
    grown, dominated : int
        Connected convex sets visited; legal groups that were dropped as dominated.
    """

    groups: tuple[tuple[int, int], ...]
    complete: bool
    grown: int
    dominated: int


def join_components(joins: Sequence[int], nodes: int) -> list[int]:
    """Return the connected components of `nodes` under `joins`, by smallest node. O(nodes + joins)."""
    components = []
    while nodes:
        component, fresh = 0, nodes & -nodes
        while fresh:
            component |= fresh
            reached = 0
            for v in bits(fresh):
                reached |= joins[v]
            fresh = reached & nodes & ~component
        components.append(component)
        nodes &= ~component
    return components


def enumerate_groups(
    space: GroupSpace,
    facts: Facts,
    nodes: int,
    *,
    siblings: bool = True,
    max_nodes: int | None = None,
    max_sets: int = 500_000,
    deadline: float = float("inf"),
    reuse: bool = True,
) -> Enumeration:
    """Enumerate the legal groups inside a set of nodes.

    Parameters
    ----------
    space, facts : GroupSpace, Facts
        The space and its closures.
    nodes : int
        The set to stay in; a union of components of `facts.joins` makes the result the whole truth about it.
    siblings : bool
        False to search less: to join producers with readers only.
    max_nodes : int, optional
        Most nodes of a group, when less than the space's.
    max_sets : int
        Most connected convex sets to visit, repeated ones not counted.
    deadline : float
        When to stop, on the clock of `time.monotonic`.
    reuse : bool
        Grow the groups of nodes with equal surroundings once (`repeats`). Never changes the result.

    Returns
    -------
    Enumeration
        Each group once: a set is grown only from its lowest node, and a level of growth holds a set once.

    Notes
    -----
    Exact when `complete` and neither `siblings` nor `max_nodes` narrowed it. O(sets * neighbours of a set) operations on
    n-bit integers, and one `cost` for each set that is not a repetition.
    """
    joins: Sequence[int] = facts.joins
    if not siblings:
        joins = [near & (space.preds[v] | space.succs[v]) for v, near in enumerate(joins)]
    single: dict[int, int] = {}
    for v in bits(nodes):
        price = space.cost(1 << v)
        if price is None:
            raise ValueError(f"node {v} alone is not a legal group; every space must allow that")
        single[v] = price
    groups = [(1 << v, price) for v, price in single.items()]
    grown, dominated, visited = len(groups), 0, len(groups)
    limit = space.max_nodes if max_nodes is None else min(max_nodes, space.max_nodes)
    growth = _Grower(space, facts, joins, single, limit, deadline)
    # What grows from a node depends on `nodes` too, unless they hold all that is joined.
    repeats = Repeats(space.descriptions, joins) if reuse and not any(joins[v] & ~nodes for v in single) else None
    for root in sorted(single, reverse=True):
        found = repeats.find(root) if repeats is not None else None
        if found is None:
            found = growth.from_root(root, nodes, max_sets - visited)
            visited += growth.visited
            if found is None:
                return Enumeration(tuple(groups), False, grown + growth.visited, dominated)
            if repeats is not None:
                repeats.add(root, found)
        elif time.monotonic() > deadline or len(groups) > _MOST_GROUPS:
            return Enumeration(tuple(groups), False, grown, dominated)
        groups += [(shape << root, price) for shape, price in found.groups]
        grown, dominated = grown + found.grown, dominated + found.dominated
    return Enumeration(tuple(groups), True, grown, dominated)


class _Grower:
    """Grows sets from one root after the other.

    Attributes
    ----------
    visited : int
        Sets that the last growth visited.
    """

    def __init__(
        self, space: GroupSpace, facts: Facts, joins: Sequence[int], single: Mapping[int, int], limit: int, deadline: float
    ) -> None:
        self.space, self.facts, self.joins, self.single = space, facts, joins, single
        self.limit, self.deadline = limit, deadline
        self.visited = 0

    def from_root(self, root: int, nodes: int, max_sets: int) -> Growth | None:
        """Grow all sets whose lowest node is `root`; None when a budget ended that."""
        space, joins, single, cost, deadline = self.space, self.joins, self.single, self.space.cost, self.deadline
        heavy, max_heavy = space.heavy, space.max_heavy
        ancestors, descendants, clash = self.facts.ancestors, self.facts.descendants, self.facts.clash
        max_sets = min(max_sets, _MOST_BITS // space.n)
        groups: list[tuple[int, int]] = []
        self.visited = dominated = looked = 0
        bit = 1 << root
        higher = nodes & -(bit << 1)
        # What a set carries: strict ancestors and descendants of its nodes, nodes to try next (may still hold
        # members and clashing ones), nodes barred, and the cheapest known partition of it.
        level = {bit: [ancestors[root], descendants[root], joins[root] & higher, clash[root], single[root]]}
        size = 1
        while level and size < self.limit:
            following: dict[int, list[int]] = {}
            for group, (above, below, near, barred, best) in level.items():
                looked |= near
                rest = near & ~barred & ~group
                if rest and (group & heavy).bit_count() >= max_heavy:
                    rest = space.room(group, rest)
                while rest:
                    low = rest & -rest
                    rest ^= low
                    v = low.bit_length() - 1
                    wider = group | low
                    split = best + single[v]
                    known = following.get(wider)
                    if known is not None:
                        if split < known[4]:
                            known[4] = split
                        continue
                    above_v, below_v = ancestors[v], descendants[v]
                    if (below & above_v | above & below_v) & ~wider:
                        continue
                    following[wider] = [
                        above | above_v,
                        below | below_v,
                        near | joins[v] & higher,
                        barred | clash[v],
                        split,
                    ]
                if self.visited + len(following) > max_sets or time.monotonic() > deadline:
                    return None
            ended: list[int] = []
            for count, (group, facts_of_group) in enumerate(following.items()):
                # Pricing may be far slower than growing.
                if not count & 15 and time.monotonic() > deadline:
                    return None
                price = cost(group)
                if price is None:
                    if space.hopeless(group):
                        ended.append(group)
                else:
                    if price <= facts_of_group[4]:
                        facts_of_group[4] = price
                        groups.append((group >> root, price))
                    else:
                        dominated += 1
                self.visited += 1
            for group in ended:
                del following[group]
            level = following
            size += 1
        return Growth(tuple(groups), self.visited, dominated, max(0, looked.bit_length() - 1 - root))
