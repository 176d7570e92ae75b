"""Fuzzing: random graphs under random legal plans, fused against unfused against the reference, in the interpreter or compiled.

``python -m fusion_search.testing.fuzz --graphs 20000 --compiled 1500`` runs as many; each failure is made smaller and written to a
file that the tests replay. Every node of the unfused plan must agree with its reference on the operands it had, and the fused
plan must give the bits of the unfused one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numba
import numpy as np

import costmodels
import hardware_profiles
from fusion_search.codegen import blocks, caches, streaming
from fusion_search.codegen.capability import can_emit
from fusion_search.codegen.lanes import LANES
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.ir.spec import Array
from fusion_search.ir.verify import verify_graph
from fusion_search.runtime import steps
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.agreement import node_error, same_bits, undefined
from fusion_search.testing.cases import Case, save
from fusion_search.testing.graphs import DRAWN, WIDE, random_feeds, random_graph, random_partition, special_feeds
from fusion_search.testing.interpreter import Interpreter
from fusion_search.testing.smaller import smaller

#: Larger graphs are left out: the interpreter would take too long.
MOST_ELEMENTS = 1500
#: How many extents each structure of the compiled part is run with.
EXTENTS_EACH = 10
#: Graphs between two lines of progress.
PROGRESS = 50
#: Elements of the blocks that cases are run with; with the second of them as if everything fitted the caches.
_ELEMENTS = (16, 96, 4096)
_CACHED = _ELEMENTS[1]
_HEAVY = ("Conv", "MaxPool", "SumPool", "MatMul")


@contextmanager
def small_blocks(elements: int) -> Iterator[None]:
    """Let kernels have blocks so small that small tensors have several, with a ragged last one, and several tasks.

    Most of them find no caches as well, so that whatever they write passes these.
    """
    chosen = {
        (blocks, "ITEM_ELEMENTS"): elements,
        (blocks, "TURN"): 20,
        (blocks, "TURN_LONG"): 36,
        (blocks, "PANEL_ROWS"): 8,
        (blocks, "PANEL_COLUMNS"): 24,
        (blocks, "BLOCK_BYTES"): 2000,
        (blocks, "CHUNK_TERMS"): 3,
        (blocks, "PLANE_ELEMENTS"): elements,
        (caches, "last_level_bytes"): lambda: 1 << 40 if elements == _CACHED else 0,
        (streaming, "LEAST"): LANES,
        (steps, "SERIAL_NS"): 0.0,
        (steps, "TASK_NS"): 200.0,
    }
    before = {where: getattr(*where) for where in chosen}
    try:
        for (module, name), value in chosen.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


@cache
def _machine() -> hardware_profiles.Profile:
    return hardware_profiles.load("local")


def space_of(graph: Graph) -> GroupSpace:
    """The groups that can be emitted."""
    return GroupSpace(Program(graph), _machine(), costmodels.model("weighted"), can_emit)


def draw(seed: int, extents: int = 0) -> Case | None:
    """Draw a graph, a plan and inputs; None when the graph is too large for the interpreter."""
    rng = np.random.default_rng([seed, 9])
    ops = None
    if rng.random() < 0.4:  # few operators meet each other more often; windows and products have kernels of their own
        ops = [str(name) for name in rng.choice(sorted({**DRAWN, **WIDE}), 6, replace=False)]
        ops += [str(name) for name in rng.choice(_HEAVY, 2, replace=False)]
    graph = random_graph(seed, size=int(rng.integers(2, 9)), ops=ops, wide=bool(rng.random() < 0.9), extents=extents)
    if not graph.nodes or max(value.size for value in graph.values.values()) > MOST_ELEMENTS:
        return None
    verify_graph(graph)
    space = space_of(graph)
    groups = tuple(space.program.names(mask) for mask in random_partition(space, rng))
    special = rng.random() < 0.6
    feeds = special_feeds(graph, seed + extents) if special else random_feeds(graph, seed + extents)
    return Case(graph, groups, feeds, int(rng.choice(_ELEMENTS)), f"seed {seed}, extents {extents}")


def check(case: Case, *, compiled: bool = False) -> list[str]:
    """Run a case unfused and fused; say what is wrong, at most one thing for each node and output.

    Parameters
    ----------
    case : Case
    compiled : bool
        Compile the kernels, and run the plan with one thread and with two; else interpret them.
    """
    graph, before = case.graph, {name: array.copy() for name, array in case.feeds.items()}
    groups = _emitted(case)
    alone = [(node.name,) for node in graph.nodes]
    try:
        with small_blocks(case.elements):
            single = _compiled(graph, alone, case.feeds, 1) if compiled else _interpreted(graph, alone, case.feeds, case.elements)
            fused = [_outputs(graph, groups, case.feeds, compiled, threads) for threads in ((1, 2) if compiled else (1,))]
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is a finding
        return [f"{type(error).__name__}: {error}"]
    values = {**graph.constants, **case.feeds, **single}
    found, open_ = [], set()
    for node in graph.nodes:
        arrays = [np.reshape(values[graph.base(name)], graph.values[name].shape) for name in node.inputs]
        if message := node_error(node, arrays, values[node.output]):
            found.append(f"{node.name}: {message}")
        if undefined(node, arrays) is not None or any(graph.base(name) in open_ for name in node.inputs):
            open_.add(node.output)
    for results in fused:
        for value in graph.outputs:
            base = graph.base(value.name)
            if base not in open_ and not same_bits(results[value.name], np.reshape(values[base], value.shape)):
                found.append(f"{value.name}: the fused plan gives other bits than the unfused one")
    if len(fused) > 1:
        found += [f"{name}: other bits with two threads" for name, result in fused[0].items() if not same_bits(result, fused[1][name])]
    found += [f"input {name} was written" for name, feed in case.feeds.items() if feed.tobytes() != before[name].tobytes()]
    return found


def _emitted(case: Case) -> list[tuple[str, ...]]:
    """The plan's groups; one that the generator refuses (a file may be older than the rule that does) falls apart."""
    space = space_of(case.graph)
    refused = [bool(space.reasons(space.program.mask(list(group)))) for group in case.groups]
    return [part for group, no in zip(case.groups, refused, strict=True) for part in ([(name,) for name in group] if no else [group])]


def _interpreted(graph: Graph, groups: Sequence[Sequence[str]], feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    return Interpreter(graph, groups)(feeds, seed)


def _compiled(graph: Graph, groups: Sequence[Sequence[str]], feeds: dict[str, Array], threads: int) -> dict[str, Array]:
    """Compile a plan with every node's result as an output."""
    every = replace(graph, outputs=tuple(graph.values[node.output] for node in graph.nodes))
    return _run(every, groups, feeds, threads)


def _run(graph: Graph, groups: Sequence[Sequence[str]], feeds: dict[str, Array], threads: int) -> dict[str, Array]:
    usual = numba.get_num_threads()
    try:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        return BoundPlan(graph, groups)(feeds)
    finally:
        numba.set_num_threads(usual)


def _outputs(graph: Graph, groups: Sequence[Sequence[str]], feeds: dict[str, Array], compiled: bool, threads: int) -> dict[str, Array]:
    if compiled:
        return _run(graph, groups, feeds, threads)
    interpreter = Interpreter(graph, groups)
    return interpreter.outputs(interpreter(feeds))


def fuzz(
    graphs: int, seed: int, *, compiled: int = 0, seconds: float = float("inf"), folder: Path | None = None, progress: bool = False
) -> tuple[int, int, list[str]]:
    """Run random cases until there are enough of them, or the time is over.

    Parameters
    ----------
    graphs, compiled : int
        Cases to interpret and to compile.
    seed : int
        Of the first case.
    seconds : float
    folder : path, optional
        Where failures are written, made smaller.
    progress : bool
        Say on stderr how far it is.

    Returns
    -------
    interpreted, compiled : int
        How many ran.
    failures : list of str
    """
    end = time.monotonic() + seconds
    done, failures = [0, 0], list[str]()
    for part, (wanted, each) in enumerate(((graphs, 1), (compiled, EXTENTS_EACH))):
        k = 0
        while done[part] < wanted and time.monotonic() < end:
            case = draw(seed + k // each, k % each)
            k += 1
            if case is None:
                continue
            done[part] += 1
            if progress and done[part] % PROGRESS == 0:
                sys.stderr.write(f"{done[part]} of {wanted} {'compiled' if part else 'interpreted'}, {len(failures)} failures\n")
            if found := check(case, compiled=bool(part)):
                failures.append(f"{case.note}{', compiled' if part else ''}: {'; '.join(found)}")
                if folder is not None:
                    save(smaller(case, lambda trial, part=part: check(trial, compiled=bool(part))), folder, compiled=bool(part))  # type: ignore[misc]
    return done[0], done[1], failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit status says whether anything was found."""
    parser = argparse.ArgumentParser(prog="fusion_search.testing.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=1000, help="graphs to interpret")
    parser.add_argument("--compiled", type=int, default=0, help="graphs to compile")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--folder", type=Path, default=None, help="where failures are written as files")
    options = parser.parse_args(arguments)
    interpreted, compiled, failures = fuzz(
        options.graphs, options.seed, compiled=options.compiled, seconds=options.seconds, folder=options.folder, progress=True
    )
    for text in failures:
        sys.stdout.write(text + "\n")
    sys.stdout.write(f"{interpreted} graphs interpreted, {compiled} compiled, {len(failures)} failures\n")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
