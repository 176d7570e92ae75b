"""One kernel from one group: its stages in order, each written by the module for its kind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from fusion_search.codegen.access import library_kernel
from fusion_search.codegen.ahead import goes_ahead, write_ahead
from fusion_search.codegen.blocks import is_reduce
from fusion_search.codegen.buffers import ALIGN, Lifetime, plan_buffers
from fusion_search.codegen.convolution import emit_convolution
from fusion_search.codegen.emit import Emitter, Reservation
from fusion_search.codegen.extents import actual
from fusion_search.codegen.generic import emit_generic
from fusion_search.codegen.maps import emit_loops
from fusion_search.codegen.nest import open_loops
from fusion_search.codegen.parts import emit_parts
from fusion_search.codegen.pieces import is_long, source_in_pieces
from fusion_search.codegen.pooling import emit_pool
from fusion_search.codegen.product import emit_product
from fusion_search.codegen.reductions import emit_reductions
from fusion_search.codegen.scan import emit_scan
from fusion_search.codegen.scatter import emit_scatter
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.work import serial_ns
from fusion_search.codegen.writer import Slot
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.program import Program


@dataclass(frozen=True, slots=True)
class Block:
    """One outer loop of a kernel: how many of its steps an item takes.

    Attributes
    ----------
    loop : int
        The kernel's number of the loop.
    atoms : tuple of int
        The atoms of the group that it walks as one, outermost first.
    extent, tile : int
        Steps of the run, and of one item.
    free : bool
        Any tile gives the same kernel: it is a number in the argument table.
    """

    loop: int
    atoms: tuple[int, ...]
    extent: int
    tile: int
    free: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and what a step of a plan needs to run it.

    Attributes
    ----------
    source : str
        The text, whose function is called ``kernel``.
    slots : tuple of Slot
        The argument table.
    items : int
        Work items; any range of them may run on any thread.
    scratch_bytes : int
        What one thread needs.
    work_ns : float
        A rough serial time, from which the runtime chooses the items a task.
    blocks : tuple of Block
        The outer loops, whose product is `items`; none where items are shares.
    reserved : tuple of Reservation
        The parts of the scratch.
    shared_bytes : int
        What all items share.
    """

    source: str
    slots: tuple[Slot, ...]
    items: int
    scratch_bytes: int
    work_ns: float
    blocks: tuple[Block, ...] = ()
    reserved: tuple[Reservation, ...] = ()
    shared_bytes: int = 0


def build(program: Program, analysis: Analysis, tiles: Mapping[int, int] | None = None, threads: int = 2, direct: bool = False) -> Kernel:
    """Generate the kernel of a legal group that the generator can emit.

    Parameters
    ----------
    program : Program
    analysis : Analysis
    tiles : mapping of int to int, optional
        Tiles for some of the loops that are free in the kernel's blocks, in place of the generator's own.
    threads : int
        How many will share the blocks; their sizes suit that number.
    direct : bool
        Compute products and convolutions in the place of a result that is made from them, where that can be; scratch is the faster
        place, since its rows lie side by side.
    """
    e, items, marks = _written(Emitter(program, analysis, tiles, threads, direct))
    long = is_long(e.w, marks)
    if long:
        e, items, marks = _written(Emitter(program, analysis, tiles, threads, direct, apart=True))
    source = source_in_pieces(e.w, "kernel", marks) if long else e.w.source("kernel")
    work = sum(serial_ns(m) for m in e.group.members)
    reserved = tuple(e.reserved.values())
    made = Kernel(source, tuple(e.w.finished()), actual(items), 0, work, _blocks(e), reserved, e.shared_bytes)
    arena = plan_buffers([Lifetime(f"{part.slot:6}", part.nbytes, part.first, part.last) for part in reserved])
    return placed(made, {int(name): offset for name, offset in arena.offsets.items()}, arena.nbytes)


def _written(e: Emitter) -> tuple[Emitter, int, list[int]]:
    """Write all stages; return the number of items, and the lines at which stages, or those of one walk, begin."""
    items = e.declare()
    e.w.compiler = _compiler(e)
    if goes_ahead(e):
        return e, items, write_ahead(e, _emit)
    e.open()
    marks = []
    for walk in e.walks:
        marks.append(len(e.w.lines))
        with ExitStack() as around:
            e.rows = open_loops(e, around, walk.atoms)
            for k in range(walk.first, walk.last + 1):
                e.now = k
                _emit(e, e.stages[k])
    return e, items, marks


def placed(kernel: Kernel, offsets: Mapping[int, int], nbytes: int) -> Kernel:
    """Return a kernel with the parts of its scratch at these offsets, by slot."""
    slots = tuple(Slot(None, offsets[k]) if k in offsets else slot for k, slot in enumerate(kernel.slots))
    return replace(kernel, slots=slots, scratch_bytes=nbytes)


def scratch_apart(kernel: Kernel) -> Kernel:
    """Return a kernel no two parts of whose scratch share a place, so that a wrong access of one is none of another."""
    offsets: dict[int, int] = {}
    at = 0
    for part in kernel.reserved:
        offsets[part.slot] = at
        at += -(-max(part.nbytes, 1) // ALIGN) * ALIGN
    return placed(kernel, offsets, at)


def _blocks(e: Emitter) -> tuple[Block, ...]:
    if e.shares:
        return ()
    return tuple(
        Block(a, e.group.pieces[a], actual(e.group.extents[a]), actual(e.tiles.get(a, 1)), a in e.tiles and a not in e.whole)
        for a in sorted(e.group.outer)
    )


#: A loop from here on has enough whole vectors for what is left over not to matter.
LONG = 512
#: Operations, one after the other, from which on several vectors are worked on at a time: what waits no longer fits the processor's
#: schedulers, some 128 instructions, often enough to fill its pipes.
CHAIN = 24


def _compiler(e: Emitter) -> str:
    """Choose hints by the shortest loop whose vectors are long chains: none without, whole rows masked when short."""
    chains = [stage for stage in e.stages if stage.order and _waits(e, stage)]
    lengths = [e.tiles.get(stage.order[-1], e.group.extents[stage.order[-1]]) for stage in chains]
    if not lengths:
        return ""
    return "Folded" if any(n < LONG and n % 64 for n in lengths) else "Interleaved"


def _waits(e: Emitter, stage: Stage) -> bool:
    """Whether a vector of a stage is one long chain of operations, each of which waits for the one before."""
    length: dict[int, int] = {}
    for i in sorted(stage.members):
        member = e.group.members[i]
        if member.spec.flop_class == "special":
            return True
        before = [length.get(e.group.producers.get((i, k), -1), 0) for k in range(len(member.operands))]
        length[i] = max(before, default=0) + (member.spec.kind == "map")
    return max(length.values(), default=0) >= CHAIN


def _emit(e: Emitter, stage: Stage) -> None:
    if stage.kind == "parts":
        emit_parts(e, stage)
    elif stage.kind == "loop" and any(is_reduce(e.group.members[i]) for i in stage.members):
        emit_reductions(e, stage)
    elif stage.kind == "scatter":
        emit_scatter(e, stage, stage.members[0])
    elif stage.kind == "loop":
        emit_loops(e, stage)
    else:
        (i,) = stage.members
        kernel = library_kernel(e.group.members[i])
        if kernel == "product":
            emit_product(e, i)
        elif kernel == "tile":
            emit_convolution(e, i)
        elif kernel == "pool":
            emit_pool(e, i)
        elif e.group.members[i].domain.uncut:
            emit_scan(e, stage, i)
        else:
            emit_generic(e, stage, i)
