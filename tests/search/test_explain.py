"""Explanations: the forced plan is a plan, its J is what is predicted, and flips are where the decision turns."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest

import costmodels
import fusion_search as fs
from fusion_search.errors import PlanError, UsageError
from fusion_search.fusion.constraints import constrain
from fusion_search.fusion.copies import copyable
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.search.explain import Explanation
from fusion_search.search.overview import Overview
from fusion_search.testing.graphs import random_graph
from tests.frontends.modeling import info, model, node
from tests.fusion.programs import graph_of, layer_norm, matmul_bias_gelu, softmax
from tests.fusion.test_constraints import best_by_force

H100 = fs.load_profile("nvidia-h100-sxm")
PI = fs.load_profile("raspberry-pi-5")
#: A machine that fusion does not always help.
ODD = replace(PI, launch_overhead_s=1e-9, registers=5, parallel_units=64)
WIDE_BOUNDS = fs.Bounds(factor=4096.0, tolerance=0.01)


def pair(plan: fs.Plan, a: str, b: str, **options: object) -> Explanation:
    found = fs.explain(plan, a, b, **options)  # type: ignore[arg-type]
    assert isinstance(found, Explanation)
    return found


def test_what_is_predicted_is_what_the_forced_plan_costs() -> None:
    kinds = {True: 0, False: 0}
    refused = 0
    for seed in range(60):
        graph = random_graph(seed, size=4)
        if not 2 <= len(graph.nodes) <= 8:
            continue
        profile = random.Random(seed).choice([H100, ODD, ODD])
        plan = fs.search(graph, profile)
        base = GroupSpace(Program(graph, copyable(Program(graph))), profile, costmodels.model())
        if base.n > 9:
            continue
        names = [node.name for node in graph.nodes]
        for a, b in combinations(names, 2):
            found = pair(plan, a, b, flips=False)
            assert found.fused == any({a, b} <= set(group.nodes) for group in plan.groups)
            demand = fs.never_fuse(a, b) if found.fused else fs.must_fuse(a, b)
            if found.forced_plan is None:
                assert found.reasons
                assert best_by_force(constrain(base, [demand])) is None
                refused += 1
                continue
            assert not found.reasons
            forced = fs.price(graph, [group.nodes for group in found.forced_plan.groups], profile, constraints=[demand])
            assert isinstance(forced, fs.Plan)
            assert plan.cost_as + (found.delta_cost_as or 0) == forced.cost_as == found.forced_plan.cost_as
            assert forced.cost_as == best_by_force(constrain(base, [demand]))
            assert (found.delta_cost_as or 0) >= 0
            assert found.delta_terms == {name: forced.terms[name] - value for name, value in plan.terms.items()}
            kinds[found.fused] += 1
    assert min(kinds.values()) > 5
    assert refused > 5


def test_a_flip_is_where_the_decision_turns() -> None:
    turned = 0
    for seed in range(40):
        graph = random_graph(seed, size=5)
        if not 2 <= len(graph.nodes) <= 10:
            continue
        plan = fs.search(graph, ODD)
        names = [node.name for node in graph.nodes]
        for a, b in list(combinations(names, 2))[:4]:
            for name, flip in pair(plan, a, b, bounds=WIDE_BOUNDS).flips.items():
                if flip is None:
                    continue
                turned += 1
                for value, fused in ((flip.at, flip.fused), (flip.last, not flip.fused)):
                    other = fs.search(graph, replace(ODD, **{name: value}))  # type: ignore[arg-type]
                    assert any({a, b} <= set(group.nodes) for group in other.groups) == fused
                assert max(flip.at, flip.last) / min(flip.at, flip.last) < 1.011
                assert name in str(flip)
    assert turned >= 3


def test_a_batch_at_which_the_decision_turns(tmp_path: Path) -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("MatMul", ["e", "w"], ["y"])]
    file = tmp_path / "prologue.onnx"
    onnx.save(model(nodes, [info("x", ["batch", 256])], constants={"w": np.ones((256, 2048), np.float32)}), file)
    quick = replace(H100, launch_overhead_s=1e-7)
    plan = fs.search(fs.load(file, dims={"batch": 8}), quick)
    found = pair(plan, "n_e", "n_y")
    flip = found.flips["batch"]
    assert flip is not None
    assert found.fused
    assert not flip.fused
    assert flip.at == flip.last + 1 > 8
    assert f"apart from batch {flip.at:.4g} (it is 8)" in str(found)
    for batch, launches in ((flip.last, 1), (flip.at, 2)):
        assert fs.search(fs.load(file, dims={"batch": int(batch)}), quick).launches == launches


def test_explanations_of_a_plan_agree_with_cutting_each_edge() -> None:
    graph = graph_of(layer_norm)
    plan = fs.search(graph, H100)
    found = fs.explain(plan)
    assert isinstance(found, Overview)
    assert found.complete
    for fusion in found.fusions:
        group = plan.groups[fusion.group]
        alone = fs.search(graph, H100, method="unfused")
        cost = sum(one.cost_as for one in alone.groups if set(one.nodes) <= set(group.nodes))
        assert fusion.gain_as == cost - group.cost_as
    if len(plan.groups) == 1:  # then the rest of the plan is nothing, and a cut is a search
        for edge in found.edges:
            again = fs.search(graph, H100, constraints=[fs.never_fuse(edge.producer, edge.consumer)])
            assert edge.delta_cost_as == again.cost_as - plan.cost_as
    assert list(found.dearest) == sorted(range(len(plan.groups)), key=lambda k: -plan.groups[k].cost_as)[:10]


def test_the_constraints_of_the_plan_hold_in_the_forced_one() -> None:
    graph = graph_of(softmax)
    names = [node.name for node in graph.nodes]
    plan = fs.search(graph, H100, constraints=[fs.never_fuse(names[0], names[1])])
    found = pair(plan, names[1], names[2], flips=False)
    assert found.forced_plan is not None
    assert not any({names[0], names[1]} <= set(group.nodes) for group in found.forced_plan.groups)
    refused = pair(plan, names[0], names[1], flips=False)
    assert refused.forced_plan is None
    assert [reason.rule for reason in refused.reasons] == ["user"]


def test_text_of_a_pair() -> None:
    plan = fs.search(graph_of(matmul_bias_gelu), H100)
    text = str(pair(plan, "MatMul_0", "Add_1"))
    assert text == PAIR_TEXT


def test_text_of_what_is_illegal() -> None:
    plan = fs.search(graph_of(softmax), replace(H100, operand_limit=1))
    assert str(pair(plan, "Sub_1", "Exp_2", flips=False)) == ILLEGAL_TEXT


def test_text_of_a_plan() -> None:
    plan = fs.search(graph_of(softmax), H100)
    assert str(fs.explain(plan)) == PLAN_TEXT


def test_assert_fused() -> None:
    plan = fs.search(graph_of(softmax), H100)
    fs.assert_fused(plan, "Sub_1", "Exp_2")
    apart = fs.search(graph_of(softmax), H100, method="unfused")
    with pytest.raises(PlanError, match=r"Sub_1 and Exp_2 are in different kernels \(Forced into one kernel, J is"):
        fs.assert_fused(apart, "Sub_1", "Exp_2")


@pytest.mark.parametrize(
    ("names", "said"), [(("Sub_1",), "two nodes, or none"), (("Sub_1", "Sub_1"), "in common"), (("Sub_1", "x"), "no node 'x'")]
)
def test_what_makes_no_sense(names: tuple[str, ...], said: str) -> None:
    plan = fs.search(graph_of(softmax), H100)
    with pytest.raises(UsageError, match=said):
        fs.explain(plan, *names)


PAIR_TEXT = """\
MatMul_0 and Add_1 share one kernel (group 0).
Kept apart, J is 5.2 us in place of 2.69 us: +2.51 us, +93.46%.
  traffic +14.1 ns, launch +2.5 us, +1 launches
  no flip found along dram_bandwidth_bytes_per_s, from 1/64 to 64 times its value
  no flip found along launch_overhead_s, from 1/64 to 64 times its value"""
ILLEGAL_TEXT = """\
Sub_1 and Exp_2 are in different kernels.
One kernel for both is illegal:
  operands: the profile limits the tensors that one kernel may touch; nodes Sub_1, Exp_2 (3 tensors, nvidia-h100-sxm allows 1)"""
PLAN_TEXT = """\
softmax on nvidia-h100-sxm: J 2.54 us in 1 launches, optimal
most valuable fusions (J of the nodes alone, less J of the group)
   10.1 us  group 0, 5 nodes: ReduceMax_0, Sub_1, Exp_2, ReduceSum_3 and 1 more
dearest groups
   2.54 us  100.0%  group 0, 5 nodes: ReduceMax_0, Sub_1, Exp_2, ReduceSum_3 and 1 more
edges whose cut costs most (the other groups as they are)
  +2.54 us  Sub_1 -> Exp_2 (Sub.sub, group 0)
  +2.54 us  Exp_2 -> ReduceSum_3 (Exp.exp, group 0)
  +2.52 us  ReduceMax_0 -> Sub_1 (ReduceMax.reducemax, group 0)
  +2.52 us  Exp_2 -> Div_4 (Exp.exp, group 0)
  +2.52 us  ReduceSum_3 -> Div_4 (ReduceSum.reducesum, group 0)"""
