"""Distributed graphs through everything that runs: the same bits, for every binding, from plan files, on a batch that changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import fusion_search as fs
from fusion_search.ir.evaluate import evaluate
from fusion_search.passes import distribute, run_passes, sites
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.graphs import random_feeds, random_partition
from tests.frontends.modeling import info, model, node, random
from tests.fusion.programs import space_of
from tests.passes.joined import random_joined

LOCAL = fs.load_profile("local")


def distributed(graph: fs.Graph) -> fs.Graph:
    return distribute(graph, [each.node for site in sites(graph) for each in site.chain])


def bits(results: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in results.items()}


def test_kernels_give_the_same_bits() -> None:
    changed = 0
    for seed in range(7):
        graph = run_passes(random_joined(seed, longest=2))
        after = distributed(graph)
        changed += after is not graph and len(after.nodes) != len(graph.nodes)
        feeds = random_feeds(graph, seed)
        wanted = bits(fs.compile(fs.search(graph, LOCAL))(feeds))
        plan = fs.search(after, LOCAL)
        assert fs.check(after, plan) == []
        assert bits(fs.compile(plan)(feeds)) == wanted
        space = space_of(after, "local")
        masks = random_partition(space, np.random.default_rng(seed)) if seed % 3 == 0 else [1 << p for p in range(space.n)]
        assert bits(BoundPlan(after, [space.program.names(mask) for mask in masks])(feeds)) == wanted
    assert changed > 3


def branches(path: Path) -> str:
    """Three convolutions whose joined result gets a bias and a map; the batch is symbolic."""
    nodes = [node("Conv", ["x", f"w{k}"], [f"p{k}"], pads=[1, 1, 1, 1]) for k in range(3)]
    nodes += [node("Concat", ["p0", "p1", "p2"], ["c"], axis=1), node("Add", ["c", "b"], ["s"]), node("Relu", ["s"], ["r"])]
    nodes += [node("GlobalAveragePool", ["r"], ["y"])]
    constants = {f"w{k}": random((m, 4, 3, 3), k) for k, m in enumerate((8, 4, 12))} | {"b": random((24, 1, 1), 9)}
    onnx.save(model(nodes, [info("x", ["batch", 4, 16, 16])], constants=constants), path)
    return str(path)


def growing(path: Path) -> str:
    """Joined along a symbolic axis: a map with one more concat cut alike, one with a value that has to be cut, one with a row."""
    nodes = [node("Tanh", ["x"], ["t"]), node("Concat", ["t", "z"], ["c"], axis=1), node("Neg", ["x"], ["n"])]
    nodes += [node("Exp", ["z"], ["e"]), node("Concat", ["n", "e"], ["d"], axis=1), node("Add", ["c", "d"], ["s"])]
    nodes += [node("Pad", ["x", "pads"], ["q"]), node("Mul", ["s", "q"], ["m"]), node("Sub", ["m", "row"], ["y"])]
    constants = {"pads": np.array([0, 1, 0, 0, 1, 0], np.int64), "row": random((1, 4), 3)}
    onnx.save(model(nodes, [info("x", ["n", "s", 4]), info("z", ["n", 2, 4])], constants=constants), path)
    return str(path)


def test_one_plan_for_every_batch(tmp_path: Path) -> None:
    graph = fs.load(branches(tmp_path / "m.onnx"), dims={"batch": 1})
    after = distributed(graph)
    assert Counter(node.op for node in after.nodes) >= Counter({"Conv": 3, "Add": 3, "Relu": 3, "Concat": 1})
    plans = [fs.search(each, LOCAL) for each in (graph, after)]
    assert fs.verify(plans[1]).ok
    runs = [fs.compile(plan) for plan in plans]
    for batch in (1, 3, 2, 1, 0):
        feeds = {"x": random((batch, 4, 16, 16), batch)}
        want, got = (run(feeds)["y"] for run in runs)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        assert [node.name for node in runs[1]._latest.nodes] == [node.name for node in after.nodes]
    again = runs[1].replan()
    assert [node.name for node in again.graph.nodes] == [node.name for node in after.nodes]
    assert fs.check(again.graph, again) == []


def test_what_varies_along_a_symbolic_axis(tmp_path: Path) -> None:
    graph = fs.load(growing(tmp_path / "m.onnx"), dims={"n": 1, "s": 6})
    roles = [role for site in sites(graph) for each in site.chain for role, _ in each.operands]
    assert {"part", "cut", "whole"} <= set(roles)
    after = distributed(graph)
    assert sum(node.op == "Slice" for node in after.nodes) == 2
    runs = [fs.compile(fs.search(each, LOCAL)) for each in (graph, after)]
    for n, s in ((1, 6), (2, 6), (1, 1), (3, 0), (0, 2), (2, 9)):
        feeds = {"x": random((n, s, 4), s), "z": random((n, 2, 4), n)}
        assert bits(runs[1](feeds)) == bits(runs[0](feeds))
        bound = graph.source.bind({"n": n, "s": s}, {}) if graph.source else graph
        np.testing.assert_allclose(runs[1](feeds)["y"], evaluate(run_passes(bound), feeds)["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("extents", [{"n": 1, "s": 1}, {"n": 1, "s": 0}])
def test_the_choice_does_not_depend_on_the_planned_extents(tmp_path: Path, extents: dict[str, int]) -> None:
    path = growing(tmp_path / "m.onnx")
    usual, odd = (fs.load(path, dims=dims) for dims in ({"n": 4, "s": 6}, extents))
    assert sites(odd) == sites(usual)
    assert [n.name for n in distributed(odd).nodes] == [n.name for n in distributed(usual).nodes]


def test_plan_files(tmp_path: Path) -> None:
    path, file = branches(tmp_path / "m.onnx"), tmp_path / "plan.json"
    after = distributed(fs.load(path, dims={"batch": 1}))
    plan = fs.search(after, LOCAL)
    plan.save(file)
    assert '"distributed": [' in file.read_text()
    for graph in (after, fs.load(path, dims={"batch": 1})):
        again = fs.Plan.load(file, graph)
        assert [node.name for node in again.graph.nodes] == [node.name for node in after.nodes]
        assert again.groups == plan.groups
        assert fs.check(again.graph, again) == []
        assert again.record() == plan.record()
    carried = fs.replay(file, fs.load(path, dims={"batch": 2}))
    assert [mismatch.kind for mismatch in carried.mismatches if mismatch.kind in ("gone", "new")] == []
    assert [node.name for node in carried.plan.graph.nodes] == [node.name for node in after.nodes]
    plain = fs.search(fs.load(path, dims={"batch": 1}), LOCAL)
    plain.save(file)
    assert "distributed" not in file.read_text()
    with pytest.raises(fs.FusionSearchError, match="nodes that the plan does not have"):
        fs.Plan.load(file, after)


def test_folded_weights_are_audited_still(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", f"w{k}"], [f"p{k}"]) for k in range(2)]
    nodes += [node("Mul", ["p0", "f"], ["q0"]), node("Concat", ["q0", "p1"], ["c"], axis=1), node("Mul", ["c", "f"], ["s"])]
    nodes += [node("Relu", ["s"], ["y"])]
    constants = {"w0": random((8, 4, 3, 3)), "w1": random((4, 4, 3, 3), 1), "f": np.full((1, 1, 1), 1.5, np.float32)}
    onnx.save(model(nodes, [info("x", ["batch", 4, 10, 10])], constants=constants), tmp_path / "m.onnx")
    after = distributed(fs.load(tmp_path / "m.onnx", dims={"batch": 1}))
    found = fs.verify(fs.search(after, LOCAL))
    assert found.ok
    assert [entry.ok for entry in found.folded] == [True]
