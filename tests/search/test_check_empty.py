"""Values without elements: nothing is read for them, and plans of them are sound."""

from __future__ import annotations

import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.search.check import check
from hardware_profiles import load
from tests.search.checked_plans import f32, plan_of, space_of


def test_empty_values() -> None:
    b = GraphBuilder("empty")
    x = b.input("x", f32, (0, 4, 6))
    y = b.op("Exp", b.reshape(b.op("Relu", x), (0, 24)))
    b.output("y", b.op("ReduceSum", b.op("Concat", y, y, axis=1), axes=(1,)))
    graph = b.build()
    space = space_of(graph)
    assert [str(v) for v in check(graph, plan_of(space, [1 << p for p in range(space.n)]))] == []
    assert [str(v) for v in check(graph, plan_of(space, [(1 << space.n) - 1]))] == []


def test_a_node_without_points_reads_nothing() -> None:
    b = GraphBuilder("none")
    b.output("y", b.op("Expand", b.input("x", f32, (1, 16, 1)), shape=(0, 2, 16, 8)))
    graph = b.build()
    space = space_of(graph)
    assert check(graph, plan_of(space, [1])) == []


@pytest.mark.parametrize("shape", [(0, 16), (3, 0, 4), (4, 0)])
def test_plans_of_tensors_without_elements(shape: tuple[int, ...]) -> None:
    b = GraphBuilder("empty")
    x = b.op("Exp", b.input("x", np.float32, shape))
    y = b.op("Transpose", x, perm=tuple(reversed(range(len(shape)))))
    b.output("y", b.op("Tanh", y))
    b.output("z", b.op("Tanh", b.op("ReduceSum", x, axes=(1,))))
    graph = b.build()
    space = space_of(graph, load("local"))
    for plan in (plan_of(space, [1 << k for k in range(space.n)]), plan_of(space, [(1 << space.n) - 1])):
        assert [str(v) for v in check(graph, plan)] == []


@pytest.mark.parametrize("extents", [((4, 1), (4, 0)), ((1,), (0, 3)), ((0, 1), (1, 5))])
def test_nothing_is_read_for_a_result_without_elements(extents: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    from fusion_search import api

    b = GraphBuilder("empty")
    x, y = (b.input(name, f32, shape) for name, shape in zip("xy", extents, strict=True))
    b.output("z", b.op("Add", x, y))
    graph = b.build()
    assert api.check(graph, api.search(graph, api.load_profile("local"))) == []


def test_a_scatter_of_no_updates_still_copies() -> None:
    from fusion_search import api

    b = GraphBuilder("copy")
    x, u = b.input("x", f32, (3, 6, 40)), b.input("u", f32, (3, 0, 40))
    b.output("y", b.op("Scatter", x, b.constant(np.zeros((3, 0, 1), np.int64)), u, reduction="none"))
    graph = b.build()
    plan = api.search(graph, api.load_profile("local"))
    assert api.check(graph, plan) == []
    assert plan.bytes_moved >= 2 * 4 * 3 * 6 * 40
