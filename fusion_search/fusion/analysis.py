"""What a group is: its outer loops, stages, scratch, and the features of every tiling.

Reductions are not split over blocks.

* Outer loops L: every atom that each live-out member carries, that no member reduces, walks in order or scatters along, along which
  no computed value is read elsewhere than at the reader's own index, and that is no conflict. Any smaller L is L with some tiles as
  long as the loop, so pricing the largest L over all tiles prices every legal L.
* Stages: members that can share one inner loop nest; a reader of a reduction, of a contraction, or of a value with
  another nest comes in a later stage, and what crosses stages is a scratch buffer.
* Knobs: outer loops that change a count (an operand that is not indexed by them is read again, a member that does not
  carry them is computed again). Loops with equal effect are one knob; a loop without effect has tile 1, which is
  best for it: most blocks, least scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from costmodels import Flops, GroupFeatures, RecomputedFlops, Reread
from fusion_search.fusion.loops import GroupLoops, Read, group_loops, tangled_members
from fusion_search.fusion.parts import InPart, evaluate_in_parts, in_parts
from fusion_search.fusion.program import Member, Operand, Program, bits
from fusion_search.fusion.tilings import Tilings, tilings_of
from fusion_search.ir.spec import Access

#: Scalars that a kernel keeps live whatever it computes: the loop counter, the bound and addresses.
TEMPLATE_LIVE = 4
#: Blocks of a group whose parallelism is not ours to choose (an opaque call).
UNBOUNDED_BLOCKS = 1 << 30


@dataclass(frozen=True, slots=True)
class Analysis:
    """A group as the cost models and the generator see it.

    Attributes
    ----------
    positions : tuple of int
        Members, ascending; of the copies of one node the lowest.
    loops : GroupLoops
        Of members that are evaluated in parts, those of their hosts.
    in_parts : mapping of int to InPart
        Members that are evaluated where a concat or a pad reads them.
    outer : tuple of int
        The atoms of L.
    stages : tuple of int
        Stage of each member.
    scratch : tuple of int
        Members (indices in the group) whose value is a scratch buffer.
    live_ins, live_outs : tuple of int
        Value numbers.
    knobs : tuple of tuple of int
        Outer atoms that are tiled together.
    tilings : tuple of tuple of int
        Candidate tiles, one for each knob.
    apart : tuple of int
        Members that have to carry a loop of L and carry none.
    features : GroupFeatures
        Counts; arrays over `tilings` where they depend on the tiling.
    """

    positions: tuple[int, ...]
    loops: GroupLoops
    in_parts: Mapping[int, InPart]
    outer: tuple[int, ...]
    stages: tuple[int, ...]
    scratch: tuple[int, ...]
    live_ins: tuple[int, ...]
    live_outs: tuple[int, ...]
    knobs: tuple[tuple[int, ...], ...]
    tilings: tuple[tuple[int, ...], ...]
    apart: tuple[int, ...]
    features: GroupFeatures

    def tiles(self, tiling: int) -> dict[int, int]:
        """Return the tile of each outer atom's knob under one tiling; outer atoms without a knob have tile 1."""
        return {atom: tile for knob, tile in zip(self.knobs, self.tilings[tiling], strict=True) for atom in knob}


def live_outs(program: Program, positions: Sequence[int], mask: int) -> list[tuple[int, int]]:
    """Return (member index, value number) of the values that leave the group; of copies, if any does."""
    found = []
    for i, p in enumerate(positions):
        copies = bits(program.copies[p] & mask) if p in program.copies else [p]
        for value in program.members[p].outputs:
            if any(program.leaves(q, value, mask) for q in copies):
                found.append((i, value))
    return found


def analyse(program: Program, group: int, line_bytes: int) -> Analysis:
    """Derive a group's loops, stages and features; legality is not judged here.

    Parameters
    ----------
    program : Program
    group : int
        Mask of positions.
    line_bytes : int

    Notes
    -----
    Linear in members times rank, and in the number of tilings.
    """
    positions, mask = program.distinct(group), group
    members = [program.members[p] for p in positions]
    loops = group_loops(program, group, line_bytes)
    leaving = live_outs(program, positions, mask)
    evaluated = in_parts(members, loops, {i for i, _ in leaving})
    loops = evaluate_in_parts(members, loops, evaluated)
    carried = [[a for loop in loops.loops[i][: m.domain.rank] for a in loop] for i, m in enumerate(members)]
    parallel = [frozenset(atoms) for atoms in carried]
    reduced = [frozenset(a for loop in loops.loops[i][m.domain.rank :] for a in loop) for i, m in enumerate(members)]
    if members[0].spec.kind == "opaque":
        outer: tuple[int, ...] = ()
    else:
        outer = _outer(loops, members, parallel, reduced, {i for i, _ in leaving})
    inner = [(parallel[i] | reduced[i]).difference(outer) for i in range(len(members))]
    reads = loops.reads
    sharing = {(r.reader, r.operand) for r in reads if r.producer >= 0 and _same_nest(members, r, inner)}
    if loops.conflicts and sharing:
        tangled = tangled_members(program, group, line_bytes, sharing)
        sharing = {(r.reader, r.operand) for r in reads if (r.reader, r.operand) in sharing and r.producer not in tangled}
    stages, scratch = _stages(len(members), reads, sharing)
    scratch = tuple(i for i in scratch if i not in evaluated)  # these are computed where they are read, whatever the stage
    knobs = _knobs(members, loops, outer, parallel, scratch)
    tilings = tilings_of(tuple(prod(loops.extents[a] for a in knob) for knob in knobs))
    features = _Counter(members, loops, outer, carried, line_bytes).count(leaving, scratch, knobs, tilings)
    ins = {m.operands[k].base for i, m in enumerate(members) for k in range(len(m.operands)) if _is_live_in(m.operands[k], mask)}
    return Analysis(
        positions,
        loops,
        evaluated,
        outer,
        stages,
        scratch,
        tuple(sorted(ins)),
        tuple(value for _, value in leaving),
        knobs,
        tilings.tilings,
        tuple([i for i in needing_outer_loops(members, reads) if parallel[i].isdisjoint(outer)]),
        features,
    )


def features_under(
    program: Program, group: int, analysis: Analysis, blocks: Sequence[tuple[tuple[int, ...], int]], line_bytes: int
) -> GroupFeatures:
    """Count a group under one schedule of any blocks, not only those that the knobs offer.

    Parameters
    ----------
    program : Program
    group : int
        Mask of positions.
    analysis : Analysis
        Of that group.
    blocks : sequence of (tuple of int, int)
        Outer atoms that are blocked together and have equal effect, and the tile of their product; every outer atom once.
    line_bytes : int
    """
    members = [program.members[p] for p in analysis.positions]
    carried = [[a for loop in analysis.loops.loops[i][: m.domain.rank] for a in loop] for i, m in enumerate(members)]
    counter = _Counter(members, analysis.loops, analysis.outer, carried, line_bytes)
    knobs, tiles = tuple(atoms for atoms, _ in blocks), tuple(tile for _, tile in blocks)
    tilings = Tilings([prod(analysis.loops.extents[a] for a in knob) for knob in knobs], [tiles])
    return counter.count(live_outs(program, analysis.positions, group), analysis.scratch, knobs, tilings)


def _is_live_in(operand: Operand, mask: int) -> bool:
    return not operand.parameter and not (operand.producer >= 0 and mask >> operand.producer & 1)


def _outer(
    loops: GroupLoops,
    members: Sequence[Member],
    parallel: Sequence[frozenset[int]],
    reduced: Sequence[frozenset[int]],
    leaving: set[int],
) -> tuple[int, ...]:
    refused = set(loops.conflicts)
    for atoms in reduced:
        refused |= atoms
    for i, member in enumerate(members):
        refused |= {a for loop in member.domain.uncut for a in loops.loops[i][loop]}
    for read in loops.reads:
        refused |= read.barred
    allowed = set(range(len(loops.extents))) - refused
    for i in leaving:
        allowed &= parallel[i]
    carried = frozenset[int]().union(*parallel)
    return tuple(sorted(allowed & carried))


def slides(member: Member, k: int) -> bool:
    """Whether a member reads operand k through a window: some index is more than one loop."""
    dims = zip(member.domain.reads[k].dims, member.operands[k].shape, strict=True)
    return any(dim.loop is None and n != 1 for dim, n in dims)


def needing_outer_loops(members: Sequence[Member], reads: Sequence[Read]) -> list[int]:
    """Return the members that have to carry an outer loop: of several contractions and windows each, and what a window reads."""
    heavy = [i for i, member in enumerate(members) if member.spec.kind in ("contract", "window")]
    needy = set(heavy) if len(heavy) > 1 else set()
    for read in reads:
        if read.producer >= 0 and members[read.reader].spec.kind == "window" and slides(members[read.reader], read.operand):
            needy.add(read.producer)
    return sorted(needy)


def _same_nest(members: Sequence[Member], read: Read, inner: Sequence[frozenset[int]]) -> bool:
    """True when a reader can take a value in the iteration that computes it."""
    p, i = read.producer, read.reader
    return read.identity and inner[p] == inner[i] and pointwise(members[p]) and members[i].spec.kind not in ("contract", "window")


def _stages(count: int, reads: Sequence[Read], sharing: set[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return each member's stage, and the members whose value crosses stages."""
    stages = [0] * count
    inside = sorted((read for read in reads if read.producer >= 0), key=lambda read: read.reader)
    for read in inside:
        later = 0 if (read.reader, read.operand) in sharing else 1
        stages[read.reader] = max(stages[read.reader], stages[read.producer] + later)
    crossing = {read.producer for read in inside if stages[read.reader] > stages[read.producer]}
    return tuple(stages), tuple(sorted(crossing))


def pointwise(member: Member) -> bool:
    """True when a value is known as soon as its own iteration is done."""
    return member.spec.kind in ("map", "gather") or (member.spec.kind == "layout" and member.spec.body is not None)


def _knobs(
    members: Sequence[Member], loops: GroupLoops, outer: tuple[int, ...], parallel: Sequence[frozenset[int]], scratch: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    effects: dict[tuple[Any, ...], list[int]] = {}
    live = [(read, _used(read, members, parallel)) for read in loops.reads if read.producer < 0]
    for atom in outer:
        missing = tuple(k for k, (_, used) in enumerate(live) if atom not in used)
        again = tuple(i for i, atoms in enumerate(parallel) if atom not in atoms)
        if missing or again:
            carried = tuple(i for i in scratch if atom in parallel[i])
            effects.setdefault((missing, again, carried), []).append(atom)
    return tuple(tuple(atoms) for atoms in effects.values())


def _used(read: Read, members: Sequence[Member], parallel: Sequence[frozenset[int]]) -> frozenset[int]:
    """Outer atoms that decide what a read touches; an index from data depends on all of its reader's."""
    if any(dim.indirect for dim in members[read.reader].domain.reads[read.operand].dims):
        return read.atoms | parallel[read.reader]
    return read.atoms


class _Counter:
    def __init__(
        self,
        members: Sequence[Member],
        loops: GroupLoops,
        outer: tuple[int, ...],
        carried: Sequence[list[int]],
        line_bytes: int,
    ) -> None:
        self.members, self.loops, self.outer, self.carried, self.line = members, loops, outer, carried, line_bytes
        self.parallel = [frozenset(atoms) for atoms in carried]

    def count(
        self,
        leaving: list[tuple[int, int]],
        scratch: tuple[int, ...],
        knobs: tuple[tuple[int, ...], ...],
        tilings: Tilings,
    ) -> GroupFeatures:
        members, extents, outer = self.members, self.loops.extents, self.outer
        knob_of = {atom: k for k, knob in enumerate(knobs) for atom in knob}
        blocks: Any = float(prod(extents[a] for a in outer if a not in knob_of)) * tilings.blocks
        if members[0].spec.kind == "opaque":
            blocks = UNBOUNDED_BLOCKS
        leads = [knob[0] for knob in knobs]

        def inside(atoms: frozenset[int]) -> int:
            """The knobs among some atoms."""
            return sum(1 << k for k, lead in enumerate(leads) if lead in atoms)

        bytes_read, rereads = self._reads(lambda atoms: tilings.more(inside(atoms))[0], bool(knobs))
        scratch_bytes: Any = 0.0
        for i in scratch:
            size: Any = float(members[i].itemsize)
            for atom in self.carried[i]:  # a list: a value may span one loop twice
                if atom not in outer:
                    size *= extents[atom]
            for k, knob in enumerate(knobs):
                if knob[0] in self.parallel[i]:
                    size = size * tilings.tiles[k]
            scratch_bytes = scratch_bytes + size
        flops = {"simple": 0, "special": 0, "contract": 0}
        again: dict[str, Any] = {"simple": 0.0, "special": 0.0, "contract": 0.0}
        repeated: dict[tuple[Literal["simple", "special", "contract"], int], int] = {}
        iterations = 1
        for i, member in enumerate(members):
            points = prod(member.domain.extents)
            iterations = max(iterations, points)
            cls = member.spec.flop_class
            if cls != "none":
                work = int(points * member.spec.flops)
                flops[cls] += work
                there = inside(self.parallel[i])
                repeated[cls, there] = repeated.get((cls, there), 0) + work
        if knobs:
            for (kind, there), work in repeated.items():
                again[kind] = again[kind] + work * tilings.more(there)[0]
        written = sum(self._lines(members[i].output_bytes[members[i].outputs.index(value)]) for i, value in leaving)
        return GroupFeatures(
            nodes=len(members),
            bytes_read=bytes_read,
            bytes_written=written,
            rereads=rereads,
            launches=1,
            blocks=blocks,
            iterations=iterations,
            live=TEMPLATE_LIVE + self._live(scratch),
            itemsize=max(member.itemsize for member in members),
            scratch_bytes=scratch_bytes,
            flops=Flops(**flops),
            recomputed=RecomputedFlops(**again),
        )

    def _lines(self, nbytes: int) -> int:
        return -(-nbytes // self.line) * self.line

    def _reads(self, more_reads: Callable[[frozenset[int]], Any], tiled: bool) -> tuple[int, tuple[Reread, ...]]:
        """Bytes of the distinct live-ins, and the operands that are read again."""
        regions: dict[int, dict[tuple[Any, ...], int]] = {}
        full: dict[int, int] = {}
        extra: dict[int, Any] = {}
        for read in self.loops.reads:
            if read.producer >= 0:
                continue
            member = self.members[read.reader]
            operand, access = member.operands[read.operand], member.domain.reads[read.operand]
            key, nbytes = region(operand, access, member, self.line)
            full[operand.base] = self._lines(operand.itemsize * prod(operand.base_shape))
            regions.setdefault(operand.base, {})[key] = nbytes
            if tiled:
                more = more_reads(_used(read, self.members, self.parallel))
                extra[operand.base] = more if operand.base not in extra else np.maximum(extra[operand.base], more)
        sizes = {base: min(full[base], sum(parts.values())) for base, parts in regions.items()}
        rereads = tuple(Reread(sizes[base], more) for base, more in extra.items() if np.any(more > 0))
        return sum(sizes.values()), rereads

    def _live(self, scratch: tuple[int, ...]) -> int:
        """Largest number of scalars that are alive at once when the members run in canonical order.

        A result may take the register of an operand that is read for the last time.

        A value is alive from its definition, a live-in from its first read, until the last read in the group; what
        crosses stages lives in memory and is loaded where it is read.
        """
        last: dict[tuple[str, int], int] = {}
        names: list[list[tuple[str, int]]] = [[] for _ in self.members]
        for read in self.loops.reads:
            operand = self.members[read.reader].operands[read.operand]
            in_register = read.producer >= 0 and read.producer not in scratch
            name = ("v", read.producer) if in_register else ("x", operand.base)
            names[read.reader].append(name)
            last[name] = max(last.get(name, 0), read.reader)
        alive: set[tuple[str, int]] = set()
        most = 0
        for i in range(len(self.members)):
            alive.update(names[i])
            most = max(most, len(alive))
            alive = {name for name in alive if last[name] > i}
            most = max(most, len(alive) + 1)  # the result may take the register of an operand that ended
            if last.get(("v", i), -1) > i:
                alive.add(("v", i))
        return most


@lru_cache(maxsize=65536)
def _box(access: Access, extents: tuple[int, ...], rank: int, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """First and past-the-last index of each dimension that a read touches, clipped to the operand.

    Nothing is read where the result has no elements, or along loops without steps; what no such loop walks is read all the same.
    """
    named = {loop for dim in access.dims for loop, _ in dim.terms}
    if 0 in extents[:rank] or any(extents[loop] == 0 for loop in named):
        return tuple((0, 0) for _ in shape)
    unnamed = prod(n for loop, n in enumerate(extents) if loop not in named)
    box = []
    for dim, n in zip(access.dims, shape, strict=True):
        if dim.indirect:
            box.append((0, min(n, unnamed)))
            continue
        ends = [c * (extents[loop] - 1) for loop, c in dim.terms]
        low = dim.offset + sum(end for end in ends if end < 0)
        high = dim.offset + sum(end for end in ends if end > 0)
        box.append((max(low, 0), max(min(high + 1, n), max(low, 0))))
    return tuple(box)


def region(operand: Operand, access: Access, member: Member, line: int) -> tuple[tuple[Any, ...], int]:
    """Return what a read touches and its bytes, each contiguous run in whole cache lines."""
    if member.spec.kind == "opaque":
        box = tuple((0, n) for n in operand.shape)
    else:
        box = _box(access, member.domain.extents, member.domain.rank, operand.shape)
    spans = [stop - start for start, stop in box]
    run, d = operand.itemsize, len(spans) - 1
    while d >= 0 and spans[d] == operand.shape[d]:
        run *= spans[d]
        d -= 1
    if d >= 0:
        run *= spans[d]
    runs = prod(spans[:d]) if d > 0 else 1
    return (operand.shape, box), runs * -(-run // line) * line
