"""What a run needs in memory, planned before anything is compiled: passing values and scratch in one arena, and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusion_search.codegen.buffers import ALIGN, Lifetime, Piece, alive_by_step, cut, plan_buffers
from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.runtime.aliases import Place, Placement
from fusion_search.runtime.steps import AliasStep, KernelStep, Step

#: Bytes behind the scratch of each thread: vector loads may start in the last element's line.
GUARD_BYTES = 256
#: Bytes between the scratch of two threads, and where it is as large as that: a processor that foresees steps along the rows of one reads
#: past its end, and lines of the next one go back and forth. Behind a few rows it stops at the end of a page.
PAGE_BYTES = 4 << 10
APART_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch of one step: where it starts in the arena, and the bytes from one thread's to the next one's."""

    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one run in flight; inputs and weights are the caller's and not counted.

    Attributes
    ----------
    arena_bytes : int
        One block for all that passes from step to step, and for scratch, which a step needs only while it runs.
    offsets : mapping of str to int
        Place in the arena of each value that one step computes and a later one reads.
    inside : mapping of str to Place
        Place in a result of each value that is a part of it.
    scratch : mapping of int to Scratch
        By step, for the steps that use any.
    shared : mapping of int to int
        Place in the arena of what all items of a step share, for the steps that have such memory.
    results : tuple of str
        Values that the caller gets, other than inputs, constants and what has no plain tensor type.
    result_bytes : int
    touched : tuple of str
        All values in memory, in the order of first use.
    alive : tuple of int
        Bytes of the arena that are in use during each step, its scratch included.
    """

    arena_bytes: int
    offsets: Mapping[str, int]
    inside: Mapping[str, Place]
    scratch: Mapping[int, Scratch]
    shared: Mapping[int, int]
    results: tuple[str, ...]
    result_bytes: int
    touched: tuple[str, ...]
    alive: tuple[int, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Arena and results together: what a run needs at most."""
        return self.arena_bytes + self.result_bytes


def plan_memory(graph: Graph, steps: Sequence[Step], threads: int, placement: Placement | None = None) -> MemoryPlan:
    """Plan the memory of a step table.

    Parameters
    ----------
    graph : Graph
    steps : sequence of Step
        In the order in which they run.
    threads : int
        How many run a step that has more than one task.
    placement : Placement, optional
        Values that lie inside others: a byte is needed from the first to the last step that touches a value over it.
    """
    placement = placement or Placement()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for name in touched(graph, step):
            first.setdefault(name, k)
            last[name] = k
    given = {value.name for value in graph.inputs} | set(graph.constants)
    blocks: dict[str, list[Piece]] = {}
    for name in first:
        if name not in given and graph.values[name].dtype != RUNTIME:
            place = placement.place(name)
            piece = Piece(place.offset, place.offset + int(graph.values[name].nbytes), first[name], last[name])
            blocks.setdefault(place.block, []).append(piece)
    returned = graph.output_bases
    results = tuple(name for name in blocks if name in returned)
    passing = [name for name in blocks if name not in returned]
    strides = {k: stride for k, step in enumerate(steps) if (stride := stride_of(step))}
    shared = {k: step.kernel.shared_bytes for k, step in enumerate(steps) if isinstance(step, KernelStep) and step.kernel.shared_bytes}
    lifetimes = [
        *(_lifetime(f"value {name}", blocks[name]) for name in passing),
        *(Lifetime(f"scratch {k}", stride * slots_of(steps[k], threads), k, k) for k, stride in strides.items()),
        *(Lifetime(f"shared {k}", nbytes, k, k) for k, nbytes in shared.items()),
    ]
    arena = plan_buffers(lifetimes)
    offsets = {name: arena.offsets[f"value {name}"] for name in passing}
    placed = {name: placement.places[name] for name in first if name in placement.places}
    return MemoryPlan(
        arena.nbytes,
        {**offsets, **{name: offsets[place.block] + place.offset for name, place in placed.items() if place.block in offsets}},
        {name: place for name, place in placed.items() if place.block not in offsets},
        {k: Scratch(arena.offsets[f"scratch {k}"], stride) for k, stride in strides.items()},
        {k: arena.offsets[f"shared {k}"] for k in shared},
        results,
        sum(graph.values[name].nbytes for name in results),
        tuple(first),
        tuple(alive_by_step(lifetimes, len(steps))),
    )


def _lifetime(name: str, values: Sequence[Piece]) -> Lifetime:
    nbytes, first, last = (max(v.stop for v in values), min(v.first for v in values), max(v.last for v in values))
    return Lifetime(name, nbytes, first, last, cut(values) if len(values) > 1 else ())


def touched(graph: Graph, step: Step) -> list[str]:
    """Return the values in memory that a step reads or writes, constants that it only reads packed left out."""
    if isinstance(step, AliasStep):
        return []
    if isinstance(step, KernelStep):
        return sorted({slot.value for slot in step.kernel.slots if slot.value and not slot.external and slot.packing is None})
    return sorted({graph.base(name) for name in (*step.node.inputs, *step.node.outputs) if name})


def slots_of(step: Step, threads: int) -> int:
    """How many threads at most run a step at once: one for each of its tasks."""
    return max(1, min(threads, step.tasks)) if isinstance(step, KernelStep) else 1


def scratch_of(step: Step, threads: int) -> int:
    """Bytes of a step's scratch, for all threads that run it."""
    return stride_of(step) * slots_of(step, threads)


def stride_of(step: Step) -> int:
    """Bytes of one thread's scratch, in whole cache lines; 0 for a step that uses none."""
    if not isinstance(step, KernelStep) or not step.kernel.scratch_bytes:
        return 0
    scratch = step.kernel.scratch_bytes
    behind = GUARD_BYTES if step.tasks == 1 else PAGE_BYTES if scratch < APART_BYTES else APART_BYTES
    return -(-(scratch + behind) // ALIGN) * ALIGN
