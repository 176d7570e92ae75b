"""Scatters as kernels: bit-equal to the operator's definition, compiled and in the checked build, for every thread count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec.structs
import numba
import numpy as np
import pytest

import costmodels
from fusion_search import api
from fusion_search.errors import FeedError
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime import steps
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.steps import CallStep
from fusion_search.search.plan import OuterLoop, Tile
from fusion_search.testing.interpreter import interpret

Array = np.ndarray[Any, Any]
#: A, N, M, B, and whether the indices differ along A and along B.
SHAPES = [
    (2, 5, 4, 3, True, True),
    (2, 5, 4, 3, False, False),
    (1, 7, 9, 1, True, True),
    (3, 4, 6, 700, True, False),
    (2, 1, 3, 2, False, True),
    (1, 1, 1, 1, True, True),
    (3, 6, 0, 2, True, True),
    (0, 3, 2, 2, True, True),
]


def scatter(shape: tuple[int, int, int, int, bool, bool], dtype: Any, reduction: str, seed: int = 0) -> tuple[Graph, dict[str, Array]]:
    a, n, m, b, along_a, along_b = shape
    builder = GraphBuilder("scatter")
    rng = np.random.default_rng([seed, a, n, m, b])
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e30]) if np.dtype(dtype).kind == "f" else np.zeros(1)

    def draw(shape: tuple[int, ...]) -> Array:
        x = rng.integers(0, 5, shape).astype(dtype)
        return np.where(rng.random(shape) < 0.1, rng.choice(special, shape), x).astype(dtype) if x.size else x

    places = (a if along_a else 1, m, b if along_b else 1)
    feeds = {"x": draw((a, n, b)), "i": rng.integers(-n, n, places), "u": draw((a, m, b))}
    names = [builder.input(name, array.dtype, array.shape) for name, array in feeds.items()]
    builder.output("y", builder.op("Scatter", *names, reduction=reduction))
    return builder.build(), feeds


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [
        *((reduction, np.float32) for reduction in ("none", "add", "mul", "max", "min")),
        *(("none", np.bool_), ("add", np.float16), ("mul", np.int64), ("min", np.uint8)),
    ],
)
def test_updates_meet_in_their_order(reduction: str, dtype: Any) -> None:
    for shape in SHAPES:
        graph, feeds = scatter(shape, dtype, reduction)
        want = evaluate(graph, feeds)["y"]
        plan = api.search(graph, api.load_profile("local"))
        assert api.check(graph, plan) == []
        run = CompiledPlan(plan)
        assert not any(isinstance(step, CallStep) for step in run.planned.steps)
        np.testing.assert_array_equal(run(feeds)["y"], want)
        if shape[3] < 100:
            np.testing.assert_array_equal(interpret(graph, [[node.name] for node in graph.nodes], feeds)["y"], want)


def test_the_same_bits_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, feeds = scatter((6, 9, 400, 40, True, False), np.float32, "add", seed=3)
    want = CompiledPlan(api.search(graph, api.load_profile("local")))(feeds)["y"]
    monkeypatch.setattr(steps, "SERIAL_NS", 0.0)
    monkeypatch.setattr(steps, "TASK_NS", 200.0)
    threads = numba.get_num_threads()
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    try:
        got = CompiledPlan(api.search(graph, api.load_profile("local")))(feeds)["y"]
    finally:
        numba.set_num_threads(threads)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("place", [5, -6, 2**40, -(2**62)])
def test_a_place_outside_is_an_error(place: int) -> None:
    graph, feeds = scatter((2, 5, 4, 3, True, True), np.float32, "none")
    feeds["i"][1, 2, 0] = place
    with pytest.raises(FeedError, match="an index is outside its tensor"):
        CompiledPlan(api.search(graph, api.load_profile("local")))(feeds)


def test_nothing_shares_a_kernel_with_a_scatter() -> None:
    builder = GraphBuilder("neighbours")
    x, u = (builder.input(name, np.float32, (4, 8, 16)) for name in "xu")
    i = builder.input("i", np.int64, (4, 8, 1))
    put = builder.op("Scatter", builder.op("Relu", x), i, u, reduction="add")
    builder.output("y", builder.op("Neg", put))
    graph = builder.build()
    profile = api.load_profile("local")
    for pair in ([0, 1], [1, 2]):
        found = api.price(graph, [[graph.nodes[k].name for k in pair], [graph.nodes[({0, 1, 2} - set(pair)).pop()].name]], profile)
        assert isinstance(found, list)
        assert {reason.rule for reason in found} == {"scatter"}
    assert len(api.search(graph, profile).groups) == 3


def test_no_plan_cuts_along_what_data_chooses() -> None:
    graph, _ = scatter((4, 64, 16, 32, True, True), np.float32, "add")
    profile = api.load_profile("local")
    space = GroupSpace(Program(graph), profile, costmodels.model("weighted"))
    analysis = space.analysis(1)
    along = set(analysis.loops.loops[0][1])
    assert along
    assert not along.intersection(analysis.outer)
    plan = api.search(graph, profile)
    name = graph.nodes[0].name
    (group,) = plan.groups
    tiles = (*group.schedule.tiles, Tile(1, (OuterLoop(64, {name: (1, 1)}),)))
    cut = msgspec.structs.replace(group, schedule=msgspec.structs.replace(group.schedule, tiles=tiles))
    assert "schedule" in {violation.rule for violation in api.check(graph, replace(plan, groups=(cut,)))}
