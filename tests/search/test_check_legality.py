"""Groups that no plan may have are refused by the rule that they break."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np

from fusion_search.fusion.space import Priced
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Value
from fusion_search.ir.opaque import OpaqueCall
from fusion_search.search.check import check
from fusion_search.search.plan import Plan
from hardware_profiles import Forbidden, Profile, load
from tests.search.checked_plans import by_name, f32, group_of, rules, space_of


def forced(graph: Graph, profile: Profile, *names: str) -> set[str]:
    """Rules that a group breaks when a plan has it all the same."""
    space = space_of(graph, profile)
    masks = by_name(space, " ".join(names))
    groups = []
    for mask in masks:
        features = space.analysis(mask).features
        best = space.model.best(features, profile)
        assert best is not None
        priced = Priced(best[1], best[0], best[2])
        groups.append(group_of(space, mask, priced))
    groups.sort(key=lambda group: max(graph.index[name] for name in group.nodes))
    cost = sum(group.cost_as for group in groups)
    return rules(check(graph, Plan(graph, profile, "weighted", {}, "forced", tuple(groups), "feasible", cost, 0, {}, {})))


def test_illegal_groups() -> None:
    profile = load("nvidia-h100-sxm")
    b = GraphBuilder("many")
    x, y = b.input("x", f32, (64, 64)), b.input("y", f32, (64, 64))
    u, v = b.op("Relu", x), b.op("Relu", y)
    m = b.op("MatMul", u, v)
    n = b.op("MatMul", m, v)
    one = (1, 1)
    p = b.op("MaxPool", n, kernel=(3, 3), strides=one, dilations=one, before=one, after=one)
    b.opaque(OpaqueCall("Strange", "d", lambda arrays: arrays), [p], [Value("o", np.dtype(f32), (64, 64))])
    h = b.op("Cast", b.op("Neg", "o"), to="bfloat16")
    b.output("h", h)
    for name in (u, v, m, n, p):
        b.output(f"out.{name}", name)
    graph = b.build()
    assert forced(graph, profile, "Relu_0") == set()
    assert forced(graph, profile, "Relu_0", "Relu_1") == {"shared-loops"}
    assert forced(graph, profile, "MatMul_2", "MatMul_3") == set()
    assert forced(graph, profile, "MatMul_3", "MaxPool_4") == {"shared-outer-loop"}
    assert "opaque" in forced(graph, profile, "Strange_5", "Neg_6")
    assert forced(graph, replace(profile, operand_limit=1), "Neg_6", "Cast_7") == {"operands"}
    assert forced(graph, replace(profile, dtypes=frozenset({"float32"})), "Neg_6", "Cast_7") == {"dtype"}
    assert forced(graph, replace(profile, dtypes=frozenset({"bfloat16"}), operand_limit=1), "Neg_6") == set()  # nodes alone may do anything
    forbidden = (Forbidden(("Neg", "Cast"), "no such instruction", "a test"),)
    assert forced(graph, replace(profile, forbidden=forbidden), "Neg_6", "Cast_7") == {"forbidden"}
    assert str(np.dtype(ml_dtypes.bfloat16)) == "bfloat16"


def test_too_many_nodes() -> None:
    b = GraphBuilder("long")
    x = b.input("x", f32, (64,))
    for _ in range(257):
        x = b.op("Relu", x)
    b.output("y", x)
    graph = b.build()
    names = [node.name for node in graph.nodes]
    assert forced(graph, load("nvidia-h100-sxm"), *names[1:]) == set()
    assert forced(graph, load("nvidia-h100-sxm"), *names) == {"nodes"}


def test_a_constant_of_one_element_joins_nothing() -> None:
    b = GraphBuilder("parameter")
    c = b.constant(np.ones((), np.float64))
    for name in "xy":
        b.output(f"{name}2", b.op("Mul", b.input(name, np.float64, (64,)), c))
    assert forced(b.build(), replace(load("nvidia-h100-sxm"), line_bytes=4), "Mul_0", "Mul_1") == {"shared-loops"}
