"""Every rule that refuses a group or a plan, one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusion_search as fs
import hardware_profiles
from fusion_search.codegen.capability import can_emit
from fusion_search.fusion.program import bits
from fusion_search.fusion.reasons import RULES, Reason
from fusion_search.fusion.space import MAX_CONTRACTIONS, MAX_NODES, GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Value
from fusion_search.ir.opaque import OpaqueCall
from fusion_search.testing.graphs import random_graph
from hardware_profiles import Forbidden
from tests.fusion.programs import F32, graph_of, matmul_bias_gelu, mutual_wait, softmax, space_of, weight

H100 = hardware_profiles.load("nvidia-h100-sxm")


def everything(space: GroupSpace) -> list[Reason]:
    return space.reasons((1 << space.n) - 1)


def only(reasons: list[Reason], rule: str) -> Reason:
    assert [reason.rule for reason in reasons] == [rule]
    assert rule in RULES
    assert set(reasons[0].nodes)
    assert str(reasons[0]).startswith(f"{rule}: {RULES[rule]}")
    return reasons[0]


def refused(graph: Graph, groups: list[list[str]]) -> list[Reason]:
    found = fs.price(graph, groups, H100)
    assert isinstance(found, list)
    return found


def test_a_whole_softmax_is_legal() -> None:
    assert everything(space_of(graph_of(softmax))) == []


def test_unknown_node() -> None:
    reason = only(refused(graph_of(softmax), [["Exp_2", "nowhere"]]), "unknown-node")
    assert reason.nodes == ("nowhere",)


def test_cover_misses_and_repeats() -> None:
    names = [node.name for node in graph_of(softmax).nodes]
    missing = only(refused(graph_of(softmax), [names[:-1]]), "cover")
    assert missing.nodes == (names[-1],)
    twice = only(refused(graph_of(softmax), [names, names[:1]]), "recomputation")
    assert twice.nodes == (names[0],)


def test_order() -> None:
    only(refused(graph_of(mutual_wait), [["a1", "a2"], ["b1", "b2"]]), "order")
    assert isinstance(fs.price(graph_of(mutual_wait), [["a1", "a2"], ["b1"], ["b2"]], H100), fs.Plan)


def test_convex() -> None:
    space = space_of(graph_of(softmax))
    reason = only(space.reasons(space.program.mask(["Exp_2", "Div_4"])), "convex")
    assert "ReduceSum_3" in reason.remedy


def test_opaque_nodes_are_alone() -> None:
    def build(b: GraphBuilder) -> None:
        e = b.op("Exp", b.input("x", F32, (64,)))
        call = OpaqueCall("Sort", "0", lambda arrays: [np.sort(arrays[0])])
        b.opaque(call, [e], [Value("s", np.dtype(F32), (64,))])
        b.output("y", "s")

    space = space_of(graph_of(build))
    assert only(everything(space), "opaque").nodes == ("Sort_1",)
    assert space.blocked(0, 1)


def test_nodes() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (64,))
        for _ in range(MAX_NODES + 1):
            x = b.op("Neg", x)
        b.output("y", x)

    space = space_of(graph_of(build))
    only(everything(space), "nodes")
    assert space.reasons((1 << MAX_NODES) - 1) == []


def test_contractions_are_limited() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (8, 8))
        for _ in range(MAX_CONTRACTIONS + 1):
            x = b.op("MatMul", x, weight(b, 8, 8))
        b.output("y", x)

    space = space_of(graph_of(build))
    assert len(only(everything(space), "contractions").nodes) == MAX_CONTRACTIONS + 1
    assert space.reasons((1 << MAX_CONTRACTIONS) - 1) == []


@pytest.mark.parametrize(("rows", "legal"), [(8, True), (1, False)])
def test_contractions_share_an_outer_loop(rows: int, legal: bool) -> None:
    def build(b: GraphBuilder) -> None:
        b.output("y", b.op("MatMul", b.op("MatMul", b.input("x", F32, (rows, 8)), weight(b, 8, 8)), weight(b, 8, 8)))

    space = space_of(graph_of(build))
    assert space.blocked(0, 1) is not legal
    reasons = everything(space)
    assert reasons == [] if legal else only(reasons, "shared-outer-loop").nodes == ("MatMul_0", "MatMul_1")


@pytest.mark.parametrize(("batch", "kernel", "legal"), [(1, 3, False), (1, 1, True), (2, 3, True)])
def test_a_window_reads_computed_values_along_a_shared_outer_loop(batch: int, kernel: int, legal: bool) -> None:
    def build(b: GraphBuilder) -> None:
        x = b.op("Relu", b.input("x", F32, (batch, 1, 4, 20)))
        rules = {"strides": (1,), "dilations": (1,), "before": (0,), "after": (0,)}
        b.output("y", b.op("Conv", x, weight(b, 1, 5, 4, kernel), **rules))

    space = space_of(graph_of(build))
    assert space.blocked(0, 1) is not legal
    reasons = everything(space)
    assert reasons == [] if legal else only(reasons, "shared-outer-loop").nodes == ("Relu_0", "Conv_1")


def test_a_blocked_edge_is_in_no_legal_group() -> None:
    """Blocked edges stop the growth of groups, so no larger group that holds one may be legal."""
    rng = np.random.default_rng(5)
    blocked = 0
    for seed in range(60):
        graph = random_graph(seed, size=8, ops={"MatMul", "MaxPool", "Conv", "Relu", "Add", "ReduceMax"})
        space = space_of(graph)
        edges = [(u, v) for v in range(space.n) for u in bits(space.preds[v]) if space.blocked(u, v)]
        blocked += len(edges)
        for u, v in edges:
            for _ in range(8):
                group = 1 << u | 1 << v | int(rng.integers(0, 1 << min(space.n, 62)))
                assert space.reasons(group)
    assert blocked > 12


@pytest.mark.parametrize(("length", "legal"), [(16, False), (17, True)])
def test_loops_join_through_live_ins_of_more_than_a_line(length: int, legal: bool) -> None:
    def siblings(b: GraphBuilder) -> None:
        x = b.input("x", F32, (length,))
        b.output("y", b.op("Exp", x))
        b.output("z", b.op("Tanh", x))

    reasons = everything(space_of(graph_of(siblings), line_bytes=64))
    assert reasons == [] if legal else only(reasons, "shared-loops")


def test_the_space_is_not_monotone() -> None:
    def build(b: GraphBuilder) -> None:
        b.output("y", b.op("Add", b.op("Relu", b.input("x", F32, (64,))), b.op("Tanh", b.input("z", F32, (64,)))))

    space = space_of(graph_of(build))
    only(space.reasons(space.program.mask(["Relu_0", "Tanh_1"])), "shared-loops")
    assert everything(space) == []


def test_operands() -> None:
    reason = only(everything(space_of(graph_of(matmul_bias_gelu), operand_limit=3)), "operands")
    assert "4 tensors" in reason.remedy
    assert everything(space_of(graph_of(matmul_bias_gelu), operand_limit=4)) == []


def test_capacity() -> None:
    needed = 4 + 4 * 128 + 4  # a row of exponentials, its maximum and its sum
    only(everything(space_of(graph_of(softmax), fast_memory_bytes=needed - 1)), "capacity")
    assert everything(space_of(graph_of(softmax), fast_memory_bytes=needed)) == []


def test_dtype() -> None:
    reason = only(everything(space_of(graph_of(softmax), dtypes=frozenset({"float16"}))), "dtype")
    assert "float32" in reason.remedy


def test_forbidden() -> None:
    rule = Forbidden(("Exp", "ReduceSum"), "no such instruction", "the manual")
    space = space_of(graph_of(softmax), forbidden=(rule,))
    assert only(everything(space), "forbidden").remedy == "no such instruction"
    assert space.reasons(space.program.mask(["ReduceMax_0", "Sub_1", "Exp_2"])) == []


def _transposed_sum(b: GraphBuilder) -> None:
    x = b.op("Relu", b.input("x", F32, (32, 32)))
    b.output("y", b.op("Add", x, b.op("Transpose", x, perm=(1, 0))))


def _largest_truth(b: GraphBuilder) -> None:
    b.output("y", b.op("Not", b.op("ReduceMax", b.input("x", np.bool_, (8, 8)), axes=(1,))))


@pytest.mark.parametrize(
    ("build", "remedy"),
    [(_transposed_sum, "a value is needed in two orders at once"), (_largest_truth, "bool")],
)
def test_emit(build: Callable[[GraphBuilder], None], remedy: str) -> None:
    assert only(everything(space_of(graph_of(build), "local", can_emit)), "emit").remedy.endswith(remedy)
    assert everything(space_of(graph_of(build), "local")) == []


def test_single_nodes_are_always_legal() -> None:
    space = space_of(graph_of(_largest_truth), "local", can_emit, operand_limit=1, dtypes=frozenset({"int8"}))
    assert [space.reasons(1 << p) for p in range(space.n)] == [[], []]


def test_refusals_are_counted_by_rule() -> None:
    space = space_of(graph_of(matmul_bias_gelu), operand_limit=3)
    everything(space)
    everything(space)
    assert space.refusals == {"operands": 1}


def test_price_refuses_what_the_search_does_not_search() -> None:
    graph = graph_of(softmax)
    plan = fs.search(graph, H100)
    assert isinstance(fs.price(graph, [list(group.nodes) for group in plan.groups], H100), fs.Plan)
    for groups in (
        [["ReduceMax_0", "Exp_2"], ["Sub_1"], ["ReduceSum_3"], ["Div_4"]],
        [["Exp_2"]],
        [[n.name for n in graph.nodes], ["Exp_2"]],
    ):
        assert refused(graph, groups)


def test_price_of_the_plan_found_is_the_cost_found() -> None:
    graph = graph_of(matmul_bias_gelu)
    plan = fs.search(graph, H100)
    priced = fs.price(graph, [list(group.nodes) for group in reversed(plan.groups)], H100)
    assert isinstance(priced, fs.Plan)
    assert priced.cost_as == plan.cost_as
    assert sorted(group.nodes for group in priced.groups) == sorted(group.nodes for group in plan.groups)


def test_the_search_finds_a_plan_where_pairs_wait_for_each_other() -> None:
    graph = graph_of(mutual_wait)
    plan = fs.search(graph, H100)
    assert plan.status == "optimal"
    assert fs.check(graph, plan) == []
    every = [
        fs.price(graph, groups, H100)
        for groups in (
            [["a1", "a2", "b1", "b2"]], [["a1", "a2"], ["b1"], ["b2"]], [["a1", "b1"], ["a2"], ["b2"]], [["b2", "a2"], ["a1"], ["b1"]],
            [["a1", "a2", "b1"], ["b2"]], [["b2", "a2", "b1"], ["a1"]], [["a1"], ["a2"], ["b1"], ["b2"]], [["a1"], ["b2"], ["a2", "b1"]],
        )
    ]  # fmt: skip
    assert plan.cost_as == min(priced.cost_as for priced in every if isinstance(priced, fs.Plan))
