"""Rows ahead: the first walk over a row goes with the last walk over the row before, where a kernel waits for memory.

A kernel of reductions along rows reads in its first walk and writes in its last; in between it computes in the caches. Written one
after the other, reads and writes wait for each other and memory rests between them. Here both walks share a loop, 64 elements of one
and 64 of the other in turn, and what the first walk will read is fetched a page before. What the first walk keeps for later ones
lies in two rows of scratch by turns. Values, and the order in which they are reduced, stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fusion_search.codegen import streaming
from fusion_search.codegen.access import Linear
from fusion_search.codegen.blocks import by_lanes, is_reduce
from fusion_search.codegen.buffers import ALIGN
from fusion_search.codegen.caches import exceeds_caches
from fusion_search.codegen.emit import Emitter, Place
from fusion_search.codegen.extents import Extent
from fusion_search.codegen.lanes import LANES, LaneWalk, finish_lanes, start_lanes
from fusion_search.codegen.maps import turned_reads
from fusion_search.codegen.nest import Nest, prepare
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.streaming import Pieces, may_pass
from fusion_search.codegen.writer import COMPUTE

#: Rows of more elements leave the caches between their walks anyway.
LONGEST = 1 << 13
#: How far ahead of the first walk its operands are fetched.
AHEAD_BYTES = 4096


def goes_ahead(e: Emitter) -> bool:
    """Whether the first stage of a row can go with the last of the row before, and is worth it.

    An item is one row; the first stage reduces it in lanes, the last one maps it to one result that passes the caches.
    """
    if e.shares or e.apart or e.tiles or len(e.stages) < 2 or any(walk.atoms for walk in e.walks):
        return False
    first, last = e.stages[0], e.stages[-1]
    return not isinstance(e.streamed_bytes, Extent) and exceeds_caches(e.streamed_bytes) and _reduces(e, first) and _ends(e, first, last)


def _reduces(e: Emitter, stage: Stage) -> bool:
    """Whether a stage reduces whole rows in lanes."""
    reducers = [i for i in stage.members if is_reduce(e.group.members[i])]
    if stage.kind != "loop" or stage.inside or len(stage.order) != 1 or not reducers:
        return False
    length = e.group.extents[stage.order[0]]
    return (
        all(by_lanes(e.group.members[i]) and COMPUTE[e.places[i].code] in ("f4", "f8") for i in reducers)
        and e.group.loops[reducers[0]].reduced == stage.order
        and not isinstance(length, Extent)
        and streaming.LEAST <= length <= LONGEST
    )


def _ends(e: Emitter, first: Stage, last: Stage) -> bool:
    """Whether a stage of maps writes the same rows, and needs nothing of its own row before its loop."""
    inner = first.order[0]
    if last.kind != "loop" or last.inside or last.order != [inner] or turned_reads(e, last):
        return False
    if any(is_reduce(e.group.members[i]) for i in last.defined):
        return False
    results = [i for i in last.defined if e.places[i].kind in ("tensor", "scratch")]
    if len(results) != 1 or e.places[results[0]].strides.get(inner) != 1 or not may_pass(e, last.defined, results):
        return False
    for i in last.defined:
        for k in range(len(e.group.members[i].operands)):
            how, _, linear, _ = e.source_of(i, k)
            if how == "memory" and linear is not None and (i, k) in e.group.producers and not linear.strides.get(inner):
                return False
    return True


def write_ahead(e: Emitter, emit: Callable[[Emitter, Stage], None]) -> list[int]:
    """Write all stages of all items; return the lines at which stages begin.

    Parameters
    ----------
    e : Emitter
    emit : callable
        Writes one stage.
    """
    w, first, last = e.w, e.stages[0], e.stages[-1]
    inner, reducers = first.order[0], [i for i in first.members if is_reduce(e.group.members[i])]
    count, end = e.extent(inner), len(e.stages) - 1
    w.put("item = lo")
    start = len(w.lines)
    e.locate("item")
    located, here = [line.strip() for line in w.lines[start:]], dict(e.index)
    rows = _two_rows(e, first)
    for place in {p.address: p for i in last.defined for how, p in _operands(e, i) if how == "local" and isinstance(p, Place)}.values():
        code = COMPUTE[place.code]
        w.put(f"{place.address} = {'False' if code == 'b1' else f'T_{code}(0)'}")  # for the compiler: no row ends before one began
    ahead, beside = w.name("i"), w.name("i")
    marks = [len(w.lines)]
    with w.block(f"for {ahead} in range(lo, hi + 1):"):
        # behind the last row there is none to begin with, before the first none to end
        w.put(f"{beside} = min({ahead}, hi - 1)")
        e.locate(beside)
        _turn(e, rows, 1)
        lanes = {i: start_lanes(e, i) for i in reducers}
        walk = LaneWalk(Nest(e, first, inner, {}), reducers, lanes)
        whole, at, stop, size = (w.name(letter) for letter in "mtmm")
        w.put(f"{whole} = {count} // {LANES} * {LANES}")
        w.put(f"{at}, {stop} = 0, {whole} if {ahead} < hi else 0")
        e.now, e.index = end, here
        _turn(e, rows, 0)
        ending = Stage(last.kind, last.defined, last.space, last.order)
        nest = Nest(e, ending, inner, {})
        ready = prepare(nest, ending.members)
        pieces = Pieces(nest, ready, list(ready.writes), count)
        w.put(f"{size} = {count} if {ahead} > lo else 0")
        with w.block(f"while {at} < {stop} or {pieces.at} < {size}:"):
            with w.block(f"if {at} < {stop}:"):
                walk.block(at)
                for pointer, nbytes in _streams(e, walk.ready.reads, inner):
                    w.put(f"fetch(padd({pointer}, {at} + {AHEAD_BYTES // nbytes}), {LANES * nbytes})")
                w.put(f"{at} += {LANES}")
            with w.block(f"if {pieces.at} < {size}:"):
                pieces.write()
        with w.block(f"if {ahead} == hi:"):
            w.put("break")
        w.put(f"item = {beside}")
        for line in located:
            w.put(line)
        walk.rest(whole, count)
        for i in reducers:
            finish_lanes(e, first, i, lanes[i], {})
        for names in rows.values():
            w.put(f"{', '.join(names)} = {', '.join(reversed(names))}")
        for k in range(1, end):
            e.now = k
            marks.append(len(w.lines))
            emit(e, e.stages[k])
    return marks


def _operands(e: Emitter, i: int) -> list[tuple[str, Place | str]]:
    """How, and from where, each operand of a member comes."""
    return [e.source_of(i, k)[:2] for k in range(len(e.group.members[i].operands))]


def _two_rows(e: Emitter, stage: Stage) -> dict[int, list[str]]:
    """Give what a stage keeps in scratch a second row; return the addresses of the row at hand and of the next one, by member."""
    w, rows = e.w, {}
    for i in stage.members:
        place = e.places[i]
        if place.kind == "scratch" and not is_reduce(e.group.members[i]):
            nbytes = -(-e.group.extents[stage.order[0]] * e.group.members[i].itemsize // ALIGN) * ALIGN
            at = e.reserve(place.key, 2 * nbytes, (0, len(e.stages) - 1))
            rows[i] = [w.name("r"), w.name("r")]
            w.put(f"{rows[i][0]} = S + {at}")
            w.put(f"{rows[i][1]} = {rows[i][0]} + {w.number(('row', place.key), nbytes)}")
    return rows


def _turn(e: Emitter, rows: dict[int, list[str]], which: int) -> None:
    """Let what lies in two rows be in the row at hand, or in the next one."""
    for i, names in rows.items():
        e.places[i] = replace(e.places[i], address=names[which])


def _streams(e: Emitter, reads: Mapping[tuple[int, int], tuple[str, Place, Linear, str]], inner: int) -> list[tuple[str, int]]:
    """Find what a walk reads one element beside the other, another row for each item: pointers and bytes of an element."""
    found = {}
    for (i, k), (pointer, _, linear, _) in reads.items():
        if linear.strides.get(inner) == 1 and any(linear.strides.get(a) for a in e.group.outer):
            found[pointer] = e.group.members[i].operands[k].itemsize
    return list(found.items())
