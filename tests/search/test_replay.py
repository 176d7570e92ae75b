"""Plans carried over to changed graphs: always sound, every group that still fits kept, every difference named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import fusion_search as fs
from fusion_search.errors import PlanError, UsageError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Node
from fusion_search.search.matching import match_nodes
from fusion_search.search.plan_file import node_records
from fusion_search.search.replay import MISMATCHES
from fusion_search.testing.graphs import random_graph
from tests.frontends.modeling import info, model, node
from tests.fusion.programs import F32, graph_of, layer_norm, matmul_bias_gelu, mutual_wait, shuffled, softmax, two_blocks

H100 = fs.load_profile("nvidia-h100-sxm")
PI = fs.load_profile("raspberry-pi-5")


def kinds(found: fs.Replay) -> Counter[str]:
    return Counter(mismatch.kind for mismatch in found.mismatches)


def inserted(graph: Graph, reader: int, slot: int, name: str = "fresh") -> Graph:
    """The graph with a Neg between a value and one of its reads."""
    old = graph.nodes[reader]
    read = old.inputs[slot]
    value = graph.values[read]
    made = replace(value, name=f"{name}.out", view_of=None)
    fresh = Node(name, "Neg", (read,), (made.name,))
    rewired = replace(old, inputs=tuple(made.name if k == slot else n for k, n in enumerate(old.inputs)))
    nodes = (*graph.nodes[:reader], fresh, rewired, *graph.nodes[reader + 1 :])
    return replace(graph, nodes=nodes, values={**graph.values, made.name: made})


def without(graph: Graph, k: int) -> Graph:
    """The graph without one elementwise node of one operand: what read it reads its operand."""
    gone = graph.nodes[k]
    nodes = tuple(
        replace(other, inputs=tuple(gone.inputs[0] if n == gone.output else n for n in other.inputs))
        for other in graph.nodes
        if other != gone
    )
    return replace(graph, nodes=nodes)


def places(graph: Graph) -> list[tuple[int, int]]:
    """Reads of values that a Neg can stand behind."""
    return [
        (k, slot)
        for k, one in enumerate(graph.nodes)
        for slot, name in enumerate(one.inputs)
        if name and name not in graph.constants and graph.values[name].dtype == np.float32
    ]


def removable(graph: Graph) -> list[int]:
    seen = {graph.base(value.name) for value in graph.outputs} | {value.view_of for value in graph.values.values()}
    return [
        k
        for k, one in enumerate(graph.nodes)
        if len(one.inputs) == 1
        and one.inputs[0] not in graph.constants
        and one.output not in seen
        and (graph.values[one.output].dtype, graph.values[one.output].shape)
        == (graph.values[one.inputs[0]].dtype, graph.values[one.inputs[0]].shape)
    ]


@pytest.mark.parametrize("build", [softmax, layer_norm, matmul_bias_gelu, mutual_wait, two_blocks])
def test_on_its_own_graph_a_plan_is_itself(build: Callable[[GraphBuilder], None], tmp_path: Path) -> None:
    graph = graph_of(build)
    for method in ("exact", "unfused"):
        plan = fs.search(graph, PI, method=method)
        plan.save(tmp_path / "plan.json")
        for again in (fs.replay(plan, graph), fs.replay(tmp_path / "plan.json", graph)):
            assert again.mismatches == ()
            assert (again.plan.groups, again.plan.status, again.plan.lower_bound_as) == (plan.groups, plan.status, plan.lower_bound_as)
            assert again.plan.method == method
            assert again.kept == again.planned == len(plan.groups)


@pytest.mark.parametrize("seed", range(40))
def test_names_and_order_do_not_matter(seed: int) -> None:
    graph = random_graph(seed, size=5)
    plan = fs.search(graph, PI)
    other = shuffled(graph, seed)
    again = fs.replay(plan, other)
    assert set(kinds(again)) <= {"renamed"}
    assert kinds(again)["renamed"] == sum(a.name != b for a, b in pairs(graph, other))
    assert again.plan.cost_as == again.cost_then_as == plan.cost_as
    assert again.kept == len(plan.groups)
    if all(value.size for value in graph.values.values()):
        assert fs.check(other, again.plan) == []


def pairs(graph: Graph, other: Graph) -> list[tuple[Node, str]]:
    found = match_nodes(node_records(graph), node_records(other))
    assert len(found) == len(graph.nodes)
    return [(graph.nodes[u], other.nodes[v].name) for u, v in found.items()]


@pytest.mark.parametrize("seed", range(60))
def test_edited_graphs_get_sound_plans_and_every_edit_is_named(seed: int) -> None:
    graph = random_graph(seed, size=6)
    if any(not value.size for value in graph.values.values()):
        return
    rng = np.random.default_rng(seed)
    plan = fs.search(graph, PI)
    here, gone = places(graph), removable(graph)
    if here:
        changed = inserted(graph, *here[int(rng.integers(len(here)))])
        found = fs.replay(plan, changed)
        assert fs.check(changed, found.plan) == []
        assert [m.nodes for m in found.mismatches if m.kind == "new"] == [("fresh",)]
        assert not {"gone", "renamed", "changed"} & set(kinds(found))
        covered = {n for m in found.mismatches if m.kind in ("illegal", "grown") for n in m.nodes}
        kept = {group.nodes for group in found.plan.groups}
        assert all(group.nodes in kept for group in plan.groups if not covered & set(group.nodes))
    if gone:
        k = gone[int(rng.integers(len(gone)))]
        changed = without(graph, k)
        found = fs.replay(plan, changed)
        assert fs.check(changed, found.plan) == []
        assert [m.nodes for m in found.mismatches if m.kind == "gone"] == [(graph.nodes[k].name,)]
        assert not {"new", "renamed"} & set(kinds(found))
    assert set(kinds(found) if here or gone else ()) <= set(MISMATCHES)


def test_a_new_node_inside_a_group_comes_into_it() -> None:
    graph = graph_of(softmax)
    plan = fs.search(graph, H100)
    assert len(plan.groups) == 1
    changed = inserted(graph, 2, 0)
    found = fs.replay(plan, changed)
    assert len(found.plan.groups) == 1
    assert kinds(found) == {"new": 1, "rewired": 1, "grown": 1}
    assert found.kept == 0
    assert "takes in fresh" in str(found)
    assert found.delta_cost_s == found.plan.cost_s - found.cost_then_s


def test_a_group_that_lost_a_node_is_kept_without_it() -> None:
    graph = graph_of(matmul_bias_gelu)
    plan = fs.search(graph, H100)
    erf = next(k for k, one in enumerate(graph.nodes) if one.op == "Erf")
    found = fs.replay(plan, without(graph, erf))
    assert kinds(found) == {"gone": 1, "rewired": 1, "shrunk": 1}
    assert len(found.plan.groups) == len(plan.groups) == 1


def test_what_is_no_longer_legal_is_said_with_its_reason_and_planned_anew() -> None:
    graph = graph_of(softmax)
    plan = fs.search(graph, H100)

    def longer(b: GraphBuilder) -> None:
        x = b.input("x", F32, (64, 1 << 20))
        e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
        b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))

    changed = graph_of(longer)
    found = fs.replay(plan, changed)
    assert fs.check(changed, found.plan) == []
    assert kinds(found) == {"changed": 5, "illegal": 1}
    (refused,) = (m for m in found.mismatches if m.kind == "illegal")
    assert [reason.rule for reason in refused.reasons] == ["capacity"]
    assert "capacity" in str(refused)
    # All is free again, so it is the best plan.
    assert found.plan.cost_as == fs.search(changed, H100).cost_as
    assert found.plan.status == "feasible"
    texts = [m.message for m in found.mismatches if m.kind == "changed"]
    assert "ReduceMax_0: reads float32[64,128] is float32[64,1048576]" in texts


def test_groups_that_come_to_wait_for_each_other_are_parted() -> None:
    def apart(b: GraphBuilder) -> None:
        x, y = b.input("x", F32, (256, 256)), b.input("y", F32, (256, 256))
        for one, two, u, v, out in (("a1", "a2", x, y, "p"), ("b2", "b1", y, x, "q")):
            with b.origin(one, "Exp"):
                made = b.op("Exp", u)
            with b.origin(two, "Mul"):
                b.output(out, b.op("Mul", made, v))

    def tangled(b: GraphBuilder) -> None:
        x, y = b.input("x", F32, (256, 256)), b.input("y", F32, (256, 256))
        with b.origin("a1", "Exp"):
            a1 = b.op("Exp", x)
        with b.origin("b2", "Exp"):
            b2 = b.op("Exp", y)
        with b.origin("a2", "Mul"):
            b.output("p", b.op("Mul", a1, b2))
        with b.origin("b1", "Mul"):
            b.output("q", b.op("Mul", b2, a1))

    plan = fs.price(graph_of(apart), [["a1", "a2"], ["b2", "b1"]], H100)
    assert isinstance(plan, fs.Plan)
    changed = graph_of(tangled)
    found = fs.replay(plan, changed)
    assert fs.check(changed, found.plan) == []
    (refused,) = (m for m in found.mismatches if m.kind == "illegal")
    assert [reason.rule for reason in refused.reasons] == ["order"]
    assert sorted(len(group.nodes) for group in found.plan.groups) == [1, 1, 2]


def test_nodes_numbered_by_an_exporter_are_told_by_their_neighbours() -> None:
    def numbered(extra: bool) -> Graph:
        b = GraphBuilder("numbered")
        x, count = b.input("x", F32, (64, 64)), 0
        w = b.input("w", F32, (64, 64))
        for k in range(3):
            for op in ("Add", "Relu", "Add", "Tanh") if not (extra and k == 0) else ("Add", "Add", "Relu", "Add", "Tanh"):
                with b.origin(f"{op}_{count}" if op == "Add" else f"{op}_of_{k}", op):
                    x = b.op(op, x, w) if op == "Add" else b.op(op, x)
                count += op == "Add"
        b.output("y", x)
        return b.build()

    before, after = numbered(False), numbered(True)
    found = match_nodes(node_records(before), node_records(after))
    names = {before.nodes[u].name: after.nodes[v].name for u, v in found.items()}
    assert names["Relu_of_1"] == "Relu_of_1"
    assert names["Add_3"] == "Add_4"  # the one before Tanh_of_1, whatever it is called
    assert names["Add_5"] == "Add_6"
    assert len(names) == len(before.nodes)


def test_demands_of_the_plan_hold_in_its_new_names() -> None:
    graph = graph_of(softmax)
    names = [one.name for one in graph.nodes]
    plan = fs.search(graph, H100, constraints=[fs.never_fuse(names[1], names[2]), fs.keep("Exp.exp")])
    other = shuffled(graph, 5)
    found = fs.replay(plan, other)
    assert set(kinds(found)) == {"renamed"}
    assert found.plan.cost_as == plan.cost_as
    again = {m.message.split(" is ")[0]: m.message.split(" is ")[1] for m in found.mismatches}
    assert found.plan.space["constraints"][0]["nodes"] == [again.get(name, name) for name in names[1:3]]
    lost = fs.replay(plan, without(graph, 2))
    assert next(m.message for m in lost.mismatches if m.kind == "demand").startswith(f"never_fuse('{names[1]}', '{names[2]}'): ")


def test_a_limit_on_memory_holds_or_is_dropped_by_name() -> None:
    graph = graph_of(two_blocks)
    need = fs.search(graph, H100, constraints=[fs.peak_bytes(1 << 20)]).statistics["peak_bytes"]
    plan = fs.search(graph, H100, constraints=[fs.peak_bytes(need)])
    fits = fs.replay(plan, shuffled(graph, 1))
    assert set(kinds(fits)) == {"renamed"}
    assert fits.plan.space["constraints"] == [{"kind": "peak_bytes", "limit_bytes": need}]
    assert fs.check(fits.plan.graph, fits.plan) == []

    def wider(b: GraphBuilder) -> None:
        x = b.input("x", F32, (64, 64))
        for _ in range(2):
            c = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
            h = b.op("Relu", b.op("Add", b.op("MatMul", c, b.input(b.fresh("w"), F32, (64, 64))), b.input(b.fresh("w"), F32, (64,))))
            x = b.op("Add", x, b.op("MatMul", h, b.input(b.fresh("w"), F32, (64, 64))))
        b.output("y", b.op("Tanh", x))

    changed = graph_of(wider)
    lost = fs.replay(plan, changed)
    assert kinds(lost)["demand"] == 1
    assert "constraints" not in lost.plan.space
    assert fs.check(changed, lost.plan) == []


# ---------------------------------------------------------------------- from files, with dims


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"]), node("Softmax", ["r"], ["y"], axis=1)]
    file = tmp_path / "model.onnx"
    onnx.save(model(nodes, [info("x", ["batch", 12])], constants={"w": np.ones((12, 20), np.float32)}), file)
    return file


def test_other_dims(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan = fs.search(fs.load(path, dims={"batch": 4}), H100)
    plan.save(file)
    graph = fs.load(path, dims={"batch": 16})
    with pytest.raises(PlanError) as caught:
        fs.Plan.load(file, graph)
    text = str(caught.value)
    assert "it was made for batch=4, the graph has batch=16 (" in text
    assert "fs.replay(path, graph) keeps the groups that still fit" in text
    assert "\n" not in text
    found = fs.replay(file, graph)
    assert str(found.mismatches[0]) == "dims: batch was 4, is 16"
    assert set(kinds(found)) == {"dims", "changed"}
    assert [group.nodes for group in found.plan.groups] == [group.nodes for group in plan.groups]
    assert fs.check(graph, found.plan) == []
    assert found.cost_then_as == plan.cost_as != found.plan.cost_as
    assert fs.verify(found.plan).ok


def test_a_file_whose_demands_are_damaged_is_refused(tmp_path: Path) -> None:
    graph = graph_of(softmax)
    plan = replace(fs.search(graph, H100), space={"constraints": [{"kind": "sideways"}]})
    with pytest.raises(UsageError, match="unknown constraint"):
        fs.replay(plan, graph)
