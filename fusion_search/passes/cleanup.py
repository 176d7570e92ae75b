"""Removes operators that do nothing. Nothing here changes the bits of any value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fusion_search.ir.graph import Graph, Node, PassRecord, Shape, Value
from fusion_search.passes.base import listed, rebuilt


@dataclass(frozen=True, slots=True)
class Cleanup:
    """Turns nodes that only hand their operand on into views, and composes two transpositions, or two slices, into one.

    Concerned are casts to the same dtype, identical or empty permutations (also those that move extents of 1 only, which keep
    the order in memory), slices of everything, padding by nothing, expansion to the same shape, and a concat of one. Views of
    views become views of what owns the memory, and readers of a view with the shape of that read it directly. Linear.
    """

    name: str = "cleanup"

    def run(self, graph: Graph) -> Graph:
        """Return the graph without idle operators."""
        values = dict(graph.values)
        generic = graph.source.generic if graph.source is not None else None
        # what is idle for the present extents alone stays, so that all bindings of a model have the same nodes
        idle = None
        if generic is not None and generic is not graph:
            idle = {node.name for node in generic.nodes} - {node.name for node in self.run(generic).nodes}
        made: dict[str, Node] = {}  # the transposition or slice that computes a base value
        nodes: list[Node] = []
        notes: list[str] = []

        def direct(name: str) -> str:
            """Name what owns the memory when a view of it has the very same shape, else the view, shortened."""
            value = values[name] if name else None
            if value is None or value.view_of is None:
                return name
            base = value.view_of
            while (outer := values[base].view_of) is not None:
                base = outer
            if value.view_of != base:
                values[name] = replace(value, view_of=base)
            return base if values[base].shape == value.shape else name

        for old in graph.nodes:
            node = replace(old, inputs=inputs) if (inputs := tuple(direct(name) for name in old.inputs)) != old.inputs else old
            before = made.get(node.inputs[0]) if node.op in COMPOSED else None
            if before is not None and before.op == node.op:
                node = replace(node, inputs=before.inputs, attrs=COMPOSED[node.op](before, node))
                notes.append(f"{node.name} reads before {before.name}")
            if _idle(node, values) and (idle is None or node.name in idle):
                values[node.output] = replace(values[node.output], view_of=node.inputs[0])
                direct(node.output)
                notes.append(f"{node.name} is a view")
                continue
            if node.op in COMPOSED:
                made[node.output] = node
            nodes.append(node)
        for name in list(values):
            direct(name)
        return rebuilt(graph, PassRecord(self.name, len(notes), listed(notes)), nodes=nodes, values=values)


def _permutations(first: Node, second: Node) -> tuple[tuple[str, Any], ...]:
    return (("perm", tuple(first.attr("perm")[p] for p in second.attr("perm"))),)


def _slices(first: Node, second: Node) -> tuple[tuple[str, Any], ...]:
    """The start of one lies where the other has taken its steps to."""
    pairs = list(zip(first.attr("starts"), first.attr("steps"), second.attr("starts"), second.attr("steps"), strict=True))
    return (
        ("starts", tuple(start + step * start_2 for start, step, start_2, _ in pairs)),
        ("steps", tuple(step * step_2 for _, step, _, step_2 in pairs)),
        ("sizes", second.attr("sizes")),
    )


#: Attributes of two layouts of a kind, one after the other, as one.
COMPOSED: dict[str, Callable[[Node, Node], tuple[tuple[str, Any], ...]]] = {"Transpose": _permutations, "Slice": _slices}


def _idle(node: Node, values: dict[str, Value]) -> bool:
    if not node.inputs or node.op == "Opaque":
        return False
    x, out = values[node.inputs[0]], values[node.output]
    same = x.shape == out.shape and x.dtype == out.dtype
    if node.op == "Transpose":
        return _keeps_order(node.attr("perm"), x.shape)
    if node.op == "Slice":
        return same and not any(node.attr("starts")) and all(step == 1 for step in node.attr("steps"))
    if node.op == "Pad":
        return same and not any(node.attr("before")) and not any(node.attr("after"))
    if node.op == "Concat":
        return len(node.inputs) == 1
    return same and node.op in ("Cast", "Expand")


def _keeps_order(perm: tuple[int, ...], shape: Shape) -> bool:
    """Whether a permutation leaves the dimensions that are longer than 1 in their order."""
    moved = [p for p in perm if shape[p] != 1]
    return moved == sorted(moved)
