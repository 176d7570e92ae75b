"""Maps that are computed again where what they are made from is at hand: no store for them, and the same bits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fusion_search.codegen.kernel import Kernel, build
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import Choice
from fusion_search.testing.agreement import same_bits
from fusion_search.testing.interpreter import Interpreter

F16, F32, F64 = np.float16, np.float32, np.float64
ROWS = 6


def layer_norm(columns: int, dtype: Any) -> Graph:
    """The row less its mean is squared, then divided by the deviation."""
    b = GraphBuilder("layer norm")
    h = b.op("Add", b.input("x", np.dtype(dtype), (ROWS, columns)), b.input("r", np.dtype(dtype), (ROWS, columns)))
    d = b.op("Sub", h, b.op("ReduceMean", h, axes=(1,)))
    b.output("y", b.op("Div", d, b.op("Sqrt", b.op("ReduceMean", b.op("Mul", d, d), axes=(1,)))))
    return b.build()


def of_a_live_in(columns: int, dtype: Any) -> Graph:
    b = GraphBuilder("live-in")
    x = b.input("x", np.dtype(dtype), (ROWS, columns))
    n = b.op("Neg", x)
    b.output("y", b.op("Mul", n, b.op("ReduceMax", n, axes=(1,))))
    return b.build()


def of_two_values(columns: int, dtype: Any) -> Graph:
    """A sum of two tensors waits: reading both again would be no less than storing and reading it."""
    b = GraphBuilder("two")
    h = b.op("Add", b.input("x", np.dtype(dtype), (ROWS, columns)), b.input("r", np.dtype(dtype), (ROWS, columns)))
    b.output("y", b.op("Mul", h, b.op("ReduceMax", h, axes=(1,))))
    return b.build()


def dear(columns: int, dtype: Any) -> Graph:
    b = GraphBuilder("dear")
    e = b.op("Exp", b.input("x", np.dtype(dtype), (ROWS, columns)))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    return b.build()


def three_times(columns: int, dtype: Any) -> Graph:
    """A value that two later stages read, of which one also reduces it."""
    b = GraphBuilder("three")
    x = b.input("x", np.dtype(dtype), (ROWS, columns))
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
    least = b.op("ReduceMin", b.op("Add", d, b.op("ReduceMax", d, axes=(1,))), axes=(1,))
    b.output("y", b.op("Mul", d, least))
    b.output("z", b.op("Add", d, least))
    return b.build()


def stored_anyway(columns: int, dtype: Any) -> Graph:
    b = GraphBuilder("stored")
    x = b.input("x", np.dtype(dtype), (ROWS, columns))
    d = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
    b.output("d", d)
    b.output("y", b.op("Mul", d, b.op("ReduceMax", b.op("Abs", d), axes=(1,))))
    return b.build()


def around_a_product(columns: int, dtype: Any) -> Graph:
    """A product could lie in the place of a result made from it, but is read once more behind the next product."""
    b = GraphBuilder("around")
    p = b.op("MatMul", b.input("left", np.dtype(dtype), (ROWS, 5)), b.input("right", np.dtype(dtype), (5, columns)))
    i = b.op("Mul", p, b.input("scale", np.dtype(dtype), (ROWS, 1)))
    r = b.op("Relu", i)
    b.output("r", r)
    other = b.op("MatMul", b.input("one", np.dtype(dtype), (ROWS, 3)), b.input("two", np.dtype(dtype), (3, columns)))
    b.output("y", b.op("Add", other, i))
    return b.build()


def made_of_what_is_made_again(columns: int, dtype: Any) -> Graph:
    """A map of a map, each read once more: what the first gives is nowhere to be read for the second."""
    b = GraphBuilder("chain")
    n = b.op("Neg", b.input("x", np.dtype(dtype), (ROWS, columns)))
    i = b.op("Sub", n, b.op("ReduceMax", n, axes=(1,)))
    b.output("r", b.op("Relu", i))
    other = b.op("MatMul", b.input("one", np.dtype(dtype), (ROWS, 3)), b.input("two", np.dtype(dtype), (3, columns)))
    b.output("y", b.op("Add", other, i))
    return b.build()


GRAPHS = [made_of_what_is_made_again, layer_norm, of_a_live_in, of_two_values, dear, three_times, stored_anyway, around_a_product]


def feeds_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {value.name: rng.normal(0.1, 1, value.shape).astype(value.dtype) for value in graph.inputs}


def kernel_of(graph: Graph) -> Kernel:
    return build(Program(graph), analyse(Program(graph), (1 << len(graph.nodes)) - 1, 64))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("dtype", [F16, F32, F64])
@pytest.mark.parametrize("columns", [40, 2100])
@pytest.mark.parametrize("make", GRAPHS)
def test_what_is_computed_again_has_the_bits_of_the_first_time(make: Any, columns: int, dtype: Any, direct: bool) -> None:
    graph, feeds = make(columns, dtype), feeds_of(make(columns, dtype))
    apart = BoundPlan(graph, [(node.name,) for node in graph.nodes])(feeds)
    one = BoundPlan(graph, [[node.name for node in graph.nodes]], choose=lambda _: Choice({}, 0, direct))(feeds)
    for name, array in apart.items():
        close = make in (around_a_product, made_of_what_is_made_again) and np.allclose(
            one[name].astype(F64), array.astype(F64), rtol=2e-2 if dtype == F16 else 1e-4
        )
        assert same_bits(one[name], array) or close, name


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("make", GRAPHS)
def test_nothing_is_read_that_was_overwritten(make: Any, direct: bool) -> None:
    graph = make(40, F32)
    feeds = feeds_of(graph)
    interpreter = Interpreter(graph, [[node.name for node in graph.nodes]], choose=lambda _: Choice({}, 0, direct))
    got = interpreter.outputs(interpreter(feeds, 1))
    for name, want in evaluate(graph, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def stored(graph: Graph) -> set[str]:
    """Pointers that loops write elements to."""
    return set(re.findall(r"^ *(\w+)\[j\] = ", kernel_of(graph).source, re.MULTILINE))


def test_a_value_that_waits_is_stored_once() -> None:
    assert len(stored(layer_norm(2000, F32))) == 2  # the sum, and the result
    assert len(stored(of_a_live_in(2000, F32))) == 1  # the result: of a live-in nothing waits
    assert "S + " not in kernel_of(of_a_live_in(2000, F32)).source
    assert len(stored(of_two_values(2000, F32))) == 2  # the sum in the place of the result, and the result
    assert kernel_of(dear(2000, F32)).source.count("exp32(") == 2  # of whole blocks of lanes, and of the rest
