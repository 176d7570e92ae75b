"""Synthetic group spaces: random graphs with random legality and costs, and graphs shaped like real networks.

`RandomSpace` is what no model graph is: legality with holes that are not monotone, costs that are neither sub- nor
superadditive. A node has a label that stands for its structure; groups are keyed by labels and inner edges, so that
the numbering of nodes does not matter.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable, Sequence


def members(mask: int) -> list[int]:
    return [v for v in range(mask.bit_length()) if mask >> v & 1]


class Counted:
    """Counts heavy nodes; more than `max_heavy` of one family are allowed with a chain of nodes behind each, word for word."""

    heavy: int
    max_heavy: int
    preds: list[int]
    succs: list[int]
    families: Sequence[int] = ()

    def crowded(self, group: int) -> bool:
        heads = members(group & self.heavy)
        if len(heads) <= self.max_heavy:
            return False
        if self.max_heavy == 1 or not any(all(family >> v & 1 for v in heads) for family in self.families):
            return True
        for v in members(group):
            reads, readers = members(self.preds[v] & group), members(self.succs[v] & group)
            if len(readers) > 1 or len(reads) != (0 if v in heads else 1):
                return True
        return False

    def room(self, group: int, candidates: int) -> int:
        return sum(1 << v for v in members(candidates) if not self.crowded(group | 1 << v))


class RandomSpace(Counted):
    """A space over given edges. Everything random is a hash of the seed and the structure of the group."""

    def __init__(
        self,
        n: int,
        edges: Sequence[tuple[int, int]],
        *,
        siblings: Sequence[tuple[int, int]] = (),
        labels: Sequence[Hashable] | None = None,
        heavy: int = 0,
        max_heavy: int = 1,
        families: Sequence[int] = (),
        solo: int = 0,
        blocked: Sequence[tuple[int, int]] = (),
        max_nodes: int = 256,
        seed: int = 0,
        hole_rate: float = 0.3,
        flavour: str = "mixed",
    ) -> None:
        self.n, self.heavy, self.solo, self.max_nodes, self.max_heavy = n, heavy, solo, max_nodes, max_heavy
        self.families = tuple(families)
        for family in families:  # what they read joins them
            assert not family & ~heavy
            siblings = [*siblings, *((u, v) for u in members(family) for v in members(family) if u < v)]
        self.preds, self.succs, self.neighbours = [0] * n, [0] * n, [0] * n
        for u, v in edges:
            assert u < v
            self.succs[u] |= 1 << v
            self.preds[v] |= 1 << u
        for u, v in [*edges, *siblings]:
            self.neighbours[u] |= 1 << v
            self.neighbours[v] |= 1 << u
        self.labels = list(range(n)) if labels is None else list(labels)
        self._blocked = frozenset(blocked)
        self._seed, self._hole_rate, self._flavour = seed, hole_rate, flavour
        self._reach = [0] * n
        for v in reversed(range(n)):
            for w in members(self.succs[v]):
                self._reach[v] |= self._reach[w] | 1 << w

    def key(self, group: int) -> tuple[frozenset[Hashable], frozenset[Hashable]]:
        nodes = members(group)
        inner = frozenset((self.labels[u], self.labels[v]) for u in nodes for v in members(self.succs[u] & group))
        return frozenset(self.labels[v] for v in nodes), inner

    def computed(self, group: int) -> int:
        return group.bit_count()

    def hopeless(self, group: int) -> bool:
        """Exact where that is cheap: growth then stops as early as it ever may."""
        rest = ((1 << self.n) - 1) & ~group
        if self.n > 8:
            return False
        more = rest
        while self.cost(group | more) is None:
            if not more:
                return True
            more = (more - 1) & rest
        return False

    def blocked(self, u: int, v: int) -> bool:
        return (u, v) in self._blocked

    def descriptions(self, reach: int) -> list[int] | None:
        return None

    def _structural(self, group: int) -> bool:
        nodes = members(group)
        if len(nodes) > self.max_nodes or self.crowded(group) or group & self.solo:
            return False
        reached, fresh = 0, 1 << nodes[0]
        while fresh:
            reached |= fresh
            fresh = 0
            for v in members(reached):
                fresh |= self.neighbours[v] & group & ~reached
        if reached != group:
            return False
        for u in nodes:
            for w in members(self._reach[u] & ~group):
                if self._reach[w] & group:
                    return False
        return not any(group >> u & 1 and group >> v & 1 for u, v in self._blocked)

    def cost(self, group: int) -> int | None:
        nodes = members(group)
        if len(nodes) > 1 and not self._structural(group):
            return None
        text = repr((self._seed, sorted(map(repr, (self.labels[v] for v in nodes)))))
        draw = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
        if len(nodes) > 1 and draw.random() < self._hole_rate:
            return None
        size = len(nodes)
        if self._flavour == "sub":
            return 5 + 3 * size + draw.randrange(4)
        if self._flavour == "super":
            return size * size + draw.randrange(3 * size)
        if self._flavour == "ties":
            return size + draw.randrange(2)
        return draw.randrange(1, 6 + 4 * size)


def random_families(draw: random.Random, n: int, heavy: int) -> list[int]:
    """Up to two families of heavy nodes that may overlap, one of them often all there are."""
    found = [heavy] if draw.random() < 0.4 else []
    return found + [heavy & draw.getrandbits(n) for _ in range(draw.choice([0, 0, 1]))]


def random_space(draw: random.Random, most: int) -> RandomSpace:
    """A random space of 1 to `most` nodes."""
    n = draw.randint(1, most)
    density = draw.choice([0.15, 0.3, 0.5])
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    edges = [pair for pair in pairs if draw.random() < density]
    siblings = [pair for pair in pairs if draw.random() < draw.choice([0.0, 0.15])]
    max_heavy = draw.choice([1, 1, 2, 3])
    rate = draw.choice([0.15 * max_heavy, 0.15 * max_heavy, 0.6])
    heavy = sum(1 << v for v in range(n) if draw.random() < rate)
    return RandomSpace(
        n,
        edges,
        siblings=siblings,
        heavy=heavy,
        max_heavy=max_heavy,
        families=random_families(draw, n, heavy),
        solo=sum(1 << v for v in range(n) if draw.random() < 0.05),
        blocked=[edge for edge in edges if draw.random() < 0.1],
        max_nodes=draw.choice([256, 256, 4]),
        seed=draw.randrange(1 << 30),
        hole_rate=draw.choice([0.0, 0.2, 0.5]),
        flavour=draw.choice(["mixed", "sub", "super", "ties"]),
    )


def fanned_space(draw: random.Random, most: int) -> RandomSpace:
    """A family of three or four heavy nodes, chains behind them, and a few nodes and edges that fit no chain."""
    heads = draw.choice([3, 3, 4])
    n = draw.randint(heads + 1, most)
    first = draw.randint(0, min(2, n - heads - 1))  # what comes before the family
    ends = list(range(first, first + heads))
    edges = [(v, draw.choice(ends)) for v in range(first)]
    for v in range(first + heads, n):
        end = draw.randrange(heads)
        edges.append((ends[end], v))
        ends[end] = v
        edges += [(u, v) for u in range(v) if draw.random() < 0.08]
    heavy = sum(1 << v for v in range(n) if first <= v < first + heads or draw.random() < 0.1)
    return RandomSpace(
        n,
        sorted(set(edges)),
        siblings=[(u, v) for u in range(n) for v in range(u + 1, n) if draw.random() < 0.05],
        heavy=heavy,
        max_heavy=2,
        families=[((1 << heads) - 1) << first],
        blocked=[edge for edge in edges if draw.random() < 0.05],
        max_nodes=draw.choice([256, 256, 5]),
        seed=draw.randrange(1 << 30),
        hole_rate=draw.choice([0.0, 0.2, 0.5]),
        flavour=draw.choice(["mixed", "sub", "super", "ties"]),
    )


class NetworkSpace(Counted):
    """A space with costs like a memory-bound cost model: boundary values read and written, a launch for each group.

    Parameters
    ----------
    edges, n, heavy, blocked
        The graph.
    size : sequence of int
        Bytes of the value that each node computes.
    inputs : dict
        For each graph input, its bytes and its readers.
    """

    def __init__(
        self,
        n: int,
        edges: Sequence[tuple[int, int]],
        *,
        heavy: int = 0,
        blocked: Sequence[tuple[int, int]] = (),
        size: Sequence[int] | None = None,
        inputs: Sequence[tuple[int, Sequence[int]]] = (),
        spill_from: int = 12,
        launch: int = 1000,
        join_readers: bool = True,
    ) -> None:
        self.n, self.heavy, self.solo, self.max_nodes, self.max_heavy = n, heavy, 0, 256, 1
        self.preds, self.succs, self.neighbours = [0] * n, [0] * n, [0] * n
        for u, v in edges:
            self.succs[u] |= 1 << v
            self.preds[v] |= 1 << u
            self.neighbours[u] |= 1 << v
            self.neighbours[v] |= 1 << u
        self._inputs = [(bytes_, sum(1 << v for v in readers)) for bytes_, readers in inputs]
        readers_of = [readers for _, readers in self._inputs] + self.succs
        if join_readers:
            for readers in readers_of:
                for v in members(readers):
                    self.neighbours[v] |= readers & ~(1 << v)
        self._size = [100] * n if size is None else list(size)
        self._blocked, self._spill, self._launch = frozenset(blocked), spill_from, launch
        self._cache: dict[int, int] = {}

    def key(self, group: int) -> Hashable:
        return group

    def computed(self, group: int) -> int:
        return group.bit_count()

    def hopeless(self, group: int) -> bool:
        return False

    def blocked(self, u: int, v: int) -> bool:
        return (u, v) in self._blocked

    def descriptions(self, reach: int) -> list[int] | None:
        return None

    def cost(self, group: int) -> int:
        known = self._cache.get(group)
        if known is None:
            known = self._cache[group] = self._price(group)
        return known

    def _price(self, group: int) -> int:
        total, read, rest = self._launch, 0, group
        while rest:
            low = rest & -rest
            rest ^= low
            v = low.bit_length() - 1
            read |= self.preds[v]
            if self.succs[v] & ~group or not self.succs[v]:
                total += self._size[v]
        read &= ~group
        while read:
            low = read & -read
            read ^= low
            total += self._size[low.bit_length() - 1]
        total += sum(bytes_ for bytes_, readers in self._inputs if readers & group)
        over = group.bit_count() - self._spill
        return total + (over * over * 20 if over > 0 else 0)


def transformer(layers: int, *, join_readers: bool = True) -> NetworkSpace:
    """Layers of 28 nodes: normalisation, attention with softmax, residual diamonds, a gated MLP."""
    edges: list[tuple[int, int]] = []
    heavy = 0
    n = 0

    def node(*reads: int, contraction: bool = False) -> int:
        nonlocal heavy, n
        edges.extend((u, n) for u in sorted(set(reads)) if u >= 0)
        heavy |= contraction << n
        n += 1
        return n - 1

    x = node()
    for _ in range(layers):
        for block in ("attention", "mlp"):
            mean = node(node(x), contraction=False)
            centred = node(x, mean)
            scale = node(node(node(centred)))
            normal = node(node(centred, scale))
            if block == "attention":
                q, k, v = (node(node(normal, contraction=True)) for _ in range(3))
                scores = node(node(q, k, contraction=True))
                e = node(scores, node(scores))
                p = node(e, node(e))
                out = node(node(p, v, contraction=True), contraction=True)
            else:
                gate = node(normal, contraction=True)
                up = node(normal, contraction=True)
                h = node(up, node(gate, node(gate)))
                out = node(h, contraction=True)
            x = node(x, node(out))
    return NetworkSpace(n, edges, heavy=heavy, join_readers=join_readers)


def conv_net(blocks: int, branches: int = 2) -> NetworkSpace:
    """Residual blocks of parallel conv-bias-activation branches; a window never reads a value computed in its group."""
    edges: list[tuple[int, int]] = []
    blocked: list[tuple[int, int]] = []
    heavy = 0
    n = 1
    x = 0
    for _ in range(blocks):
        ends = []
        for _ in range(branches):
            y = x
            for _ in range(2):
                heavy |= 1 << n
                edges.append((y, n))
                blocked.append((y, n))
                edges.extend([(n, n + 1), (n + 1, n + 2), (n + 2, n + 3)])
                y, n = n + 3, n + 4
            ends.append(y)
        edges.extend((u, n) for u in [*ends, x])
        edges.append((n, n + 1))
        x, n = n + 1, n + 2
    return NetworkSpace(n, edges, heavy=heavy, blocked=blocked)


def wide(chains: int, length: int) -> NetworkSpace:
    """Chains that all read one graph input."""
    n = chains * length
    edges = [(v, v + 1) for v in range(n) if (v + 1) % length]
    return NetworkSpace(n, edges, inputs=[(500, range(0, n, length))])
