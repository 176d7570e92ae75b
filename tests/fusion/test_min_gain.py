"""`min_gain_s`: groups that save too little are left out, exactly, and what is demanded is exempt."""

from __future__ import annotations

import random

import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.fusion.constraints import ConstrainedSpace, constrain
from fusion_search.fusion.demands import Constraint
from fusion_search.search.methods import METHODS
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import graph_of, layer_norm, matmul_bias_gelu, space_of, two_blocks
from tests.fusion.test_constraints import best_by_force, drawn, planned, possible

H100 = fs.load_profile("nvidia-h100-sxm")


def gains(plan: fs.Plan) -> list[int]:
    alone = {group.nodes[0]: group.cost_as for group in fs.search(plan.graph, plan.profile, method="unfused").groups}
    return [sum(alone[name] for name in group.nodes) - group.cost_as for group in plan.groups if len(group.nodes) > 1]


def test_equals_force() -> None:
    changed = 0
    for seed in range(80):
        graph = random_graph(seed, size=4)
        if not 2 <= len(graph.nodes) <= 8:
            continue
        draw = random.Random(seed)
        base = space_of(graph, draw.choice(["nvidia-h100-sxm", "raspberry-pi-5"]))
        free = METHODS["exact"](base, 60.0)
        for gain in sorted(gains(free)):
            for least in (gain, gain + 1):
                space = constrain(base, [fs.min_gain_s(least * 1e-18)])
                assert isinstance(space, ConstrainedSpace)
                plan = METHODS["exact"](space, 60.0)
                assert plan.status == "optimal"
                assert plan.cost_as == best_by_force(space), (seed, least)
                assert min(gains(plan), default=space.least_gain) >= space.least_gain
                changed += plan.cost_as > free.cost_as
    assert changed > 20


def test_equals_force_among_other_demands() -> None:
    met = exempt = 0
    for seed in range(60):
        graph = random_graph(seed, size=4)
        if not 2 <= len(graph.nodes) <= 7:
            continue
        draw = random.Random(seed)
        base = space_of(graph, "raspberry-pi-5")
        constraints = [*drawn(graph, draw), fs.min_gain_s(draw.choice([1e-6, 3e-6, 1e-5]))]
        space = possible(base, constraints)
        plan = None if space is None else planned(space)
        if space is None or plan is None:
            assert space is None or best_by_force(space) is None
            continue
        assert plan.cost_as == best_by_force(space), (seed, constraints)
        met += 1
        exempt += min(gains(plan), default=space.least_gain) < space.least_gain
    assert met > 15
    assert exempt > 3  # what must_fuse demands need save nothing


def test_a_higher_bar_leaves_fewer_fusions() -> None:
    graph = graph_of(two_blocks)
    plans = [fs.search(graph, H100, constraints=[fs.min_gain_s(least)]) for least in (0, 3e-6, 6e-6, 9e-6, 1)]
    launches = [plan.launches for plan in plans]
    assert launches == sorted(launches)
    assert plans[0].cost_as == fs.search(graph, H100).cost_as
    assert plans[-1].launches == len(graph.nodes)
    assert all(fs.check(graph, plan) == [] for plan in plans)
    assert plans[1].space["constraints"] == [{"kind": "min_gain_s", "least_s": 3e-6}]


def test_price_says_what_is_missing() -> None:
    graph = graph_of(layer_norm)
    groups = [[node.name for node in graph.nodes]]
    found = fs.price(graph, groups, H100, constraints=[fs.min_gain_s(1)])
    assert isinstance(found, list)
    assert [reason.rule for reason in found] == ["user"]
    assert found[0].remedy.startswith("drop min_gain_s(1): it saves 1.")


def test_what_must_be_fused_is_exempt() -> None:
    graph = graph_of(matmul_bias_gelu)
    names = [node.name for node in graph.nodes]
    plan = fs.search(graph, H100, constraints=[fs.min_gain_s(1), fs.must_fuse(*names[:2])])
    assert sorted(len(group.nodes) for group in plan.groups) == [1] * (len(names) - 2) + [2]


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1e-6", True])
def test_malformed(wrong: object) -> None:
    with pytest.raises(UsageError, match="min_gain_s: expected seconds"):
        fs.min_gain_s(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("demand", [fs.min_gain_s(1e-6), fs.peak_bytes(1 << 20)])
def test_what_depends_on_prices_is_not_followed_along_them(demand: Constraint) -> None:
    graph = graph_of(layer_norm)
    with pytest.raises(UsageError, match="prices decide which plans there are"):
        fs.sensitivity(graph, H100, "launch", constraints=[demand])
    with pytest.raises(UsageError, match="prices decide which plans there are"):
        fs.pareto(graph, H100, constraints=[demand])
    with pytest.raises(UsageError, match="prices decide which plans there are"):
        fs.margins(fs.search(graph, H100, constraints=[demand]), ["launch"])
