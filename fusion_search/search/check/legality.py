"""Which sets of nodes may run as one kernel, judged node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import networkx as nx

from fusion_search.ir.graph import stored_dtype
from fusion_search.search.plan import Tile
from hardware_profiles import Profile

from .facts import Facts, Operand, Step, Violation, shown

MAX_NODES = 256
MAX_CONTRACTIONS = 2
MAX_SIBLINGS = 4


def live_ins(steps: Sequence[Step]) -> dict[str, int]:
    """Return the values that a group reads from memory, with their bytes; constants of one element are none."""
    made = {value for step in steps for value in step.node.outputs}
    return {o.base: o.nbytes for step in steps for o in step.operands if o.base not in made and not o.parameter}


def illegal(
    facts: Facts, steps: Sequence[Step], stores: Collection[str], tiles: Sequence[Tile], profile: Profile, where: str
) -> Iterator[Violation]:
    """Yield every rule of the space that a set of nodes breaks under the outer loops that the plan states."""
    names = [step.name for step in steps]
    if len(steps) > MAX_NODES:
        yield Violation("nodes", where, f"{len(steps)} nodes, at most {MAX_NODES} are allowed")
    if len(steps) == 1:
        return
    alone = [step.name for step in steps if step.spec.kind == "opaque"]
    if alone:
        yield Violation("opaque", where, f"{shown(alone)} cannot share a kernel")
    writers = [step.name for step in steps if step.spec.kind == "scatter"]
    if writers:
        yield Violation("scatter", where, f"{shown(writers)} cannot share a kernel: data says where they write")
    heavy = [step.name for step in steps if step.spec.kind in ("contract", "window")]
    made = {value: step.name for step in steps for value in step.node.outputs}
    if len(heavy) > MAX_CONTRACTIONS:
        if not _siblings(facts, heavy, profile.line_bytes):
            yield Violation("contractions", where, f"{len(heavy)} contractions and windows, at most {MAX_CONTRACTIONS} are allowed")
        elif odd := _outside_chains(steps, heavy, made):
            yield Violation("horizontal", where, f"beside {len(heavy)} contractions, {shown(odd)} in no chain behind one")
    shared = {name for tile in tiles for loop in tile.loops for name in loop.carried}
    windowed = {
        made[operand.base]
        for step in steps
        for operand in step.operands
        if step.spec.kind == "window" and operand.base in made and slides(operand)
    }
    for name in sorted((set(heavy) if len(heavy) > 1 else set()) | windowed):
        if name not in shared:
            yield Violation("shared-outer-loop", where, f"{name} carries no outer loop")
    outside = live_ins(steps)
    ties: nx.Graph[tuple[str, str]] = nx.Graph()
    ties.add_nodes_from(("node", name) for name in names)
    for step in steps:
        for operand in step.operands:
            if operand.base in made:
                ties.add_edge(("node", step.name), ("node", made[operand.base]))
            elif outside.get(operand.base, 0) > profile.line_bytes:
                ties.add_edge(("node", step.name), ("value", operand.base))
    parts = [sorted(name for kind, name in part if kind == "node") for part in nx.connected_components(ties)]
    if len(parts) > 1:
        yield Violation("shared-loops", where, f"nothing joins {shown(min(parts))} to the rest")
    leaving = [value for value in made if value in stores]
    if len(outside) + len(leaving) > profile.operand_limit:
        touched = f"{len(outside)} tensors read and {len(leaving)} written"
        yield Violation("operands", where, f"{touched}, {profile.name} allows {profile.operand_limit}")
    for value in sorted({*outside, *made}):
        dtype = stored_dtype(facts.graph.values[value].dtype)
        if dtype not in profile.dtypes:
            yield Violation("dtype", where, f"{value} is {dtype}, which {profile.name} does not support")
    present = {step.node.op for step in steps} | {step.node.origin_op for step in steps}
    for rule in profile.forbidden:
        if present.issuperset(rule.nodes):
            yield Violation("forbidden", where, f"{profile.name} forbids {' with '.join(rule.nodes)}: {rule.reason}")


def _siblings(facts: Facts, heavy: Sequence[str], line_bytes: int) -> bool:
    """Whether some value is read alike by all of these contractions, and by not too many others of the graph."""
    first = facts.steps[heavy[0]]
    for operand in first.operands:
        dims = zip(operand.access.dims, operand.shape, strict=True)
        walked = any(n > 1 and loop < first.domain.rank for dim, n in dims for loop, _ in dim.terms)
        if operand.nbytes > line_bytes and walked and not operand.parameter and not slides(operand):
            alike = {name for name in facts.readers[operand.base] if _reads_alike(facts.steps[name], operand, first)}
            if alike.issuperset(heavy) and len(alike) <= MAX_SIBLINGS:
                return True
    return False


def _reads_alike(step: Step, operand: Operand, first: Step) -> bool:
    """Whether a contraction or window reads a value as another one does."""
    return step.spec.kind in ("contract", "window") and step.domain.rank == first.domain.rank and operand in step.operands


def _outside_chains(steps: Sequence[Step], heavy: Sequence[str], made: Mapping[str, str]) -> list[str]:
    """Return the members but contractions that read no member, and maps that read one, as long as one at most reads them."""
    reads = {step.name: {made[operand.base] for operand in step.operands if operand.base in made} for step in steps}
    followers = Counter(name for names in reads.values() for name in names)
    found = []
    for step in steps:
        maps = step.spec.kind in ("map", "gather") or (step.spec.kind == "layout" and step.spec.body is not None)
        fits = not reads[step.name] if step.name in heavy else maps and len(reads[step.name]) == 1
        if not fits or followers[step.name] > 1:
            found.append(step.name)
    return found


def slides(operand: Operand) -> bool:
    """Whether some index is anything else than one loop."""
    dims = zip(operand.access.dims, operand.shape, strict=True)
    return any(n != 1 and (dim.indirect or dim.offset != 0 or [c for _, c in dim.terms] != [1]) for dim, n in dims)
