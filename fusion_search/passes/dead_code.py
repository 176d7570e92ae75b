"""Removes what no output needs."""

from __future__ import annotations

from dataclasses import dataclass

from fusion_search.ir.graph import Graph, PassRecord
from fusion_search.passes.base import listed, rebuilt


@dataclass(frozen=True, slots=True)
class DeadCode:
    """Drops nodes, constants and views that no output reaches. Graph inputs stay. Linear."""

    name: str = "dead_code"

    def run(self, graph: Graph) -> Graph:
        """Return the graph without unreachable parts."""
        needed: set[str] = set()

        def need(name: str) -> None:
            while name and name not in needed:
                needed.add(name)
                name = graph.values[name].view_of or ""

        for value in graph.outputs:
            need(value.name)
        kept, dropped = [], []
        for node in reversed(graph.nodes):
            if any(name in needed for name in node.outputs):
                kept.append(node)
                for name in (*node.inputs, *node.outputs):
                    need(name)
            else:
                dropped.append(node.name)
        needed.update(value.name for value in graph.inputs)
        values = {name: value for name, value in graph.values.items() if name in needed}
        constants = {name: array for name, array in graph.constants.items() if name in needed}
        lost = len(graph.constants) - len(constants)
        detail = listed([*reversed(dropped)] + ([f"{lost} constants"] if lost else []))
        return rebuilt(graph, PassRecord(self.name, len(dropped) + lost, detail), nodes=reversed(kept), values=values, constants=constants)
