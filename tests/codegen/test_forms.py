"""One case for each form that the generator emits, fused whole and node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.testing.graphs import random_feeds
from tests.codegen.agree import disagreements, space_of

F32 = np.float32
Case = Callable[[GraphBuilder], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def weights(b: GraphBuilder, *shape: int, dtype: Any = F32) -> str:
    return b.constant(np.random.default_rng([*shape, 5]).standard_normal(shape).astype(dtype))


def number(b: GraphBuilder, value: float, dtype: Any = F32) -> str:
    return b.constant(np.array([value], dtype))


def softmax_of(b: GraphBuilder, x: str, axis: int) -> str:
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(axis,))))
    return b.op("Div", e, b.op("ReduceSum", e, axes=(axis,)))


def window(rank: int, **rules: Any) -> dict[str, Any]:
    return {"strides": (1,) * rank, "dilations": (1,) * rank, "before": (0,) * rank, "after": (0,) * rank} | rules


@case
def chain_of_maps(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 128))
    b.output("y", b.op("Tanh", b.op("Relu", b.op("Exp", x))))


@case
def three_projections(b: GraphBuilder) -> None:
    x = b.input("x", F32, (300, 80))
    for k in range(3):
        y = b.op("Add", b.op("MatMul", x, weights(b, 80, 96)), weights(b, 96))
        b.output(f"y{k}", b.op("Transpose", b.reshape(y, (300, 4, 24)), perm=(1, 0, 2) if k < 2 else (1, 2, 0)))


@case
def three_projections_of_columns(b: GraphBuilder) -> None:
    x = b.input("x", np.float64, (80, 70))
    for k, n in enumerate((33, 40, 7)):
        b.output(f"y{k}", b.op("Relu", b.op("MatMul", weights(b, n, 80, dtype=np.float64), x)))


@case
def branches_of_one_point(b: GraphBuilder) -> None:
    x = b.input("x", F32, (2, 1, 48, 13, 13))
    for k, filters in enumerate((32, 20, 16, 3)):
        b.output(f"y{k}", b.op("Relu", b.op("Conv", x, weights(b, 1, filters, 48, 1, 1), weights(b, 1, filters), **window(2))))


@case
def softmax_of_rows(b: GraphBuilder) -> None:
    b.output("y", softmax_of(b, b.input("x", F32, (64, 128)), 1))


@case
def softmax_of_columns(b: GraphBuilder) -> None:
    b.output("y", softmax_of(b, b.input("x", F32, (37, 130)), 0))


@case
def layer_norm_over_more_than_a_strip(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 1300))
    c = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
    v = b.op("ReduceMean", b.op("Mul", c, c), axes=(1,))
    d = b.op("Div", c, b.op("Sqrt", b.op("Add", v, number(b, 1e-5))))
    b.output("y", b.op("Add", b.op("Mul", d, weights(b, 1300)), weights(b, 1300)))


@case
def matmul_bias_gelu(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 128))
    m = b.op("Add", b.op("MatMul", x, weights(b, 128, 96)), weights(b, 96))
    e = b.op("Erf", b.op("Mul", m, number(b, 0.7)))
    b.output("y", b.op("Mul", b.op("Mul", m, b.op("Add", e, number(b, 1))), number(b, 0.5)))


@case
def full_sum(b: GraphBuilder) -> None:
    b.output("y", b.op("ReduceSum", b.op("Cos", b.input("x", F32, (64, 128))), axes=(0, 1)))


@case
def column_sum(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 1000))
    b.output("y", b.op("ReduceSum", b.op("Mul", x, x), axes=(0,)))


@case
def siblings(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 128))
    b.output("y", b.op("Exp", x))
    b.output("z", b.op("Tanh", x))


@case
def norm_then_matmul(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 128))
    b.output("y", b.op("MatMul", b.op("Sub", x, b.op("ReduceMean", x, axes=(1,))), weights(b, 128, 200)))


@case
def matmul_split_into_heads(b: GraphBuilder) -> None:
    x = b.input("x", F32, (1, 128, 384))
    m = b.op("Add", b.op("MatMul", x, weights(b, 384, 384)), weights(b, 384))
    b.output("y", b.op("Transpose", b.reshape(m, (1, 128, 12, 32)), perm=(0, 2, 1, 3)))


@case
def attention_scores(b: GraphBuilder) -> None:
    q, k = b.input("q", F32, (1, 12, 128, 32)), b.input("k", F32, (1, 128, 12, 32))
    s = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 3, 1))), number(b, 0.1))
    b.output("y", softmax_of(b, s, 3))


@case
def attention_context(b: GraphBuilder) -> None:
    p, v = b.input("p", F32, (1, 12, 128, 128)), b.input("v", F32, (1, 12, 128, 32))
    b.output("y", b.reshape(b.op("Transpose", b.op("MatMul", p, v), perm=(0, 2, 1, 3)), (1, 128, 384)))


@case
def heads_joined_then_matmul(b: GraphBuilder) -> None:
    c = b.input("c", F32, (1, 12, 128, 32))
    o = b.reshape(b.op("Transpose", c, perm=(0, 2, 1, 3)), (1, 128, 384))
    b.output("y", b.op("Relu", b.op("MatMul", o, weights(b, 384, 100))))


@case
def convolution_with_bias_and_maps(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 6, 15, 17)), (2, 1, 6, 15, 17))
    y = b.op("Conv", x, weights(b, 1, 8, 6, 3, 3), weights(b, 1, 8), **window(2, strides=(2, 1), before=(1, 1), after=(1, 1)))
    b.output("y", b.op("Relu", b.op("Add", b.reshape(y, (2, 8, 8, 17)), weights(b, 8, 1, 1))))


@case
def pointwise_convolution_of_computed(b: GraphBuilder) -> None:
    x = b.op("Relu", b.op("Mul", b.input("x", F32, (2, 6, 15, 17)), weights(b, 6, 1, 1)))
    y = b.op("Conv", b.reshape(x, (2, 1, 6, 15, 17)), weights(b, 1, 8, 6, 1, 1), weights(b, 1, 8), **window(2))
    b.output("y", b.op("Relu", b.reshape(y, (2, 8, 15, 17))))


@case
def depthwise_convolution(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 6, 15, 17)), (2, 6, 1, 15, 17))
    y = b.op("Conv", x, weights(b, 6, 1, 1, 3, 3), **window(2, strides=(2, 2), before=(1, 1), after=(1, 1)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 6, 8, 9))))


@case
def grouped_convolution(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 6, 15, 17)), (2, 2, 3, 15, 17))
    y = b.op("Conv", x, weights(b, 2, 4, 3, 3, 3), **window(2, before=(1, 1), after=(1, 1)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 8, 15, 17))))


@case
def dilated_convolution_in_one_dimension(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 4, 40)), (2, 1, 4, 40))
    y = b.op("Conv", x, weights(b, 1, 7, 4, 3), weights(b, 1, 7), **window(1, dilations=(2,), before=(4,)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 7, 40))))


@case
def max_pool(b: GraphBuilder) -> None:
    rules = window(4, strides=(1, 1, 2, 2), before=(0, 0, 1, 1), after=(0, 0, 1, 1))
    b.output("y", b.op("Relu", b.op("MaxPool", b.input("x", F32, (2, 6, 15, 17)), kernel=(1, 1, 3, 3), **rules)))


@case
def sum_pool_along_channels(b: GraphBuilder) -> None:
    x = b.input("x", F32, (2, 16, 15, 17))
    p = b.op("SumPool", x, kernel=(1, 5, 1, 1), **window(4, before=(0, 2, 0, 0), after=(0, 2, 0, 0)))
    b.output("y", b.op("Mul", b.op("Sigmoid", b.op("Add", p, number(b, 2))), x))


@case
def strided_pool_without_a_window(b: GraphBuilder) -> None:
    rules = window(4, strides=(1, 1, 2, 1))
    b.output("y", b.op("Erf", b.op("MaxPool", b.input("x", F32, (5, 5, 10, 5)), kernel=(1, 1, 1, 1), **rules)))


@case
def matmul_by_one_number(b: GraphBuilder) -> None:
    b.output("y", b.op("Relu", b.op("MatMul", b.op("Neg", b.input("x", F32, (7, 1))), b.constant(np.array([[3]], F32)))))


@case
def convolution_by_one_number(b: GraphBuilder) -> None:
    x = b.input("x", F32, (2, 1, 1, 9))
    b.output("y", b.op("Relu", b.op("Conv", x, weights(b, 1, 1, 1, 1), weights(b, 1, 1), **window(1))))


@case
def concat_of_three(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (2, 6, 15, 17)), b.input("y", F32, (2, 3, 15, 17))
    b.output("o", b.op("Relu", b.op("Concat", x, y, x, axis=1)))


@case
def rotary_embedding(b: GraphBuilder) -> None:
    x, c, s = b.input("x", F32, (1, 4, 10, 32)), b.input("c", F32, (1, 1, 10, 32)), b.input("s", F32, (1, 1, 10, 32))
    low, high = (b.op("Slice", x, starts=(0, 0, 0, at), steps=(1,) * 4, sizes=(1, 4, 10, 16)) for at in (0, 16))
    r = b.op("Concat", b.op("Neg", high), low, axis=3)
    b.output("y", b.op("Add", b.op("Mul", x, c), b.op("Mul", r, s)))


@case
def pad_of_computed(b: GraphBuilder) -> None:
    x = b.op("Exp", b.input("x", F32, (2, 6, 5, 7)))
    b.output("y", b.op("Relu", b.op("Pad", x, before=(0, 0, 1, 2), after=(0, 1, 0, 3), value=-1.5)))


@case
def pad_moves_the_only_element_out(b: GraphBuilder) -> None:
    x = b.op("ReduceMax", b.input("x", F32, (7, 7, 2)), axes=(0, 1))
    b.output("y", b.op("Pad", x, before=(0, 1, 2), after=(3, -1, 1), value=-1.0))


@case
def gather_of_rows(b: GraphBuilder) -> None:
    i = b.input("i", np.int64, (2, 9))
    b.output("y", b.op("Add", b.op("Gather", weights(b, 50, 32), i, axis=0), weights(b, 9, 32)))


@case
def gather_from_the_same_nest(b: GraphBuilder) -> None:
    x = b.op("Exp", b.input("x", F32, (40, 1)))
    b.output("y", b.op("Tanh", b.op("Gather", x, b.constant(np.array([-1])), axis=1)))


@case
def gather_elements_of_a_viewed_scratch(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (3, 5, 16)), (3, 1, 5, 16))
    y = b.reshape(b.op("Conv", x, weights(b, 1, 2, 5, 1), **window(1)), (3, 2, 16))
    index = b.op("Mod", b.input("i", np.int64, (3, 67, 15)), number(b, 2, np.int64))
    b.output("y", b.op("Tanh", b.op("GatherElements", y, index, axis=1)))


def one_element_each(b: GraphBuilder, data: str) -> None:
    """Gather along a leading axis of one element in every way, at indices that are read."""
    i = b.op("Mod", b.input("i", np.int64, ()), b.constant(np.array(1, np.int64)))
    several = b.op("Mod", b.input("several", np.int64, b.values[data].shape), number(b, 1, np.int64))
    b.output("slice", b.op("Neg", b.op("Gather", data, i, axis=0)))
    b.output("elements", b.op("Neg", b.op("GatherElements", data, several, axis=0)))
    b.output("point", b.op("Neg", b.op("GatherND", data, b.reshape(i, (1,)))))


@case
def gathers_of_one_element_beside_merged_dimensions(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (3, 5, 16)), (3, 1, 5, 16))
    one_element_each(b, b.reshape(b.op("Conv", x, weights(b, 1, 2, 5, 1), **window(1)), (1, 6, 16)))


@case
def gathers_of_one_element_beside_cut_dimensions(b: GraphBuilder) -> None:
    one_element_each(b, b.reshape(b.op("ReduceSum", b.input("x", F32, (9, 24)), axes=(0,)), (1, 4, 6)))


@case
def gather_nd_at_computed_points(b: GraphBuilder) -> None:
    index = b.op("Mod", b.input("i", np.int64, (6, 2)), number(b, 8, np.int64))
    b.output("y", b.op("Neg", b.op("GatherND", b.input("x", F32, (8, 9, 11)), index)))


@case
def pooled_gate(b: GraphBuilder) -> None:
    x = b.input("x", F32, (2, 6, 7, 7))
    b.output("y", b.op("Mul", x, b.op("Sigmoid", b.op("ReduceMean", x, axes=(2, 3)))))


@case
def full_maximum_into_a_concat(b: GraphBuilder) -> None:
    x = b.input("x", F32, (5, 9))
    m = b.op("ReduceMax", x, axes=(0, 1))
    b.output("y", b.op("Add", b.op("Concat", m, b.op("Neg", m), axis=1), number(b, 1)))


@case
def product_of_one_element(b: GraphBuilder) -> None:
    x = b.op("Mul", b.input("x", F32, (1, 1)), number(b, 3))
    b.output("y", b.op("Tanh", b.op("ReduceProd", x, axes=(0,))))


@case
def masks_and_casts(b: GraphBuilder) -> None:
    i, x = b.input("i", np.int64, (3, 9)), b.input("x", F32, (3, 9))
    c = b.op("Greater", i, b.constant(np.array(3, np.int64)))
    b.output("y", b.op("Where", b.op("Not", c), x, b.constant(np.array(-np.inf, F32))))
    b.output("z", b.op("Cast", c, to="float32"))
    b.output("w", b.op("Cast", i, to="float32"))


@case
def half_precision(b: GraphBuilder) -> None:
    x = b.input("x", np.float16, (3, 90))
    b.output("y", b.op("Mul", b.op("Add", x, x), x))
    b.output("m", b.op("ReduceMean", x, axes=(1,)))
    b.output("cm", b.op("ReduceMax", x, axes=(0,)))


@case
def integers(b: GraphBuilder) -> None:
    i, k = b.input("i", np.int32, (7, 33)), b.input("k", np.int32, (33,))
    q = b.op("Div", i, k)
    b.output("q", b.op("Sub", b.op("Mul", q, k), b.op("Mod", i, k)))
    b.output("m", b.op("ReduceMin", q, axes=(0,)))
    b.output("p", b.op("ReduceProd", i, axes=(1,)))


@case
def no_rows(b: GraphBuilder) -> None:
    x = b.op("Exp", b.input("x", F32, (0, 16)))
    b.output("y", x)
    b.output("s", b.op("ReduceSum", x, axes=(0,)))


@case
def product_of_no_terms(b: GraphBuilder) -> None:
    b.output("y", b.op("MatMul", b.input("x", F32, (4, 0)), b.input("w", F32, (0, 6))))


@case
def depthwise_convolution_with_bias(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 6, 15, 17)), (2, 6, 1, 15, 17))
    y = b.op("Conv", x, weights(b, 6, 1, 1, 5, 5), weights(b, 6, 1), **window(2, before=(2, 2), after=(2, 2)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 6, 15, 17))))


@case
def several_filters_of_each_plane(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 3, 15, 17)), (2, 3, 1, 15, 17))
    y = b.op("Conv", x, weights(b, 3, 2, 1, 3, 3), weights(b, 3, 2), **window(2, before=(1, 1), after=(1, 1)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 6, 15, 17))))


@case
def grouped_convolution_with_bias(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 6, 7, 7)), (2, 2, 3, 7, 7))
    y = b.op("Conv", x, weights(b, 2, 20, 3, 3, 3), weights(b, 2, 20), **window(2, before=(1, 1), after=(1, 1)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 40, 7, 7))))


@case
def convolution_with_computed_biases(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (1, 6, 9, 17)), (1, 1, 6, 9, 17))
    bias = b.op("Exp", b.input("bias", F32, (1, 8)))
    y = b.op("Conv", x, weights(b, 1, 8, 6, 3, 3), bias, **window(2, before=(1, 1), after=(1, 1)))
    b.output("y", b.op("Relu", b.reshape(y, (1, 8, 9, 17))))


@case
def pointwise_convolution_of_images_with_bias_and_residual(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (3, 6, 7, 7)), (3, 1, 6, 7, 7))
    y = b.op("Conv", x, weights(b, 1, 20, 6, 1, 1), weights(b, 1, 20), **window(2))
    b.output("y", b.op("Relu", b.op("Add", b.reshape(y, (3, 20, 7, 7)), b.input("r", F32, (3, 20, 7, 7)))))


@case
def pointwise_convolution_of_every_other_pixel(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 6, 15, 17)), (2, 1, 6, 15, 17))
    y = b.op("Conv", x, weights(b, 1, 20, 6, 1, 1), weights(b, 1, 20), **window(2, strides=(2, 2)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 20, 8, 9))))


@case
def patches(b: GraphBuilder) -> None:
    x = b.reshape(b.input("x", F32, (2, 3, 20, 24)), (2, 1, 3, 20, 24))
    y = b.op("Conv", x, weights(b, 1, 20, 3, 4, 4), weights(b, 1, 20), **window(2, strides=(4, 4)))
    b.output("y", b.op("Relu", b.reshape(y, (2, 20, 5, 6))))


def built(name: str) -> Graph:
    b = GraphBuilder(name)
    CASES[name](b)
    return b.build()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("eager_threads")
def test_fused_whole(name: str) -> None:
    graph = built(name)
    space = space_of(graph)
    groups = [[node.name for node in graph.nodes]]
    assert space.reasons(space.program.mask(groups[0])) == []
    assert disagreements(graph, groups, random_feeds(graph, 1)) == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("small_blocks")
def test_node_by_node(name: str) -> None:
    graph = built(name)
    assert disagreements(graph, [[node.name] for node in graph.nodes], random_feeds(graph, 2)) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_values_survive(dtype: type) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, np.finfo(dtype).tiny / 4, np.finfo(dtype).max], dtype)
    x = np.repeat(values, 9)
    y = np.tile(values, 9)
    b = GraphBuilder("special")
    left, right = b.input("x", dtype, x.shape), b.input("y", dtype, y.shape)
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "GreaterOrEqual"):
        b.output(op, b.op(op, left, right))
    for op in ("Neg", "Abs", "Relu", "Sqrt", "Reciprocal", "Floor", "IsNaN"):
        b.output(op, b.op(op, left))
    graph = b.build()
    assert disagreements(graph, [[node.name for node in graph.nodes]], {"x": x, "y": y}) == []


def test_sign_of_infinities() -> None:
    b = GraphBuilder("special")
    b.output("y", b.op("Sign", b.input("x", np.float32, (3,))))
    graph = b.build()
    assert disagreements(graph, [["Sign_0"]], {"x": np.array([np.inf, -np.inf, np.nan], np.float32)}) == []


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean"])
def test_nan_and_infinity_go_through_reductions(op: str, axis: int) -> None:
    x = np.ones((6, 70), np.float32)
    x[1, 3], x[2, 40], x[3, 5], x[4, 69] = np.nan, np.inf, -np.inf, np.nan
    b = GraphBuilder("special")
    b.output("y", b.op(op, b.op("Neg", b.input("x", np.float32, x.shape)), axes=(axis,)))
    graph = b.build()
    assert disagreements(graph, [[node.name for node in graph.nodes]], {"x": x}) == []


def test_a_reduction_has_the_same_bits_in_every_group() -> None:
    from fusion_search.runtime.program import BoundPlan

    rng = np.random.default_rng(0)
    for axes in ((1,), (0,), (0, 1)):
        b = GraphBuilder("reduction")
        x = b.input("x", np.float32, (37, 1500))
        e = b.op("Exp", x)
        b.output("y", b.op("Tanh", b.op("ReduceSum", e, axes=axes)))
        graph = b.build()
        feeds = {"x": rng.standard_normal((37, 1500)).astype(np.float32)}
        names = [node.name for node in graph.nodes]
        plans = [[names], [[n] for n in names], [names[:2], names[2:]], [names[:1], names[1:]]]
        assert len({BoundPlan(graph, plan)(feeds)["y"].tobytes() for plan in plans}) == 1
