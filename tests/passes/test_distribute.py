"""Maps on the parts of concats: where they can be, what becomes of the graph, and that no bit changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.errors import UsageError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import distribute, run_passes, sites
from fusion_search.testing.graphs import random_feeds, random_graph
from tests.passes.joined import random_joined

F32 = np.float32


def all_maps(graph: Graph) -> list[str]:
    return [each.node for site in sites(graph) for each in site.chain]


def small(build: Callable[[GraphBuilder, list[str]], str], *, output: bool = True) -> Graph:
    """Three maps of 2, 3 and 4 rows; what is built of them is the result."""
    b = GraphBuilder("g")
    parts = [b.op("Tanh", b.input(f"x{n}", F32, (1, n, 5)), result=f"p{n}") for n in (2, 3, 4)]
    b.output("y", b.op("ReduceSum", build(b, parts), axes=(2,), keepdims=False) if output else build(b, parts))
    return run_passes(b.build())


def joined(b: GraphBuilder, parts: list[str]) -> str:
    return b.op("Concat", *parts, axis=1, result="c")


def bias(b: GraphBuilder, shape: tuple[int, ...]) -> str:
    return b.constant(np.arange(np.prod(shape), dtype=F32).reshape(shape), "w")


def row(b: GraphBuilder) -> str:
    return bias(b, (5,))


def number(b: GraphBuilder) -> str:
    return b.constant(np.float32(2))


def same_bits(before: Graph, after: Graph, seed: int = 0) -> None:
    feeds = random_feeds(before, seed)
    want, got = evaluate(before, feeds), evaluate(after, feeds)
    assert {name: array.tobytes() for name, array in got.items()} == {name: array.tobytes() for name, array in want.items()}


def test_random_concats_keep_their_bits() -> None:
    roles: Counter[str] = Counter()
    for seed in range(300):
        graph = run_passes(random_joined(seed))
        before = (graph.nodes, dict(graph.values), dict(graph.constants))
        found = sites(graph)
        roles.update(role for site in found for each in site.chain for role, _ in each.operands)
        roles.update(f"chain of {len(site.chain)}" for site in found)
        after = distribute(graph, all_maps(graph))
        verify_graph(after)
        assert (graph.nodes, dict(graph.values), dict(graph.constants)) == before
        assert {node.origin for node in after.nodes} >= {node.origin for node in graph.nodes if node.op != "Concat"}
        assert not set(all_maps(graph)).intersection(after.index)
        same_bits(graph, after, seed)
    assert min(roles[name] for name in ("part", "whole", "cut", "chain of 1", "chain of 2", "chain of 3")) > 20


def test_random_graphs_keep_their_bits() -> None:
    found = 0
    for seed in range(250):
        graph = run_passes(random_graph(seed, size=24, ops=("Add", "Cast", "Clip", "Concat", "Less", "Relu", "Slice", "Where")))
        names = all_maps(graph)
        found += len(names)
        after = distribute(graph, names)
        verify_graph(after)
        same_bits(graph, after, seed)
    assert found > 50


def test_what_a_site_becomes() -> None:
    graph = small(lambda b, parts: b.op("Relu", b.op("Add", joined(b, parts), bias(b, (9, 1)))))
    [site] = sites(graph)
    assert (site.concat, site.parts, [each.operands for each in site.chain]) == (
        "Concat_3",
        3,
        [(("part", 1), ("cut", 0)), (("part", 1),)],
    )
    after = distribute(graph, ["Add_4", "Relu_5"])
    assert [node.name for node in after.nodes] == [
        *("Tanh_0", "Tanh_1", "Tanh_2"),
        *(f"{name}/part{k}" for name in ("Add_4", "Relu_5") for k in range(3)),
        *("Concat_3", "ReduceSum_6"),
    ]
    assert [after.constants[f"w.part{k}"].ravel().tolist() for k in range(3)] == [[0, 1], [2, 3, 4], [5, 6, 7, 8]]
    assert "w" not in after.constants
    assert "c" not in after.values
    assert (after.log[-1].name, after.log[-1].changes) == ("distribute", 2)
    assert after.log[-1].detail == "Add_4 over 3 parts; Relu_5 over 3 parts"
    same_bits(graph, after)


def test_origins_survive() -> None:
    b = GraphBuilder("g")
    parts = [b.op("Tanh", b.input(f"x{n}", F32, (1, n))) for n in (2, 3)]
    with b.origin("join", "Concat"):
        c = b.op("Concat", *parts, axis=1)
    with b.origin("gelu", "Gelu"):
        b.output("y", b.op("Relu", b.op("Add", c, b.input("z", F32, (1, 5)), part="add"), part="relu"))
    graph = b.build()
    after = distribute(graph, all_maps(graph))
    said = {node.name: (node.op, node.origin, node.origin_op) for node in after.nodes if node.origin}
    assert said == {
        **{f"gelu/add/part{k}/slice": ("Slice", "gelu", "Gelu") for k in range(2)},
        **{f"gelu/add/part{k}": ("Add", "gelu", "Gelu") for k in range(2)},
        **{f"gelu/relu/part{k}": ("Relu", "gelu", "Gelu") for k in range(2)},
        "join": ("Concat", "join", "Concat"),
    }


def read_twice(b: GraphBuilder, parts: list[str]) -> str:
    c = joined(b, parts)
    return b.op("Add", b.op("Relu", c), b.op("Tanh", c))


def through_a_view(b: GraphBuilder, parts: list[str]) -> str:
    return b.op("Relu", b.reshape(joined(b, parts), (1, 45, 1)))


def with_itself_turned(b: GraphBuilder, parts: list[str]) -> str:
    c = joined(b, parts)
    return b.op("Add", c, b.reshape(c, (45, 1, 1)))


def returned(b: GraphBuilder, parts: list[str]) -> str:
    c = joined(b, parts)
    b.output("c_too", c)
    return b.op("Relu", c)


def chain_that_is_read_again(b: GraphBuilder, parts: list[str]) -> str:
    r = b.op("Relu", joined(b, parts))
    return b.op("Mul", b.op("Tanh", r), b.op("Neg", r))


@pytest.mark.parametrize(
    ("build", "maps"),
    [
        (lambda b, parts: b.op("Relu", joined(b, parts)), ["Relu_4"]),
        (lambda b, parts: b.op("Cast", joined(b, parts), to="float64"), ["Cast_4"]),
        (lambda b, parts: b.op("Where", b.op("Less", joined(b, parts), row(b)), row(b), number(b)), ["Less_4", "Where_5"]),
        (lambda b, parts: b.op("Add", joined(b, parts), joined(b, parts)), ["Add_5"]),
        (read_twice, []),
        (through_a_view, []),
        (with_itself_turned, []),
        (returned, []),
        (chain_that_is_read_again, ["Relu_4"]),
        (lambda b, parts: b.op("Transpose", joined(b, parts), perm=(0, 2, 1)), []),
        (lambda b, parts: b.op("CumSum", joined(b, parts), axis=1), []),
    ],
)  # fmt: skip
def test_where_there_is_a_site(build: Callable[[GraphBuilder, list[str]], str], maps: list[str]) -> None:
    assert all_maps(small(build)) == maps


def test_the_last_of_a_chain_may_be_a_result() -> None:
    graph = small(lambda b, parts: b.op("Relu", joined(b, parts)), output=False)
    after = distribute(graph, all_maps(graph))
    assert [value.name for value in after.outputs] == ["y"]
    assert after.nodes[-1].op == "Concat"
    same_bits(graph, after)


def test_a_map_of_two_concats_is_one_site_and_takes_parts_of_both() -> None:
    graph = small(lambda b, parts: b.op("Add", joined(b, parts), b.op("Concat", *(b.op("Neg", p) for p in parts), axis=1)))
    [site] = sites(graph)
    assert [each.operands for each in site.chain] == [(("part", 1), ("part", 1))]
    after = distribute(graph, [site.chain[0].node])
    assert Counter(node.op for node in after.nodes) == Counter({"Tanh": 3, "Neg": 3, "Add": 3, "Concat": 1, "ReduceSum": 1})
    same_bits(graph, after)


def test_overridable_constants_are_cut_by_nodes() -> None:
    b = GraphBuilder("g")
    parts = [b.op("Tanh", b.input(f"x{n}", F32, (1, n))) for n in (2, 3)]
    b.output("y", b.op("Add", b.op("Concat", *parts, axis=1), b.constant(np.ones((1, 5), F32), "w")))
    graph = b.build(overridable=frozenset({"w"}))
    after = distribute(graph, all_maps(graph))
    assert sum(node.op == "Slice" and node.inputs == ("w",) for node in after.nodes) == 2
    same_bits(graph, after)


def test_names_that_are_no_site() -> None:
    graph = small(lambda b, parts: b.op("Relu", b.op("Neg", joined(b, parts))))
    with pytest.raises(UsageError, match="'Tanh_0' is no map that alone reads a concat"):
        distribute(graph, ["Tanh_0"])
    with pytest.raises(UsageError, match="'Relu_5' can only follow Neg_4"):
        distribute(graph, ["Relu_5"])
    once = distribute(distribute(graph, ["Neg_4"]), ["Relu_5"])
    assert once.nodes == distribute(graph, ["Neg_4", "Relu_5"]).nodes
