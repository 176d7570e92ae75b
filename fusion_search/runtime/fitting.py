"""Kernels that keep a plan's memory within what its nodes would need one by one.

Fusing saves the values that would have passed between kernels, but a group over several products holds blocks of them for each thread.
Where these make the plan's peak higher than that of a plan that fuses nothing, the blocks of the steps at the peak are cut, or
computed in the place of the result that is made from them. Neither the plan, nor its price, nor a bit of its results changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusion_search.codegen.access import library_kernel
from fusion_search.codegen.buffers import Lifetime, alive_by_step
from fusion_search.codegen.capability import can_emit
from fusion_search.codegen.kernel import build
from fusion_search.fusion.analysis import analyse
from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.runtime.memory import MemoryPlan, scratch_of
from fusion_search.runtime.steps import Choice, KernelStep, Made, Step, choose_chunk

#: Blocks are halved this often at most; smaller ones are slow.
HALVINGS = 2
#: More scratch than any one product or convolution needs for each thread.
MOST_SCRATCH = 1 << 20


def fitted(graph: Graph, steps: Sequence[Step], memory: MemoryPlan, made: Mapping[tuple[str, ...], Made], threads: int) -> list[Step]:
    """Return steps that need no more memory at once than the nodes one by one, as far as smaller blocks bring that about.

    Parameters
    ----------
    graph : Graph
    steps : sequence of Step
    memory : MemoryPlan
        Of these steps.
    made : mapping of tuple of str to Made
        By their nodes, the kernels of the steps that may be cut otherwise.
    threads : int
    """
    fitting = list(steps)
    sized = [k for k, step in enumerate(steps) if scratch_of(step, threads) and step.nodes in made]
    if not sized:
        return fitting
    one = made[steps[sized[0]].nodes]
    alive = _one_by_one(graph, one)
    over = [k for k in sized if memory.alive[k] > max(alive, default=0)]
    if not over:
        return fitting
    limit = max(a + b for a, b in zip(alive, _library_scratch(one, alive, threads), strict=True))
    for k in over:
        step = steps[k]
        if isinstance(step, KernelStep) and memory.alive[k] > limit:
            fitting[k] = _cut(made[step.nodes], step, threads, limit - memory.alive[k] + scratch_of(step, threads))
    return fitting


def _cut(made: Made, step: KernelStep, threads: int, room: int) -> KernelStep:
    """Return a step whose scratch fits: by smaller blocks, or with products in the place of what is made from them, or by both."""
    direct = made.step(threads, Choice(_tiles(step), 0, True))
    for start in (step, direct) if scratch_of(direct, threads) < scratch_of(step, threads) else (step,):
        found = _halved(made, start, threads, room, start is direct)
        if scratch_of(found, threads) <= room:
            return found
    # blocks that are too small to be fast would not help
    return direct if scratch_of(direct, threads) < scratch_of(step, threads) else step


def _halved(made: Made, step: KernelStep, threads: int, room: int, direct: bool) -> KernelStep:
    """Halve the blocks of a step until its scratch fits or gets no smaller."""
    for _ in range(HALVINGS):
        if scratch_of(step, threads) <= room:
            break
        smaller = [
            made.step(threads, Choice(_tiles(step) | {block.loop: -(-block.tile // 2)}, 0, direct))
            for block in step.kernel.blocks
            if block.free and block.tile > 1 and _by_all(made, block.atoms)
        ]
        least = min(smaller, key=lambda other: scratch_of(other, threads), default=step)
        if scratch_of(least, threads) >= scratch_of(step, threads):
            break
        step = least
    return step


def _tiles(step: KernelStep) -> dict[int, int]:
    return {block.loop: block.tile for block in step.kernel.blocks if block.free}


def _by_all(made: Made, atoms: Sequence[int]) -> bool:
    """Whether every member carries a loop; one that does not is computed again for each of its blocks."""
    carried = [{atom for loop in loops for atom in loop} for loops in made.analysis.loops.loops]
    return all(mine.issuperset(atoms) for mine in carried)


# ---------------------------------------------------------------------- the nodes one by one


def _order(made: Made) -> list[int]:
    """Positions of the program in canonical order, a node that several groups compute once."""
    first: dict[str, int] = {}
    for p, member in enumerate(made.program.members):
        first.setdefault(member.node.name, p)
    return list(first.values())


def _one_by_one(graph: Graph, made: Made) -> list[int]:
    """Bytes of passing values that are alive at each node, when every node is a step of its own."""
    program = made.program
    born: dict[str, int] = {}
    died: dict[str, int] = {}
    order = _order(made)
    for k, p in enumerate(order):
        member = program.members[p]
        for value in (*(operand.base for operand in member.operands), *member.outputs):
            name = program.value_name[value]
            name = made.names.get(name, name)
            born.setdefault(name, k)
            died[name] = k
    given = {value.name for value in graph.inputs} | set(graph.constants) | set(graph.output_bases)
    passing = [name for name in born if name not in given and graph.values[name].dtype != RUNTIME]
    return alive_by_step([Lifetime(name, graph.values[name].nbytes, born[name], died[name]) for name in passing], len(order))


def _library_scratch(made: Made, alive: Sequence[int], threads: int) -> list[int]:
    """Scratch of each node when it is a step of its own; only where it may matter for the peak."""
    program, least = made.program, max(alive) - MOST_SCRATCH * threads
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    found = []
    for p, values in zip(_order(made), alive, strict=True):
        member = program.members[p]
        if values < least or library_kernel(member) not in ("product", "tile"):
            found.append(0)
            continue
        key = member.signature, tuple(n for operand in member.operands for n in operand.shape)
        if key not in known:
            analysis = analyse(program, 1 << p, 64)
            kernel = build(program, analysis, None, threads) if can_emit(program, analysis) is None else None
            known[key] = scratch_of(KernelStep((), kernel, choose_chunk(kernel, threads)), threads) if kernel else 0
        found.append(known[key])
    return found
