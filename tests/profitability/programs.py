"""The programs of the public reports P01 to P24, each as small as the decision allows, and what tests ask of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import fusion_search as fs
from costmodels import GroupFeatures
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.spaces import space_like

F32, I64 = np.float32, np.int64
H100 = fs.load_profile("nvidia-h100-sxm")


def made(name: str, build: Callable[[GraphBuilder], None]) -> Graph:
    b = GraphBuilder(name)
    build(b)
    return b.build()


def number(b: GraphBuilder, value: float) -> str:
    return b.constant(np.array([value], F32))


def weight(b: GraphBuilder, *shape: int) -> str:
    """A weight whose numbers do not matter: an input, so that large ones take no memory."""
    return b.input(b.fresh("w"), F32, shape)


def exact(graph: Graph, profile: fs.Profile = H100, **options: Any) -> fs.Plan:
    """The best plan, proved and checked."""
    plan = fs.search(graph, profile, **options)
    assert plan.status == "optimal"
    assert fs.check(graph, plan) == []
    return plan


def space_of(plan: fs.Plan) -> GroupSpace:
    return space_like(plan)(plan.graph, plan.profile)


def features(plan: fs.Plan, group: int) -> GroupFeatures:
    """What a group counts under its own schedule."""
    space = space_of(plan)
    mask = space.program.mask(list(plan.groups[group].nodes))
    priced, counted = space.priced(mask), space.features(mask)
    assert isinstance(priced, Priced)

    def chosen(value: Any) -> Any:
        return value[priced.tiling if value.size > 1 else 0] if isinstance(value, np.ndarray) else value

    again = {name: chosen(getattr(counted.recomputed, name)) for name in ("simple", "special", "contract")}
    return replace(counted, blocks=chosen(counted.blocks), recomputed=replace(counted.recomputed, **again))


def groups_with(plan: fs.Plan, *ops: str) -> list[int]:
    """Groups that hold a node of one of these core operators."""
    kinds = {node.name: node.op for node in plan.graph.nodes}
    return [k for k, group in enumerate(plan.groups) if any(kinds[name] in ops for name in group.nodes)]


def ops_of(plan: fs.Plan, group: int) -> list[str]:
    kinds = {node.name: node.op for node in plan.graph.nodes}
    return [kinds[name] for name in plan.groups[group].nodes]


def stored(plan: fs.Plan) -> set[str]:
    return {value for group in plan.groups for value in group.stores}


def times_computed(plan: fs.Plan, name: str) -> int:
    return sum(name in group.nodes for group in plan.groups)


# ---------------------------------------------------------------------- the programs


def concat_pool(b: GraphBuilder) -> None:
    """P01: nine adds, two levels of concat, a pool, two adds, both returned."""
    parts = [b.op("Add", b.input(f"a{k}", F32, (1, 16, 64, 64)), b.input(f"b{k}", F32, (1, 16, 64, 64))) for k in range(9)]
    inner = [b.op("Concat", *parts[k : k + 3], axis=1) for k in (0, 3, 6)]
    whole = b.op("Concat", *inner, axis=1)
    pool = b.op("MaxPool", whole, kernel=(1, 1, 2, 2), strides=(1, 1, 1, 1), dilations=(1,) * 4, before=(0,) * 4, after=(0,) * 4)
    b.output("y", b.op("Add", pool, number(b, 1.0)))
    b.output("z", b.op("Add", pool, number(b, 2.0)))


def row_chain(count: int, op: str, rows: int, width: int) -> Callable[[GraphBuilder], None]:
    """P02, P15: a chain on [rows, 1], then a broadcast to [rows, width]."""

    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (rows, 1))
        for k in range(count):
            x = b.op(op, x) if op == "Exp" else b.op(op, x, number(b, 1.0 + k))
        b.output("y", b.op("Add", x, b.input("wide", F32, (rows, width))))

    return build


def pairwise(steps: int, n: int = 4096) -> Callable[[GraphBuilder], None]:
    """P04: y_i = sum_j f(x_i, w_j) with f of a few cheap operators."""

    def build(b: GraphBuilder) -> None:
        d = b.op("Sub", b.input("x", F32, (n, 1)), b.input("w", F32, (1, n)))
        d = b.op("Mul", d, d)
        for k in range(steps - 2):
            d = b.op("Add", d, number(b, 0.5)) if k % 2 else b.op("Sqrt", b.op("Abs", d)) if k == 2 else b.op("Reciprocal", d)
        b.output("y", b.op("ReduceSum", d, axes=(1,)))

    return build


def stencil_sum(blocks: int = 4, each: int = 15, n: int = 1 << 24) -> Callable[[GraphBuilder], None]:
    """P05: a generated sum over 60 operands, all read at its beginning and again at its end.

    A group holds 256 nodes at most, so that the terms are shorter than those of the report for the whole to be one group.
    """

    def build(b: GraphBuilder) -> None:
        operands = [[b.input(f"u{i}_{k}", F32, (n,)) for k in range(each)] for i in range(blocks)]
        total = ""
        for late in range(2):
            for block in operands:
                part = ""
                for u in block:
                    term = b.op("Mul", u, number(b, 0.1 + late))
                    part = b.op("Add", part, term) if part else term
                total = b.op("Add", total, part) if total else part
        b.output("y", total)

    return build


def scaled_softmax(b: GraphBuilder) -> None:
    """P06: m = max(x c), e = exp(x c - m)."""
    xc = b.op("Mul", b.input("x", F32, (512, 256)), b.input("c", F32, (256,)))
    b.output("e", b.op("Exp", b.op("Sub", xc, b.op("ReduceMax", xc, axes=(1,)))))


def rms_backward(b: GraphBuilder, rows: int = 256, width: int = 256) -> None:
    """P07: backward of RMSNorm with eight gradients: dx row by row, dweight as a column sum, 11 inputs; both read the gradients."""
    x, w, rstd = b.input("x", F32, (rows, width)), b.input("w", F32, (width,)), b.input("rstd", F32, (rows, 1))
    gradients = [b.input(f"g{k}", F32, (rows, width)) for k in range(8)]
    normed = b.op("Mul", x, rstd)
    total = gradients[0]
    for g in gradients[1:]:
        total = b.op("Add", total, g)
    scaled = b.op("Mul", total, w)
    dot = b.op("ReduceMean", b.op("Mul", scaled, normed), axes=(1,))
    b.output("dx", b.op("Mul", b.op("Sub", scaled, b.op("Mul", normed, dot)), rstd))
    weighted = normed
    for g in gradients:
        weighted = b.op("Mul", weighted, g)
    b.output("dw", b.op("ReduceSum", weighted, axes=(0,)))


def cross_entropy(b: GraphBuilder) -> None:
    """P09: log-softmax on [3, 5], gather by label, mean."""
    x, label = b.input("x", F32, (3, 5)), b.input("label", I64, (3, 1))
    shifted = b.op("Sub", x, b.op("ReduceMax", x, axes=(1,)))
    total = b.op("ReduceSum", b.op("Exp", shifted), axes=(1,))
    logs = b.op("Sub", shifted, b.op("Log", total))
    b.output("loss", b.op("Neg", b.op("ReduceMean", b.op("GatherElements", logs, label, axis=1), axes=(0, 1))))


def scalar_and_partners(b: GraphBuilder, n: int = 1 << 22) -> None:
    """P10: two big pointwise nodes share only a number, and each has a partner that reads what it writes."""
    s = b.input("s", F32, (1,))
    for k in (1, 2):
        with b.origin(f"big{k}", "Mul"):
            big = b.op("Mul", b.input(f"x{k}", F32, (n * k,)), s)
        with b.origin(f"partner{k}", "Tanh"):
            b.output(f"y{k}", b.op("Tanh", big))


def branches(b: GraphBuilder) -> None:
    """P11: two branches share a bias of 4 KB; what they write, 64 MB and 96 MB, is read by an operator that takes it from memory."""
    bias = b.input("bias", F32, (1024,))
    for k, rows in ((1, 16384), (2, 24576)):
        with b.origin(f"add{k}", "Add"):
            wide = b.op("Add", b.input(f"x{k}", F32, (rows, 1024)), bias)
        with b.origin(f"scan{k}", "CumSum"):
            scan = b.op("CumSum", wide, axis=0, exclusive=0, reverse=0)
        with b.origin(f"max{k}", "ReduceMax"):
            b.output(f"y{k}", b.op("ReduceMax", scan, axes=(0,)))


def halo_stencil(b: GraphBuilder) -> None:
    """P12: a concat of 1, 759, 760 and 1528 along the last axis, then a stencil."""
    parts = [b.input(f"p{n}", F32, (256, n)) for n in (1, 759, 760, 1528)]
    whole = b.op("Concat", *parts, axis=1)
    n = 3048
    left, middle, right = (b.op("Slice", whole, starts=(0, k), steps=(1, 1), sizes=(256, n - 2)) for k in range(3))
    b.output("y", b.op("Sub", b.op("Add", left, right), b.op("Mul", middle, number(b, 2.0))))


def residual(depth: int, rows: int = 4096, width: int = 1024) -> Callable[[GraphBuilder], None]:
    """P13: x_{k+1} = x_k + tanh(x_k W_k)."""

    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (rows, width))
        for k in range(depth):
            with b.origin(f"f{k}", "MatMul"):
                f = b.op("MatMul", x, weight(b, width, width))
            with b.origin(f"t{k}", "Tanh"):
                f = b.op("Tanh", f)
            with b.origin(f"x{k + 1}", "Add"):
                x = b.op("Add", x, f)
        b.output("y", x)

    return build


def prologue(columns: int, rows: int = 2400, inner: int = 2400, op: str = "Exp") -> Callable[[GraphBuilder], None]:
    """P14, P23: a pointwise result read once by a contraction."""

    def build(b: GraphBuilder) -> None:
        with b.origin("prologue", op):
            x = b.op(op, b.input("x", F32, (rows, inner)))
        with b.origin("product", "MatMul"):
            b.output("y", b.op("MatMul", x, weight(b, inner, columns)))

    return build


def rotary(b: GraphBuilder) -> None:
    """P16: rotary embedding on q and k [1, 32, 1024, 64]."""
    cos, sin = b.input("cos", F32, (1, 1, 1024, 64)), b.input("sin", F32, (1, 1, 1024, 64))
    for name in ("q", "k"):
        x = b.input(name, F32, (1, 32, 1024, 64))
        low, high = (b.op("Slice", x, starts=(0, 0, 0, at), steps=(1,) * 4, sizes=(1, 32, 1024, 32)) for at in (0, 32))
        turned = b.op("Concat", b.op("Neg", high), low, axis=3)
        b.output(f"{name}_out", b.op("Add", b.op("Mul", x, cos), b.op("Mul", turned, sin)))


def feed_forward(tokens: int = 512, width: int = 1024, hidden: int = 2816) -> Callable[[GraphBuilder], None]:
    """P17: two products of one input, SiLU, multiply, a product."""

    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (tokens, width))
        gate, up = (b.op("MatMul", x, weight(b, width, hidden)) for _ in range(2))
        silu = b.op("Mul", gate, b.op("Sigmoid", gate))
        b.output("y", b.op("MatMul", b.op("Mul", silu, up), weight(b, hidden, width)))

    return build


def cosine_sum(n: int) -> Callable[[GraphBuilder], None]:
    """P19."""

    def build(b: GraphBuilder) -> None:
        b.output("y", b.op("ReduceSum", b.op("Cos", b.input("x", F32, (n,))), axes=(0,)))

    return build


def difference_sum(b: GraphBuilder) -> None:
    """P20: x[1:] - x[:-1] on 256^3, then a sum."""
    x = b.input("x", F32, (256, 256, 256))
    ahead, behind = (b.op("Slice", x, starts=(k, 0, 0), steps=(1, 1, 1), sizes=(255, 256, 256)) for k in (1, 0))
    b.output("y", b.op("ReduceSum", b.op("Sub", ahead, behind), axes=(0, 1, 2)))


def two_epilogues(b: GraphBuilder) -> None:
    """P21: m = x W; y1 = m c; y2 = a chain of m with erf."""
    m = b.op("MatMul", b.input("x", F32, (512, 512)), weight(b, 512, 512))
    b.output("y1", b.op("Mul", m, b.input("c", F32, (512,))))
    b.output("y2", b.op("Mul", m, b.op("Add", b.op("Erf", b.op("Mul", m, number(b, 0.7))), number(b, 1.0))))


def normed_concat(parts: int, rows: int = 4096, width: int = 2696) -> Callable[[GraphBuilder], None]:
    """P22: LayerNorm over a concat."""

    def build(b: GraphBuilder) -> None:
        with b.origin("concat", "Concat"):
            x = b.op("Concat", *(b.input(f"x{k}", F32, (rows, width)) for k in range(parts)), axis=1)
        with b.origin("norm", "LayerNormalization"):
            c = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
            v = b.op("ReduceMean", b.op("Mul", c, c), axes=(1,))
            b.output("y", b.op("Div", c, b.op("Sqrt", b.op("Add", v, number(b, 1e-5)))))

    return build


def residual_convolutions(b: GraphBuilder, channels: int = 64, size: int = 56) -> None:
    """P24: conv, relu, conv, add with the skip."""

    def conv(x: str, name: str) -> str:
        with b.origin(name, "Conv"):
            attrs: dict[str, Sequence[int]] = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}
            y = b.op("Conv", b.reshape(x, (1, 1, channels, size, size)), weight(b, 1, channels, channels, 3, 3), **attrs)
        return b.reshape(y, (1, channels, size, size))

    with b.origin("stem", "Relu"):
        x = b.op("Relu", b.input("x", F32, (1, channels, size, size)))
    first = conv(x, "conv1")
    with b.origin("relu", "Relu"):
        first = b.op("Relu", first)
    second = conv(first, "conv2")
    with b.origin("add", "Add"):
        b.output("y", b.op("Add", second, x))
