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
from fusion_search.fusion.copies import place
from fusion_search.fusion.program import Program
from fusion_search.ir.graph import Graph, Node
from fusion_search.ir.ops import OPS
from fusion_search.runtime.refit import RunGroup, recomputed

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


def make_steps(
    graph: Graph, groups: Sequence[RunGroup] | Sequence[Sequence[str]], threads: int, generic: Graph | None = None
) -> list[Step]:
    """Generate the steps of a plan's groups, in order.

    A group without a kernel is evaluated node by node with the operators' NumPy forms.

    Parameters
    ----------
    graph : Graph
        The model for the extents of the run.
    groups : sequence of RunGroup, or of sequence of str
        Given by node names, each group stores what groups that do not compute it need.
    threads : int
    generic : Graph, optional
        The model for generic extents: then kernels have the structure that serves all extents.
    """
    laid = paired(generic, graph) if generic is not None and generic is not graph else None
    structure, names = laid if laid is not None else (graph, {})
    nodes_of = [group.nodes if isinstance(group, RunGroup) else tuple(group) for group in groups]
    stores = [group.stores for group in groups if isinstance(group, RunGroup)]
    program = Program(structure, recomputed(nodes_of))
    masks = place(program, nodes_of, stores if len(stores) == len(nodes_of) else None)
    assert not isinstance(masks, frozenset), "the program has copies of what several groups compute"
    bound = {node.name: node for node in graph.nodes}
    steps: list[Step] = []
    for names_of_nodes, mask in zip(nodes_of, masks, strict=True):
        analysis = analyse(program, mask, 64)
        if can_emit(program, analysis) is None:
            kernel = build(program, analysis)
            if names:
                slots = tuple(
                    replace(slot, value=names.get(slot.value, slot.value)) if slot.value and not slot.external else slot
                    for slot in kernel.slots
                )
                kernel = replace(kernel, slots=slots)
            steps.append(KernelStep(names_of_nodes, kernel, _chunk(kernel, threads)))
            continue
        nodes = [bound[program.members[p].node.name] for p in analysis.positions]
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
