"""What the checker knows of a graph: every node with its domain and its reads, by name."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import networkx as nx

from fusion_search.ir.graph import Graph, Node, Shape
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Access, Domain, OpSpec, Type


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that a plan says and the graph contradicts.

    Attributes
    ----------
    rule : str
        Short name of the rule, such as ``"cover"`` or ``"order"``.
    where : str
        The plan, a group or a node.
    message : str
        What is wrong, on one line.
    """

    rule: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Operand:
    """One read of a node: the value that owns the memory, the shape it is seen in and the index map."""

    base: str
    shape: Shape
    base_shape: Shape
    itemsize: int
    access: Access
    parameter: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the whole value."""
        return self.itemsize * prod(self.base_shape)


@dataclass(frozen=True, slots=True)
class Step:
    """One node with all that its operator says of it."""

    node: Node
    spec: OpSpec
    domain: Domain
    operands: tuple[Operand, ...]
    itemsize: int

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def extents(self) -> Shape:
        """Extents of all loops, the reductions last."""
        return self.domain.extents


class Facts:
    """A graph by names: who computes, who reads, what is returned, and the canonical order.

    Parameters
    ----------
    graph : Graph

    Attributes
    ----------
    steps : dict of str to Step
    maker : dict of str to str
        The node that computes each base value.
    readers : dict of str to set of str
        The nodes that read each base value.
    returned : set of str
        Base values that the caller gets.
    place : dict of str to int
        Place of each node in canonical order: depth-first post-order from the outputs, operands from left to right.
    number : dict of str to int
        Base values by first mention in canonical order, a node's operands before its results.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.steps = {node.name: self._step(node) for node in graph.nodes}
        self.maker = {value: node.name for node in graph.nodes for value in node.outputs}
        self.readers: dict[str, set[str]] = {}
        for step in self.steps.values():
            for operand in step.operands:
                self.readers.setdefault(operand.base, set()).add(step.name)
        self.returned = {graph.base(value.name) for value in graph.outputs}
        self.place = {name: k for k, name in enumerate(self._canonical())}
        self.number: dict[str, int] = {}
        for name in self.place:
            step = self.steps[name]
            for value in (*(operand.base for operand in step.operands), *step.node.outputs):
                self.number.setdefault(value, len(self.number))

    def _step(self, node: Node) -> Step:
        graph, spec = self.graph, OPS[node.op]
        names = [name for name in node.inputs if name]
        types = [Type(graph.values[name].dtype, graph.values[name].shape) for name in names]
        out = graph.values[node.output]
        domain = spec.domain_of(node, types, Type(out.dtype, out.shape))
        operands = []
        for name, access in zip(names, domain.reads, strict=True):
            base = graph.values[graph.base(name)]
            number = base.name in graph.constants and base.size == 1
            operands.append(Operand(base.name, graph.values[name].shape, base.shape, base.dtype.itemsize, access, number))
        return Step(node, spec, domain, tuple(operands), out.dtype.itemsize)

    def _canonical(self) -> list[str]:
        needs: nx.DiGraph[str] = nx.DiGraph()
        root = "\0"  # no node has this name
        outputs = (self.maker.get(self.graph.base(value.name)) for value in self.graph.outputs)
        for name in (*(name for name in outputs if name is not None), *self.steps):
            needs.add_edge(root, name)
        for step in self.steps.values():
            for operand in step.operands:
                if operand.base in self.maker:
                    needs.add_edge(step.name, self.maker[operand.base])
        return [name for name in nx.dfs_postorder_nodes(needs, root) if name != root] if self.steps else []

    def stored_bytes(self, value: str) -> int:
        """Bytes of a value; 0 where the type is known only at run time."""
        found = self.graph.values[value]
        return 0 if found.dtype == RUNTIME else found.nbytes


def shown(names: tuple[str, ...] | list[str]) -> str:
    """Return a few names for a message."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
