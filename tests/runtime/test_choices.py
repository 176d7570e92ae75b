"""Blocks and tasks chosen from outside: any sizes give the same results, from the same kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fusion_search.codegen.rt import loader
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import Choice, Choose, KernelStep, Made, choose_chunk, make_steps
from fusion_search.testing.graphs import random_feeds, random_graph, random_partition
from tests.codegen.agree import differences, space_of
from tests.codegen.test_forms import CASES, built
from tests.frontends.modeling import random


def chance(seed: int, seen: list[int]) -> Choose:
    """Choose tiles and tasks at random; count the tiles that are not the generator's."""
    rng = np.random.default_rng(seed)

    def choose(made: Made) -> Choice:
        tiles = {b.loop: int(rng.integers(1, b.extent + 1)) for b in made.kernel.blocks if b.free and b.extent}
        seen.append(sum(tiles.get(b.loop, b.tile) != b.tile for b in made.kernel.blocks))
        return Choice(tiles, int(rng.integers(1, 40)))

    return choose


def agrees(graph: Graph, groups: list[tuple[str, ...]], seed: int) -> int:
    """Compare random choices with the reference, and bit by bit with the generator's own; return how many tiles were others."""
    feeds = random_feeds(graph, seed)
    own, seen = BoundPlan(graph, groups), list[int]()
    want = own(feeds)
    heavy = any(node.op in ("MatMul", "Conv") or "Pool" in node.op for node in graph.nodes)
    for k in range(3):
        got = BoundPlan(graph, groups, choose=chance(seed + k, seen))(feeds)
        assert differences(graph, feeds, got) == []
        if not heavy:
            assert {name: array.tobytes() for name, array in got.items()} == {name: array.tobytes() for name, array in want.items()}
    return sum(seen)


def test_any_blocks_give_the_same_results_in_every_form() -> None:
    moved = {}
    for name in CASES:
        graph = built(name)
        space = space_of(graph)
        whole = [node.name for node in graph.nodes]
        together = not space.reasons(space.program.mask(whole))
        groups = [space.program.names(space.program.mask(whole))] if together else [(node,) for node in whole]
        moved[name] = agrees(graph, groups, len(moved))
    assert sum(count > 0 for count in moved.values()) > len(moved) // 2


def test_any_blocks_give_the_same_results_on_random_plans() -> None:
    moved = 0
    for k in range(20):
        graph = random_graph(500 + k % 5, size=6, extents=k)
        space = space_of(graph)
        moved += agrees(graph, [space.program.names(mask) for mask in random_partition(space, np.random.default_rng(k))], k)
    assert moved > 40


def layers(count: int) -> Graph:
    b = GraphBuilder("layers")
    x = b.input("x", np.float32, (32, 48))
    for k in range(count):
        h = b.op("MatMul", x, b.constant(random((48, 48), k) / 16))  # errors die out from layer to layer
        x = b.op("Tanh", b.op("Add", x, h))
    b.output("y", x)
    return b.build()


def test_equal_groups_are_generated_once_and_read_their_own_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion_search.runtime import steps

    built_kernels = []
    build = steps.build
    monkeypatch.setattr(steps, "build", lambda *args: built_kernels.append(args) or build(*args))
    graph = layers(12)
    groups = [[f"MatMul_{3 * k}", f"Add_{3 * k + 1}", f"Tanh_{3 * k + 2}"] for k in range(12)]
    made = make_steps(graph, groups, 2)
    assert len(built_kernels) == 1
    kernels = [step.kernel for step in made if isinstance(step, KernelStep)]
    assert len({kernel.source for kernel in kernels}) == 1
    assert len({tuple(slot.value for slot in kernel.slots if slot.value) for kernel in kernels}) == 12
    feeds = random_feeds(graph, 1)
    assert differences(graph, feeds, BoundPlan(graph, groups)(feeds)) == []


def test_other_blocks_need_no_other_kernel() -> None:
    graph = layers(1)
    groups = [[node.name for node in graph.nodes]]
    BoundPlan(graph, groups)
    before = loader.stats().files
    seen: list[int] = []
    for seed in range(6):
        BoundPlan(graph, groups, choose=chance(seed, seen))
    assert sum(seen) > 0
    assert loader.stats().files == before


def test_blocks_say_what_an_item_is() -> None:
    graph = layers(1)
    (step,) = make_steps(graph, [[node.name for node in graph.nodes]], 2)
    assert isinstance(step, KernelStep)
    kernel = step.kernel
    items = 1
    for block in kernel.blocks:
        items *= -(-block.extent // block.tile)
    assert items == kernel.items
    assert {block.extent for block in kernel.blocks} == {32, 48}
    assert choose_chunk(kernel, 2) == step.chunk


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_no_thread_has_one_task_more_than_it_need_have(threads: int) -> None:
    """66 items, two a task, are 33 tasks: one of two threads had 34 items."""
    (step,) = make_steps(layers(1), [[node.name for node in layers(1).nodes]], 2)
    assert isinstance(step, KernelStep)
    for items in range(1, 3000, 7):
        chunk = choose_chunk(replace(step.kernel, items=items, work_ns=1e9), threads)
        most = -(-items // chunk // threads) * chunk
        assert most <= 1.025 * -(-items // threads), (items, chunk)
        assert -(-items // chunk) <= 64 * threads
