"""What a run needs in memory, planned before anything is compiled: the arena of passing values, scratch, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.runtime.buffers import ALIGN, Arena, Lifetime, plan_buffers
from fusion_search.runtime.steps import KernelStep, Step

#: Bytes behind the scratch of each thread: vector loads may start in the last element's line.
GUARD_BYTES = 256


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one run in flight; inputs and weights are the caller's and not counted.

    Attributes
    ----------
    arena : Arena
        Values that one step computes and a later one reads.
    scratch_stride : int
        Bytes from one thread's scratch to the next one's; 0 when no step that several threads run uses any.
    scratch_bytes : int
        Scratch of all threads.
    results : tuple of str
        Values that the caller gets, other than inputs, constants and what has no plain tensor type.
    result_bytes : int
    touched : tuple of str
        All values in memory, in the order of first use.
    """

    arena: Arena
    scratch_stride: int
    scratch_bytes: int
    results: tuple[str, ...]
    result_bytes: int
    touched: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """Arena, scratch and results together: what a run needs at most."""
        return self.arena.nbytes + self.scratch_bytes + self.result_bytes


def plan_memory(graph: Graph, steps: Sequence[Step], threads: int) -> MemoryPlan:
    """Plan the memory of a step table.

    Parameters
    ----------
    graph : Graph
    steps : sequence of Step
        In the order in which they run.
    threads : int
        How many run a step that has more than one task.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for name in touched(graph, step):
            first.setdefault(name, k)
            last[name] = k
    given = {value.name for value in graph.inputs} | set(graph.constants)
    plain = [name for name in first if name not in given and graph.values[name].dtype != RUNTIME]
    returned = graph.output_bases
    results = tuple(name for name in plain if name in returned)
    arena = plan_buffers([Lifetime(name, graph.values[name].nbytes, first[name], last[name]) for name in plain if name not in returned])
    stride, scratch = _scratch(steps, threads)
    return MemoryPlan(arena, stride, scratch, results, sum(graph.values[name].nbytes for name in results), tuple(first))


def touched(graph: Graph, step: Step) -> list[str]:
    """Return the values in memory that a step reads or writes."""
    if isinstance(step, KernelStep):
        return sorted({slot.value for slot in step.kernel.slots if slot.value and not slot.external})
    return sorted({graph.base(name) for name in (*step.node.inputs, *step.node.outputs) if name})


def _scratch(steps: Sequence[Step], threads: int) -> tuple[int, int]:
    """Stride and size: a step of one task runs in one thread, and needs the first slot only."""
    alone = together = 0
    for step in steps:
        if isinstance(step, KernelStep) and step.kernel.scratch_bytes:
            needs = -(-(step.kernel.scratch_bytes + GUARD_BYTES) // ALIGN) * ALIGN
            if step.tasks > 1 and threads > 1:
                together = max(together, needs)
            else:
                alone = max(alone, needs)
    return together, max(together * threads, alone)
