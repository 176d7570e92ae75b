"""Where the parts of concats lie that need no step: inside the result, so that their producers write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusion_search.fusion.aliases import Aliases, alias_concats
from fusion_search.fusion.program import canonical_order
from fusion_search.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies: a block of memory by name, and the bytes before it there."""

    block: str
    offset: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Values that lie inside others.

    Attributes
    ----------
    free : frozenset of str
        Nodes that need no step.
    places : mapping of str to Place
        For each value that has no memory of its own. A block is a value, or memory of the layout of a value that is computed inside a
        kernel; blocks lie in no other block.
    """

    free: frozenset[str] = frozenset()
    places: Mapping[str, Place] = field(default_factory=dict)

    def place(self, value: str) -> Place:
        """Return where a value lies; in a block of its own unless it has a place."""
        return self.places[value] if value in self.places else Place(value, 0)


def place_parts(graph: Graph, groups: Sequence[Sequence[str]]) -> Placement:
    """Decide, for the extents of one binding, which concats need no step, and where their parts lie.

    Parameters
    ----------
    graph : Graph
        The model for the extents of the run.
    groups : sequence of sequence of str
        Nodes of each group of the plan. Only a concat that is alone in its group can do without a step.
    """
    aliases = alias_concats(graph, canonical_order(graph))
    free = aliases.nodes & {nodes[0] for nodes in groups if len(nodes) == 1}
    if not free:
        return Placement()
    near: dict[str, Place] = {}
    for host in aliases.hosts:
        near |= _placed_under(graph, aliases, host, free)
    return Placement(free, {value: _outermost(near, value) for value in near})


def _placed_under(graph: Graph, aliases: Aliases, host: str, free: frozenset[str]) -> dict[str, Place]:
    """Places in one host: of all its parts where it needs no step, else of those that some range of it needs side by side."""
    output = {node.name: node.output for node in graph.nodes if node.name == host or aliases.ranges.get(node.name) == host}
    ranges = [output[name] for name, of in aliases.ranges.items() if of == host and name in free]
    start = {value: aliases.places[value].offset for value in (*aliases.hosts[host], *ranges)}
    if host in free:
        return {value: Place(output[host], at) for value, at in start.items()}
    spans = [(start[value], start[value] + int(graph.values[value].nbytes)) for value in ranges]
    needed = [value for value in aliases.hosts[host] if any(low <= start[value] < high for low, high in spans)]
    first = min((low for low, _ in spans), default=0)
    return {value: Place(f"parts of {output[host]}", start[value] - first) for value in (*needed, *ranges)}


def _outermost(near: Mapping[str, Place], value: str) -> Place:
    place = near[value]
    while place.block in near:
        outer = near[place.block]
        place = Place(outer.block, outer.offset + place.offset)
    return place
