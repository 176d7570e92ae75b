"""The checker asks whether a plan keeps to the demands that it names; live memory is tested in `test_peak`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.fusion.demands import RULES_TO_SWITCH, Constraint, as_record
from fusion_search.ir.builder import GraphBuilder
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import graph_of, softmax, weight


def two_readers(b: GraphBuilder) -> None:
    x = b.input("x", "float32", (64, 64))
    b.output("p", b.op("Relu", x))
    b.output("q", b.op("Tanh", x))


def two_products(b: GraphBuilder) -> None:
    b.output("y", b.op("MatMul", b.op("MatMul", b.input("x", "float32", (256, 64)), weight(b, 64, 32)), weight(b, 32, 64)))


def projections(b: GraphBuilder) -> None:
    x = b.input("x", "float32", (256, 64))
    for k in range(3):
        b.output(f"y{k}", b.op("MatMul", x, weight(b, 64, 32)))


def copied(b: GraphBuilder) -> None:
    """A small row is expanded; two products read it."""
    row = b.input("row", "float32", (1, 512))
    big = b.op("Add", b.op("Expand", row, shape=(512, 512)), b.constant(np.ones((512, 1), np.float32)))
    for name in ("x", "y"):
        b.output(f"of_{name}", b.op("Add", b.op("MatMul", b.input(name, "float32", (512, 512)), weight(b, 512, 512)), big))


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (fs.must_fuse("ReduceMax_0", "Exp_2"), "no group holds Exp_2, ReduceMax_0 together"),
        (fs.never_fuse("Sub_1", "Exp_2"), "holds nodes of Sub_1, Exp_2"),
        (fs.keep("Exp.exp"), "Exp.exp does not reach memory"),
        (fs.keep("ReduceMax.reducemax", "y", "x"), ""),
    ],
)
def test_a_demand_that_is_claimed_is_checked(demand: Constraint, said: str) -> None:
    graph = graph_of(softmax)
    plan = fs.price(graph, [["ReduceMax_0"], ["Sub_1", "Exp_2", "ReduceSum_3", "Div_4"]], fs.load_profile("nvidia-h100-sxm"))
    assert isinstance(plan, fs.Plan)
    found = fs.check(graph, replace(plan, space={"constraints": [as_record(demand)]}))
    assert [violation.rule for violation in found] == (["demand"] if said else [])
    assert all(said in str(violation) for violation in found)


APART = [["ReduceMax_0"], ["Sub_1"], ["Exp_2"], ["ReduceSum_3"], ["Div_4"]]


@pytest.mark.parametrize(
    ("build", "groups", "demand", "said"),
    [
        (softmax, [["ReduceMax_0", "Sub_1"], ["Exp_2", "ReduceSum_3", "Div_4"]], fs.fusion_off(everything=True), "holds several nodes"),
        (softmax, APART, fs.fusion_off(everything=True), ""),
        (softmax, [["ReduceMax_0", "Sub_1"], *APART[2:]], fs.fusion_off(rule="reduction"), "holds ReduceMax_0 with another node"),
        (softmax, [["ReduceMax_0"], ["Sub_1", "Exp_2"], *APART[3:]], fs.fusion_off(rule="reduction"), ""),
        (softmax, [["ReduceMax_0"], ["Sub_1", "Exp_2"], *APART[3:]], fs.fusion_off(op="Exp"), "holds Exp_2 with another node"),
        (softmax, [["ReduceMax_0", "Sub_1", "Exp_2"], *APART[3:]], fs.fusion_off(rule="multi-output"), ""),
        (softmax, [["ReduceMax_0"], ["Sub_1", "Exp_2", "ReduceSum_3"], ["Div_4"]], fs.fusion_off(rule="multi-output"), "stores"),
        (two_readers, [["Relu_0", "Tanh_1"]], fs.fusion_off(rule="siblings"), "for a shared input only"),
        (two_readers, [["Relu_0"], ["Tanh_1"]], fs.fusion_off(rule="siblings"), ""),
        (two_products, [["MatMul_0", "MatMul_1"]], fs.fusion_off(rule="cross-block"), "holds MatMul_0, MatMul_1"),
        (two_products, [["MatMul_0", "MatMul_1"]], fs.fusion_off(rule="contraction"), "holds MatMul_0, MatMul_1 with another node"),
        (two_products, [["MatMul_0"], ["MatMul_1"]], fs.fusion_off(rule="cross-block"), ""),
        (two_products, [["MatMul_0", "MatMul_1"]], fs.fusion_off(rule="horizontal"), ""),
        (projections, [["MatMul_0", "MatMul_1", "MatMul_2"]], fs.fusion_off(rule="horizontal"), "holds MatMul_0, MatMul_1, MatMul_2"),
        (projections, [["MatMul_0", "MatMul_1", "MatMul_2"]], fs.fusion_off(rule="cross-block"), "holds MatMul_0, MatMul_1, MatMul_2"),
        (projections, [["MatMul_0", "MatMul_2"], ["MatMul_1"]], fs.fusion_off(rule="horizontal"), ""),
        (softmax, [["ReduceMax_0", "Sub_1"], *APART[2:]], fs.min_gain_s(1.0), "saves at most"),
        (softmax, [["ReduceMax_0", "Sub_1"], *APART[2:]], fs.min_gain_s(1e-12), ""),
    ],
)
def test_what_is_switched_off_is_checked(
    build: Callable[[GraphBuilder], None], groups: list[list[str]], demand: Constraint, said: str
) -> None:
    graph = graph_of(build)
    plan = fs.price(graph, groups, fs.load_profile("nvidia-h100-sxm"))
    assert isinstance(plan, fs.Plan)
    found = fs.check(graph, replace(plan, space={"constraints": [as_record(demand)]}))
    assert {violation.rule for violation in found} == ({"demand"} if said else set())
    assert all(said in str(violation) for violation in found)


def test_a_value_that_two_groups_compute_breaks_recomputation_off() -> None:
    graph = graph_of(copied)
    plan = fs.search(graph, fs.load_profile("raspberry-pi-5"))
    assert sum(len(group.nodes) for group in plan.groups) > len(graph.nodes)
    demands = {"constraints": [as_record(fs.fusion_off(rule="recomputation"))]}
    assert {violation.rule for violation in fs.check(graph, replace(plan, space=demands))} == {"demand"}


def test_plans_keep_to_what_they_were_made_under() -> None:
    """No false alarm, over random graphs and every way to switch something off."""
    fused = 0
    for seed in range(30):
        graph = random_graph(seed, size=6)
        profile = fs.load_profile(["nvidia-h100-sxm", "raspberry-pi-5"][seed % 2])
        ways = [fs.fusion_off(rule=rule) for rule in RULES_TO_SWITCH] + [fs.min_gain_s(gain) for gain in (1e-7, 1e-6, 4e-6)]
        for demand in [*ways, fs.fusion_off(everything=True)]:
            plan = fs.search(graph, profile, constraints=[demand])
            assert fs.check(graph, plan) == [], (seed, demand)
            fused += any(len(group.nodes) > 1 for group in plan.groups)
    assert fused > 100
