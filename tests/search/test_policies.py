"""Published policies: always legal, never better than the optimum, blind to names, and different where their rules differ."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.program import bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.search.exact import exact
from fusion_search.search.policies import POLICIES
from fusion_search.search.policies.inductor import MAX_NODES
from fusion_search.search.policies.rules import Board
from fusion_search.search.policies.tvm import _Fuser
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import (
    F32,
    graph_of,
    layer_norm,
    matmul_bias_gelu,
    mutual_wait,
    number,
    shuffled,
    softmax,
    space_of,
    two_blocks,
    weight,
)

PROFILES = ("nvidia-h100-sxm", "raspberry-pi-5", "huawei-ascend-310p", "rockchip-rk3588-npu")
RANDOM = tuple((seed, PROFILES[seed % len(PROFILES)]) for seed in range(120))


def cost_of_plan(space: GroupSpace, groups: tuple[int, ...]) -> int:
    """Check cover, order and every rule of the space; return the cost."""
    done = total = 0
    for group in groups:
        assert group
        assert not group & done
        assert group & (group - 1) == 0 or space.reasons(group) == []
        for v in bits(group):
            assert not space.preds[v] & ~(done | group)
        cost = space.cost(group)
        assert cost is not None
        done |= group
        total += cost
    assert done == (1 << space.n) - 1
    return total


@pytest.mark.parametrize(("seed", "profile"), RANDOM)
def test_legal_and_never_better_than_the_optimum(seed: int, profile: str) -> None:
    space = space_of(random_graph(seed, size=4 + seed % 9), profile)
    best = exact(CoarseSpace(space))
    assert best.status == "optimal"
    for name, policy in POLICIES.items():
        assert cost_of_plan(space, policy(space)) >= best.cost, name


@pytest.mark.parametrize("seed", range(30))
def test_names_and_order_do_not_matter(seed: int) -> None:
    graph = random_graph(seed, size=10)
    one, two = space_of(graph), space_of(shuffled(graph, seed))
    for name, policy in POLICIES.items():
        assert cost_of_plan(one, policy(one)) == cost_of_plan(two, policy(two)), name


def partition_by(policy: str, build: Callable[[GraphBuilder], None], profile: str = "nvidia-h100-sxm") -> list[str]:
    """The groups as operators: the core nodes of each, in order."""
    space = space_of(graph_of(build), profile)
    groups = POLICIES[policy](space)
    cost_of_plan(space, groups)
    return [" ".join(space.program.members[v].node.op for v in bits(group)) for group in groups]


def diamond(b: GraphBuilder) -> None:
    """One value, two readers, joined again."""
    x = b.op("Exp", b.input("x", F32, (512, 512)))
    b.output("y", b.op("Add", b.op("Relu", x), b.op("Tanh", x)))


def siblings(b: GraphBuilder) -> None:
    """Two readers of one input."""
    x = b.input("x", F32, (512, 512))
    b.output("p", b.op("Exp", x))
    b.output("q", b.op("Tanh", x))


def two_outputs(b: GraphBuilder) -> None:
    """A chain whose middle the caller gets too."""
    x = b.op("Relu", b.input("x", F32, (512, 512)))
    b.output("p", x)
    b.output("q", b.op("Tanh", x))


def residual(b: GraphBuilder) -> None:
    """A product, its bias, its residual and an activation; then a norm."""
    x = b.input("x", F32, (64, 128))
    with b.origin("project", "MatMul"):
        m = b.op("MatMul", x, weight(b, 128, 128))
    with b.origin("bias", "Add"):
        m = b.op("Add", m, weight(b, 128))
    with b.origin("skip", "Add"):
        m = b.op("Add", m, x)
    with b.origin("norm", "LayerNormalization"):
        c = b.op("Sub", m, b.op("ReduceMean", m, axes=(1,)))
        v = b.op("ReduceMean", b.op("Mul", c, c), axes=(1,))
        b.output("y", b.op("Div", c, b.op("Sqrt", b.op("Add", v, number(b, 1e-5)))))


def long_chain(b: GraphBuilder) -> None:
    x = b.input("x", F32, (512, 512))
    for _ in range(100):
        x = b.op("Relu", b.op("Neg", x))
    b.output("y", x)


def gelu_by_hand(b: GraphBuilder) -> None:
    """The GELU that exporters spell out after a product with bias."""
    x = b.input("x", F32, (64, 128))
    steps = iter(("MatMul", "Add", "Div", "Erf", "Add", "Mul", "Mul"))

    def op(*operands: str) -> str:
        kind = next(steps)
        with b.origin(f"node_{len(b.nodes)}", kind):
            return b.op(kind, *operands)

    m = op(op(x, weight(b, 128, 96)), weight(b, 96))
    e = op(op(op(m, number(b, 1.4))), number(b, 1.0))
    b.output("y", op(op(m, e), number(b, 0.5)))


def norm_with_bias(b: GraphBuilder) -> None:
    """Layer normalisation with scale and bias, spelled out."""
    x = b.input("x", F32, (64, 128))
    c = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
    v = b.op("ReduceMean", b.op("Mul", c, c), axes=(1,))
    d = b.op("Div", c, b.op("Sqrt", b.op("Add", v, number(b, 1e-5))))
    b.output("y", b.op("Add", b.op("Mul", d, weight(b, 128)), weight(b, 128)))


GOLDEN = [
    # A value with two readers: only what fuses through a post-dominator or by bytes sees that all of it is one kernel.
    (diamond, "inductor", 1),
    (diamond, "tvm", 1),
    (diamond, "xla-priority", 1),
    (diamond, "xla-instruction", 1),
    (diamond, "linear-clusters", 3),
    (diamond, "ort-patterns", 4),
    # Siblings: horizontal fusion is a rule of two of them.
    (siblings, "inductor", 1),
    (siblings, "xla-priority", 1),
    (siblings, "tvm", 2),
    (siblings, "xla-instruction", 2),
    (siblings, "linear-clusters", 2),
    # A group with two outputs.
    (two_outputs, "inductor", 1),
    (two_outputs, "xla-priority", 1),
    (two_outputs, "tvm", 2),
    (two_outputs, "xla-instruction", 2),
    (two_outputs, "linear-clusters", 2),
    # At most 64 nodes a kernel, or 256, or as many as come.
    (long_chain, "inductor", -(-200 // MAX_NODES)),
    (long_chain, "tvm", 1),
    (long_chain, "linear-clusters", 1),
    (long_chain, "ort-patterns", 200),
]


@pytest.mark.parametrize(("build", "policy", "launches"), GOLDEN, ids=lambda part: getattr(part, "__name__", str(part)))
def test_kernels_by_policy(build: Callable[[GraphBuilder], None], policy: str, launches: int) -> None:
    found = partition_by(policy, build)
    if build is long_chain and policy == "inductor":
        assert launches <= len(found) < 100
        assert max(len(group.split()) for group in found) <= MAX_NODES
    else:
        assert len(found) == launches, found


def test_a_reduction_that_is_read_again_for_each_element_is_not_fused_by_instruction_fusion() -> None:
    assert partition_by("inductor", softmax) == ["ReduceMax Sub Exp ReduceSum Div"]
    assert partition_by("xla-instruction", softmax) == ["ReduceMax", "Sub Exp", "ReduceSum", "Div"]
    assert partition_by("linear-clusters", softmax) == ["ReduceMax Sub Exp", "ReduceSum Div"]


def test_two_reductions_are_never_one_fusion_of_xla() -> None:
    for policy in ("xla-priority", "xla-instruction"):
        for build in (softmax, layer_norm):
            for group in partition_by(policy, build):
                assert sum(op.startswith("Reduce") for op in group.split()) <= 1


def test_epilogues_of_a_product() -> None:
    assert partition_by("xla-instruction", matmul_bias_gelu)[0] == "MatMul"
    assert partition_by("linear-clusters", matmul_bias_gelu)[0] == "MatMul Add"
    assert partition_by("xla-priority", matmul_bias_gelu)[0] == "MatMul Add"
    assert partition_by("inductor", matmul_bias_gelu) == ["MatMul Add Mul Erf Add Mul"]
    # The dominator of the biased product is elementwise to it: Mul(m, 1 + erf(...)).
    assert partition_by("tvm", matmul_bias_gelu) == ["MatMul Add Mul Erf Add Mul"]


def test_patterns_see_operators_of_the_model() -> None:
    assert partition_by("ort-patterns", residual) == ["MatMul", "Add Add ReduceMean Sub Mul ReduceMean Add Sqrt Div"]
    assert partition_by("ort-patterns", gelu_by_hand) == ["MatMul", "Add Div Erf Add Mul Mul"]
    # Without origins every core node is an operator of its own, and what exporters spell out is found among them.
    assert partition_by("ort-patterns", norm_with_bias) == ["ReduceMean Sub Mul ReduceMean Add Sqrt Div Mul Add"]
    # The pattern ends in scale and bias; a norm without the bias is none.
    assert len(partition_by("ort-patterns", layer_norm)) == 8


def test_groups_that_would_wait_for_each_other_are_not_made() -> None:
    for policy in POLICIES:
        space = space_of(graph_of(mutual_wait))
        cost_of_plan(space, POLICIES[policy](space))
        space = space_of(graph_of(two_blocks))
        cost_of_plan(space, POLICIES[policy](space))


def test_what_shares_less_than_a_line_is_not_joined() -> None:
    def tiny(b: GraphBuilder) -> None:
        x = b.input("x", F32, (8,))
        b.output("p", b.op("Exp", x))
        b.output("q", b.op("Tanh", x))

    for policy in POLICIES:
        assert len(partition_by(policy, tiny)) == 2


def test_policies_are_methods_and_their_plans_are_checked() -> None:
    names = fs.methods()
    assert names[:4] == ["exact", "unfused", "per-operator", "fuse-all"]
    assert names[4:] == list(POLICIES)
    graph, profile = graph_of(residual), fs.load_profile("local")
    for name in names:
        plan = fs.search(graph, profile, method=name)
        assert plan.method == name
        assert fs.check(graph, plan) == []
        assert plan.cost_as >= fs.search(graph, profile).cost_as


def test_an_empty_graph_and_one_node() -> None:
    def one(b: GraphBuilder) -> None:
        b.output("y", b.op("Relu", b.input("x", np.float32, (4,))))

    for policy in POLICIES:
        assert partition_by(policy, one) == ["Relu"]


@pytest.mark.parametrize("ways", [3, 128, 129])
def test_what_lies_before_a_post_dominator_is_walked_no_further_than_a_group_may_hold(ways: int) -> None:
    b = GraphBuilder("ways")
    x = b.op("Exp", b.input("x", F32, (64, 512)))
    first, *more = [b.op("Neg", x) for _ in range(ways)]
    for other in more:
        first = b.op("Add", first, other)
    b.output("y", first)
    space = space_of(b.build())
    exp = next(v for v, member in enumerate(space.program.members) if member.node.op == "Exp")
    fuser = _Fuser(Board(space))
    between = fuser._between(exp, fuser.parent[exp])
    assert (between.bit_count() if between is not None else None) == (2 * ways - 2 if ways < 129 else None)
