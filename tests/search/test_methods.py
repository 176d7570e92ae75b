"""The exact search against the rules beside it: never worse, also when it has no time."""

from __future__ import annotations

import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.spaces import space_of
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import F32, graph_of, weight
from tests.profitability.programs import H100, made, rotary, stencil_sum

PI = fs.load_profile("raspberry-pi-5")


def not_worse(graph: fs.Graph, profile: fs.Profile, constraints: list[object], time_limit_s: float) -> fs.Plan:
    plan = fs.search(graph, profile, constraints=constraints, time_limit_s=time_limit_s)  # type: ignore[arg-type]
    assert plan.lower_bound_as <= plan.cost_as
    assert (plan.status == "optimal") == (plan.lower_bound_as == plan.cost_as)
    for method in fs.methods()[1:]:
        try:
            other = fs.search(graph, profile, method=method, constraints=constraints)  # type: ignore[arg-type]
        except UsageError:
            continue
        assert plan.cost_as <= other.cost_as, method
    return plan


def test_without_time_it_is_no_worse_than_any_rule() -> None:
    feasible = 0
    for seed in range(30):
        graph = random_graph(seed, size=12)
        names = [node.name for node in graph.nodes]
        for constraints in ([], [fs.never_fuse(names[0], names[-1])] if len(names) > 1 else []):
            feasible += not_worse(graph, PI, constraints, 1e-6).status == "feasible"
    assert feasible > 10


@pytest.mark.parametrize("profile", ["nvidia-h100-sxm", "raspberry-pi-5"])
@pytest.mark.parametrize("size", [60, 180])
def test_however_large_the_graph_and_short_the_time(size: int, profile: str) -> None:
    """More nodes than any rule could merge in the time that is given, of every kind that there is."""
    feasible = 0
    for seed in range(3):
        graph = random_graph(seed, size=size, wide=seed == 2)
        feasible += not_worse(graph, fs.load_profile(profile), [], 1e-9).status == "feasible"
    assert feasible


def test_repeated_layers_in_no_time() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (32, 64))
        for _ in range(24):
            h = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
            for _ in range(3):
                h = b.op("Add", b.op("MatMul", h, weight(b, 64, 64)), weight(b, 64))
                h = b.op("Mul", h, b.op("Sigmoid", h))
            x = b.op("Add", x, h)
        b.output("y", x)

    graph = graph_of(build)
    assert len(graph.nodes) > 300
    for profile in (H100, PI):
        plan = not_worse(graph, profile, [], 1e-9)
        assert plan.status == "feasible"
        assert fs.check(graph, plan) == []


def test_demands_that_a_rule_meets_are_met_in_no_time() -> None:
    """What the search does not find in its time is no reason to say that there is none."""
    met = 0
    for seed in range(20):
        graph = random_graph(seed, size=10)
        best = fs.search(graph, PI, method="fuse-all")
        wide = max(best.groups, key=lambda group: len(group.nodes)).nodes
        if len(wide) < 2:
            continue
        demand = [fs.must_fuse(wide[0], wide[-1])]
        try:
            fs.search(graph, PI, method="fuse-all", constraints=demand)
        except UsageError:
            continue
        met += 1
        not_worse(graph, PI, demand, 1e-9)  # type: ignore[arg-type]
    assert met > 5


@pytest.mark.parametrize("registers", [8, 32])
def test_a_sum_that_is_too_wide_for_its_registers(registers: int) -> None:
    from dataclasses import replace

    plan = not_worse(made("sum", stencil_sum(blocks=2, each=10)), replace(H100, registers=registers), [], 0.2)
    assert fs.check(plan.graph, plan) == []


def test_limits_on_memory_leave_it_no_worse() -> None:
    graph = made("rotary", rotary)
    free = fs.search(graph, H100)
    need = sum(value.nbytes for value in graph.outputs)
    plan = not_worse(graph, H100, [fs.peak_bytes(2 * need)], 10.0)
    assert plan.cost_as >= free.cost_as


@pytest.mark.parametrize("profile", ["nvidia-h100-sxm", "raspberry-pi-5"])
def test_what_is_switched_off_does_not_make_computing_again_cheaper(profile: str) -> None:
    """Copies of a node that fuses with nothing are still one kernel."""
    machine, copied = fs.load_profile(profile), 0
    for seed in range(40):
        graph = random_graph(seed, size=6)
        space = space_of(graph, machine, "weighted", None)
        copied += bool(space.copied)
        bare = fs.search(graph, machine, method="unfused")
        assert fs.search(graph, machine, constraints=[fs.fusion_off(everything=True)]).cost_as == bare.cost_as, seed
        for op in dict.fromkeys(node.op for node in graph.nodes):
            assert fs.search(graph, machine, constraints=[fs.fusion_off(op=op)]).cost_as <= bare.cost_as, (seed, op)
    assert copied > 5
