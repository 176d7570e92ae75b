"""Where maps can be distributed over the concats before them.

A *site* is a concat and the chain of maps behind it: the first is the only reader of the concat's result, each further one that of the
map before, and no caller gets what lies between. Of a map's other operands some are broadcast along the parts and stay whole; some are
concats themselves, cut at the same places; the rest varies along the parts and is cut. All that is read off the indexing maps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from fusion_search.errors import UsageError
from fusion_search.ir.graph import Distributed, Graph, Node
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Access, Type
from fusion_search.passes.distribute import rewritten
from fusion_search.passes.pipeline import run_passes

__all__ = ["Site", "distribute", "distributed_again", "sites"]


@dataclass(frozen=True, slots=True)
class Site:
    """A concat, and the maps behind it that can be distributed over its parts.

    Attributes
    ----------
    concat : str
        The node.
    parts : int
    chain : tuple of Distributed
        The maps in their order. Any first ones can be distributed without the rest.
    """

    concat: str
    parts: int
    chain: tuple[Distributed, ...]


def sites(graph: Graph) -> tuple[Site, ...]:
    """Find where maps can be distributed over concats.

    Parameters
    ----------
    graph : Graph
        That the passes have run on.

    Returns
    -------
    tuple of Site
        In the graph's order. What varies along the parts is decided for generic extents, so that it holds for all bindings.

    Notes
    -----
    Linear in nodes and edges, and in those of the generic binding.
    """
    generic = graph.source.generic if graph.source is not None else None
    decides = graph if generic is None else run_passes(generic)
    found: list[Site] = []
    taken: set[str] = set()
    for node in decides.nodes:
        if node.op == "Concat" and node.name in graph.index and decides.values[node.output].dtype != RUNTIME:
            chain = tuple(_chain(decides, node, taken))
            if chain:
                found.append(Site(node.name, len(node.inputs), chain))
    return tuple(found)


def distribute(graph: Graph, names: Sequence[str]) -> Graph:
    """Distribute maps over the concats before them, whatever it costs.

    Parameters
    ----------
    graph : Graph
        That the passes have run on. It is not changed.
    names : sequence of str
        Maps, core nodes; of a chain the first before the next.

    Returns
    -------
    Graph
        Its source does the same for every binding.

    Raises
    ------
    UsageError
        When a name is no map that follows a concat as `sites` demands.
    """
    decided: list[Distributed] = []
    known = {each.node: (site, k) for site in sites(graph) for k, each in enumerate(site.chain)}
    for name in names:
        site, k = known.get(name, (None, 0))
        if site is None:
            raise UsageError(f"{name!r} is no map that alone reads a concat", hint=f"there are {', '.join(known) or 'none'}")
        before = [each.node for each in site.chain[:k]]
        if [each.node for each in decided if each.node in before] != before:
            raise UsageError(f"{name!r} can only follow {', '.join(before)}")
        decided.append(site.chain[k])
    return rewritten(graph, decided)


def distributed_again(graph: Graph, names: Sequence[str]) -> Graph:
    """Distribute those of the named maps that this graph can distribute and has not: what was decided for another form of it."""
    done = {each.node for each in graph.source.distributed} if graph.source is not None else set()
    wanted = [name for name in names if name not in done]
    while wanted:  # what one site hides, such as a concat that a map was read with, the next look finds
        found = [each for site in sites(graph) for each in _first(site, wanted)]
        if not found:
            break
        graph = rewritten(graph, found)
        wanted = [name for name in wanted if name not in {each.node for each in found}]
    return graph


def _first(site: Site, names: Sequence[str]) -> tuple[Distributed, ...]:
    """Return the maps at the head of a site's chain that are named."""
    return tuple(takewhile(lambda each: each.node in names, site.chain))


def _chain(graph: Graph, concat: Node, taken: set[str]) -> Iterator[Distributed]:
    """Follow the only reader of a concat's result as long as it is a map; `taken` gets the maps passed."""
    axis, extents = concat.attr("axis"), [graph.values[name].shape[concat.attr("axis")] for name in concat.inputs]
    value = concat.output
    while value not in graph.output_bases and len(readers := graph.readers.get(value, ())) == 1:
        node = graph.nodes[readers[0]]
        found = _decision(graph, node, value, axis, extents)
        if found is None or node.name in taken:
            return
        taken.add(node.name)
        yield found
        value, axis = node.output, found.axis


def _decision(graph: Graph, node: Node, value: str, axis: int, extents: Sequence[int]) -> Distributed | None:
    """Return how a map is distributed over the parts of one operand along one of its dimensions; None when it is not."""
    if OPS[node.op].kind != "map" or len(node.outputs) != 1 or not all(node.inputs):
        return None
    out = graph.values[node.output]
    types = [Type(graph.values[name].dtype, graph.values[name].shape) for name in node.inputs]
    reads = OPS[node.op].domain_of(node, types, Type(out.dtype, out.shape)).reads
    loops = {access.dims[axis].loop for name, access in zip(node.inputs, reads, strict=True) if name == value}
    loop = loops.pop() if len(loops) == 1 else None
    if loop is None:
        return None
    operands = []
    for name, access in zip(node.inputs, reads, strict=True):
        if graph.base(name) == value and name != value:
            return None
        dims = _along(access, loop)
        if dims is None or access.guarded:
            return None
        operands.append(("part", axis) if name == value else ("whole", -1) if not dims else _other(graph, name, dims[0], extents))
    return Distributed(node.name, loop, tuple(operands))


def _along(access: Access, loop: int) -> tuple[int, ...] | None:
    """Return the dimension of an operand that one loop walks, at most one; None when it is not walked element by element."""
    dims = tuple(d for d, dim in enumerate(access.dims) if any(walks == loop for walks, _ in dim.terms))
    return dims if len(dims) <= 1 and all(access.dims[d].loop == loop for d in dims) else None


def _other(graph: Graph, name: str, dim: int, extents: Sequence[int]) -> tuple[str, int]:
    """Say what a part sees of another operand that varies along the parts: its own part of a concat cut alike, or what is cut out."""
    at = graph.producer.get(name)
    if at is None or graph.nodes[at].op != "Concat" or graph.nodes[at].attr("axis") != dim:
        return "cut", dim
    alike = [graph.values[part].shape[dim] for part in graph.nodes[at].inputs] == list(extents)
    return ("part" if alike else "cut"), dim
