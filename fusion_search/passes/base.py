"""What a pass is, and the small edits that passes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from fusion_search.ir.graph import Graph, Node, PassRecord, Value
from fusion_search.ir.spec import Array


class Pass(Protocol):
    """A function from graphs to graphs: it changes no value that a caller gets, beyond what its own page says."""

    @property
    def name(self) -> str:
        """What the record of the pass is called."""

    def run(self, graph: Graph) -> Graph:
        """Return the changed graph, with a record of what changed."""


def rebuilt(
    graph: Graph,
    record: PassRecord,
    *,
    nodes: Iterable[Node] | None = None,
    values: Mapping[str, Value] | None = None,
    constants: Mapping[str, Array] | None = None,
) -> Graph:
    """Return a graph with other parts and one more record. Outputs follow their values."""
    found = graph.values if values is None else values
    return replace(
        graph,
        nodes=graph.nodes if nodes is None else tuple(nodes),
        values=found,
        constants=graph.constants if constants is None else constants,
        inputs=tuple(found[value.name] for value in graph.inputs),
        outputs=tuple(found[value.name] for value in graph.outputs),
        log=(*graph.log, record),
    )


def listed(texts: list[str], limit: int = 200) -> str:
    """Join the entries of a record's detail."""
    more = len(texts) - limit
    return "; ".join(texts[:limit] + ([f"and {more} more"] if more > 0 else []))
