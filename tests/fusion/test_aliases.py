"""Which concats their producers can write, where the parts lie then, and that neither names nor order decide it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from fusion_search.fusion.aliases import Aliases, alias_concats
from fusion_search.fusion.program import Program, canonical_order
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from tests.fusion.concats import F32, features, random_concats
from tests.fusion.programs import graph_of, shuffled, space_of

X = (1, 3, 4)


def aliases_of(graph: Graph) -> Aliases:
    return alias_concats(graph, canonical_order(graph))


def two(b: GraphBuilder, shape: tuple[int, ...] = X) -> tuple[str, str]:
    x = b.input("x", F32, shape)
    return b.op("Relu", x), b.op("Tanh", x)


def outermost(b: GraphBuilder) -> None:
    b.output("y", b.op("Concat", *two(b), axis=1))


def of_views(b: GraphBuilder) -> None:
    b.output("y", b.op("Concat", *(b.reshape(v, (12,)) for v in two(b)), axis=0))


def nested(b: GraphBuilder) -> None:
    p, q = two(b)
    b.output("y", b.op("Concat", b.op("Concat", p, q, axis=1), b.op("Neg", p), axis=1))


def prefix(b: GraphBuilder) -> None:
    p, q = two(b)
    b.output("z", b.op("Exp", b.op("Concat", p, q, axis=1)))
    b.output("y", b.op("Concat", p, q, b.op("Neg", p), axis=1))


def middle(b: GraphBuilder) -> None:
    p, q = two(b)
    b.output("z", b.op("Exp", b.op("Concat", p, q, axis=1)))
    b.output("y", b.op("Concat", b.op("Neg", p), p, q, axis=1))


def inner_axis(b: GraphBuilder) -> None:
    b.output("y", b.op("Concat", *two(b), axis=2))


def batch(b: GraphBuilder) -> None:
    b.output("y", b.op("Concat", *two(b, (2, 3, 4)), axis=1))


def of_an_input(b: GraphBuilder) -> None:
    x = b.input("x", F32, X)
    b.output("y", b.op("Concat", b.op("Relu", x), x, axis=1))


def of_a_constant(b: GraphBuilder) -> None:
    b.output("y", b.op("Concat", two(b)[0], b.constant(np.ones(X, F32)), axis=1))


def twice_the_same(b: GraphBuilder) -> None:
    p, _ = two(b)
    b.output("y", b.op("Concat", p, p, axis=1))


def of_a_result(b: GraphBuilder) -> None:
    p, q = two(b)
    b.output("z", p)
    b.output("y", b.op("Concat", p, q, axis=1))


def other_order(b: GraphBuilder) -> None:
    p, q = two(b)
    b.output("z", b.op("Exp", b.op("Concat", q, p, axis=1)))
    b.output("y", b.op("Concat", p, q, b.op("Neg", p), axis=1))


def with_a_gap(b: GraphBuilder) -> None:
    p, q = two(b)
    n = b.op("Neg", p)
    b.output("z", b.op("Exp", b.op("Concat", p, n, axis=1)))
    b.output("y", b.op("Concat", p, q, n, axis=1))


def returned_range(b: GraphBuilder) -> None:
    p, q = two(b)
    b.output("z", b.op("Concat", p, q, axis=1))
    b.output("y", b.op("Concat", p, q, b.op("Neg", p), axis=1))


def nothing_in_it(b: GraphBuilder) -> None:
    p = b.op("Relu", b.input("x", F32, X))
    b.output("y", b.op("Concat", p, b.op("Tanh", b.input("e", F32, (1, 0, 4))), axis=1))


@pytest.mark.parametrize(
    ("build", "free"),
    [
        (outermost, 1), (of_views, 1), (nested, 2), (prefix, 2), (middle, 2), (features, 3),
        (inner_axis, 0), (batch, 0), (of_an_input, 0), (of_a_constant, 0), (twice_the_same, 0), (of_a_result, 0), (nothing_in_it, 0),
        (other_order, 1), (with_a_gap, 1), (returned_range, 1),
    ],
)  # fmt: skip
def test_what_is_free(build: Callable[[GraphBuilder], None], free: int) -> None:
    graph = graph_of(build)
    found = aliases_of(graph)
    assert len(found.nodes) == free
    space = space_of(graph)
    for node in graph.nodes:
        price = space.cost(space.program.mask([node.name]))
        assert price is not None
        assert (price == 0) == (node.name in found.nodes)
    assert all(space.without_aliases.cost(1 << p) for p in range(space.n))


def test_a_concat_in_a_kernel_with_anything_else_is_not_free() -> None:
    graph = graph_of(outermost)
    space = space_of(graph)
    with_one = space.program.mask(["Relu_0", "Concat_2"])
    assert space.cost(with_one) == space.without_aliases.cost(with_one)


def test_places_are_those_of_the_concat_and_no_two_values_share_bytes_but_ranges() -> None:
    ranges = 0
    for seed in range(300):
        graph = random_concats(seed)
        found = aliases_of(graph)
        nodes = {node.name: node for node in graph.nodes}
        spans: dict[str, list[tuple[int, int]]] = {}
        for value, place in found.places.items():
            if value in (nodes[name].output for name in found.ranges):
                ranges += 1
                continue
            spans.setdefault(place.host, []).append((place.offset, place.offset + graph.values[value].nbytes))
        for host, taken in spans.items():
            assert max(stop for _, stop in taken) == graph.values[nodes[host].output].nbytes
            assert not any(a < d and c < b for (a, b), (c, d) in combinations(taken, 2))
        for name in found.nodes:  # the parts, one after the other, are the concat
            parts = [found.places[graph.base(part)] for part in nodes[name].inputs]
            ends = [p.offset + graph.values[part].nbytes for p, part in zip(parts, nodes[name].inputs, strict=True)]
            assert [p.offset for p in parts[1:]] == ends[:-1]
            assert len({p.host for p in parts}) == 1
    assert ranges > 10


def test_neither_names_nor_the_order_of_nodes_decide() -> None:
    for seed in range(60):
        graph = random_concats(seed)
        expected = [m.signature for m in Program(graph).members]
        for other in (shuffled(graph, 1), shuffled(graph, 2)):
            assert [m.signature for m in Program(other).members] == expected
            assert len(aliases_of(other).nodes) == len(aliases_of(graph).nodes)
