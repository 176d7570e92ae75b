"""Planned memory: scratch shares the arena with values, what is planned is what a run touches, and nothing more from then on."""

from __future__ import annotations

import resource
from dataclasses import replace

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.codegen.buffers import Lifetime, most_alive
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.memory import ALIGN, plan_memory, stride_of, touched
from fusion_search.runtime.steps import KernelStep
from tests.frontends.modeling import random
from tests.runtime.plans import planned


def attention(rows: int = 256, width: int = 256) -> fs.Graph:
    """Products with a softmax between them: kernels with scratch between values of all sizes."""
    b = GraphBuilder("attention")
    x = b.input("x", np.float32, (rows, width))
    for k in range(3):
        w = b.constant(random((width, width), k) / 16)
        scores = b.op("MatMul", x, w)
        e = b.op("Exp", b.op("Sub", scores, b.op("ReduceMax", scores, axes=(1,))))
        x = b.op("Add", x, b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    b.output("y", x)
    return b.build()


@pytest.mark.parametrize("method", ["exact", "unfused"])
def test_scratch_and_values_alive_together_do_not_overlap(method: str) -> None:
    run = CompiledPlan(planned(attention(), method)).planned
    memory, steps = run.memory, run.steps
    used = {name: [k for k, step in enumerate(steps) if name in touched(run.graph, step)] for name in memory.offsets}
    blocks = [(memory.offsets[n], memory.offsets[n] + run.graph.values[n].nbytes, used[n][0], used[n][-1]) for n in used]
    for k, scratch in memory.scratch.items():
        step = steps[k]
        assert isinstance(step, KernelStep)
        assert scratch.stride >= step.kernel.scratch_bytes > 0
        assert scratch.offset % ALIGN == scratch.stride % ALIGN == 0
        slots = min(run.threads, step.tasks)
        blocks.append((scratch.offset, scratch.offset + slots * scratch.stride, k, k))
    assert memory.scratch
    assert all(0 <= start <= stop <= memory.arena_bytes for start, stop, _, _ in blocks)
    for i, (start, stop, first, last) in enumerate(blocks):
        for other_start, other_stop, born, died in blocks[:i]:
            assert stop <= other_start or other_stop <= start or last < born or died < first
    assert memory.peak_bytes == run.peak_bytes == memory.arena_bytes + memory.result_bytes


def test_scratch_is_for_as_many_threads_as_run_at_once() -> None:
    run = CompiledPlan(planned(attention())).planned
    need = [plan_memory(run.graph, run.steps, threads).arena_bytes for threads in (1, 2, 64)]
    assert need[0] < need[1] <= need[2]
    most = max(step.tasks for step in run.steps if isinstance(step, KernelStep))
    assert plan_memory(run.graph, run.steps, most).arena_bytes == need[2]
    alone = [step for step in run.steps if isinstance(step, KernelStep) and step.tasks == 1]
    assert len({plan_memory(run.graph, alone, threads).arena_bytes for threads in (1, 64)}) == 1


def test_no_page_has_scratch_of_two_threads() -> None:
    """What a processor foresees along the scratch of one ends before that of the next; a thread that runs alone needs none."""
    b = GraphBuilder("rows")
    x = b.input("x", np.float32, (4096, 200))
    h = b.op("Exp", x)
    b.output("y", b.op("Mul", b.op("Sub", h, b.op("ReduceMean", h, axes=(1,))), x))
    (step,) = CompiledPlan(planned(b.build())).planned.steps
    assert isinstance(step, KernelStep)
    step = replace(step, kernel=replace(step.kernel, scratch_bytes=800))
    assert step.tasks > 1
    assert 800 + 4096 <= stride_of(step) < 800 + 4096 + ALIGN
    assert stride_of(replace(step, chunk=step.kernel.items)) < 800 + 512


def test_a_run_reuses_every_page() -> None:
    run = CompiledPlan(planned(attention(1024, 512), "unfused"))
    feeds = {"x": random((1024, 512))}
    out = {"y": np.empty((1024, 512), np.float32)}
    pages = run.peak_bytes // resource.getpagesize()
    assert pages > 1000

    def faults(runs: int, **options: object) -> float:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(runs):
            run(feeds, **options)  # type: ignore[arg-type]
        return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / runs

    faults(1)  # how many it takes at first depends on the size of pages
    steady, into_out = min(faults(10) for _ in range(3)), min(faults(10, out=out) for _ in range(3))
    assert steady < pages / 50
    assert into_out < pages / 50


def test_most_alive_counts_what_is_there_at_once() -> None:
    values = [Lifetime("a", 640, 0, 2), Lifetime("b", 1, 2, 3), Lifetime("c", 128, 3, 3), Lifetime("d", 0, 9, 9)]
    assert most_alive(values) == 640 + ALIGN
    assert most_alive([]) == 0
