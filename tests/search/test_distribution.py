"""What J says of maps on the parts of concats: yes, no, not worth a search; and that it never rises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.passes import distribute, run_passes, sites
from fusion_search.search import distribution
from tests.passes.joined import random_joined

F32 = np.float32
MACHINES = ("local", "nvidia-h100-sxm")


def convolutions(b: GraphBuilder, name: str = "", width: int = 1024) -> str:
    """The joined images of three convolutions, each of an image of its own, so large that a launch is nothing beside a pass."""
    images = [b.input(f"x{name}{k}", F32, (1, 1, 8, width, width)) for k in range(3)]
    weights = [b.constant(np.ones((1, 8, 8, 3, 3), F32)) for _ in images]
    window = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}
    parts = [b.op("Conv", x, w, **window) for x, w in zip(images, weights, strict=True)]
    return b.op("Concat", *(b.reshape(p, (1, 8, width, width)) for p in parts), axis=1)


def biased(b: GraphBuilder) -> str:
    return b.op("Relu", b.op("Add", convolutions(b), b.constant(np.ones((24, 1, 1), F32))))


def graph_of(build: Callable[[GraphBuilder], str]) -> fs.Graph:
    b = GraphBuilder("g")
    b.output("y", build(b))
    return run_passes(b.build())


def taken_in_anyway(b: GraphBuilder) -> str:
    """The sum of each row takes the map in, and no part is a multiple of a cache line."""
    parts = [b.op("Tanh", b.op("MatMul", b.input(f"x{n}", F32, (n, 9)), b.constant(np.ones((9, 7), F32)))) for n in (3, 5, 9)]
    joined = b.op("Concat", *parts, axis=0)
    return b.op("ReduceSum", b.op("Exp", joined), axes=(1,), keepdims=False)


def decided(graph: fs.Graph, machine: str, **given: Any) -> tuple[fs.Graph, list[fs.TriedSite], list[fs.Plan]]:
    told: list[fs.TriedSite] = []
    profile = replace(fs.load_profile(machine), **given.pop("profile", {}))
    after = fs.distribute(graph, profile, progress=told.append, **given)
    return after, told, [fs.search(each, profile) for each in (graph, after)]


@pytest.mark.parametrize("machine", MACHINES)
def test_convolutions_apply_the_map_before_they_write(machine: str) -> None:
    after, [site], plans = decided(graph_of(biased), machine)
    assert site.adopted
    assert len(site.maps) == 2
    assert plans[1].bytes_moved < plans[0].bytes_moved
    assert plans[1].cost_as < plans[0].cost_as
    assert (site.before_s, site.after_s) == (plans[0].cost_s, plans[1].cost_s)
    assert str(site).endswith(", adopted")
    assert fs.check(after, plans[1]) == []
    assert any(group.alias for group in plans[1].groups)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_map_that_its_reader_takes_in_stays(machine: str) -> None:
    graph = graph_of(taken_in_anyway)
    after, [site], plans = decided(graph, machine)
    assert after is graph
    assert (site.adopted, site.before_s) == (False, None)
    assert site.why.startswith("not tried: ")
    forced = fs.search(distribute(graph, site.maps), fs.load_profile(machine))
    assert forced.cost_as >= plans[0].cost_as


def test_the_search_itself_says_no_where_the_filters_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_spared", lambda *_: 1)
    monkeypatch.setattr(distribution, "_moved", lambda *_: 1)
    graph = graph_of(taken_in_anyway)
    after, [site], plans = decided(graph, "nvidia-h100-sxm")
    assert after is graph
    assert site.before_s == plans[0].cost_s
    assert site.after_s is not None
    assert site.after_s >= site.before_s
    assert site.why == "not adopted"


def test_sites_that_look_alike_are_decided_by_one_search_more(monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder("g")
    for k in range(4):
        b.output(f"y{k}", b.op("Relu", convolutions(b, name=f"{k}.")))
    searches = []
    exact = distribution.METHODS["exact"]
    monkeypatch.setitem(distribution.METHODS, "exact", lambda *given: searches.append(1) or exact(*given))
    _, told, plans = decided(run_passes(b.build()), "nvidia-h100-sxm")
    assert [site.adopted for site in told] == [True] * 4
    assert plans[1].cost_as < plans[0].cost_as
    assert len(searches) == 3 + 2  # without, one, the three others; and the two of this test


@pytest.mark.parametrize("machine", MACHINES)
def test_j_never_rises(machine: str) -> None:
    adopted = 0
    for seed in range(40):
        graph = run_passes(random_joined(seed, longest=2))
        if sites(graph):
            after, told, (before, with_maps) = decided(graph, machine, profile={"launch_overhead_s": 1e-10, "line_bytes": 4})
            adopted += sum(site.adopted for site in told)
            assert (with_maps.cost_as < before.cost_as) == any(site.adopted for site in told)
            assert with_maps.cost_as <= before.cost_as
            assert len({site.concat for site in told if not site.adopted}) == sum(not site.adopted for site in told)
            assert fs.check(after, with_maps) == []
    assert adopted or machine != "local"  # elsewhere one kernel may hold almost anything


def test_demands_that_only_the_graph_as_it_is_can_keep() -> None:
    graph = graph_of(biased)
    [site] = sites(graph)
    after, [told], _ = decided(graph, "local", constraints=[fs.never_fuse("Concat_3", site.chain[0].node)])
    assert after is graph
    assert told.why.startswith("not adopted: ")
    assert site.chain[0].node in told.why


def test_a_proof_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(biased)
    exact = distribution.METHODS["exact"]

    def open_when_distributed(space: object, limit_s: float) -> fs.Plan:
        plan = exact(space, limit_s)  # type: ignore[arg-type]
        return plan if plan.graph is graph else replace(plan, status="feasible", lower_bound_as=0)

    monkeypatch.setitem(distribution.METHODS, "exact", open_when_distributed)
    told: list[fs.TriedSite] = []
    assert fs.distribute(graph, fs.load_profile("local"), progress=told.append) is graph
    assert told[0].why == "not adopted: the search did not close"


def test_a_lower_cost_is_no_proof_where_the_search_without_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(biased)
    exact = distribution.METHODS["exact"]

    def always_open(space: object, limit_s: float) -> fs.Plan:
        plan = exact(space, limit_s)  # type: ignore[arg-type]
        return replace(plan, status="feasible", lower_bound_as=plan.cost_as // 2)

    monkeypatch.setitem(distribution.METHODS, "exact", always_open)
    told: list[fs.TriedSite] = []
    assert fs.distribute(graph, fs.load_profile("local"), progress=told.append) is graph
    assert told[0].why == "not tried: less is to be gained than the search without left open"


def test_what_is_refused() -> None:
    graph = graph_of(biased)
    with pytest.raises(UsageError, match="time_limit_s"):
        fs.distribute(graph, fs.load_profile("local"), time_limit_s=0)
    with pytest.raises(UsageError, match="unknown"):
        fs.distribute(graph, fs.load_profile("local"), cost_model="guess")
