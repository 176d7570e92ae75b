"""Public fault cases A39 to A44: cycles, scale, profitability, determinism."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
import pytest

import fusion_search as fs
from fusion_search.runtime.steps import KernelStep, make_steps
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


def waits_for_nothing(graph: fs.Graph, plan: fs.Plan) -> bool:
    """Whether every group finds what it reads: given, stored by an earlier group, or computed by itself, perhaps once more."""
    nodes = {n.name: n for n in graph.nodes}
    there = {value.name for value in graph.inputs} | set(graph.constants)
    for group in plan.groups:
        own = {value for name in group.nodes for value in nodes[name].outputs}
        if not all(graph.base(v) in there | own for name in group.nodes for v in nodes[name].inputs):
            return False
        there |= set(group.stores)
    return True


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
        assert waits_for_nothing(graph, plan), name
        cost[name] = plan.cost_s
    assert cost["exact"] == min(cost.values())


def partitions(names: list[str]) -> Iterator[list[list[str]]]:
    """Yield every way to split names into sets."""
    if not names:
        yield []
        return
    for smaller in partitions(names[1:]):
        yield [[names[0]], *smaller]
        for k in range(len(smaller)):
            yield [*smaller[:k], [names[0], *smaller[k]], *smaller[k + 1 :]]


def waits(graph: fs.Graph, groups: list[list[str]]) -> bool:
    """Whether some groups wait for each other."""
    place = {name: k for k, group in enumerate(groups) for name in group}
    made = {value: place[n.name] for n in graph.nodes for value in n.outputs}
    quotient: nx.DiGraph[int] = nx.DiGraph()
    for n in graph.nodes:
        quotient.add_edges_from(
            (made[graph.base(v)], place[n.name]) for v in n.inputs if made.get(graph.base(v), place[n.name]) != place[n.name]
        )
    return not nx.is_directed_acyclic_graph(quotient)


@pytest.mark.parametrize("seed", range(8))
def test_a39_random_graphs_against_brute_force(seed: int) -> None:
    """No partition whose groups wait for each other has a price; of those that have one, none is cheaper than the exact plan."""
    rng = random.Random(100 + seed)
    values, nodes = ["x", "y"], []
    for k in range(7):
        op = rng.choice(["Add", "Mul", "Sub", "Relu", "Neg", "Exp", "MatMul"])
        operands = rng.choice(values) if op in ("Relu", "Neg", "Exp") else f"{rng.choice(values)} {rng.choice(values[-3:])}"
        nodes.append(node(op, operands, f"v{k}"))
        values.append(f"v{k}")
    read = {name for n in nodes for name in n.input}
    graph = load(model(nodes, X, " ".join(v for v in values[2:] if v not in read)))
    names = [n.name for n in graph.nodes]
    best, refused, legal = float("inf"), 0, 0
    for groups in partitions(names):
        found = fs.price(graph, groups, profile())
        if waits(graph, groups):
            refused += 1
            assert rules(found) & {"order", "convex"}, groups
        if isinstance(found, fs.Plan):
            legal += 1
            assert fs.check(graph, found) == []
            best = min(best, found.cost_s)
    exact = fs.search(graph, profile())
    assert exact.status == "optimal"
    assert waits_for_nothing(graph, exact)
    assert exact.cost_s <= best
    if sum(len(group.nodes) for group in exact.groups) == len(names):  # else it computes something twice, which no partition does
        assert exact.cost_s == best
    assert refused > 0
    assert legal > 1


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("parts", [2, 8])
def test_a42_many_parts_are_copied_once_and_both_plans_are_priced(parts: int, rows: int) -> None:
    width = 2696
    rng = np.random.default_rng(parts)
    feeds = {f"x{k}": rng.normal(k, 1, (rows, width)).astype(F) for k in range(parts)}
    nodes = [node("Concat", " ".join(feeds), "c", axis=1), node("LayerNormalization", "c g b", "y", axis=-1)]
    constants = {"g": rng.normal(1, 0.1, parts * width).astype(F), "b": rng.normal(0, 0.1, parts * width).astype(F)}
    proto = model(nodes, feeds, constants=constants)
    graph = load(proto)
    every = [n.name for n in graph.nodes]
    concat = [n.name for n in graph.nodes if n.op == "Concat"]
    apart = fs.price(graph, [concat, [name for name in every if name not in concat]], profile())
    inside = fs.price(graph, [every], profile())
    assert isinstance(apart, fs.Plan)
    assert isinstance(inside, fs.Plan)
    best = fs.search(graph, profile())
    assert best.cost_s <= min(apart.cost_s, inside.cost_s)
    # inside or not, an element of a part is read once: what a block concatenates stays in its scratch
    nbytes = 4 * rows * parts * width
    assert nbytes <= apart.bytes_moved - 2 * nbytes  # the parts, the concatenation twice, the result
    assert inside.bytes_moved <= apart.bytes_moved - 2 * nbytes + 4096
    c = np.concatenate(list(feeds.values()), axis=1).astype(np.float64)
    d = c - c.mean(axis=-1, keepdims=True)
    want = (d / np.sqrt((d**2).mean(axis=-1, keepdims=True) + 1e-5) * constants["g"] + constants["b"]).astype(F)
    check(proto, feeds, {"y": want}, rtol=1e-5, atol=1e-5)


def test_a42_the_text_of_a_kernel_does_not_grow_with_the_parts() -> None:
    """A branch for each part and element is what made it slow: from three parts on the parts are rows of a table."""
    texts = set()
    for parts in (3, 8, 30):
        feeds = {f"x{k}": np.zeros((64, 96), F) for k in range(parts)}
        nodes = [node("Concat", " ".join(feeds), "c", axis=1), node("LayerNormalization", "c g", "y", axis=-1)]
        graph = load(model(nodes, feeds, constants={"g": np.ones(parts * 96, F)}))
        (step,) = make_steps(graph, [[n.name for n in graph.nodes]], 1)
        assert isinstance(step, KernelStep)
        texts.add(step.kernel.source)
    assert len(texts) == 1


def test_a43_fewest_kernels_under_a_limit() -> None:
    count = 5
    feeds = {f"x{k}": np.full(4096, k + 1, F) for k in range(count)}
    nodes = [node("Mul", f"x{k} two", f"p{k}") for k in range(count)]
    nodes += [node("Add", f"{'p0' if k == 1 else f's{k - 1}'} p{k}", f"s{k}") for k in range(1, count)]
    proto = model(nodes, feeds, f"s{count - 1}", {"two": 2.0})
    graph = load(proto)
    assert len(graph.nodes) == 9
    from fusion_search.fusion.coarse import CoarseSpace
    from fusion_search.search.exact import exact
    from fusion_search.spaces import space_of

    space = space_of(graph, profile(), "weighted", None)
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


def test_a43_fusing_readers_of_different_values_keeps_both_alive() -> None:
    """The fused pair needs both large values at once; what a plan needs at its peak is a figure that a person sees."""
    n = 1 << 18
    feeds = {name: np.linspace(0, 1, n, dtype=F) for name in ("s", "u", "w")}
    nodes = [node("Exp", "u", "a"), node("Sin", "w", "b"), node("Add", "s a", "y1"), node("Mul", "s b", "y2")]
    proto = model(nodes, feeds, "y1 y2")
    graph = load(proto)
    a, b, y1, y2 = names_of(graph, "a", "b", "y1", "y2")
    peaks = []
    for groups in ([[a], [y1], [b], [y2]], [[a], [b], [y1, y2]]):
        plan = fs.price(graph, groups, profile())
        assert isinstance(plan, fs.Plan)
        measured = fs.measure(plan, feeds)
        assert measured.peak_bytes == fs.compile(plan).peak_bytes
        peaks.append(measured.peak_bytes)
    assert peaks[1] - peaks[0] == 4 * n
    # alive at most: one of a and b beside both results, or both of them; scratch is small
    limit = [fs.peak_bytes(4 * n * 7 // 2)]
    refused = fs.price(graph, [[a], [b], [y1, y2]], profile(), constraints=limit)
    assert not isinstance(refused, fs.Plan)
    assert any("memory" in str(reason) or "bytes" in str(reason) for reason in refused)
    assert isinstance(fs.price(graph, [[a], [y1], [b], [y2]], profile(), constraints=limit), fs.Plan)
    whole = fs.search(graph, profile())
    assert fs.compile(whole).peak_bytes <= peaks[0]  # what is never written needs no memory
    check(proto, feeds, {"y1": feeds["s"] + np.exp(feeds["u"]), "y2": feeds["s"] * np.sin(feeds["w"])}, rtol=1e-6)


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
