"""The exact search against the rules beside it: never worse, also when it has no time."""

from __future__ import annotations

import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.testing.graphs import random_graph
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
