"""A graph made ready for the search: nodes in canonical order, their domains, and who reads what.

The canonical order is the depth-first post-order from the outputs, operands from left to right. It does not depend
on names or on the order in which a file lists its nodes, it is topological, and it finishes one branch before it
starts the next, which keeps the search's states few.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from fusion_search.fusion.aliases import alias_concats
from fusion_search.ir.graph import Graph, Node, stored_dtype
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Domain, OpSpec, Type


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a node.

    Attributes
    ----------
    base : int
        Number of the value that owns the memory.
    producer : int
        Position of the node that computes it; -1 for a graph input or a constant.
    shape : tuple of int
        The shape in which the node reads it.
    base_shape : tuple of int
        The shape in which it is stored.
    parameter : bool
        True for a constant of one element: it is a number in the kernel, not a tensor.
    """

    base: int
    producer: int
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    itemsize: int
    parameter: bool


@dataclass(frozen=True, slots=True)
class Member:
    """All that the fusion rules need to know of one node."""

    node: Node
    spec: OpSpec
    domain: Domain
    operands: tuple[Operand, ...]
    outputs: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int
    output_bytes: tuple[int, ...]
    dtypes: tuple[str, ...]
    signature: int


class Program:
    """A graph with its nodes in canonical order and its relations as bit masks.

    Parameters
    ----------
    graph : Graph
    copied : collection of str
        Nodes that may be computed by several groups: each has a position of its own, a *copy*, for every position that reads it,
        and one for the caller who gets it. Copies in one group are one computation, stored when one of them is read outside.

    Attributes
    ----------
    members : list of Member
        In canonical topological order; "position" means an index into it.
    preds, succs, ancestors, descendants : list of int
        Bit masks of positions.
    readers : list of int
        For each value number, the mask of positions that read it.
    kept : set of int
        Value numbers that the caller gets.
    copies : dict of int to int
        For each position that is a copy, the mask of all copies of its node.
    aliases : Aliases
        The concats that need no kernel when they are alone.
    """

    def __init__(self, graph: Graph, copied: Collection[str] = ()) -> None:
        self.graph = graph
        order = canonical_order(graph)
        self.aliases = alias_concats(graph, order)
        self._free = self.aliases.nodes
        self.copies: dict[int, int] = {}
        self._for_caller: set[int] = set()
        first, order = self._copied(order, frozenset(copied))
        self.position = {graph.nodes[k].name: p for k, p in first.items()}
        self.value_number: dict[str, int] = {}
        self.value_name: list[str] = []
        signatures: dict[Hashable, int] = {}
        #: Facts about operands by signature, and counts of groups by line size, filled in where they are needed. Counts know
        #: their program: who counts keeps them, so that a graph and its weights go with the last one who asks about it.
        self.matches: dict[int, tuple[Any, ...]] = {}
        self.counting: WeakValueDictionary[int, Any] = WeakValueDictionary()
        slots: dict[tuple[int, int], int] = {}  # (copied node's first position, reader) -> the reader's copy
        self.members = [self._member(graph.nodes[k], self._makers(k, p, first, slots), signatures) for p, k in enumerate(order)]
        n = len(self.members)
        self.readers = [0] * len(self.value_name)
        self.preds = [0] * n
        self.succs = [0] * n
        for p, member in enumerate(self.members):
            for operand in member.operands:
                self.readers[operand.base] |= 1 << p
                if operand.producer >= 0:
                    self.preds[p] |= 1 << operand.producer
                    self.succs[operand.producer] |= 1 << p
        self.ancestors = [0] * n
        for p in range(n):
            self.ancestors[p] = self.preds[p] | _union(self.ancestors, self.preds[p])
        self.descendants = [0] * n
        for p in reversed(range(n)):
            self.descendants[p] = self.succs[p] | _union(self.descendants, self.succs[p])
        self.kept = {self.value_number[name] for name in graph.output_bases if name in self.value_number}

    def mask(self, names: Collection[str]) -> int:
        """Return the bit mask of nodes given by name, all copies of each."""
        found = 0
        for name in set(names):
            p = self.position[name]
            found |= self.copies.get(p, 1 << p)
        return found

    def names(self, mask: int) -> tuple[str, ...]:
        """Return the names of the nodes in a mask, in canonical order."""
        return tuple(dict.fromkeys([self.members[p].node.name for p in bits(mask)]))

    def distinct(self, mask: int) -> tuple[int, ...]:
        """Return the positions in a mask, ascending, of the copies of one node only the lowest."""
        if self.copies:
            for p in bits(mask):
                if mask >> p & 1 and p in self.copies:
                    mask &= ~self.copies[p] | 1 << p
        return tuple(bits(mask))

    def leaves(self, p: int, value: int, mask: int) -> bool:
        """Whether a value that position p computes is needed outside a set of positions."""
        if p in self.copies:
            return p in self._for_caller or bool(self.succs[p] & ~mask)
        return value in self.kept or bool(self.readers[value] & ~mask)

    def _copied(self, order: list[int], copied: frozenset[str]) -> tuple[dict[int, int], list[int]]:
        """Return each node's first position, and the nodes in order with their copies side by side."""
        graph = self.graph
        counts: dict[int, int] = {}
        if copied:
            kept = set(graph.output_bases)
            for k in reversed(order):
                node = graph.nodes[k]
                if node.name in copied:
                    uses = sum(counts.get(r, 1) for r in graph.readers.get(node.output, ())) + (node.output in kept)
                    counts[k] = max(1, uses)
        first: dict[int, int] = {}
        expanded: list[int] = []
        for k in order:
            first[k], count = len(expanded), counts.get(k, 1)
            expanded += [k] * count
            if count > 1:
                mask = ((1 << count) - 1) << first[k]
                self.copies |= dict.fromkeys(range(first[k], len(expanded)), mask)
                if graph.nodes[k].output in kept:
                    self._for_caller.add(len(expanded) - 1)
        return first, expanded

    def _makers(self, k: int, p: int, first: dict[int, int], slots: dict[tuple[int, int], int]) -> dict[int, int]:
        """For the operands of node k at position p: producer node -> the position that computes for it."""
        graph, makers = self.graph, {}
        for name in graph.nodes[k].inputs:
            made_by = graph.producer.get(graph.base(name)) if name else None
            if made_by is None:
                continue
            start = first[made_by]
            if start in self.copies:
                if (start, p) not in slots:
                    slots[start, p] = sum(1 for owner, _ in slots if owner == start)
                makers[made_by] = start + slots[start, p]
            else:
                makers[made_by] = start
        return makers

    def _number(self, name: str) -> int:
        number = self.value_number.get(name)
        if number is None:
            number = self.value_number[name] = len(self.value_name)
            self.value_name.append(name)
        return number

    def _member(self, node: Node, placed: dict[int, int], signatures: dict[Hashable, int]) -> Member:
        graph, spec = self.graph, OPS[node.op]
        operands = []
        for name in node.inputs:
            if not name:
                continue
            base = graph.base(name)
            value, owner = graph.values[name], graph.values[base]
            made_by = graph.producer.get(base)
            parameter = base in graph.constants and owner.size == 1
            operands.append(
                Operand(
                    self._number(base),
                    -1 if made_by is None else placed[made_by],
                    value.shape,
                    owner.shape,
                    owner.dtype.itemsize,
                    parameter,
                )
            )
        out = graph.values[node.output]
        types = [Type(graph.values[name].dtype, graph.values[name].shape) for name in node.inputs if name]
        domain = spec.domain_of(node, types, Type(out.dtype, out.shape))
        described = (
            node.op,
            node.attrs,
            tuple(
                (t.dtype.str if t.dtype != RUNTIME else "?", t.shape, o.base_shape, o.parameter)
                for t, o in zip(types, operands, strict=True)
            ),
            tuple((graph.values[name].dtype.str, graph.values[name].shape) for name in node.outputs),
            node.name in self._free,
        )
        signature = signatures.setdefault(described, len(signatures))
        outputs = tuple(self._number(name) for name in node.outputs)
        sizes = tuple(0 if graph.values[name].dtype == RUNTIME else graph.values[name].nbytes for name in node.outputs)
        dtypes = tuple(dict.fromkeys(stored_dtype(graph.values[name].dtype) for name in (*node.inputs, *node.outputs) if name))
        return Member(node, spec, domain, tuple(operands), outputs, out.shape, out.dtype.itemsize, sizes, dtypes, signature)


def canonical_order(graph: Graph) -> list[int]:
    """Return node indices in depth-first post-order from the outputs; nodes that no output needs come last.

    Iterative: depth is bounded by the graph, not by the interpreter's stack. Linear in nodes and edges.
    """
    order: list[int] = []
    state = [0] * len(graph.nodes)  # 0 new, 1 open, 2 done
    producers = [[p for name in node.inputs if name and (p := graph.producer.get(graph.base(name))) is not None] for node in graph.nodes]
    roots = [p for value in graph.outputs if (p := graph.producer.get(graph.base(value.name))) is not None]
    for root in (*roots, *range(len(graph.nodes))):
        stack = [root]
        while stack:
            k = stack[-1]
            if state[k] == 0:
                state[k] = 1
                stack.extend(p for p in reversed(producers[k]) if state[p] == 0)
            else:
                stack.pop()
                if state[k] == 1:
                    state[k] = 2
                    order.append(k)
    return order


def bits(mask: int) -> list[int]:
    """Return the positions of the set bits, ascending."""
    found: list[int] = []
    if not mask:
        return found
    # Most sets lie close together, far up: what is below them is not carried along.
    base = (mask & -mask).bit_length() - 1
    mask >>= base
    while mask:
        low = mask & -mask
        found.append(base + low.bit_length() - 1)
        mask ^= low
    return found


def _union(masks: list[int], selection: int) -> int:
    result = 0
    for p in bits(selection):
        result |= masks[p]
    return result


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape, in exact integers."""
    return int(np.prod(shape, dtype=object))


Attributes = dict[str, Any]
