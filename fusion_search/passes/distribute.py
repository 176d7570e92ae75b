"""Maps distributed over the concats before them: ``m(concat(p, q))`` becomes ``concat(m(p), m(q))``. No bit of any value changes.

Whether that is worth it is not decided here (`search.distribution` does), nor where it can be done (`sites`). A decision is kept by the
graph's source, as data that no extent changes, so that every binding of a model is rewritten alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from fusion_search.ir.graph import Distributed, Graph, Node, PassRecord, Value
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Type
from fusion_search.passes.base import listed, rebuilt
from fusion_search.passes.dead_code import DeadCode

__all__ = ["Distribute", "rewritten"]


@dataclass(frozen=True, slots=True)
class Distribute:
    """Distributes the maps that the graph's source names, in its order; without any, nothing changes.

    Each part of the concat gets a map of its own, called after the map and the part (``relu/part0``), and the concat joins their
    results. Both keep their origins. Constants that vary along the parts are cut; of other values that do, each part reads a Slice.
    Linear in the graph for each map.
    """

    name: str = "distribute"

    def run(self, graph: Graph) -> Graph:
        """Return the graph with the maps distributed."""
        decided = graph.source.distributed if graph.source is not None else ()
        return apply(graph, decided, self.name)


def rewritten(graph: Graph, decided: Sequence[Distributed]) -> Graph:
    """Distribute further maps, in this graph and in whatever its source binds.

    Parameters
    ----------
    graph : Graph
        That the passes have run on.
    decided : sequence of Distributed
        In an order in which each map directly follows its concat when its turn has come.
    """
    found = apply(graph, decided, Distribute().name)
    source = graph.source
    return found if source is None else replace(found, source=source.distributing(decided))


def apply(graph: Graph, decided: Sequence[Distributed], name: str) -> Graph:
    """Return the graph with some maps distributed, and a record of it."""
    notes: list[str] = []
    log = graph.log
    for each in decided:
        changed = _distributed(graph, each)
        if changed is not None:
            graph, parts = changed
            notes.append(f"{each.node} over {parts} parts")
    record = PassRecord(name, len(notes), listed(notes))
    if notes:  # the old concats, and constants that are read in parts only
        graph = DeadCode().run(graph)
    return replace(rebuilt(graph, record), log=(*log, record))


def _distributed(graph: Graph, decided: Distributed) -> tuple[Graph, int] | None:
    """Return the graph with one map distributed, and over how many parts; None when the binding has no such concat and map."""
    at = graph.index.get(decided.node)
    node = graph.nodes[at] if at is not None else None
    if node is None or len(node.inputs) != len(decided.operands):
        return None
    hosts = {k: graph.producer.get(node.inputs[k]) for k, (role, _) in enumerate(decided.operands) if role == "part"}
    concats = {k: graph.nodes[p] for k, p in hosts.items() if p is not None and graph.nodes[p].op == "Concat"}
    alone = [concat for concat in concats.values() if graph.readers[concat.output] == (at,) and concat.output not in graph.output_bases]
    if len(concats) != len(hosts) or not alone:
        return None
    host = alone[0]
    extents = [graph.values[name].shape[host.attr("axis")] for name in host.inputs]
    starts = [0, *accumulate(extents)]
    edit = _Edit(graph, node)
    parts = []
    for p, (start, extent) in enumerate(zip(starts, extents, strict=False)):
        operands = []
        for k, (name, (role, dim)) in enumerate(zip(node.inputs, decided.operands, strict=True)):
            operands.append(concats[k].inputs[p] if k in concats else name if role == "whole" else edit.cut(name, p, dim, start, extent))
        parts.append(edit.part(operands, p))
    joined = replace(host, inputs=tuple(parts), outputs=node.outputs, attrs=(("axis", decided.axis),))
    nodes = []
    for other in graph.nodes:
        if other is node:
            nodes += [*edit.nodes, joined]
        elif other is not host:
            nodes.append(other)
    return replace(graph, nodes=tuple(nodes), values=edit.values, constants=edit.constants), len(parts)


class _Edit:
    """What one map becomes: its nodes, values and constants, under names that are free."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.nodes: list[Node] = []
        self.values, self.constants = dict(graph.values), dict(graph.constants)
        self._taken = set(graph.index)

    def part(self, operands: Sequence[str], p: int) -> str:
        """Add the map of one part."""
        return self._add(replace(self.node, inputs=tuple(operands)), f"part{p}", self.node.output)

    def cut(self, name: str, p: int, dim: int, start: int, extent: int) -> str:
        """Return what a part sees of an operand that varies along the parts."""
        graph, value = self.graph, self.values[name]
        base = graph.base(name)
        if base in self.constants and base not in graph.overridable:
            whole = self.constants[base].reshape(value.shape)
            array = np.ascontiguousarray(whole[(slice(None),) * dim + (slice(start, start + extent),)])
            made = self._define(f"{name}.part{p}", array.dtype, array.shape)
            self.constants[made] = array
            return made
        rank = len(value.shape)
        attrs = {
            "starts": tuple(start if d == dim else 0 for d in range(rank)),
            "steps": (1,) * rank,
            "sizes": tuple(extent if d == dim else n for d, n in enumerate(value.shape)),
        }
        node = replace(self.node, op="Slice", inputs=(name,), attrs=tuple(sorted(attrs.items())))
        return self._add(node, f"part{p}/slice", name)

    def _add(self, node: Node, suffix: str, result: str) -> str:
        """Add a node like `node`, named for a part, with a result named after a value."""
        types = [Type(self.values[name].dtype, self.values[name].shape) for name in node.inputs]
        out = OPS[node.op].infer(types, dict(node.attrs))
        made = self._define(f"{result}.{suffix.split('/')[0]}", out.dtype, out.shape)
        name = _unused(f"{node.name}/{suffix}", self._taken)
        self._taken.add(name)
        self.nodes.append(replace(node, name=name, outputs=(made,)))
        return made

    def _define(self, hint: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> str:
        name = _unused(hint, self.values)
        self.values[name] = Value(name, dtype, shape)
        return name


def _unused(hint: str, taken: dict[str, Value] | set[str]) -> str:
    k, name = 1, hint
    while name in taken:
        k += 1
        name = f"{hint}.{k}"
    return name
