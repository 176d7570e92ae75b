"""Groups of several products and convolutions, and windows over computed values: random partitions, interpreted and compiled.

Random graphs seldom draw them, since the operands of products rarely fit each other. Here the structure is given, and extents,
plan and block sizes are drawn. Every node alone must agree with its reference, and what is fused must give the bits of what is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fusion_search.fusion.analysis import slides
from fusion_search.fusion.horizontal import MAX_SIBLINGS
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.search.quotient import execution_order
from fusion_search.testing.cases import Case
from fusion_search.testing.fuzz import check, space_of
from fusion_search.testing.graphs import random_feeds, random_partition

Rng = np.random.Generator
Form = Callable[[GraphBuilder, Rng], None]
FORMS: dict[str, Form] = {}
#: Partitions of each form that are interpreted; and those that are compiled, which may need a kernel for each group.
INTERPRETED, COMPILED = 12, 3


def form(function: Form) -> Form:
    FORMS[function.__name__] = function
    return function


def extent(rng: Rng, low: int = 2, high: int = 9) -> int:
    return int(rng.integers(low, high + 1))


def weight(b: GraphBuilder, rng: Rng, *shape: int, dtype: Any = np.float32) -> str:
    return b.constant((rng.standard_normal(shape) / 2).astype(dtype))


def number(b: GraphBuilder, value: float, dtype: Any = np.float32) -> str:
    return b.constant(np.array([value], dtype))


def softmax(b: GraphBuilder, x: str) -> str:
    axis = len(b.values[x].shape) - 1
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(axis,))))
    return b.op("Div", e, b.op("ReduceSum", e, axes=(axis,)))


def conv(b: GraphBuilder, rng: Rng, x: str, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
    """A convolution over the trailing dimensions of (batch, channels, ...), padded to keep them where the stride is 1."""
    n, c, *space = b.values[x].shape
    rank, pad = len(space), kernel // 2
    w = weight(b, rng, groups, filters // groups, c // groups, *[kernel] * rank)
    rules = {"strides": (stride,) * rank, "dilations": (1,) * rank, "before": (pad,) * rank, "after": (pad,) * rank}
    y = b.op("Conv", b.reshape(x, (n, groups, c // groups, *space)), w, weight(b, rng, groups, filters // groups), **rules)
    return b.reshape(y, (n, filters, *(-(-s // stride) for s in space)))


def pool(b: GraphBuilder, x: str, op: str, kernel: int, stride: int) -> str:
    rank = len(b.values[x].shape) - 2
    rules = {"strides": (1, 1, *[stride] * rank), "dilations": (1,) * (rank + 2), "before": (0,) * (rank + 2), "after": (0,) * (rank + 2)}
    return b.op(op, x, kernel=(1, 1, *[kernel] * rank), **rules)


# ---------------------------------------------------------------------- products


@form
def attention(b: GraphBuilder, rng: Rng) -> None:
    n, heads, rows, keys, d = extent(rng, 1, 2), extent(rng, 1, 3), extent(rng), extent(rng), extent(rng)
    q, k, v = (b.input(name, np.float32, (n, length, heads, d)) for name, length in (("q", rows), ("k", keys), ("v", keys)))
    left, middle = b.op("Transpose", q, perm=(0, 2, 1, 3)), b.op("Transpose", k, perm=(0, 2, 3, 1))
    scores = b.op("Mul", b.op("MatMul", left, middle), number(b, 0.4))
    if rng.random() < 0.5:
        scores = b.op("Add", scores, b.input("mask", np.float32, (n, 1, 1, keys)))
    context = b.op("MatMul", softmax(b, scores), b.op("Transpose", v, perm=(0, 2, 1, 3)))
    joined = b.reshape(b.op("Transpose", context, perm=(0, 2, 1, 3)), (n, rows, heads * d))
    out = extent(rng)
    b.output("y", b.op("Add", b.op("MatMul", joined, weight(b, rng, heads * d, out)), weight(b, rng, out)))


@form
def attention_of_one_head(b: GraphBuilder, rng: Rng) -> None:
    rows, keys, d, out = extent(rng, 5, 20), extent(rng), extent(rng), extent(rng)
    q, k, v = b.input("q", np.float32, (rows, d)), b.input("k", np.float32, (keys, d)), b.input("v", np.float32, (keys, d))
    p = softmax(b, b.op("MatMul", q, b.op("Transpose", k, perm=(1, 0))))
    context = b.op("MatMul", p, v)
    if rng.random() < 0.5:
        b.output("p", p)
    b.output("y", b.op("Add", b.op("MatMul", context, weight(b, rng, d, out)), b.input("r", np.float32, (rows, out))))


@form
def mlp(b: GraphBuilder, rng: Rng) -> None:
    dtype = np.float64 if rng.random() < 0.3 else np.float32
    rows, *widths = extent(rng, 5, 30), extent(rng), extent(rng, 3, 40), extent(rng), extent(rng)
    x = b.input("x", dtype, (rows, widths[0]))
    for k, (m, n) in enumerate(pairwise(widths)):
        x = b.op("Add", b.op("MatMul", x, weight(b, rng, m, n, dtype=dtype)), weight(b, rng, n, dtype=dtype))
        if k < 2:
            x = b.op(str(rng.choice(["Relu", "Tanh", "Erf"])), x)
    b.output("y", x)


@form
def gated(b: GraphBuilder, rng: Rng) -> None:
    n, rows, d, wide = extent(rng, 1, 2), extent(rng, 4, 12), extent(rng), extent(rng, 3, 30)
    x = b.input("x", np.float32, (n, rows, d))
    gate, up = (b.op("MatMul", x, weight(b, rng, d, wide)) for _ in range(2))
    b.output("y", b.op("Add", b.op("MatMul", b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up), weight(b, rng, wide, d)), x))


@form
def three_projections(b: GraphBuilder, rng: Rng) -> None:
    n, rows, heads, d = extent(rng, 1, 2), extent(rng, 3, 12), extent(rng, 1, 3), extent(rng)
    x = b.input("x", np.float32, (n, rows, heads * d))
    h = b.op("Sub", x, b.op("ReduceMean", x, axes=(2,))) if rng.random() < 0.5 else x
    for k in range(3):
        y = b.op("Add", b.op("MatMul", h, weight(b, rng, heads * d, heads * d)), weight(b, rng, heads * d))
        y = b.op("Transpose", b.reshape(y, (n, rows, heads, d)), perm=(0, 2, 1, 3) if k < 2 else (0, 2, 3, 1))
        b.output(f"y{k}", y)


@form
def projections_of_different_widths(b: GraphBuilder, rng: Rng) -> None:
    rows, d = extent(rng, 3, 30), extent(rng)
    x = b.input("x", np.float32, (rows, d))
    parts = [b.op("MatMul", x, weight(b, rng, d, extent(rng, 1, 12))) for _ in range(2)]
    b.output("both", b.op("Concat", *parts, axis=1))
    b.output("third", b.op("Relu", b.op("MatMul", b.op("Tanh", x), weight(b, rng, d, extent(rng, 1, 12)))))


@form
def projections_with_chains(b: GraphBuilder, rng: Rng) -> None:
    """Three or four products of one value, each with its chain; as many columns or not, the value on either side."""
    dtype = np.float64 if rng.random() < 0.3 else np.float32
    rows, d, wide, turned = extent(rng, 3, 40), extent(rng), extent(rng, 2, 20), rng.random() < 0.3
    x = b.input("x", dtype, (d, rows) if turned else (rows, d))
    for k in range(int(rng.integers(3, 5))):
        n = wide if rng.random() < 0.7 else extent(rng, 2, 12)
        shape = (n, d) if turned else (d, n)
        w = b.input(f"w{k}", dtype, shape) if rng.random() < 0.3 else weight(b, rng, *shape, dtype=dtype)
        y = b.op("MatMul", w, x) if turned else b.op("MatMul", x, w)
        if rng.random() < 0.7:
            y = b.op("Add", y, weight(b, rng, n, 1, dtype=dtype) if turned else weight(b, rng, n, dtype=dtype))
        for op in rng.choice(["Relu", "Tanh", "Neg", "Transpose"], int(rng.integers(0, 3)), replace=False):
            y = b.op(str(op), y, perm=(1, 0)) if op == "Transpose" else b.op(str(op), y)
        b.output(f"y{k}", y)


@form
def branches_of_one_point(b: GraphBuilder, rng: Rng) -> None:
    n, c, side = extent(rng, 1, 2), extent(rng, 1, 9), extent(rng, 3, 11)
    x = b.op("Relu", b.input("x", np.float32, (n, c, side, side)))
    for k in range(int(rng.integers(3, 5))):
        y = conv(b, rng, x, 6 if rng.random() < 0.5 else extent(rng, 1, 9), kernel=1)
        b.output(f"y{k}", b.op("Relu", y) if rng.random() < 0.8 else y)


@form
def product_of_products(b: GraphBuilder, rng: Rng) -> None:
    n, m, k, p = (extent(rng, 1, 12) for _ in range(4))
    left = b.op("MatMul", b.input("x", np.float32, (n, k)), weight(b, rng, k, m))
    right = b.op("MatMul", b.input("z", np.float32, (m, k)), weight(b, rng, k, p))
    b.output("y", b.op("Relu", b.op("MatMul", b.op("Tanh", left), right)))


# ---------------------------------------------------------------------- windows over what the group computes


@form
def conv_relu_pool(b: GraphBuilder, rng: Rng) -> None:
    n, c, side, filters = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 5, 9), extent(rng, 1, 9)
    x = conv(b, rng, b.input("x", np.float32, (n, c, side, side + 1)), filters, int(rng.choice([1, 3])), int(rng.choice([1, 2])))
    b.output("y", pool(b, b.op("Relu", x), str(rng.choice(["MaxPool", "SumPool"])), int(rng.choice([2, 3])), int(rng.choice([1, 2]))))


@form
def conv_conv(b: GraphBuilder, rng: Rng) -> None:
    n, c, side, filters = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 4, 8), extent(rng, 1, 9)
    x = b.input("x", np.float32, (n, c, side, side))
    y = b.op("Relu", conv(b, rng, x, filters))
    y = conv(b, rng, y, c, int(rng.choice([1, 3])))
    b.output("y", b.op("Relu", b.op("Add", y, x)))


@form
def bottleneck(b: GraphBuilder, rng: Rng) -> None:
    n, c, side, filters = extent(rng, 2, 3), extent(rng, 2, 6), extent(rng, 4, 7), extent(rng, 1, 9)
    x = b.input("x", np.float32, (n, c, side, side))
    y = b.op("Relu", conv(b, rng, x, filters, 1))
    y = b.op("Relu", conv(b, rng, y, filters, 3))
    b.output("y", b.op("Relu", b.op("Add", conv(b, rng, y, c, 1), x)))


@form
def separable(b: GraphBuilder, rng: Rng) -> None:
    n, c, side, wide = extent(rng, 2, 3), extent(rng, 2, 5), extent(rng, 4, 7), extent(rng, 2, 9)
    x = b.input("x", np.float32, (n, c, side, side))
    y = b.op("Relu", conv(b, rng, x, wide, 1))
    y = b.op("Relu", conv(b, rng, y, wide, 3, int(rng.choice([1, 2])), groups=wide))
    b.output("y", conv(b, rng, y, c, 1))


@form
def grouped_convs(b: GraphBuilder, rng: Rng) -> None:
    n, groups, c, side = extent(rng, 2, 3), extent(rng, 2, 3), extent(rng, 1, 3), extent(rng, 4, 7)
    x = b.input("x", np.float32, (n, groups * c, side, side))
    y = b.op("Relu", conv(b, rng, x, groups * extent(rng, 1, 3), 3, groups=groups))
    b.output("y", b.op("Tanh", conv(b, rng, y, groups * c, 3, groups=groups)))


@form
def convs_in_one_dimension(b: GraphBuilder, rng: Rng) -> None:
    n, c, length, filters = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 6, 30), extent(rng, 1, 9)
    x = b.input("x", np.float32, (n, c, length))
    y = b.op("Tanh", conv(b, rng, x, filters))
    b.output("y", b.op("Add", conv(b, rng, y, c), x))


@form
def siblings_and_concat(b: GraphBuilder, rng: Rng) -> None:
    n, c, side = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 4, 7)
    x = b.op("Relu", b.input("x", np.float32, (n, c, side, side)))
    parts = [b.op("Relu", conv(b, rng, x, extent(rng, 1, 7), kernel)) for kernel in (1, 3)]
    b.output("y", b.op("Concat", *parts, pool(b, x, "MaxPool", 1, 1), axis=1))


@form
def pools_of_computed_values(b: GraphBuilder, rng: Rng) -> None:
    n, c, side = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 6, 9)
    x = b.op("Mul", b.input("x", np.float32, (n, c, side, side)), weight(b, rng, c, 1, 1))
    y = pool(b, b.op("Tanh", x), "MaxPool", 2, int(rng.choice([1, 2])))
    b.output("y", b.op("Exp", pool(b, y, "SumPool", 2, 1)))


@form
def convolution_normalised_and_pooled(b: GraphBuilder, rng: Rng) -> None:
    n, c, side, filters = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 5, 8), extent(rng, 1, 6)
    x = conv(b, rng, b.input("x", np.float32, (n, c, side, side)), filters)
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes=(2, 3)))
    deviation = b.op("Sqrt", b.op("Add", b.op("ReduceMean", b.op("Mul", centred, centred), axes=(2, 3)), number(b, 1e-5)))
    b.output("y", pool(b, b.op("Relu", b.op("Div", centred, deviation)), "MaxPool", 2, 2))


@form
def convolution_then_product(b: GraphBuilder, rng: Rng) -> None:
    n, c, side, filters = extent(rng, 2, 3), extent(rng, 1, 4), extent(rng, 4, 7), extent(rng, 1, 6)
    x = b.op("Relu", conv(b, rng, b.input("x", np.float32, (n, c, side, side)), filters))
    flat = b.op("ReduceMean", x, axes=(2, 3)) if rng.random() < 0.5 else x
    size = int(np.prod(b.values[flat].shape[1:]))
    b.output("y", b.op("MatMul", b.reshape(flat, (n, size)), weight(b, rng, size, extent(rng))))


# ---------------------------------------------------------------------- the tests


def graph_of(name: str, extents: int) -> Graph:
    b = GraphBuilder(name)
    FORMS[name](b, np.random.default_rng([extents, 3]))
    return b.build()


def partition(space: GroupSpace, seed: int) -> list[int]:
    """A random partition; of three, that with the most in its largest group, so that products and windows meet."""
    if seed % 2 and space.families.masks:
        return around_a_family(space, np.random.default_rng([seed, 9]))
    drawn = [random_partition(space, np.random.default_rng([seed, k])) for k in range(3)]
    return max(drawn, key=lambda groups: max(group.bit_count() for group in groups))


def around_a_family(space: GroupSpace, rng: Rng) -> list[int]:
    """Siblings in one group with most of what may follow them, every other node alone."""
    group = space.families.masks[int(rng.integers(len(space.families.masks)))]
    for p in range(space.n):
        if rng.random() < 0.8 and not space.reasons(group | 1 << p):
            group |= 1 << p
    order = execution_order(space.preds, [group, *(1 << p for p in range(space.n) if not group >> p & 1)])
    assert order is not None
    return list(order)


def case_of(name: str, extents: int, seed: int) -> Case:
    graph = graph_of(name, extents)
    space = space_of(graph)
    groups = tuple(space.program.names(mask) for mask in partition(space, seed))
    elements = (16, 96, 4096)[seed % 3]
    return Case(graph, groups, random_feeds(graph, extents), elements, f"{name}, extents {extents}, seed {seed}, {groups}")


def failures(case: Case, *, compiled: bool = False) -> list[str]:
    return [f"{case.note}: {text}" for text in check(case, compiled=compiled)]


@pytest.mark.parametrize("name", FORMS)
def test_composed_groups_agree_in_the_interpreter(name: str) -> None:
    assert [text for seed in range(INTERPRETED) for text in failures(case_of(name, seed, seed))] == []


@pytest.mark.parametrize("name", FORMS)
def test_composed_groups_agree_compiled(name: str) -> None:
    """Few structures, several extents: the kernels of one structure serve them all only where no extent is text."""
    assert [text for seed in range(COMPILED) for text in failures(case_of(name, seed, seed), compiled=True)] == []


def test_the_groups_drawn_are_those_that_are_meant() -> None:
    """Groups of as many products and windows as are legal occur often."""
    found: Counter[int] = Counter()
    for name in FORMS:
        for seed in range(INTERPRETED):
            space = space_of(graph_of(name, seed))
            found.update((group & space.heavy).bit_count() for group in partition(space, seed))
    assert max(found) == MAX_SIBLINGS
    assert all(found[count] > 5 for count in range(2, MAX_SIBLINGS + 1))


@pytest.mark.parametrize("name", ["conv_relu_pool", "pools_of_computed_values", "convs_in_one_dimension"])
def test_a_window_that_slides_over_what_its_group_computes_is_refused_by_name(name: str) -> None:
    """The cost model's space has such groups; the generator has no text for them, and says so."""
    for seed in range(INTERPRETED):
        space = space_of(graph_of(name, seed))
        members = space.program.members
        for p, member in enumerate(members):
            maker = member.operands[0].producer
            if member.spec.kind == "window" and maker >= 0 and slides(member, 0) and not space.heavy >> maker & 1:
                (reason,) = space.reasons(1 << p | 1 << maker)
                assert reason.rule == "emit"
                assert member.node.name in reason.nodes
