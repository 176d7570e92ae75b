"""Breakpoints, margins and the Pareto front against searches at many places between."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.search.sensitivity import RECIPROCAL
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import graph_of, softmax, two_blocks

H100 = fs.load_profile("nvidia-h100-sxm")
PI = fs.load_profile("raspberry-pi-5")
#: A machine that fusion does not always help.
ODD = replace(PI, launch_overhead_s=1e-9, registers=5, parallel_units=64)
WEIGHTS = ("traffic", "launch", "spill", "recompute")
NUMBERS = ("launch_overhead_s", *RECIPROCAL)


@lru_cache(maxsize=64)
def graph_at(seed: int) -> fs.Graph:
    return random_graph(seed, size=6)


def searched(graph: fs.Graph, profile: fs.Profile, parameter: str, value: float) -> fs.Plan:
    if parameter in WEIGHTS:
        return fs.search(graph, profile, weights={parameter: value})
    return fs.search(graph, replace(profile, **{parameter: value}))  # type: ignore[arg-type]


def between(low: float, high: float, count: int, seed: int) -> list[float]:
    """Both ends, and values spread evenly and on a scale of ratios."""
    rng = np.random.default_rng(seed)
    even = rng.uniform(low, high, count)
    ratios = np.exp(rng.uniform(np.log(max(low, high * 1e-4)), np.log(high), count))
    return [low, high, *even.tolist(), *np.clip(ratios, low, high).tolist()]


@pytest.mark.parametrize("parameter", [*WEIGHTS, *NUMBERS])
def test_the_envelope_is_what_searches_give(parameter: str) -> None:
    for seed in range(8):
        graph, profile = graph_at(seed), (ODD, H100)[seed % 2]
        found = fs.sensitivity(graph, profile, parameter)
        assert found.exact
        assert (found.pieces[0].low, found.pieces[-1].high) == (found.low, found.high)
        assert all(a.high == b.low for a, b in zip(found.pieces, found.pieces[1:], strict=False))
        for value in between(found.low, found.high, 6, seed):
            plan = searched(graph, profile, parameter, value)
            # One attosecond a group and end for rounding, and what floating point makes of the sum.
            assert abs(found.cost_s(value) - plan.cost_s) <= 4e-18 * len(graph.nodes) + 1e-11 * plan.cost_s, (seed, value)


def test_breakpoints_are_where_the_plan_changes() -> None:
    met = 0
    for seed in range(20):
        for parameter in ("launch", "spill", "dram_bandwidth_bytes_per_s"):
            found = fs.sensitivity(graph_at(seed), ODD, parameter)
            for at in found.breakpoints:
                met += 1
                k = next(k for k, piece in enumerate(found.pieces) if piece.high == at)
                below, above = found.pieces[k], found.pieces[k + 1]
                # Each plan loses where the other is best, however it is scheduled.
                for piece, other, value in ((below, above, above.high), (above, below, below.low)):
                    profile = ODD if parameter in WEIGHTS else replace(ODD, **{parameter: value})  # type: ignore[arg-type]
                    weights = {parameter: value} if parameter in WEIGHTS else None
                    mine, best = (
                        fs.price(graph_at(seed), [group.nodes for group in plan.groups], profile, weights=weights)
                        for plan in (piece.plan, other.plan)
                    )
                    assert isinstance(mine, fs.Plan)
                    assert isinstance(best, fs.Plan)
                    assert mine.cost_as + len(mine.groups) >= best.cost_as
                assert f"{at:.6g}" in str(found)
    assert met >= 5


def test_margins_end_at_the_nearest_breakpoints() -> None:
    moved = 0
    for seed in range(20):
        graph = graph_at(seed)
        plan = fs.search(graph, ODD)
        for name, margin in fs.margins(plan, ["launch", "spill", "dram_bandwidth_bytes_per_s"]).items():
            whole = fs.sensitivity(graph, ODD, name)
            below = [at for at in whole.breakpoints if at < margin.value]
            above = [at for at in whole.breakpoints if at > margin.value]
            assert margin.low == pytest.approx(below[-1] if below else whole.low, rel=1e-6)
            assert margin.high == pytest.approx(above[0] if above else whole.high, rel=1e-6)
            assert (margin.below is None) == (not below)
            assert (margin.above is None) == (not above)
            moved += len(below) + len(above)
    assert moved >= 3


def test_a_plan_that_is_not_the_best_has_no_margin() -> None:
    plan = fs.search(graph_of(softmax), H100, method="unfused")
    margin = fs.margins(plan, ["launch"])["launch"]
    assert margin.high == margin.value == 1.0
    assert margin.above is not None
    assert margin.above.launches == 1


def test_the_front_holds_a_best_plan_for_all_weights() -> None:
    rng = np.random.default_rng(5)
    sizes = set()
    for seed in range(10):
        graph = graph_at(seed)
        front = fs.pareto(graph, ODD)
        sizes.add(len(front))
        for a in front:
            assert not any(b is not a and b.traffic_s <= a.traffic_s and b.launches <= a.launches and b.spill_s <= a.spill_s for b in front)
        for weights in rng.dirichlet((0.5, 0.5, 0.5), 6).tolist():
            traffic, launch, spill = weights[0], weights[1] * 100, weights[2]
            plan = fs.search(graph, ODD, weights={"traffic": traffic, "launch": launch, "spill": spill, "recompute": traffic})
            best = min(traffic * p.traffic_s + launch * p.launches * ODD.launch_overhead_s + spill * p.spill_s for p in front)
            assert best == pytest.approx(plan.cost_s, rel=1e-8, abs=1e-16)
    assert max(sizes) > 1


def test_constraints_hold_along_the_way() -> None:
    graph = graph_of(two_blocks)
    names = [node.name for node in graph.nodes]
    found = fs.sensitivity(graph, H100, "launch", constraints=[fs.never_fuse(names[0], names[1])], high=4.0)
    for piece in found.pieces:
        assert not any({names[0], names[1]} <= set(group.nodes) for group in piece.plan.groups)


@pytest.mark.parametrize(
    ("parameter", "options", "said"),
    [
        ("registers", {}, "not linear in registers, so its breakpoints cannot be found exactly"),
        ("cache_bytes", {}, "not linear in cache_bytes"),
        ("bandwith", {}, "unknown parameter 'bandwith'"),
        ("traffic", {"cost_model": "roofline"}, "not linear in traffic"),
        ("dram_bandwidth_bytes_per_s", {"cost_model": "roofline"}, "not linear in dram"),
        ("launch", {"low": 3.0, "high": 2.0}, "expected a range"),
        ("dram_bandwidth_bytes_per_s", {"low": 0.0}, "expected a range of numbers > 0"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(parameter: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fs.sensitivity(graph_of(softmax), H100, parameter, **options)  # type: ignore[arg-type]


def test_the_roofline_is_linear_in_what_stands_outside_its_maximum() -> None:
    graph = graph_at(3)
    found = fs.sensitivity(graph, ODD, "spill", cost_model="roofline")
    for value in (0.0, 0.3, 2.0, 16.0):
        plan = fs.search(graph, ODD, cost_model="roofline", weights={"spill": value})
        assert found.cost_s(value) == pytest.approx(plan.cost_s, rel=1e-11, abs=1e-16)
    with pytest.raises(UsageError, match="expected a number from 0 to 16"):
        found.cost_s(17.0)
