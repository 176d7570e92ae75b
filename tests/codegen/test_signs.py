"""What a group says of its values' signs, and that leaving out a guard changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusion_search.codegen import nest
from fusion_search.codegen.kernel import build
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.agreement import same_bits
from fusion_search.testing.interpreter import Interpreter, KernelError

F32 = np.dtype(np.float32)
SHAPE = (6, 6)


def graph_of(make: Any) -> Graph:
    b = GraphBuilder("signs")
    b.output("y", b.op("Exp", make(b, b.input("x", F32, SHAPE), b.input("z", F32, SHAPE))))
    return b.build()


def shifted(b: GraphBuilder, x: Any, of: Any, axes: tuple[int, ...] = (1,), op: str = "ReduceMax") -> Any:
    return b.op("Sub", x, b.op(op, of, axes=axes))


def turned(b: GraphBuilder, x: Any, z: Any) -> Any:
    """Each row's maximum, laid along the rows: another element's."""
    return b.op("Sub", x, b.reshape(b.op("ReduceMax", x, axes=(1,)), (1, SHAPE[0])))


KNOWN = [
    lambda b, x, z: shifted(b, x, x),
    lambda b, x, z: shifted(b, x, x, (0, 1)),
    lambda b, x, z: b.op("Neg", b.op("Mul", x, x)),
    lambda b, x, z: b.op("Neg", b.op("Abs", x)),
]
UNKNOWN = [
    lambda b, x, z: shifted(b, x, z),
    lambda b, x, z: shifted(b, x, x, op="ReduceMin"),
    lambda b, x, z: b.op("Sub", b.op("ReduceMax", x, axes=(1,)), x),
    lambda b, x, z: b.op("Neg", b.op("Mul", x, z)),
    lambda b, x, z: b.op("Neg", x),
    turned,
]


def guards(graph: Graph) -> bool:
    program = Program(graph)
    source = build(program, analyse(program, (1 << len(program.members)) - 1, 64)).source
    assert ("exp32(" in source) != ("exp32_neg(" in source)
    return "exp32(" in source


@pytest.mark.parametrize("make", KNOWN)
def test_exponentials_of_what_is_never_positive_are_not_guarded_above(make: Any) -> None:
    graph = graph_of(make)
    assert not guards(graph)
    x = np.random.default_rng(0).normal(0, 60, SHAPE).astype(F32)
    x[0, :3], x[1, 2], x[2, :] = (np.inf, -np.inf, 1e30), np.nan, -np.inf
    feeds = {value.name: x for value in graph.inputs}
    plans = [tuple(node.name for node in graph.nodes)], [(node.name,) for node in graph.nodes]
    first, second = (BoundPlan(graph, groups)(feeds)["y"] for groups in plans)
    assert same_bits(first, second)


@pytest.mark.parametrize("make", UNKNOWN)
def test_all_others_are(make: Any) -> None:
    assert guards(graph_of(make))


def test_the_checked_build_sees_a_wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(UNKNOWN[0])
    feeds = {value.name: np.full(SHAPE, n, F32) for value, n in zip(graph.inputs, (1, 0), strict=True)}
    groups = [tuple(node.name for node in graph.nodes)]
    Interpreter(graph, groups)(feeds)
    monkeypatch.setattr(nest, "never_positive", lambda *_: True)
    with pytest.raises(KernelError, match="at most 0"):
        Interpreter(graph, groups)(feeds)
