"""A plan as steps: a kernel for each group that can be emitted, a call for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusion_search.codegen.capability import can_emit
from fusion_search.codegen.extents import paired
from fusion_search.codegen.kernel import Kernel, build
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program, bits
from fusion_search.ir.graph import Graph, Node
from fusion_search.ir.ops import OPS

#: A step below this much work runs on the calling thread: entering a parallel region would cost more.
SERIAL_NS = 12_000.0
#: Work that one task should have.
TASK_NS = 6_000.0


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A generated kernel: the group's nodes, the kernel and the items of one task."""

    nodes: tuple[str, ...]
    kernel: Kernel
    chunk: int

    @property
    def tasks(self) -> int:
        """How many pieces of work threads share; one runs on the calling thread."""
        return -(-self.kernel.items // max(self.chunk, 1))


@dataclass(frozen=True, slots=True)
class CallStep:
    """A node that is evaluated as a whole."""

    node: Node
    function: Callable[[Sequence[Any]], Sequence[Any]]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The one node."""
        return (self.node.name,)


Step = KernelStep | CallStep


def make_steps(graph: Graph, groups: Sequence[Sequence[str]], threads: int, generic: Graph | None = None) -> list[Step]:
    """Generate the steps of a plan's groups, in order.

    A group without a kernel is evaluated node by node with the operators' NumPy forms.

    Parameters
    ----------
    graph : Graph
        The model for the extents of the run.
    groups : sequence of sequence of str
    threads : int
    generic : Graph, optional
        The model for generic extents: then kernels have the structure that serves all extents.
    """
    laid = paired(generic, graph) if generic is not None and generic is not graph else None
    structure, names = laid if laid is not None else (graph, {})
    program = Program(structure)
    bound = {node.name: node for node in graph.nodes}
    steps: list[Step] = []
    for group in groups:
        positions = tuple(bits(program.mask(list(group))))
        analysis = analyse(program, positions, 64)
        if can_emit(program, analysis) is None:
            kernel = build(program, analysis)
            if names:
                slots = tuple(
                    replace(slot, value=names.get(slot.value, slot.value)) if slot.value and not slot.external else slot
                    for slot in kernel.slots
                )
                kernel = replace(kernel, slots=slots)
            steps.append(KernelStep(tuple(group), kernel, _chunk(kernel, threads)))
            continue
        nodes = [bound[program.members[p].node.name] for p in positions]
        steps += [CallStep(node, _function(node)) for node in nodes]
    return steps


def _chunk(kernel: Kernel, threads: int) -> int:
    if kernel.work_ns < SERIAL_NS or kernel.items <= 1:
        return max(kernel.items, 1)
    tasks = max(threads, min(int(kernel.work_ns / TASK_NS), 16 * threads))
    return max(1, kernel.items // tasks)


def _function(node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if node.op == "Opaque":
        call = node.attr("call")
        return call.function  # type: ignore[no-any-return]
    spec, attrs = OPS[node.op], dict(node.attrs)
    return lambda arrays: (np.asarray(spec.evaluate(arrays, attrs)),)
