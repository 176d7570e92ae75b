"""The graph: values, views and nodes in single-assignment form.

A *value* is a tensor with a name, a dtype and a concrete shape. A *view* is a value that is another value's
memory read in another row-major shape (reshape, squeeze, unsqueeze, flatten, identity): it costs nothing and no
node computes it. A *node* applies one core operator of :mod:`fusion_search.ir.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

Shape = tuple[int, ...]
Attrs = tuple[tuple[str, Any], ...]


def stored_dtype(dtype: np.dtype[Any]) -> str:
    """Name of the dtype that kernels read and write: numbers of less than 8 bits and floats of 8 bits are bytes to them."""
    return "uint8" if dtype.itemsize == 1 and dtype.name not in ("int8", "uint8", "bool") else dtype.name


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the program.

    Attributes
    ----------
    name : str
        Unique in the graph.
    dtype : numpy.dtype
        Element type; bfloat16 comes from ``ml_dtypes``.
    shape : tuple of int
        Concrete extents.
    view_of : str or None
        The value whose memory this one reads in row-major order, or None when the value has memory of its own.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    view_of: str | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Node:
    """One application of a core operator.

    Attributes
    ----------
    name : str
        Unique in the graph; derived from the model's own node name.
    op : str
        Name of an :class:`~fusion_search.ir.spec.OpSpec`.
    inputs, outputs : tuple of str
        Value names.
    attrs : tuple of (str, object)
        Sorted, hashable attributes.
    origin : str
        Name of the model's node that this one comes from.
    origin_op : str
        Operator of that node, as the model spells it.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = ()
    origin: str = ""
    origin_op: str = ""

    def attr(self, key: str, default: Any = None) -> Any:
        """Return one attribute, or `default`."""
        for name, value in self.attrs:
            if name == key:
                return value
        return default

    @property
    def output(self) -> str:
        """The first output."""
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass changed: its name, how often, and the model's nodes concerned."""

    name: str
    changes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Distributed:
    """One map that is applied to the parts of a concat instead of its result, as data that holds for all extents.

    Attributes
    ----------
    node : str
        The map.
    axis : int
        The dimension of its result along which the parts lie.
    operands : tuple of (str, int)
        For each operand what a part of the map reads of it, and along which dimension: ``"part"``, the part of the concat that computes
        the operand; ``"cut"``, the stretch that belongs to the part; ``"whole"``, all of it (-1).
    """

    node: str
    axis: int
    operands: tuple[tuple[str, int], ...]


class Source(Protocol):
    """Where a graph came from: what can bind other shapes and answer as the reference."""

    @property
    def dims(self) -> Mapping[str, int]:
        """The symbolic dimensions and what they are bound to."""

    @property
    def symbolic_inputs(self) -> Mapping[str, tuple[str | int, ...]]:
        """Each input's shape with its symbolic dimensions by name."""

    @property
    def overridable(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Initialisers that a caller may feed in place of the model's own."""

    @property
    def values(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Inputs that are bound by their elements; nothing reads them from a feed."""

    @property
    def asked(self) -> Collection[str]:
        """Further inputs without whose elements some node is carried whole."""

    @property
    def distributed(self) -> tuple[Distributed, ...]:
        """Maps that the passes distribute over concats, in this order, in every binding."""

    def distributing(self, more: Sequence[Distributed]) -> Source:
        """Return the same source with further maps to distribute."""

    @property
    def generic(self) -> Graph | None:
        """The program bound to generic extents, which decide what holds for all bindings; None when it has but one."""

    def bind(
        self,
        dims: Mapping[str, int],
        overrides: Mapping[str, np.ndarray[Any, Any]],
        values: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> Graph:
        """Build the graph again for other extents, other overridable initialisers, or other bound elements (by default the same)."""

    def reference(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Run the model itself in an implementation that shares no code with this project's kernels."""


@dataclass(frozen=True)
class Graph:
    """A program of core operators, nodes in topological order.

    Attributes
    ----------
    name : str
        The model's name, for people.
    inputs, outputs : tuple of Value
        What a caller feeds and gets. An output is a view of whatever value it returns.
    nodes : tuple of Node
        In topological order.
    values : mapping of str to Value
    constants : mapping of str to numpy.ndarray
        Weights and folded values.
    log : tuple of PassRecord
        What each pass changed.
    source : Source or None
    overridable : frozenset of str
        Constants computed from initialisers that a caller may feed: no pass may fold them into something else.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, np.ndarray[Any, Any]]
    log: tuple[PassRecord, ...] = ()
    source: Source | None = field(default=None, compare=False, repr=False)
    overridable: frozenset[str] = frozenset()

    def base(self, name: str) -> str:
        """Follow views to the value that owns the memory."""
        value = self.values[name]
        while value.view_of is not None:
            value = self.values[value.view_of]
        return value.name

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each node by name."""
        return {node.name: k for k, node in enumerate(self.nodes)}

    @cached_property
    def producer(self) -> dict[str, int]:
        """Position of the node that computes each base value."""
        return {out: k for k, node in enumerate(self.nodes) for out in node.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Positions of the nodes that read each base value, directly or through a view, ascending."""
        found: dict[str, list[int]] = {}
        for k, node in enumerate(self.nodes):
            for name in node.inputs:
                if name:
                    seen = found.setdefault(self.base(name), [])
                    if not seen or seen[-1] != k:
                        seen.append(k)
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def output_bases(self) -> frozenset[str]:
        """Base values that the caller gets."""
        return frozenset(self.base(value.name) for value in self.outputs)
