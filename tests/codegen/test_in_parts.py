"""Kernels that evaluate maps in the parts of pads and concats: the same bits as one kernel for each node."""

from __future__ import annotations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.codegen.capability import can_emit
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.fuzz import small_blocks
from fusion_search.testing.graphs import random_feeds, random_partition
from fusion_search.testing.interpreter import Interpreter
from tests.frontends.modeling import info, model, node
from tests.fusion.padded import random_padded
from tests.fusion.programs import graph_of, space_of
from tests.fusion.test_parts import F32, halves, padded, turned


def drawn(seed: int) -> tuple[Graph, list[tuple[str, ...]], int]:
    graph = random_padded(seed)
    space = space_of(graph, "local", can_emit)
    masks = random_partition(space, np.random.default_rng(seed))
    return graph, [space.program.names(mask) for mask in masks], sum(len(space.analysis(mask).in_parts) for mask in masks)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in b)


@pytest.mark.parametrize("elements", [16, 4096])
def test_random_programs_with_every_access_checked(elements: int) -> None:
    evaluated = 0
    for seed in range(60):
        graph, groups, count = drawn(seed)
        evaluated += count
        feeds = random_feeds(graph, seed)
        with small_blocks(elements):
            fused, single = Interpreter(graph, groups), Interpreter(graph, [(n.name,) for n in graph.nodes])
            assert same(fused.outputs(fused(feeds)), single.outputs(single(feeds))), f"seed {seed}"
    assert evaluated > 20


def test_compiled() -> None:
    for seed in [seed for seed in range(60) if drawn(seed)[2]][:12]:
        graph, groups, _ = drawn(seed)
        feeds = random_feeds(graph, seed)
        assert same(BoundPlan(graph, groups)(feeds), BoundPlan(graph, [(n.name,) for n in graph.nodes])(feeds))


@pytest.mark.parametrize("build", [padded, halves, turned])
def test_large(build: object) -> None:
    graph = graph_of(build)  # type: ignore[arg-type]
    feeds = random_feeds(graph, 0)
    (found,), (wanted,) = BoundPlan(graph, [tuple(n.name for n in graph.nodes)])(feeds).values(), evaluate(graph, feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_one_kernel_for_every_extent() -> None:
    nodes = [
        node("Slice", ["x", "one", "end", "axes"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Pad", ["r", "pads"], ["p"]),
        node("Tanh", ["p"], ["y"]),
    ]
    constants = {"one": np.array([1]), "end": np.array([1 << 40]), "axes": np.array([1]), "pads": np.array([1, 1, 0, 1])}
    graph = fs.load(model(nodes, [info("x", ["n", "m"])], constants=constants), dims={"n": 4, "m": 6})
    run = fs.compile(fs.search(graph, fs.load_profile("local")))
    before = run.compilations
    for n, m in ((1, 2), (9, 300), (64, 7)):
        x = np.random.default_rng(n).standard_normal((n, m)).astype(F32)
        wanted = np.tanh(np.pad(np.maximum(x[:, 1:], 0), ((1, 0), (1, 1))))
        np.testing.assert_allclose(run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
    assert run.compilations == before
