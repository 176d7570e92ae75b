"""Idle operators go, everything else stays, and no bit changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import PIPELINE, Cleanup, DeadCode, run_passes

SHAPE = (2, 1, 3, 4)


def idle_slice(b: GraphBuilder, x: str) -> str:
    return b.op("Slice", x, starts=(0,) * 4, steps=(1,) * 4, sizes=SHAPE)


def part(b: GraphBuilder, x: str) -> str:
    return b.op("Slice", x, starts=(0, 0, 1, 0), steps=(1,) * 4, sizes=(2, 1, 2, 4))


def twice_sliced(b: GraphBuilder, x: str) -> str:
    first = b.op("Slice", x, starts=(1, 0, 2, 3), steps=(1, 1, -1, -1), sizes=(1, 1, 3, 4))
    return b.op("Slice", first, starts=(0, 0, 2, 1), steps=(1, 1, -2, 2), sizes=(1, 1, 2, 2))


def sliced_and_transposed(b: GraphBuilder, x: str) -> str:
    return b.op("Transpose", part(b, x), perm=(3, 2, 1, 0))


def twice_transposed(b: GraphBuilder, x: str) -> str:
    return b.op("Transpose", b.op("Transpose", x, perm=(3, 2, 1, 0)), perm=(1, 0, 2, 3))


def there_and_back(b: GraphBuilder, x: str) -> str:
    return b.op("Transpose", b.op("Transpose", x, perm=(0, 1, 3, 2)), perm=(0, 1, 3, 2))


def transposed_through_a_view(b: GraphBuilder, x: str) -> str:
    return b.op("Transpose", b.reshape(b.op("Transpose", x, perm=(0, 1, 3, 2)), (2, 12)), perm=(1, 0))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda b, x: b.op("Cast", x, to="float32"), []),
        (lambda b, x: b.op("Cast", x, to="float64"), ["Cast"]),
        (lambda b, x: b.op("Transpose", x, perm=(0, 1, 2, 3)), []),
        (lambda b, x: b.op("Transpose", x, perm=(1, 0, 2, 3)), []),  # only moves an extent of 1
        (lambda b, x: b.op("Transpose", x, perm=(0, 1, 3, 2)), ["Transpose"]),
        (there_and_back, []),
        (twice_transposed, ["Transpose"]),
        (transposed_through_a_view, ["Transpose", "Transpose"]),
        (idle_slice, []),
        (part, ["Slice"]),
        (twice_sliced, ["Slice"]),
        (sliced_and_transposed, ["Slice", "Transpose"]),
        (lambda b, x: b.op("Concat", x, axis=0), []),
        (lambda b, x: b.op("Concat", x, x, axis=0), ["Concat"]),
        (lambda b, x: b.op("Expand", x, shape=SHAPE), []),
        (lambda b, x: b.op("Expand", x, shape=(5, 2, 1, 3, 4)), ["Expand"]),
        (lambda b, x: b.op("Pad", x, before=(0,) * 4, after=(0,) * 4, value=0.0), []),
        (lambda b, x: b.op("Mul", x, b.constant(np.float32(0))), ["Mul"]),  # 0 times infinity is no number
        (lambda b, x: b.op("Add", x, b.constant(np.float32(0))), ["Add"]),  # -0 + 0 is not -0
    ],
)
def test_cleanup(build: Callable[[GraphBuilder, str], str], left: list[str]) -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, SHAPE)
    b.output("y", b.op("Neg", build(b, x)))
    before = b.build()
    after = run_passes(before)
    assert [node.op for node in after.nodes] == [*left, "Neg"]
    feeds = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)}
    np.testing.assert_array_equal(evaluate(after, feeds)["y"], evaluate(before, feeds)["y"])
    assert [record.name for record in after.log] == [step.name for step in PIPELINE]


def test_views_of_views_read_the_owner() -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (4, 6))
    view = b.reshape(b.reshape(b.reshape(x, (24,)), (2, 12)), (4, 6), "back")
    b.output("y", b.op("Relu", view))
    graph = Cleanup().run(b.build())
    verify_graph(graph)
    assert graph.nodes[0].inputs == ("x",)
    assert {value.view_of for value in graph.values.values() if value.view_of and value.name != "y"} == {"x"}


def test_an_idle_operator_may_be_an_output() -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (2, 3))
    y = b.op("Cast", x, to="float32", result="y")
    b.output("y", y)
    graph = run_passes(b.build())
    assert not graph.nodes
    assert [value.name for value in graph.outputs] == ["y"]
    np.testing.assert_array_equal(evaluate(graph, {"x": np.ones((2, 3), np.float32)})["y"], np.ones((2, 3)))


def test_dead_code() -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (2, 3))
    unused = b.input("unused", np.float32, (1,))
    b.op("Exp", b.op("Add", x, b.constant(np.ones((2, 3), np.float32), "lost")), result="dead")
    b.reshape(x, (6,), "dead_view")
    b.output("y", b.reshape(b.op("Relu", x), (6,)))
    graph = DeadCode().run(b.build())
    verify_graph(graph)
    assert [node.op for node in graph.nodes] == ["Relu"]
    assert not graph.constants
    assert "dead_view" not in graph.values
    assert [value.name for value in graph.inputs] == ["x", unused]
    assert graph.log[-1].changes == 3
    assert graph.log[-1].detail == "Add_0; Exp_1; 1 constants"
