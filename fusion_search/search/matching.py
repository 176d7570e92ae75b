"""Which node of a changed program is which node of the old one: by name where neighbours agree, else by structure.

In order, each step looking only at what is still unmatched:

1. the same name and operator, and operands or readers of the same names (where nobody reads it, the result's name);
2. along edges: the operand of a matched pair in the same slot, or its only reader of that operator in that slot;
3. a neighbourhood (three edges deep, then two, then one) that one node of each program has, first with types, then without;
4. the same name and operator, whatever stands around it; then twins that nothing tells apart, in order.

Step 2 follows each of the others until nothing is added, at first between nodes of equal attributes and types, in the end between all.
Names come first but do not decide alone: an exporter that numbers its
nodes gives every later node another's name when one is inserted, and then neither operands nor readers agree.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence

from fusion_search.search.plan_file import NodeRecord

__all__ = ["match_nodes"]

_DEPTHS = (3, 2, 1)


class _Side:
    """One program with its edges."""

    def __init__(self, nodes: Sequence[NodeRecord]) -> None:
        self.nodes = nodes
        self.named = {node.name: k for k, node in enumerate(nodes)}
        #: Value -> node that computes it, and which of its results it is.
        self.maker = {value: (k, place) for k, node in enumerate(nodes) for place, (value, _) in enumerate(node.writes)}
        #: For each node: (result, reader, slot) of every read of its results.
        self.readers: list[list[tuple[int, int, int]]] = [[] for _ in nodes]
        #: For each node and slot: the node that computes the operand, or -1.
        self.operands: list[list[int]] = []
        for k, node in enumerate(nodes):
            slots = []
            for slot, (value, _) in enumerate(node.reads):
                made_by, place = self.maker.get(value, (-1, 0))
                slots.append(made_by)
                if made_by >= 0:
                    self.readers[made_by].append((place, k, slot))
            self.operands.append(slots)

    def name_of(self, k: int) -> str:
        return self.nodes[k].name if k >= 0 else ""

    def operand_names(self, k: int) -> list[str]:
        return [self.name_of(p) for p in self.operands[k]]

    def reader_names(self, k: int) -> list[tuple[int, str, int]]:
        return sorted((place, self.name_of(r), slot) for place, r, slot in self.readers[k])

    def neighbourhoods(self, typed: bool) -> Iterator[list[bytes]]:
        """Digests of what stands around each node, one edge deep, then two, ..."""
        digests = [_digest(node.op, node.attrs, *(_types(node) if typed else ())) for node in self.nodes]
        for _ in range(max(_DEPTHS)):
            digests = [
                _digest(
                    digests[k],
                    *(digests[p] if p >= 0 else b"-" for p in self.operands[k]),
                    b"|",
                    *sorted(_digest(place, slot, digests[r]) for place, r, slot in self.readers[k]),
                )
                for k in range(len(self.nodes))
            ]
            yield digests


def _types(node: NodeRecord) -> list[str]:
    return [kind for _, kind in (*node.reads, *node.writes)]


def _digest(*parts: object) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        text = part if isinstance(part, bytes) else str(part).encode()
        made.update(len(text).to_bytes(4, "little") + text)
    return made.digest()


class _Matching:
    """Pairs found so far; each side of a pair is in no other."""

    def __init__(self, old: _Side, new: _Side) -> None:
        self.old, self.new = old, new
        self.image: dict[int, int] = {}
        self.taken: set[int] = set()
        self._fresh: list[int] = []

    def pair(self, u: int, v: int) -> None:
        if u not in self.image and v not in self.taken and self.old.nodes[u].op == self.new.nodes[v].op:
            self.image[u] = v
            self.taken.add(v)
            self._fresh.append(u)

    def by_name(self, agree: Callable[[int, int], bool]) -> None:
        for u, node in enumerate(self.old.nodes):
            v = self.new.named.get(node.name, -1)
            if v >= 0 and u not in self.image and agree(u, v):
                self.pair(u, v)
        self.along_edges()

    def by_neighbourhood(self, typed: bool) -> None:
        sides = list(self.old.neighbourhoods(typed)), list(self.new.neighbourhoods(typed))
        for depth in _DEPTHS:
            here, there = sides[0][depth - 1], sides[1][depth - 1]
            left = [[k for k in range(len(here)) if k not in self.image], [k for k in range(len(there)) if k not in self.taken]]
            once = [{d for d, n in Counter(found[k] for k in ks).items() if n == 1} for ks, found in zip(left, (here, there), strict=True)]
            place = {there[v]: v for v in left[1]}
            for u in left[0]:
                if here[u] in once[0] & once[1]:
                    self.pair(u, place[here[u]])
            self.along_edges()

    def by_symmetry(self) -> None:
        """Pair nodes that nothing around them tells apart, when there are as many on both sides; each pair may tell others apart."""
        here, there = (list(side.neighbourhoods(True))[-1] for side in (self.old, self.new))
        twins: dict[bytes, tuple[list[int], list[int]]] = {}
        for u, digest in enumerate(here):
            if u not in self.image:
                twins.setdefault(digest, ([], []))[0].append(u)
        for v, digest in enumerate(there):
            if v not in self.taken and digest in twins:
                twins[digest][1].append(v)
        for every in twins.values():
            while True:
                ours = [u for u in every[0] if u not in self.image]
                theirs = [v for v in every[1] if v not in self.taken]
                if not ours or len(ours) != len(theirs):
                    break
                self.pair(ours[0], theirs[0])
                self.along_edges()

    def along_edges(self) -> None:
        """Follow operands and readers from every new pair, between nodes of equal attributes and types."""
        self._follow_all(list(self._fresh), True)

    def along_all_edges(self) -> None:
        """Follow operands and readers from every pair, whatever the attributes and types."""
        self._follow_all(list(self.image), False)

    def _follow_all(self, todo: list[int], same: bool) -> None:
        self._fresh.clear()
        while todo:
            u = todo.pop()
            v = self.image[u]
            for p, q in zip(self.old.operands[u], self.new.operands[v], strict=False):
                if p >= 0 and q >= 0:
                    self._follow(p, q, same)
            for p, q in self._only_readers(u, v):
                self._follow(p, q, same)
            todo += self._fresh
            self._fresh.clear()

    def _only_readers(self, u: int, v: int) -> Iterator[tuple[int, int]]:
        def by_slot(side: _Side, k: int, done: Container[int]) -> dict[tuple[int, int, str], list[int]]:
            found: dict[tuple[int, int, str], list[int]] = {}
            for place, reader, slot in side.readers[k]:
                if reader not in done:
                    found.setdefault((place, slot, side.nodes[reader].op), []).append(reader)
            return found

        ours, theirs = by_slot(self.old, u, self.image), by_slot(self.new, v, self.taken)
        for key, readers in ours.items():
            if len(readers) == 1 == len(theirs.get(key, ())):
                yield readers[0], theirs[key][0]

    def _follow(self, u: int, v: int, same: bool) -> None:
        a, b = self.old.nodes[u], self.new.nodes[v]
        if same and (a.attrs != b.attrs or _types(a) != _types(b)):
            return
        self.pair(u, v)


def match_nodes(old: Sequence[NodeRecord], new: Sequence[NodeRecord]) -> dict[int, int]:
    """Find for nodes of one program the nodes of another one that take their place.

    Parameters
    ----------
    old, new : sequence of NodeRecord
        Names are unique on each side.

    Returns
    -------
    dict of int to int
        Index in `old` to index in `new`; no index occurs twice, and operators are the same.

    Notes
    -----
    A heuristic where structure repeats: what it pairs has to be judged again. O((nodes + edges) log nodes).
    """
    here, there = _Side(old), _Side(new)
    found = _Matching(here, there)

    def agree(u: int, v: int) -> bool:
        if here.operand_names(u) == there.operand_names(v):
            return True
        readers = here.reader_names(u)
        if readers != there.reader_names(v):
            return False
        # What nobody reads is returned, under a name that callers know.
        return bool(readers) or [name for name, _ in old[u].writes] == [name for name, _ in new[v].writes]

    found.by_name(agree)
    for typed in (True, False):
        found.by_neighbourhood(typed)
    found.by_name(lambda u, v: True)
    found.by_symmetry()
    found.along_all_edges()
    return found.image
