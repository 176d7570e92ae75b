"""A smaller space with the same optimum: chains that some optimal plan keeps together are one node.

Let v be an elementwise node whose only operand, besides parameters, is u, read as the identity; u elementwise, a layout
or a gather, with v as its only reader and no output; v's elements no larger than u's. Take any plan that has u and v
in different groups and move v to u's group. The group of u now stores v in place of u: as many bytes or fewer; v runs in
u's nest, in u's register. The other group reads v in place of u, or vanishes. Launches, traffic, spill, scratch and
recomputation do not grow, the outer loops stay (v carries the loops that u, which was stored, had to carry), and no edge
between groups is added. What could break is connection: v's readers were joined through v, and stay joined through the
live-in v when that is larger than a cache line, or when there is one reader. In a horizontal group u ends a chain, which v makes longer;
v, which reads nothing but u, was in none without it (`fusion.horizontal`). So some optimal plan keeps u and v together,
and by induction whole chains.

Copies of a node that may be recomputed (`fusion.copies`) are in no chain: a group may store one of them for some readers and still
compute it for others. A user's demands can break that argument only through the nodes that they touch (`GroupSpace.touched`),
which are in no chain.
A concat that is free when it is alone is in no chain either, and what a chain takes from its group only makes it free.
What a demand joins (`GroupSpace.joined`) is one node here too, whether it is legal alone or not.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fusion_search.fusion.floors import MOST, Crossing, RunFloors
from fusion_search.fusion.likeness import describe_nodes
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.space import GroupSpace

_POINTWISE = ("map", "gather", "layout")


@dataclass(slots=True)
class CoarseSpace:
    """A group space whose nodes are chains of nodes of another one; the protocol that the search asks.

    Parameters
    ----------
    fine : GroupSpace
    within : int, optional
        The nodes to look at, a convex set; all by default.
    chained : bool
        False to join nothing but what the user demands.
    """

    fine: GroupSpace
    within: int = -1
    chained: bool = True
    clusters: list[int] = field(init=False)
    n: int = field(init=False)
    preds: list[int] = field(init=False)
    succs: list[int] = field(init=False)
    neighbours: list[int] = field(init=False)
    heavy: int = field(init=False)
    max_heavy: int = field(init=False)
    solo: int = field(init=False)
    max_nodes: int = field(init=False)
    _kin: dict[int, int] = field(init=False, default_factory=dict)
    _described: dict[int, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        fine = self.fine
        nodes = self.within & ((1 << fine.n) - 1)
        found = chains(fine, nodes) if self.chained else [1 << p for p in bits(nodes)]
        self.clusters = _joined(fine, found)
        self.n = len(self.clusters)
        home = {p: c for c, cluster in enumerate(self.clusters) for p in bits(cluster)}
        known: dict[int, int] = {}

        def lifted(masks: list[int], c: int) -> int:
            found = 0
            for p in bits(self.clusters[c]):
                reached = masks[p] | self.clusters[c]  # the same for all readers of one value
                if reached not in known:
                    known[reached] = sum(1 << d for d in {home[q] for q in bits(reached & nodes)})
                found |= known[reached]
            return found & ~(1 << c)

        self.preds = [lifted(fine.preds, c) for c in range(self.n)]
        self.succs = [lifted(fine.succs, c) for c in range(self.n)]
        self.neighbours = [lifted(fine.neighbours, c) for c in range(self.n)]
        self.heavy = sum(1 << c for c, cluster in enumerate(self.clusters) if cluster & fine.heavy)
        self.solo = sum(1 << c for c, cluster in enumerate(self.clusters) if cluster & fine.solo)
        self.max_nodes, self.max_heavy = fine.max_nodes, fine.max_heavy

    def expand(self, group: int) -> int:
        """Return the nodes behind a set of chains."""
        found = 0
        for c in bits(group):
            found |= self.clusters[c]
        return found

    def key(self, group: int) -> Hashable:
        """Structural key of the nodes behind."""
        return self.fine.key(self.expand(group))

    def cost(self, group: int) -> int | None:
        """Cost of the nodes behind, or None."""
        return self.fine.cost(self.expand(group))

    def computed(self, group: int) -> int:
        """How many nodes behind a kernel computes."""
        return self.fine.computed(self.expand(group))

    def hopeless(self, group: int) -> bool:
        """Whether neither the nodes behind nor any set that holds them is a legal group."""
        return self.fine.hopeless(self.expand(group))

    def crowded(self, group: int) -> bool:
        """Whether a set holds more chains of `heavy` than it may."""
        return (group & self.heavy).bit_count() > self.max_heavy and self.fine.crowded(self.expand(group))

    def room(self, group: int, candidates: int) -> int:
        """Return those of some chains with each of which a set that is not crowded would not be crowded either."""
        heads = group & self.heavy
        count = heads.bit_count()
        if count < self.max_heavy:
            return candidates
        near = candidates if count > self.max_heavy else candidates & self.heavy
        if near and count == self.max_heavy:
            kin = near & self._kin_of(heads)
            candidates ^= near ^ kin
            near = kin
        fine = self.expand(group) if near else 0
        for c in bits(near):
            added = self.clusters[c]
            if self.fine.crowded(fine | added, added if count > self.max_heavy else None):
                candidates ^= 1 << c
        return candidates

    def _kin_of(self, heads: int) -> int:
        """The chains of `heavy` that may join these, as far as families tell."""
        found = self._kin.get(heads)
        if found is None:
            kin = self.fine.families.kin(self.expand(heads) & self.fine.heavy)
            found = self._kin[heads] = sum(1 << c for c in bits(self.heavy) if self.clusters[c] & kin) if kin else 0
        return found

    def floors(self, nodes: Sequence[int]) -> ChainFloors:
        """Return the floors of a sequence of chains, ascending."""
        return ChainFloors(self, nodes)

    def descriptions(self, reach: int) -> list[int] | None:
        """For each chain a number that says what it is and how it stands to the chains around it (`fusion.likeness`)."""
        if self.fine.joined:  # then nodes behind consecutive chains need not be consecutive
            return None
        if reach not in self._described:  # asked for once for each component
            self._described[reach] = describe_nodes(self.fine.program, self.clusters, reach, self.fine.touched | self.fine.copied)
        return self._described[reach]

    def blocked(self, u: int, v: int) -> bool:
        """True when an edge from chain to chain is one that no legal group holds."""
        fine = self.fine
        return any(fine.blocked(p, q) for p in bits(self.clusters[u]) for q in bits(fine.succs[p] & self.clusters[v]))


class ChainFloors:
    """Floors of runs of chains, from those of the nodes behind.

    Parameters
    ----------
    space : CoarseSpace
    chains : sequence of int
        Ascending.
    """

    def __init__(self, space: CoarseSpace, chains: Sequence[int]) -> None:
        fine = space.fine
        self.space, self.chains = space, list(chains)
        self.lengths = [space.clusters[c].bit_count() for c in chains]
        self.most = fine.max_nodes
        sequence = [p for c in chains for p in bits(space.clusters[c])]
        self.floors = RunFloors(fine.program, fine.profile, fine.model, sequence, self.most, self.lengths, fine.aliases)
        #: What a demanded set that is not legal alone costs: floors are floors of that, too.
        self.penalties = {k: min(space.cost(1 << c) or 0, MOST >> 8) for k, c in enumerate(chains) if space.clusters[c] in fine.joined}

    def rows(self) -> list[npt.NDArray[np.int64]]:
        """For each chain what the runs of 1, 2, ... chains from it cost at least."""
        fine = self.floors.rows()
        ends = np.concatenate(([0], np.cumsum(self.lengths)))
        found = []
        for c, start in enumerate(ends[:-1]):
            stop = int(np.searchsorted(ends, start + self.most, side="right"))
            found.append(fine[start][ends[c + 1 : stop] - start - 1])
        for c, alone in self.penalties.items():
            found[c] = found[c].copy() if found[c].size else np.full(1, alone, np.int64)
            found[c][0] = alone
        return found

    def whole(self) -> int:
        """What every plan of these chains costs at least."""
        return self.floors.whole()

    def borders(self) -> ChainFloors | None:
        """What crosses borders between chains; None where a node may be computed twice or be free, or a demanded set is not legal alone."""
        inside = sum(self.space.clusters[c] for c in self.chains)
        return None if inside & (self.space.fine.copied | self.space.fine.aliases) or self.penalties else self

    @property
    def operand_limit(self) -> int:
        """Most tensors that a group of several nodes touches."""
        return self.floors.profile.operand_limit

    def price(self, nbytes: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """What groups cost at least that move so many bytes."""
        return self.floors.price(nbytes)

    def crossings(self) -> list[Crossing]:
        """The values that can cross a border between chains; indices are those of chains."""
        unit, found = self.floors.unit, []
        for value in self.floors.values:
            made = unit[value.made] if value.made >= 0 else -1
            reads: dict[int, int] = {}
            for reader, nbytes in value.reads:
                if unit[reader] != made:
                    reads[unit[reader]] = max(reads.get(unit[reader], 0), nbytes)
            if reads or value.leaves:
                found.append(Crossing(made, value.written, value.leaves, tuple(sorted(reads.items()))))
        return found


def _long_lines(space: GroupSpace) -> int:
    """Nodes that all wait for each other, more than a group may hold: there a group may be full, and the argument above fails."""
    if space.n <= space.max_nodes:
        return 0
    program, found, left = space.program, 0, (1 << space.n) - 1
    while left:
        component, fresh = 0, left & -left
        while fresh:
            component |= fresh
            near = 0
            for p in bits(fresh):
                near |= space.neighbours[p]
            fresh = near & ~component
        left &= ~component
        nodes = bits(component)
        if len(nodes) > space.max_nodes and all(program.descendants[p] >> q & 1 for p, q in pairwise(nodes)):
            found |= component
    return found


def chains(space: GroupSpace, nodes: int = -1) -> list[int]:
    """Return the chains as masks, in canonical order. A chain longer than a group may be is left as single nodes.

    Parameters
    ----------
    space : GroupSpace
    nodes : int, optional
        The nodes to look at; all by default.
    """
    program = space.program
    clusters: list[int] = []
    barred = _long_lines(space) | space.touched | space.touched << 1 | space.copied | space.copied << 1
    for p in bits(nodes & ((1 << space.n) - 1)):
        if clusters and clusters[-1] >> (p - 1) & 1 and not barred >> p & 1 and _follows(space, program, p - 1, p):
            clusters[-1] |= 1 << p
        else:
            clusters.append(1 << p)
    found: list[int] = []
    for cluster in clusters:
        whole = cluster.bit_count() == 1 or (cluster.bit_count() <= space.max_nodes and space.cost(cluster) is not None)
        found += [cluster] if whole else [1 << p for p in bits(cluster)]
    return found


def _joined(space: GroupSpace, clusters: list[int]) -> list[int]:
    """Put what the user joins into one cluster each; the clusters in an order in which they can run."""
    if not space.joined:
        return clusters
    united = 0
    for mask in space.joined:
        united |= mask
    inside = 0
    for cluster in clusters:
        inside |= cluster
    left = [c for c in clusters if not c & united] + [mask for mask in space.joined if mask & inside]
    home = {p: c for c in left for p in bits(c)}
    waits = {c: {home[q] for p in bits(c) for q in bits(space.preds[p] & inside)} - {c} for c in left}
    after: dict[int, list[int]] = {}
    for c, before in waits.items():
        for b in before:
            after.setdefault(b, []).append(c)
    ready = [(c & -c, c) for c in left if not waits[c]]
    heapq.heapify(ready)
    found = []
    while ready:
        _, c = heapq.heappop(ready)
        found.append(c)
        for d in after.get(c, ()):
            waits[d].discard(c)
            if not waits[d]:
                heapq.heappush(ready, (d & -d, d))
    return found


def _follows(space: GroupSpace, program: Program, u: int, v: int) -> bool:
    """Whether some optimal plan keeps node v in the group of u, the node before it in canonical order."""
    first, second, profile = program.members[u], program.members[v], space.profile
    if first.spec.kind not in _POINTWISE or first.spec.name in ("Concat", "Pad") or second.spec.kind != "map":
        return False
    # the node that joins must not be what makes a forbidden combination complete
    if any(not {second.node.op, second.node.origin_op}.isdisjoint(rule.nodes) for rule in profile.forbidden):
        return False
    reads = [k for k, operand in enumerate(second.operands) if not operand.parameter]
    if len(reads) != 1 or second.operands[reads[0]].producer != u or program.readers[first.outputs[0]] != 1 << v:
        return False
    if first.outputs[0] in program.kept or second.itemsize > first.itemsize or second.shape != first.shape:
        return False
    operand, access = second.operands[reads[0]], second.domain.reads[reads[0]]
    identity = operand.shape == operand.base_shape == first.shape and all(
        dim.loop == d or n == 1 for d, (dim, n) in enumerate(zip(access.dims, operand.shape, strict=True))
    )
    readers = program.readers[second.outputs[0]]
    joined = not readers & (readers - 1) or second.output_bytes[0] > profile.line_bytes
    supported = all(dtype in profile.dtypes for member in (first, second) for dtype in member.dtypes)
    return identity and joined and supported
