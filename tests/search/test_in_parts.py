"""Maps evaluated in the parts of pads and concats: exact, and the same to the checker."""

from __future__ import annotations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.search.assemble import assemble
from fusion_search.search.check import check
from fusion_search.search.methods import METHODS
from fusion_search.testing.graphs import random_partition
from tests.fusion.padded import random_padded
from tests.fusion.programs import graph_of, space_of
from tests.fusion.test_parts import halves, padded
from tests.search.checked_plans import edit_loop, loops_of, rules
from tests.search.test_aliases import everything


@pytest.mark.parametrize("profile", ["nvidia-h100-sxm", "local"])
def test_equals_trying_everything(profile: str) -> None:
    evaluated = 0
    for seed in range(60):
        space = space_of(random_padded(seed, 6), profile)
        if space.n > 8:
            continue
        plan = METHODS["exact"](space, 30.0)
        assert plan.status == "optimal"
        assert plan.cost_as == everything(space)[0]
        assert check(plan.graph, plan) == []
        evaluated += sum(len(space.analysis(space.program.mask(group.nodes)).in_parts) for group in plan.groups)
    assert evaluated > 10


@pytest.mark.parametrize("memory", [{}, {"fast_memory_bytes": 384}, {"fast_memory_bytes": 96}])
def test_the_checker_counts_every_group_alike(memory: dict[str, int]) -> None:
    evaluated = 0
    for seed in range(100):
        space: GroupSpace = space_of(random_padded(seed), **memory)
        masks = random_partition(space, np.random.default_rng(seed))
        evaluated += sum(len(space.analysis(mask).in_parts) for mask in masks)
        plan = assemble(space, masks, method="test")
        assert check(plan.graph, plan) == []
    assert evaluated > 40


def test_what_is_evaluated_in_a_part_waits_nowhere() -> None:
    """The other part comes from a product, whose stage is before the concat's: the map of the live-in still needs no scratch."""
    b = GraphBuilder("product beside a map")
    x = b.input("x", "float32", (64, 32))
    product = b.op("Relu", b.op("MatMul", x, b.constant(np.ones((32, 48), np.float32))))
    b.output("y", b.op("Concat", product, b.op("Tanh", b.input("z", "float32", (64, 96))), axis=1))
    space = space_of(b.build(), fast_memory_bytes=16 * 48 * 4)
    group = (1 << space.n) - 1
    found = space.analysis(group)
    assert [space.program.members[i].spec.name for i in found.in_parts] == ["Tanh"]
    assert not set(found.scratch) & set(found.in_parts)
    assert check(space.program.graph, assemble(space, [group], method="test")) == []


def test_a_loop_that_is_not_the_pad_s_is_found() -> None:
    graph = graph_of(padded)
    plan = fs.search(graph, fs.load_profile("nvidia-h100-sxm"))
    relu, pad = (next(node.name for node in graph.nodes if node.op == op) for op in ("Relu", "Pad"))
    assert [loop.carried[relu] for _, _, loop in loops_of(plan, pad)] == [loop.carried[pad] for _, _, loop in loops_of(plan, pad)]
    lost = edit_loop(plan, pad, lambda loop: type(loop)(loop.extent, {n: at for n, at in loop.carried.items() if n != relu}))
    assert "schedule" in rules(check(graph, lost))
    other = edit_loop(plan, pad, lambda loop: type(loop)(loop.extent, {**loop.carried, relu: (1 - loop.carried[relu][0], 1)}))
    assert "schedule" in rules(check(graph, other))
    alone = edit_loop(plan, pad, lambda loop: type(loop)(loop.extent, {n: at for n, at in loop.carried.items() if n != pad}))
    assert "schedule" in rules(check(graph, alone))


@pytest.mark.parametrize("build", [padded, halves])
def test_one_kernel(build: object) -> None:
    graph = graph_of(build)  # type: ignore[arg-type]
    for profile in ("local", "nvidia-a100-sxm"):
        plan = fs.search(graph, fs.load_profile(profile))
        assert plan.launches == 1
        assert check(graph, plan) == []
