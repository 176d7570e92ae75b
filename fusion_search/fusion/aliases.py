"""Concats that cost nothing: their parts are written where they belong, by whoever computes them.

A concat along an axis before which all extents are 1 is its parts one after the other. When nothing else runs in its group, the groups
that compute the parts store them in any case, and may as well store them side by side: no launch, no bytes. What decides is the graph
alone, so that the price of a group stays a function of the group:

* Every part is computed by a node, is read by the concat once, is no output of the graph (a caller owns arrays that share nothing), and
  has elements.
* A value has one place. Concats take their parts in order of size, the largest first, of equal ones the first in canonical order. One
  none of whose parts has a place yet *hosts* them. One whose parts lie side by side in one host, in its order, is a *range* of that
  host, unless it has a place elsewhere or is an output; that is how a growing list of features lies in the last concat over it. Any
  other is a kernel.

A place exists whether the host is a value in memory or computed inside a group: then the parts lie in memory of that layout that is
nobody's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fusion_search.ir.graph import Graph, Node
from fusion_search.ir.opaque import RUNTIME

__all__ = ["Aliases", "Part", "alias_concats"]


@dataclass(frozen=True, slots=True)
class Part:
    """Where a value lies: the concat whose result it is a part of, and the bytes before it."""

    host: str
    offset: int


@dataclass(frozen=True, slots=True)
class Aliases:
    """Concats that are free alone, and the places of values under them.

    Attributes
    ----------
    hosts : mapping of str to tuple of str
        For each concat that hosts its parts, by name of the node: the values that it hosts, one after the other.
    ranges : mapping of str to str
        For each concat that is a range of a host, the node of that host.
    places : mapping of str to Part
        For each value that has a place in a host.
    """

    hosts: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, str]
    places: Mapping[str, Part]

    @property
    def nodes(self) -> frozenset[str]:
        """The concats that are free when they are alone in their group."""
        return frozenset((*self.hosts, *self.ranges))


def alias_concats(graph: Graph, order: Sequence[int]) -> Aliases:
    """Find the concats that are free when they are alone in their group.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Its nodes in canonical order.

    Notes
    -----
    Linear in nodes and edges, but for sorting the concats.
    """
    candidates = []
    for place, k in enumerate(order):
        node = graph.nodes[k]
        if node.op == "Concat" and _contiguous(graph, node):
            candidates.append((-int(graph.values[node.output].nbytes), place, node))
    hosts: dict[str, tuple[str, ...]] = {}
    ranges: dict[str, str] = {}
    places: dict[str, Part] = {}
    for _, _, node in sorted(candidates, key=lambda entry: entry[:2]):
        parts = [graph.base(name) for name in node.inputs]
        found = [places.get(part) for part in parts]
        if all(part is None for part in found):
            hosts[node.name] = tuple(parts)
            offset = 0
            for part in parts:
                places[part] = Part(node.name, offset)
                offset += int(graph.values[part].nbytes)
        elif node.output not in places and node.output not in graph.output_bases and _side_by_side(graph, parts, found):
            first = places[parts[0]]
            ranges[node.name] = first.host
            places[node.output] = first
    return Aliases(hosts, ranges, places)


def _contiguous(graph: Graph, node: Node) -> bool:
    """Whether a concat is its parts one after the other, all computed, all different, none of them a caller's."""
    out = graph.values[node.output]
    parts = [graph.base(name) for name in node.inputs]
    return (
        out.dtype != RUNTIME
        and prod(out.shape[: node.attr("axis")]) == 1
        and len(set(parts)) == len(parts)
        and all(
            part in graph.producer and part not in graph.output_bases and graph.values[part].size == graph.values[name].size > 0
            for name, part in zip(node.inputs, parts, strict=True)
        )
    )


def _side_by_side(graph: Graph, parts: Sequence[str], places: Sequence[Part | None]) -> bool:
    end: Part | None = places[0]
    for part, place in zip(parts, places, strict=True):
        if place is None or place != end:
            return False
        end = Part(place.host, place.offset + int(graph.values[part].nbytes))
    return True
