"""The shared loops of a group: which loops of its members are one loop.

Loops of extent 1 do not exist. Two loops are one where a composed read is the identity: along inner edges, and between
readers of one live-in. Reads through views (reshapes) match factor by factor: loops are cut where a boundary of
either shape falls, and the pieces, here called *atoms*, are unified. A group's loops are its atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fusion_search.fusion.program import Operand, Program

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Read:
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


class _Sets:
    """Disjoint sets over small integers."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def add(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, k: int) -> int:
        parent = self.parent
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    def join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[max(a, b)] = min(a, b)


def group_loops(program: Program, positions: Sequence[int], line_bytes: int) -> GroupLoops:
    """Unify the loops of a group.

    Live-ins unify loops after the inner edges, and those that would make a member carry one loop twice (``x + x.T``)
    do not: then each of their readers keeps loops of its own.

    Parameters
    ----------
    program : Program
    positions : sequence of int
        The members, ascending.
    line_bytes : int
        Live-ins of this size or less do not unify loops.

    Notes
    -----
    Linear in members times rank, times the number of view boundaries.
    """
    return _solved(program, positions, line_bytes)[1]


def tangled_members(program: Program, positions: Sequence[int], line_bytes: int, edges: set[tuple[int, int]]) -> set[int]:
    """Return the members on a loop that one of them would carry twice in a nest that joins them by these reads.

    Parameters
    ----------
    edges : set of (int, int)
        Reads as (member, operand).
    """
    return _solved(program, positions, line_bytes)[0].tangled(edges)


def _solved(program: Program, positions: Sequence[int], line_bytes: int) -> tuple[_Unifier, GroupLoops]:
    dropped: set[int] = set()
    while True:
        unifier = _Unifier(program, positions, line_bytes, dropped)
        found = unifier.solve()
        more = unifier.guilty(found.conflicts) if found.conflicts else set()
        if not more:
            return unifier, found
        dropped |= more


class _Unifier:
    def __init__(self, program: Program, positions: Sequence[int], line_bytes: int, dropped: set[int]) -> None:
        self.members = [program.members[p] for p in positions]
        self.local = {p: i for i, p in enumerate(positions)}
        self.sets = _Sets()
        self.extent: list[int] = []
        self.ids: list[list[int]] = []  # member -> loop -> element, -1 for extent 1
        for member in self.members:
            self.ids.append([self._element(n) if n != 1 else -1 for n in member.domain.extents])
        self.line_bytes, self.dropped = line_bytes, dropped
        self.shared: dict[int, list[int]] = {}  # live-in -> its dimensions' elements
        self.atoms_of: dict[int, tuple[int, ...]] = {}
        # (reader, operand index, operand, owner elements by base dimension, producer)
        self.edges: list[tuple[int, int, Operand, list[int], int]] = []
        self._collect()

    def _element(self, extent: int) -> int:
        self.extent.append(extent)
        return self.sets.add()

    def _collect(self) -> None:
        live_ins: dict[int, list[tuple[int, int, Operand]]] = {}
        for i, member in enumerate(self.members):
            for k, operand in enumerate(member.operands):
                if operand.parameter:
                    continue
                producer = self.local.get(operand.producer, -1) if operand.producer >= 0 else -1
                if producer >= 0:
                    self.edges.append((i, k, operand, self.ids[producer], producer))
                else:
                    live_ins.setdefault(operand.base, []).append((i, k, operand))
        for reads in live_ins.values():
            operand = reads[0][2]
            size = operand.itemsize
            for n in operand.base_shape:
                size *= n
            shared = len(reads) > 1 and size > self.line_bytes and operand.base not in self.dropped
            owner = [self._element(n) if n != 1 else -1 for n in operand.base_shape] if shared else []
            if shared:
                self.shared[operand.base] = owner
            self.edges += [(i, k, o, owner, -1) for i, k, o in reads]

    def guilty(self, conflicts: frozenset[int]) -> set[int]:
        """Live-ins that have a dimension among these atoms."""
        return {base for base, owner in self.shared.items() if any(conflicts.intersection(self.atoms_of.get(e, ())) for e in owner)}

    def _loop(self, reader: int, operand: int, dim: int, extent: int) -> int:
        """The reader's loop that indexes a dimension as the identity, or -1."""
        loop = self.members[reader].domain.reads[operand].dims[dim].loop
        if loop is None or self.members[reader].domain.extents[loop] != extent:
            return -1
        return self.ids[reader][loop]

    def solve(self) -> GroupLoops:
        plain: list[tuple[int, int]] = []
        cut: list[tuple[list[int], list[int]]] = []
        self.joins: list[tuple[int, int, list[int], list[int]]] = []  # (reader, operand, owner's side, reader's side)
        for i, k, operand, owner, _ in self.edges:
            if not owner:
                continue
            for base_dims, view_dims in segments(operand.base_shape, operand.shape):
                loops = [self._loop(i, k, d, operand.shape[d]) for d in view_dims]
                if -1 in loops:
                    continue
                self.joins.append((i, k, [owner[d] for d in base_dims], loops))
                if len(base_dims) == 1 and len(view_dims) == 1:
                    plain.append((owner[base_dims[0]], loops[0]))
                else:
                    cut.append(([owner[d] for d in base_dims], loops))
        for a, b in plain:
            self.sets.join(a, b)
        pieces = self._cut(cut) if cut else None
        self.numbering: dict[int, list[tuple[int, int]]] = {}
        if pieces is None:
            return self._finish({}, _Sets())
        atoms, self.numbering = pieces
        return self._finish(self.numbering, atoms)

    def tangled(self, edges: set[tuple[int, int]]) -> set[int]:
        """Members with a loop that some member would carry twice if these reads alone, as (reader, operand), unified."""
        sets = _Sets()
        raw: dict[int, list[int]] = {}

        def pieces(element: int) -> list[int]:
            if element not in raw:
                count = len(self.numbering[self.sets.find(element)]) if self.numbering else 1
                raw[element] = [sets.add() for _ in range(count)]
            return raw[element]

        for i, k, left, right in self.joins:
            if (i, k) in edges:
                a, b = ([atom for element in side for atom in pieces(element)] for side in (left, right))
                if len(a) == len(b):
                    for x, y in zip(a, b, strict=True):
                        sets.join(x, y)
        mine = [[sets.find(atom) for element in row if element >= 0 for atom in pieces(element)] for row in self.ids]
        twice = {atom for atoms in mine for atom in atoms if atoms.count(atom) > 1}
        return {i for i, atoms in enumerate(mine) if twice.intersection(atoms)}

    # ------------------------------------------------------------------ cutting loops at the boundaries of views

    def _cut(self, pairs: list[tuple[list[int], list[int]]]) -> tuple[_Sets, dict[int, list[tuple[int, int]]]] | None:
        """Return the atoms of each class of loops as (atom, extent) lists, or None when no view can be matched."""
        usable = [pair for pair in pairs if self._chain(self._boundaries(pair[0]) | self._boundaries(pair[1]))]
        cuts: dict[int, set[int]] = {}
        changed = True
        while changed:
            changed = False
            for left, right in usable:
                positions = self._positions(left, cuts) | self._positions(right, cuts)
                for side in (left, right):
                    before = sum(len(c) for c in cuts.values())
                    if not self._impose(side, positions, cuts):
                        return None
                    changed = changed or sum(len(c) for c in cuts.values()) != before
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
        for row in (*self.ids, *self.shared.values()):
            for element in row:
                if element >= 0:
                    pieces(element)
        return atoms, numbering

    def _boundaries(self, side: list[int]) -> set[int]:
        found, product = set(), 1
        for element in reversed(side):
            product *= self.extent[element]
            found.add(product)
        return found

    @staticmethod
    def _chain(points: set[int]) -> bool:
        ordered = sorted(points)
        return all(b % a == 0 for a, b in zip(ordered, ordered[1:], strict=False))

    def _positions(self, side: list[int], cuts: dict[int, set[int]]) -> set[int]:
        found, product = set(), 1
        for element in reversed(side):
            found |= {product * c for c in cuts.get(self.sets.find(element), ())}
            product *= self.extent[element]
            found.add(product)
        return found

    def _impose(self, side: list[int], positions: set[int], cuts: dict[int, set[int]]) -> bool:
        product = 1
        for element in reversed(side):
            extent = self.extent[element]
            for p in positions:
                if product < p < product * extent:
                    if p % product or (product * extent) % p:
                        return False
                    cuts.setdefault(self.sets.find(element), set()).add(p // product)
            product *= extent
        return True

    # ------------------------------------------------------------------ numbering the atoms

    def _finish(self, numbering: dict[int, list[tuple[int, int]]], atoms: _Sets) -> GroupLoops:
        order: dict[int, int] = {}
        extents: list[int] = []

        def number(key: int, extent: int) -> int:
            if key not in order:
                order[key] = len(extents)
                extents.append(extent)
            return order[key]

        def of(element: int) -> tuple[int, ...]:
            if element < 0:
                return ()
            root = self.sets.find(element)
            if numbering:
                return tuple(number(atoms.find(atom), extent) for atom, extent in numbering[root])
            return (number(root, self.extent[root]),)

        loops = tuple(tuple(of(element) for element in row) for row in self.ids)
        self.atoms_of = {element: of(element) for owner in self.shared.values() for element in owner}
        conflicts: set[int] = set()
        for member in loops:
            seen: set[int] = set()
            for loop in member:
                for atom in loop:
                    if atom in seen:
                        conflicts.add(atom)
                    seen.add(atom)
        reads = tuple(self._read(edge, loops) for edge in self.edges)
        return GroupLoops(tuple(extents), loops, reads, frozenset(conflicts))

    def _read(self, edge: tuple[int, int, Operand, list[int], int], loops: tuple[tuple[tuple[int, ...], ...], ...]) -> Read:
        i, k, operand, _, producer = edge
        access = self.members[i].domain.reads[k]
        used = frozenset(atom for dim in access.dims for loop, _ in dim.terms for atom in loops[i][loop])
        if producer < 0:
            return Read(i, k, -1, False, frozenset(), used)
        barred: set[int] = set()
        covered: set[int] = set()
        for base_dims, view_dims in segments(operand.base_shape, operand.shape):
            covered |= set(base_dims)
            mine: list[int] = []
            for d in view_dims:
                loop = access.dims[d].loop
                same = loop is not None and self.members[i].domain.extents[loop] == operand.shape[d]
                mine += loops[i][loop] if same and loop is not None else (-1,)
            owner = [atom for d in base_dims for atom in loops[producer][d]]
            if mine != owner:
                barred |= set(owner)
        for d, atoms in enumerate(loops[producer][: len(operand.base_shape)]):
            if d not in covered:
                barred |= set(atoms)  # a view that matches nowhere
        return Read(i, k, producer, not barred, frozenset(barred), used)
