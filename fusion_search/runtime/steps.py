"""A plan as steps: a kernel for each group that can be emitted, a call for the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fusion_search.codegen.capability import can_emit
from fusion_search.codegen.extents import Extent, actual, paired
from fusion_search.codegen.kernel import Kernel, build
from fusion_search.fusion.analysis import Analysis, analyse, live_outs
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


@dataclass(frozen=True, slots=True)
class AliasStep:
    """A concat whose parts were written where they belong: nothing is left to do."""

    nodes: tuple[str, ...]


Step = KernelStep | CallStep | AliasStep


@dataclass(frozen=True, slots=True)
class Choice:
    """How a kernel is to run, in place of what the generator and the runtime choose.

    Attributes
    ----------
    tiles : mapping of int to int
        By the kernel's number of each loop that is free.
    chunk : int
        Items of one task; 0 leaves that to the runtime.
    direct : bool
        Compute products in the place of what is made from them.
    """

    tiles: Mapping[int, int]
    chunk: int
    direct: bool = False


@dataclass(frozen=True)
class Made:
    """A group's kernel as the generator makes it, and what it was made from.

    Attributes
    ----------
    nodes : tuple of str
        In canonical order.
    program : Program
        Of the graph whose extents decide the kernel's structure.
    mask : int
        The group's positions in it.
    kernel : Kernel
    names : mapping of str to str
        What the tensors of that graph are called in the graph that runs.
    """

    nodes: tuple[str, ...]
    program: Program
    mask: int
    kernel: Kernel
    names: Mapping[str, str]

    @cached_property
    def analysis(self) -> Analysis:
        """The group's loops; a group that takes the kernel of an equal one is analysed only when they are asked for."""
        return analyse(self.program, self.mask, 64)

    def step(self, threads: int, choice: Choice | None = None) -> KernelStep:
        """Return the step as it runs by itself, or by a choice."""
        kernel = build(self.program, self.analysis, choice.tiles, threads, choice.direct) if choice else self.kernel
        chunk = choice.chunk if choice and choice.chunk else choose_chunk(kernel, threads)
        return KernelStep(self.nodes, renamed(kernel, self.names), chunk)


Choose = Callable[[Made], Choice | None]


def make_steps(
    graph: Graph,
    groups: Sequence[RunGroup] | Sequence[Sequence[str]],
    threads: int,
    generic: Graph | None = None,
    choose: Choose | None = None,
    free: frozenset[str] = frozenset(),
) -> list[Step]:
    """Generate the steps of a plan's groups, in order.

    A group without a kernel is evaluated node by node with the operators' NumPy forms. Groups of equal structure and extents are
    generated once.

    Parameters
    ----------
    graph : Graph
        The model for the extents of the run.
    groups : sequence of RunGroup, or of sequence of str
        Given by node names, each group stores what groups that do not compute it need.
    threads : int
    generic : Graph, optional
        The model for generic extents: then kernels have the structure that serves all extents.
    choose : callable, optional
        Says how a kernel is to run; None leaves it as it is.
    free : frozenset of str
        Nodes that need no step when they are alone (`runtime.aliases`).
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
    known: dict[Hashable, Made | None] = {}
    for group, mask in zip(nodes_of, masks, strict=True):
        if len(group) == 1 and group[0] in free:
            steps.append(AliasStep(group))
            continue
        made = _made(program, mask, group, names, known, threads)
        if made is None:
            nodes = [bound[program.members[p].node.name] for p in program.distinct(mask)]
            steps += [CallStep(node, _function(node)) for node in nodes]
            continue
        steps.append(made.step(threads, choose(made) if choose else None))
    return steps


def _made(
    program: Program, mask: int, nodes: tuple[str, ...], names: Mapping[str, str], known: dict[Hashable, Made | None], threads: int
) -> Made | None:
    """Generate a group's kernel, or take that of an equal group with this one's tensors in its argument table."""
    key, values = _structure(program, mask)
    if key in known:
        made = known[key]
        if made is None:
            return None
        theirs = _structure(program, made.mask)[1]
        return Made(nodes, program, mask, renamed(made.kernel, dict(zip(theirs, values, strict=True))), names)
    analysis = analyse(program, mask, 64)
    emitted = can_emit(program, analysis) is None
    known[key] = Made(nodes, program, mask, build(program, analysis, None, threads), names) if emitted else None
    return known[key]


def _structure(program: Program, mask: int) -> tuple[Hashable, list[str]]:
    """What a kernel depends on, and the tensors of a group in the order in which that mentions them."""
    seen: dict[int, int] = {}
    parts: list[Hashable] = []
    positions = program.distinct(mask)
    leaving = {value for _, value in live_outs(program, positions, mask)}
    for p in positions:
        member = program.members[p]
        # equal signatures say that generic extents are equal, not that those of the run are
        parts += [member.signature, tuple(map(actual, member.domain.extents)), _actual(member.node.attrs)]
        for operand in member.operands:
            shape = tuple(map(actual, operand.base_shape))
            inside = operand.producer >= 0 and bool(mask >> operand.producer & 1)
            # constants are packed
            parts += [seen.setdefault(operand.base, len(seen)), inside, shape, program.value_name[operand.base] in program.graph.constants]
        for value in member.outputs:
            parts += [seen.setdefault(value, len(seen)), value in leaving]
    return tuple(parts), [program.value_name[value] for value in seen]


def _actual(attribute: Any) -> Any:
    if isinstance(attribute, tuple):
        return tuple(map(_actual, attribute))
    return attribute.actual if isinstance(attribute, Extent) else None


def renamed(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """Return a kernel with other tensors in its argument table."""
    if not names:
        return kernel
    slots = (replace(slot, value=names.get(slot.value, slot.value)) if slot.value and not slot.external else slot for slot in kernel.slots)
    return replace(kernel, slots=tuple(slots))


def choose_chunk(kernel: Kernel, threads: int) -> int:
    """Choose the items of one task: all of them where entering a parallel region would cost more than it saves."""
    if kernel.work_ns < SERIAL_NS or kernel.items <= 1:
        return max(kernel.items, 1)
    tasks = max(threads, min(int(kernel.work_ns / TASK_NS), 16 * threads))
    most = max(1, kernel.items // tasks)

    def longest(chunk: int) -> int:
        """Items of the thread that has most."""
        return -(-kernel.items // chunk // threads) * chunk

    return min(range(most, (most - 1) // 2, -1), key=longest)


def _function(node: Node) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if node.op == "Opaque":
        function: Callable[[Sequence[Any]], Sequence[Any]] = node.attr("call").function
        return function
    spec, attrs = OPS[node.op], dict(node.attrs)
    return lambda arrays: (np.asarray(spec.evaluate(arrays, attrs)),)
