"""Stages of maps: plain loops, as few as their addresses allow, and blocks turned first where an operand is read across its rows."""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear
from fusion_search.codegen.emit import Emitter, Place
from fusion_search.codegen.extents import actual
from fusion_search.codegen.nest import Nest, define, indirect, open_loops, prepare
from fusion_search.codegen.stages import Stage, components
from fusion_search.codegen.streaming import write_row

#: Tensors that one nest may walk at a time: with more, equal distances between them leave a cache set too few ways.
STREAMS = 7


def emit_loops(e: Emitter, stage: Stage) -> None:
    """Write a stage of maps: plain loops around the members' definitions.

    Maps of one nest that neither read each other nor fit the streams together become nests of their own, on the same block.
    """
    parts = components(e.group, stage.defined)
    streams = sum(e.places[i].kind == "tensor" for i in stage.defined) + sum(
        (i, k) not in e.group.producers and not operand.parameter
        for i in stage.defined
        for k, operand in enumerate(e.group.members[i].operands)
    )
    for members in parts if streams > STREAMS else [stage.defined]:
        _emit_nest(e, Stage(stage.kind, members, stage.space, stage.order))


def _emit_nest(e: Emitter, stage: Stage) -> None:
    across = turned_reads(e, stage)
    if across:
        _emit_across(e, stage, across)
        return
    order = stage.order
    inner = order[-1] if order else None
    joined = _joined(e, stage)
    with ExitStack() as stack:
        variables = open_loops(e, stack, [a for a in order[:-1] if a not in joined])
        nest = Nest(e, stage, inner, variables, joined=frozenset(joined))
        ready = prepare(nest, stage.members)
        if inner is not None:
            write_row(nest, ready, " * ".join(e.bound(a) for a in (*joined, inner)))
        else:
            define(nest, stage.members, ready)


def _joined(e: Emitter, stage: Stage) -> list[int]:
    """The loops around the innermost one that every address of a stage steps through as through one with it.

    Loops stay apart for one stage's sake (a convolution needs its rows); the others need not run over short rows.
    """
    addresses = []
    for i in stage.members:
        for k in range(len(e.group.members[i].operands)):
            if indirect(e, i, k):
                return []
            how, _, linear, _ = e.source_of(i, k)
            if how == "memory" and linear is not None:
                addresses.append(linear.strides)
        addresses.append(e.places[i].strides)
    joined: list[int] = []
    below = stage.order[-1] if stage.order else None
    for atom in reversed(stage.order[:-1]):
        if below is None or (below in e.tiles and below not in e.whole):
            break
        if any(strides.get(atom, 0) != strides.get(below, 0) * e.group.extents[below] for strides in addresses):
            break
        joined.insert(0, atom)
        below = atom
    return joined


# ---------------------------------------------------------------- operands read across their rows


#: Codes whose blocks can be turned.
TURNED = ("f4", "i4", "u4")
#: Rows of a value in scratch that are turned at a time: its block may be as large as the second-level cache.
TURNED_ROWS = 64
#: In place of a loop's number: the step within the rows that are turned at a time.
WITHIN = -1

Turned = tuple[Place, Linear]


def turned_reads(e: Emitter, stage: Stage) -> dict[tuple[int, int], int]:
    """Find what of four-byte elements a nest reads across its rows, all of it contiguous along one other loop.

    Returns
    -------
    dict of (int, int) to int
        That loop by member and operand; empty where no block has both loops.
    """
    inner = stage.order[-1] if stage.order else None
    found: dict[tuple[int, int], int] = {}
    for i in stage.members:
        for k in range(len(e.group.members[i].operands)):
            how, place, linear, _ = e.source_of(i, k)
            if how != "memory" or not isinstance(place, Place) or linear is None or place.code not in TURNED or indirect(e, i, k):
                continue
            if inner is None or place.kind not in ("tensor", "scratch") or linear.strides.get(inner, 0) <= 1:
                continue
            beside = [a for a in stage.order[:-1] if linear.strides.get(a, 0) == 1 and _in_blocks(e, place, a)]
            if beside and _in_blocks(e, place, inner):
                found[(i, k)] = beside[0]
    loops = set(found.values())
    return found if len(loops) == 1 else {}


def _in_blocks(e: Emitter, place: Place, atom: int) -> bool:
    """Whether a block has several steps of a loop, and no more than fit a copy: the rows of a value in scratch may be cut."""
    return atom in e.tiles or (place.kind == "scratch" and atom not in e.group.outer)


def _emit_across(e: Emitter, stage: Stage, across: dict[tuple[int, int], int]) -> None:
    """Write a nest some of whose operands are turned first; the loop that they are contiguous along comes next to the innermost."""
    w, beside = e.w, next(iter(across.values()))
    outside, inner = [a for a in stage.order[:-1] if a != beside], stage.order[-1]
    sources = [e.source_of(i, k)[1] for i, k in across]
    cut = any(isinstance(place, Place) and place.kind == "scratch" for place in sources)
    with ExitStack() as stack:
        variables = open_loops(e, stack, outside)
        start, rows, length = "0", e.bound(beside), e.tiles.get(beside, e.group.extents[beside])
        if cut:
            start, length = w.name("t"), min(TURNED_ROWS, actual(length))
            stack.enter_context(w.block(f"for {start} in range(0, {rows}, {TURNED_ROWS}):"))
            rows = w.name("m")
            w.put(f"{rows} = min({TURNED_ROWS}, {e.bound(beside)} - {start})")
        turning = Nest(e, stage, inner, {**variables, beside: start})
        known: dict[tuple[object, ...], Turned] = {}
        turned = {where: _turn(turning, where, WITHIN if cut else beside, rows, length, known) for where in across}
        step = w.name("i")
        stack.enter_context(w.block(f"for {step} in range({rows}):"))
        variables |= {beside: f"({start} + {step})", WITHIN: step} if cut else {beside: step}
        walked = Stage(stage.kind, stage.members, stage.space, [*outside, beside, *([WITHIN] if cut else []), inner])
        nest = Nest(e, walked, inner, variables, turned=turned)
        write_row(nest, prepare(nest, stage.members), e.bound(inner))


def _turn(nest: Nest, where: tuple[int, int], row: int, rows: str, length: int, known: dict[tuple[object, ...], Turned]) -> Turned:
    """Copy rows of an operand into scratch so that the nest's innermost loop walks them contiguously; equal reads once.

    Parameters
    ----------
    nest : Nest
        Its variables say where the rows begin.
    where : tuple of int
        Member and operand.
    row : int
        The loop that steps through the copy's rows.
    rows : str
        How many there are.
    length : int
        How many there are at most.
    known : dict
        The copies, by what they are of.
    """
    e, inner, w = nest.e, nest.stage.order[-1], nest.e.w
    _, place, linear, key = e.source_of(*where)
    assert isinstance(place, Place)
    assert linear is not None
    same = (place.key, tuple(sorted(linear.strides.items())), linear.offset)
    if same in known:
        return known[same]
    width = e.tiles.get(inner, e.group.extents[inner])
    at = e.reserve(("turned", *where), 4 * width * length)
    copy = Place("scratch", place.code, f"S + {at}", {row: width, inner: 1}, f"turned{where}")
    source = nest.pointer(key, place, linear)
    step = e.step(key, inner, linear.strides[inner])
    target = w.name("x")
    w.put(f"{target} = p_{place.code}({copy.address}, 0)")
    w.put(f"turn({target}, {source}, {rows}, {e.bound(inner)}, {step}, {e.step(f't{key}', row, width)})")
    known[same] = copy, Linear(dict(copy.strides))
    return known[same]
