"""What is wrong with a plan is found by the right rule: cover, order, stores, figures, certificate."""

from __future__ import annotations

from dataclasses import replace

import msgspec.structs
import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.search.check import check
from fusion_search.search.plan import Plan
from tests.search.checked_plans import at, edit, f32, group_of, plan_of, rules, sound_plan, space_of


@pytest.fixture(name="sound")
def _sound() -> Plan:
    return sound_plan()


def test_cover(sound: Plan) -> None:
    graph, k = sound.graph, at(sound, "Neg_8")
    without = replace(sound, groups=sound.groups[:k] + sound.groups[k + 1 :])
    assert "cover" in rules(check(graph, without))
    double = replace(sound, groups=(*sound.groups, sound.groups[k]))
    assert "stores" in rules(check(graph, double))
    strange = edit(sound, "Neg_8", nodes=("Neg_8", "Nothing"))
    assert {"cover"} <= rules(check(graph, strange))
    empty = replace(sound, groups=(*sound.groups, msgspec.structs.replace(sound.groups[k], nodes=())))
    assert "cover" in rules(check(graph, empty))
    dropped = edit(sound, "Tanh_7", nodes=sound.groups[at(sound, "Tanh_7")].nodes[:-1])
    found = check(graph, dropped)
    assert "cover" in rules(found)
    assert "Tanh_7" in {v.where for v in found}


def test_order(sound: Plan) -> None:
    assert rules(check(sound.graph, replace(sound, groups=sound.groups[::-1]))) == {"order"}
    nodes = sound.groups[at(sound, "Div_6")].nodes
    assert rules(check(sound.graph, edit(sound, "Div_6", nodes=(nodes[1], nodes[0], *nodes[2:])))) == {"order"}


def test_groups_that_wait_for_each_other() -> None:
    b = GraphBuilder("crossed")
    x, y = b.input("x", f32, (64,)), b.input("y", f32, (64,))
    a1, b2 = b.op("Relu", x), b.op("Neg", y)
    b1, a2 = b.op("Add", a1, b2), b.op("Mul", a1, b2)
    b.output("p", b1)
    b.output("q", a2)
    graph = b.build()
    space = space_of(graph)
    single = plan_of(space, [1 << p for p in range(4)])
    pairs = tuple(group_of(space, space.program.mask(names)) for names in (["Relu_0", "Mul_3"], ["Neg_1", "Add_2"]))
    crossed = replace(single, groups=pairs, cost_as=sum(group.cost_as for group in pairs))
    found = check(graph, crossed)
    assert rules(found) == {"order"}
    assert any("wait for each other" in v.message for v in found)


def test_stores(sound: Plan) -> None:
    graph, group = sound.graph, sound.groups[at(sound, "MatMul_1")]
    assert rules(check(graph, edit(sound, "MatMul_1", stores=()))) >= {"stores", "order"}
    relu = next(node for node in graph.nodes if node.name == "Relu_0").output
    assert "stores" in rules(check(graph, edit(sound, "MatMul_1", stores=(*group.stores, relu))))
    assert "stores" in rules(check(graph, edit(sound, "MatMul_1", stores=(*group.stores, "x"))))
    assert "stores" in rules(check(graph, edit(sound, "MatMul_1", stores=group.stores * 2)))
    tanh = sound.groups[at(sound, "Tanh_7")]
    assert graph.outputs[0].name not in tanh.stores  # an output is a view; what is stored is its base
    assert "stores" in rules(check(graph, edit(sound, "Tanh_7", stores=("y",))))


def test_figures(sound: Plan) -> None:
    graph, group = sound.graph, sound.groups[at(sound, "Div_6")]
    assert rules(check(graph, edit(sound, "Div_6", bytes_read=group.bytes_read + 64))) == {"bytes"}
    assert rules(check(graph, edit(sound, "Div_6", bytes_written=0))) == {"bytes"}
    traffic = float(np.nextafter(group.terms["traffic"], 1))
    assert rules(check(graph, edit(sound, "Div_6", terms={**group.terms, "traffic": traffic}))) == {"terms"}
    assert rules(check(graph, edit(sound, "Div_6", terms={**group.terms, "luck": 0.0}))) == {"terms"}
    assert rules(check(graph, edit(sound, "Div_6", cost_as=group.cost_as + 1))) == {"cost"}
    assert rules(check(graph, replace(sound, cost_as=sound.cost_as + 1))) == {"cost", "certificate"}
    assert rules(check(graph, replace(sound, weights={"launch": 2.0}))) == {"cost"}
    assert rules(check(graph, replace(sound, weights={"luck": 2.0}))) == {"cost"}
    assert rules(check(graph, edit(sound, "Div_6", origin=("elsewhere",)))) == {"origin"}


def test_certificate(sound: Plan) -> None:
    graph, cost = sound.graph, sound.cost_as
    assert rules(check(graph, replace(sound, lower_bound_as=cost - 1))) == {"certificate"}
    assert rules(check(graph, replace(sound, lower_bound_as=cost + 1, status="feasible"))) == {"certificate"}
    assert rules(check(graph, replace(sound, status="hopeful"))) == {"certificate"}
    assert check(graph, replace(sound, lower_bound_as=1, status="feasible")) == []


def test_a_violation_is_one_line(sound: Plan) -> None:
    (found,) = check(sound.graph, edit(sound, "Neg_8", bytes_read=1))
    assert str(found) == f"bytes: group {at(sound, 'Neg_8')} (Neg_8): bytes_read is 1, counted 12288"
