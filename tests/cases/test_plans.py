"""Public fault cases A39 to A44: cycles, scale, profitability, determinism."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fusion_search as fs
from tests.cases.harness import check, load, model, node, plans, profile, value

F = np.float32


def names_of(graph: fs.Graph, *outputs: str) -> list[str]:
    """Core nodes by the values that they compute."""
    made = {name: n.name for n in graph.nodes for name in n.outputs}
    return [made[name] for name in outputs]


def rules(found: fs.Plan | list[Any]) -> set[str]:
    return set() if isinstance(found, fs.Plan) else {reason.rule for reason in found}


def square(name: str, out: str) -> onnx.NodeProto:
    """A matrix product: two of them are in no group of the first space, which cuts a path."""
    return node("MatMul", f"{name} {name}", out)


X = {"x": np.eye(32, dtype=F), "y": np.eye(32, dtype=F)}


def test_a39_a_group_that_depends_on_itself_is_refused() -> None:
    nodes = [node("Relu", "x", "a"), node("Neg", "a", "b"), node("NonZero", "b", "i"), node("Cast", "i", "c", to=1)]
    nodes += [node("ReduceSum", "c", "s", keepdims=0), node("Add", "a s", "d")]
    graph = load(model(nodes, {"x": X["x"]}, "d"))
    a, b, d = names_of(graph, "a", "b", "d")
    rest = [[n.name] for n in graph.nodes if n.name not in (a, b, d)]
    assert "convex" in rules(fs.price(graph, [[a, b, d], *rest], profile()))
    assert isinstance(fs.price(graph, [[a, b], [d], *rest], profile()), fs.Plan)
    check(model(nodes, {"x": X["x"]}, "d"), {"x": X["x"]}, {"d": X["x"] + F(sum(np.nonzero(X["x"])[0]) * 2)})


def test_a39_two_legal_groups_that_wait_for_each_other() -> None:
    # a1 -> b1 and b2 -> a2, the pairs joined by the inputs that they share
    nodes = [node("Relu", "x", "a1"), node("Add", "a1 y", "b1"), node("Neg", "y", "b2"), node("Add", "b2 x", "a2")]
    graph = load(model(nodes, X, "b1 a2"))
    a1, b1, b2, a2 = names_of(graph, "a1", "b1", "b2", "a2")
    assert isinstance(fs.price(graph, [[a1, a2], [b1], [b2]], profile()), fs.Plan)
    assert isinstance(fs.price(graph, [[a1], [a2], [b1, b2]], profile()), fs.Plan)
    assert "order" in rules(fs.price(graph, [[a1, a2], [b1, b2]], profile()))
    check(model(nodes, X, "b1 a2"), X, {"b1": np.maximum(X["x"], 0) + X["y"], "a2": -X["y"] + X["x"]})


def test_a39_a_path_out_of_a_group_and_back() -> None:
    nodes = [node("Neg", "x", "a0"), square("a0", "xa"), node("Relu", "xa", "b0"), node("Abs", "b0", "b1"), square("b1", "xb")]
    nodes.append(node("Add", "xb a0", "a1"))
    graph = load(model(nodes, {"x": X["x"]}, "a1"))
    a0, a1, b0, b1, xa, xb = names_of(graph, "a0", "a1", "b0", "b1", "xa", "xb")
    assert isinstance(fs.price(graph, [[b0, b1], [a0], [xa], [xb], [a1]], profile()), fs.Plan)
    assert "convex" in rules(fs.price(graph, [[a0, a1], [b0], [b1], [xa], [xb]], profile()))


@pytest.mark.parametrize("seed", range(12))
def test_a39_no_method_makes_a_cycle(seed: int) -> None:
    rng = random.Random(seed)
    values, nodes = ["x", "y"], []
    for k in range(14):
        a, b = rng.choice(values), rng.choice(values)
        op = rng.choice(["Add", "Mul", "Relu", "Neg", "MatMul"])
        nodes.append(node(op, a if op in ("Relu", "Neg") else f"{a} {b}", f"v{k}"))
        values.append(f"v{k}")
    graph = load(model(nodes, X, "v13 v12"))
    cost = {}
    for name, plan in plans(graph):
        assert fs.check(graph, plan) == [], name
        place = {n: i for i, group in enumerate(plan.groups) for n in group.nodes}
        made = {v: place[n.name] for n in graph.nodes for v in n.outputs}
        for n in graph.nodes:
            assert all(made.get(graph.base(v), -1) <= place[n.name] for v in n.inputs), name
        cost[name] = plan.cost_s
    assert cost["exact"] == min(cost.values())


def test_a42_many_parts_are_written_once_and_both_plans_are_priced() -> None:
    def normalised(parts: int) -> fs.Graph:
        width = 2696
        feeds = {f"x{k}": np.zeros((64, width), F) for k in range(parts)}
        nodes = [node("Concat", " ".join(feeds), "c", axis=1), node("LayerNormalization", "c g", "y", axis=-1)]
        return load(model(nodes, feeds, constants={"g": np.ones(parts * width, F)}))

    for parts in (2, 8):
        graph = normalised(parts)
        every = [n.name for n in graph.nodes]
        concat = [n.name for n in graph.nodes if n.op == "Concat"]
        others = [name for name in every if name not in concat]
        apart = fs.price(graph, [concat, others], profile())
        inside = fs.price(graph, [every], profile())
        assert isinstance(apart, fs.Plan)
        best = fs.search(graph, profile()).cost_s
        assert best <= apart.cost_s
        if isinstance(inside, fs.Plan):
            assert best <= inside.cost_s
        else:
            assert inside
            assert all(str(reason) for reason in inside)


def test_a43_fewest_kernels_under_a_limit() -> None:
    count = 5
    feeds = {f"x{k}": np.full(4096, k + 1, F) for k in range(count)}
    nodes = [node("Mul", f"x{k} two", f"p{k}") for k in range(count)]
    nodes += [node("Add", f"{'p0' if k == 1 else f's{k - 1}'} p{k}", f"s{k}") for k in range(1, count)]
    proto = model(nodes, feeds, f"s{count - 1}", {"two": 2.0})
    graph = load(proto)
    assert len(graph.nodes) == 9
    from fusion_search.api import _space
    from fusion_search.fusion.coarse import CoarseSpace
    from fusion_search.search.exact import exact

    space = _space(graph, profile(), "weighted", None)
    limit = space.max_nodes
    try:
        space.max_nodes = 5
        space._memo.clear()
        space._costs.clear()
        found = exact(space, floors_of=CoarseSpace(space).floors)
    finally:
        space.max_nodes = limit
        space._memo.clear()
        space._costs.clear()
    assert len(found.groups) == 2
    assert found.status == "optimal"
    check(proto, feeds, {f"s{count - 1}": np.full(4096, 30, F)})


def test_a43_scratch_that_does_not_fit_is_a_reason() -> None:
    n = 1 << 22
    nodes = [node("ReduceMax", "e", "m", axes=[1]), node("Sub", "e m", "y")]
    nodes.insert(0, node("Exp", "x", "e"))
    graph = load(model(nodes, [value("x", (1, n))], "y"))
    found = fs.price(graph, [[m.name for m in graph.nodes]], profile())
    assert rules(found) == {"capacity"}
    assert "scratch" in str(found[0] if isinstance(found, list) else "")


SCRIPT = """
import hashlib, json, sys
import fusion_search as fs
from fusion_search.runtime.program import BoundPlan
plan = fs.search(fs.load(sys.argv[1]), fs.load_profile("local"))
steps = BoundPlan(plan.graph, [group.nodes for group in plan.groups]).steps
kernels = sorted(step.kernel.source for step in steps)
digest = hashlib.sha256("".join(kernels).encode()).hexdigest()
print(json.dumps([plan.cost_s, plan.bytes_moved, sorted(len(g.nodes) for g in plan.groups), digest]))
"""


def test_a44_order_names_and_hash_seed_change_nothing(tmp_path: Path) -> None:
    rng = random.Random(0)
    found = []
    for trial in range(4):
        rename = {name: f"n{rng.randrange(10**9)}" if trial else name for name in ("x", "a", "b", "c", "s", "t", "u")}
        x, a, b, c, s, t, u = rename.values()
        nodes = [node("Mul", f"{x} k1", a), node("Add", f"{x} k2", b), node("Mul", f"{x} k3", c), node("Add", f"{a} {b}", s)]
        nodes += [node("Add", f"{s} {c}", t), node("ReduceSum", t, u, keepdims=1)]
        for n in nodes:
            n.name = f"node {rng.random()}"
        if trial:
            rng.shuffle(nodes)
        path = tmp_path / f"{trial}.onnx"
        onnx.save(model(nodes, [value(x, (3, 1000))], f"{u} {t}", {"k1": -1.0, "k2": 3.0, "k3": 2.0}), path)
        env = {**os.environ, "PYTHONHASHSEED": str(trial), "PYTHONPATH": os.pathsep.join(sys.path)}
        out = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], env=env, capture_output=True, text=True, check=True, timeout=120)
        found.append(json.loads(out.stdout))
    assert all(other == found[0] for other in found)
