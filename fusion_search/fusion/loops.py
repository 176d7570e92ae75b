"""The shared loops of a group: which loops of its members are one loop.

Loops of extent 1 do not exist. Two loops are one where a composed read is the identity: along inner edges, and between
readers of one live-in. Reads through views (reshapes) match factor by factor: loops are cut where a boundary of
either shape falls, and the pieces, here called *atoms*, are unified. A group's loops are its atoms.

More than `MAX_CONTRACTIONS` contractions that read one value alike are one wider contraction (`fusion.horizontal`): the columns of their
results have nothing to do with each other, so that any may be computed beside any. Where they are as many for all, they are one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from fusion_search.fusion.program import Member, Program, bits
from fusion_search.ir.spec import Access

Shape = tuple[int, ...]
#: Contractions and windows of one group: the two products of attention or of a feed-forward block, two projections of one input.
#: Where all of them read one value alike, and little else is in the group, there may be more (`fusion.horizontal`).
MAX_CONTRACTIONS = 2
_NONE: frozenset[int] = frozenset()


class Read(NamedTuple):
    """One read of a tensor by a member.

    Attributes
    ----------
    reader : int
        Index of the member in the group.
    operand : int
        Index of the operand.
    producer : int
        Index in the group of the member that computes the value; -1 for a live-in.
    identity : bool
        True when every loop of the value is one loop of the reader.
    barred : frozenset of int
        Atoms of the producer along which the value is read at other places than the reader's own.
    atoms : frozenset of int
        Atoms that the index depends on.
    """

    reader: int
    operand: int
    producer: int
    identity: bool
    barred: frozenset[int]
    atoms: frozenset[int]


@dataclass(frozen=True, slots=True)
class GroupLoops:
    """The atoms of a group.

    Attributes
    ----------
    extents : tuple of int
        Extent of each atom.
    loops : tuple of tuple of tuple of int
        For each member and each loop of its domain, the atoms that the loop consists of, outermost first.
    reads : tuple of Read
    conflicts : frozenset of int
        Atoms that one member would have to carry twice (as in ``x @ x.T``); no schedule may use them.
    """

    extents: tuple[int, ...]
    loops: tuple[tuple[tuple[int, ...], ...], ...]
    reads: tuple[Read, ...]
    conflicts: frozenset[int]


@lru_cache(maxsize=65536)
def segments(base: Shape, view: Shape) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Match two row-major shapes of equal size.

    Returns the smallest runs of dimensions of equal products, as (dimensions of `base`, dimensions of `view`), from
    the innermost outwards; dimensions of extent 1 are left out.
    """
    left = [d for d in range(len(base)) if base[d] != 1]
    right = [d for d in range(len(view)) if view[d] != 1]
    found = []
    while left and right:
        a, b = [left.pop()], [right.pop()]
        pa, pb = base[a[0]], view[b[0]]
        while pa != pb:
            if pa < pb:
                if not left:
                    return ()
                a.insert(0, left.pop())
                pa *= base[a[0]]
            else:
                if not right:
                    return ()
                b.insert(0, right.pop())
                pb *= view[b[0]]
        found.append((tuple(a), tuple(b)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Matched:
    """How one operand's stored dimensions meet the reader's loops; depends on the node alone.

    Attributes
    ----------
    pairs : tuple of (tuple of int, tuple of int)
        Runs of stored dimensions and the reader's loops that step through the same elements.
    others : tuple of int
        Stored dimensions that are read in any other way.
    used : tuple of int
        Loops that the index depends on.
    """

    pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    others: tuple[int, ...]
    used: tuple[int, ...]


def matched_operands(program: Program, position: int) -> tuple[Matched, ...]:
    """Match every operand of a node with its loops; computed once for equal nodes."""
    member = program.members[position]
    found = program.matches.get(member.signature)
    if found is None:
        found = program.matches[member.signature] = tuple(_match(member, k) for k in range(len(member.operands)))
    return found


def _match(member: Member, k: int) -> Matched:
    operand, access, extents = member.operands[k], member.domain.reads[k], member.domain.extents
    pairs = []
    covered: set[int] = set()
    for base_dims, view_dims in segments(operand.base_shape, operand.shape):
        loops = []
        for d in view_dims:
            loop = access.dims[d].loop
            if loop is None or extents[loop] != operand.shape[d]:
                break
            loops.append(loop)
        else:
            pairs.append((base_dims, tuple(loops)))
            covered.update(base_dims)
    others = tuple(d for d, n in enumerate(operand.base_shape) if n != 1 and d not in covered)
    return Matched(tuple(pairs), others, tuple(sorted({loop for dim in access.dims for loop, _ in dim.terms})))


class _Sets:
    """Disjoint sets over small integers."""

    def __init__(self, count: int = 0) -> None:
        self.parent = list(range(count))

    def add(self, count: int = 1) -> int:
        first = len(self.parent)
        self.parent.extend(range(first, first + count))
        return first

    def find(self, k: int) -> int:
        parent = self.parent
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a < b:
            self.parent[b] = a
        elif b < a:
            self.parent[a] = b


def group_loops(program: Program, group: int, line_bytes: int) -> GroupLoops:
    """Unify the loops of a group.

    Live-ins unify loops after the inner edges, and those that would make a member carry one loop twice (``x + x.T``)
    do not: then each of their readers keeps loops of its own.

    Parameters
    ----------
    program : Program
    group : int
        Mask of positions; copies of one node are one member.
    line_bytes : int
        Live-ins of this size or less do not unify loops.

    Notes
    -----
    Linear in members times rank, times the number of view boundaries.
    """
    return _solved(program, group, line_bytes)[1]


def tangled_members(program: Program, group: int, line_bytes: int, edges: set[tuple[int, int]]) -> set[int]:
    """Return the members on a loop that one of them would carry twice in a nest that joins them by these reads.

    Parameters
    ----------
    edges : set of (int, int)
        Reads as (member, operand).
    """
    return _solved(program, group, line_bytes)[0].tangled(edges)


def _solved(program: Program, group: int, line_bytes: int) -> tuple[Unifier, GroupLoops]:
    positions = program.distinct(group)
    local = {p: i for i, p in enumerate(positions)}
    if program.copies:
        local = {q: i for p, i in local.items() for q in bits(program.copies.get(p, 1 << p) & group)}
    dropped: set[int] = set()
    while True:
        unifier = Unifier(program, positions, local, line_bytes, dropped)
        found = unifier.solve()
        more = unifier.guilty(found.conflicts) if found.conflicts else set()
        if not more:
            return unifier, found
        dropped |= more


class Unifier:
    """The loops of a group as numbered elements: those of each member in a row, then the dimensions of shared live-ins."""

    def __init__(self, program: Program, positions: Sequence[int], local: dict[int, int], line_bytes: int, dropped: set[int]) -> None:
        self.members = [program.members[p] for p in positions]
        self.matches = [matched_operands(program, p) for p in positions]
        self.extent: list[int] = []
        self.first: list[int] = []
        for member in self.members:
            self.first.append(len(self.extent))
            self.extent += member.domain.extents
        self.sets = _Sets(len(self.extent))
        self.shared: dict[int, int] = {}  # live-in -> its first element
        # (reader, operand, first element of the owner's dimensions or -1, producer or -1)
        self.edges: list[tuple[int, int, int, int]] = []
        self._collect(local, line_bytes, dropped)

    def _collect(self, local: dict[int, int], line_bytes: int, dropped: set[int]) -> None:
        live_ins: dict[int, list[tuple[int, int]]] = {}
        heads = [i for i, member in enumerate(self.members) if member.spec.kind in ("contract", "window")]
        for i, member in enumerate(self.members):
            for k, operand in enumerate(member.operands):
                if operand.parameter:
                    continue
                producer = local.get(operand.producer, -1) if operand.producer >= 0 else -1
                if producer >= 0:
                    self.edges.append((i, k, self.first[producer], producer))
                else:
                    live_ins.setdefault(operand.base, []).append((i, k))
        for base, reads in live_ins.items():
            owner = -1
            if len(reads) > 1 and base not in dropped:
                operand = self.members[reads[0][0]].operands[reads[0][1]]
                size = operand.itemsize
                for n in operand.base_shape:
                    size *= n
                if size > line_bytes:
                    owner = self.shared[base] = self.sets.add(len(operand.base_shape))
                    self.extent += operand.base_shape
                    if len(heads) > MAX_CONTRACTIONS:
                        self._join_columns(heads, reads)
            self.edges += [(i, k, owner, -1) for i, k in reads]

    def _join_columns(self, heads: list[int], reads: list[tuple[int, int]]) -> None:
        """Join the loops by which contractions do not read a value that all of them read alike."""
        first = heads[0]
        for way in dict.fromkeys(self._way(i, k) for i, k in reads if i == first):
            if len({i for i, k in reads if i in heads and self._way(i, k) == way}) < len(heads):
                continue
            _, access, rank = way
            walked = {loop for dim in access.dims for loop, _ in dim.terms}
            for loop in range(rank):
                if loop not in walked and len({self.members[i].domain.extents[loop] for i in heads}) == 1:
                    for i in heads[1:]:
                        self.sets.join(self.first[first] + loop, self.first[i] + loop)

    def _way(self, i: int, k: int) -> tuple[Shape, Access, int]:
        """The view, the map and the rank by which a member reads an operand."""
        member = self.members[i]
        return member.operands[k].shape, member.domain.reads[k], member.domain.rank

    def solve(self) -> GroupLoops:
        """Join the elements, cut them where views do, and number what comes out."""
        self.cut_all()
        return self._finish(self.atoms)

    def cut_all(self) -> bool:
        """Join the elements and cut them where views do; False when some view cannot be followed, and nothing is cut."""
        sets, first = self.sets, self.first
        cut: list[tuple[list[int], list[int]]] = []
        for i, k, owner, _ in self.edges:
            if owner < 0:
                continue
            for base_dims, loops in self.matches[i][k].pairs:
                if len(base_dims) == 1 and len(loops) == 1:
                    sets.join(owner + base_dims[0], first[i] + loops[0])
                else:
                    cut.append(([owner + d for d in base_dims], [first[i] + loop for loop in loops]))
        self.numbering: dict[int, list[tuple[int, int]]] = {}
        self.atoms: _Sets | None = None
        pieces = self._cut(cut) if cut else None
        if pieces is None:
            return not cut
        self.atoms, self.numbering = pieces
        return True

    # ------------------------------------------------------------------ cutting loops at the boundaries of views

    def _cut(self, pairs: list[tuple[list[int], list[int]]]) -> tuple[_Sets, dict[int, list[tuple[int, int]]]] | None:
        """Return the atoms of each class of loops as (atom, extent) lists, or None when no view can be matched."""
        usable = [pair for pair in pairs if self._chain(self._points(pair[0], {}) | self._points(pair[1], {}))]
        cuts: dict[int, set[int]] = {}
        changed = True
        while changed:
            changed = False
            for left, right in usable:
                points = self._points(left, cuts) | self._points(right, cuts)
                for side in (left, right):
                    grown = self._impose(side, points, cuts)
                    if grown is None:
                        return None
                    changed = changed or grown
        if not all(self._chain(c | {self.extent[root]}) for root, c in cuts.items()):
            return None
        atoms = _Sets()
        numbering: dict[int, list[tuple[int, int]]] = {}

        def pieces(element: int) -> list[tuple[int, int]]:
            root = self.sets.find(element)
            if root not in numbering:
                points = [1, *sorted(cuts.get(root, ())), self.extent[root]]
                numbering[root] = [(atoms.add(), points[k + 1] // points[k]) for k in reversed(range(len(points) - 1))]
            return numbering[root]

        for left, right in usable:
            a = [atom for element in left for atom in pieces(element)]
            b = [atom for element in right for atom in pieces(element)]
            for (x, _), (y, _) in zip(a, b, strict=True):
                atoms.join(x, y)
        for element, extent in enumerate(self.extent):
            if extent != 1:
                pieces(element)
        return atoms, numbering

    @staticmethod
    def _chain(points: set[int]) -> bool:
        return all(b % a == 0 for a, b in pairwise(sorted(points)))

    def _points(self, side: list[int], cuts: dict[int, set[int]]) -> set[int]:
        """Where boundaries fall, as numbers of innermost elements."""
        found, product = set(), 1
        for element in reversed(side):
            if cuts:
                found |= {product * c for c in cuts.get(self.sets.find(element), ())}
            product *= self.extent[element]
            found.add(product)
        return found

    def _impose(self, side: list[int], points: set[int], cuts: dict[int, set[int]]) -> bool | None:
        """Cut the loops of one side at these points; None when a loop cannot be, else whether that was new."""
        product, grown = 1, False
        for element in reversed(side):
            extent = self.extent[element]
            for p in points:
                if product < p < product * extent:
                    if p % product or (product * extent) % p:
                        return None
                    mine = cuts.setdefault(self.sets.find(element), set())
                    grown = grown or p // product not in mine
                    mine.add(p // product)
            product *= extent
        return grown

    # ------------------------------------------------------------------ numbering the atoms

    def _finish(self, atoms: _Sets | None) -> GroupLoops:
        order: dict[int, int] = {}
        extents: list[int] = []
        known: dict[int, tuple[int, ...]] = {}
        sets, extent = self.sets, self.extent

        def of(element: int) -> tuple[int, ...]:
            if extent[element] == 1:
                return ()
            root = sets.find(element)
            found = known.get(root)
            if found is None:
                if atoms is None:
                    found = (len(extents),)
                    extents.append(extent[root])
                else:
                    numbers = []
                    for atom, size in self.numbering[root]:
                        key = atoms.find(atom)
                        if key not in order:
                            order[key] = len(extents)
                            extents.append(size)
                        numbers.append(order[key])
                    found = tuple(numbers)
                known[root] = found
            return found

        loops = tuple(
            [
                tuple([of(first + loop) for loop in range(len(member.domain.extents))])
                for first, member in zip(self.first, self.members, strict=True)
            ]
        )
        self.known, self.order = known, order
        conflicts: set[int] = set()
        for member in loops:
            own = [atom for loop in member for atom in loop]
            if len(set(own)) < len(own):
                conflicts.update([atom for atom in own if own.count(atom) > 1])
        return GroupLoops(tuple(extents), loops, tuple([self._read(edge, loops) for edge in self.edges]), frozenset(conflicts))

    def _read(self, edge: tuple[int, int, int, int], loops: tuple[tuple[tuple[int, ...], ...], ...]) -> Read:
        i, k, _, producer = edge
        match, mine = self.matches[i][k], loops[i]
        used = frozenset([atom for loop in match.used for atom in mine[loop]])
        if producer < 0:
            return Read(i, k, -1, False, _NONE, used)
        theirs = loops[producer]
        barred: list[int] = [atom for d in match.others for atom in theirs[d]]
        for base_dims, own in match.pairs:
            # joined unless the cut failed; single loops always are
            if len(base_dims) > 1 or len(own) > 1:
                owner = [atom for d in base_dims for atom in theirs[d]]
                if owner != [atom for loop in own for atom in mine[loop]]:
                    barred += owner
        return Read(i, k, producer, not match.others and not barred, frozenset(barred) if barred else _NONE, used)

    # ------------------------------------------------------------------ loops that a member would carry twice

    def guilty(self, conflicts: frozenset[int]) -> set[int]:
        """Live-ins that have a dimension among these atoms."""
        found = set()
        for base, owner in self.shared.items():
            operand = next(o for m in self.members for o in m.operands if o.base == base)
            if any(conflicts.intersection(self._atoms_of(owner + d)) for d in range(len(operand.base_shape))):
                found.add(base)
        return found

    def _atoms_of(self, element: int) -> Sequence[int]:
        """The atoms of an element, as members' loops have them; a dimension that views split is no loop of any member."""
        root = self.sets.find(element)
        if root in self.known or self.atoms is None:
            return self.known.get(root, ())
        keys = [self.atoms.find(atom) for atom, _ in self.numbering.get(root, ())]
        return [self.order[key] for key in keys if key in self.order]

    def tangled(self, edges: set[tuple[int, int]]) -> set[int]:
        """Members with a loop that some member would carry twice if these reads alone, as (reader, operand), unified."""
        sets = _Sets()
        raw: dict[int, list[int]] = {}

        def pieces(element: int) -> list[int]:
            if element not in raw:
                count = len(self.numbering[self.sets.find(element)]) if self.numbering else 1
                raw[element] = [sets.add() for _ in range(count)]
            return raw[element]

        for i, k, owner, _ in self.edges:
            if (i, k) not in edges or owner < 0:
                continue
            for base_dims, loops in self.matches[i][k].pairs:
                a = [atom for d in base_dims for atom in pieces(owner + d)]
                b = [atom for loop in loops for atom in pieces(self.first[i] + loop)]
                if len(a) == len(b):
                    for x, y in zip(a, b, strict=True):
                        sets.join(x, y)
        mine = [
            [sets.find(atom) for loop, n in enumerate(member.domain.extents) if n != 1 for atom in pieces(first + loop)]
            for first, member in zip(self.first, self.members, strict=True)
        ]
        twice = {atom for atoms in mine for atom in atoms if atoms.count(atom) > 1}
        return {i for i, atoms in enumerate(mine) if twice.intersection(atoms)}
