"""Results that no cache holds: what is stored past the caches, and that the same is stored wherever a row begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fusion_search.codegen import caches, lanes, streaming
from fusion_search.codegen.extents import Extent
from fusion_search.codegen.kernel import Kernel, build
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.graphs import random_feeds
from fusion_search.testing.interpreter import Interpreter
from tests.codegen.agree import differences, disagreements

F32, F64 = np.float32, np.float64


@pytest.fixture
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 0)


def kernel_of(graph: Graph, tile: int = 64) -> Kernel:
    program = Program(graph)
    return build(program, analyse(program, (1 << len(program.members)) - 1, tile))


def passes(graph: Graph) -> bool:
    """Whether the kernel of all nodes of a graph has a form that passes the caches."""
    return "lanes_past_" in kernel_of(graph, 4096).source


def outer_exp(rows: int, columns: int, dtype: type = F32) -> Graph:
    b = GraphBuilder("g")
    b.output("y", b.op("Exp", b.op("Add", b.input("a", dtype, (rows, 1)), b.input("b", dtype, (columns,)))))
    return b.build()


def layer_norm(rows: int, columns: int) -> Graph:
    b = GraphBuilder("g")
    x, r = b.input("x", F32, (rows, columns)), b.input("r", F32, (rows, columns))
    h = b.op("Add", x, r)
    d = b.op("Sub", h, b.op("ReduceMean", h, axes=(1,)))
    s = b.op("Sqrt", b.op("ReduceMean", b.op("Mul", d, d), axes=(1,)))
    b.output("y", b.op("Div", d, s))
    return b.build()


def several(rows: int, columns: int) -> Graph:
    """Three results of one nest, one of them a sum of what the others are made of."""
    b = GraphBuilder("g")
    x, y = b.input("x", F32, (rows, columns)), b.input("y", F32, (columns,))
    p, q = b.op("Mul", x, y), b.op("Sub", x, y)
    b.output("p", p)
    b.output("q", q)
    b.output("s", b.op("Tanh", b.op("Add", p, q)))
    return b.build()


SHAPES = [(3, 1000), (5, 129), (7, 128), (2, 191), (40, 7), (1, 1), (9, 250)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [outer_exp, layer_norm, several])
def test_against_the_reference(make: Any, shape: tuple[int, int], no_caches: None) -> None:
    graph = make(*shape)
    feeds = random_feeds(graph, 1)
    assert disagreements(graph, [[node.name for node in graph.nodes]], feeds) == []
    interpreter = Interpreter(graph, [[node.name for node in graph.nodes]])
    assert differences(graph, feeds, interpreter.outputs(interpreter(feeds))) == []


def test_float64_against_the_reference(no_caches: None) -> None:
    graph = outer_exp(5, 213, F64)
    assert passes(graph)
    assert disagreements(graph, [[node.name for node in graph.nodes]], random_feeds(graph, 1)) == []


def check_anywhere(graph: Graph, offsets: list[dict[str, int]]) -> None:
    """Run a plan into arrays that begin some elements behind a line: the same is written there, and nothing beside it."""
    feeds = random_feeds(graph, 1)
    plan = BoundPlan(graph, [[node.name for node in graph.nodes]])
    for begins in offsets:
        held, out = [], {}
        for name, offset in begins.items():
            value = graph.values[name]
            size, line = int(np.prod(value.shape)), 64 // value.dtype.itemsize
            raw = np.full(size + 4 * line, 7, value.dtype)
            start = -raw.ctypes.data % 64 // raw.itemsize + line + offset
            out[name] = raw[start : start + size].reshape(value.shape)
            held.append((raw, start, size))
        got = plan(feeds, out=out)
        assert all(got[name] is array for name, array in out.items())
        assert differences(graph, feeds, out) == []
        for raw, start, size in held:
            assert (np.delete(raw, slice(start, start + size)) == 7).all()


@pytest.mark.parametrize("code", ["f4", "f8"])
def test_results_may_begin_anywhere(code: str, no_caches: None) -> None:
    """Each way that a row can lie in a cache line, and two results that lie differently."""
    dtype = np.dtype(code)
    b = GraphBuilder("g")
    x = b.input("x", dtype, (3, 205))
    b.output("y", b.op("Neg", x))
    b.output("z", b.op("Mul", x, x))
    line = 64 // dtype.itemsize
    check_anywhere(b.build(), [{"y": k, "z": k} for k in range(line)] + [{"y": 0, "z": 1}, {"y": 5, "z": 2}])


def softmax(rows: int, columns: int, dtype: type = F32) -> Graph:
    b = GraphBuilder("g")
    x = b.input("x", dtype, (rows, columns))
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    return b.build()


@pytest.mark.parametrize(("dtype", "columns"), [(F32, streaming.LONG + 77), (F32, 2500), (F32, 64), (F64, 2500), (F64, streaming.LONG)])
def test_rows_that_the_caches_hold_may_begin_anywhere(dtype: type, columns: int) -> None:
    graph = softmax(2, columns, dtype)
    assert not passes(graph)
    check_anywhere(graph, [{"y": k} for k in range(64 // np.dtype(dtype).itemsize)])


def pieces(graph: Graph) -> int:
    """How many loops of a kernel come in two pieces."""
    return kernel_of(graph).source.count(f">= {streaming.LONG} else")


def test_long_rows_of_simple_maps_begin_with_a_line() -> None:
    assert pieces(softmax(2, streaming.LONG)) == 1
    assert pieces(softmax(2, streaming.LONG - 1)) == 0
    b = GraphBuilder("g")
    x = b.input("x", F32, (2, streaming.LONG))
    b.output("y", b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,)))))
    assert pieces(b.build()) == 0  # up to fifteen exponentials one by one


def test_the_lines_of_a_long_row_are_fetched_before_they_are_written() -> None:
    assert ["fetch(" in kernel_of(softmax(2, lanes.LONG_ROW - k)).source for k in (0, 1)] == [True, False]


def test_only_what_no_cache_holds_passes() -> None:
    assert not passes(outer_exp(64, 4096))
    assert passes(outer_exp(caches.last_level_bytes() // 16384 + 1, 4096))


def test_what_is_read_again_stays(no_caches: None) -> None:
    """The sum is stored and read by a reduction; only what is made at the end passes."""
    b = GraphBuilder("g")
    x = b.input("x", F32, (8, 512))
    h = b.op("Exp", x)
    b.output("h", h)
    b.output("y", b.op("Div", h, b.op("ReduceSum", h, axes=(1,))))
    graph = b.build()
    source = kernel_of(graph).source
    assert source.count("lanes_past_") == 1
    assert disagreements(graph, [[node.name for node in graph.nodes]], random_feeds(graph, 1)) == []


def test_nothing_waits_in_the_place_of_a_result_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layer_norm(8, 512)
    assert kernel_of(graph).scratch_bytes == 512 * 4
    b = GraphBuilder("g")
    e = b.op("Exp", b.input("x", F32, (8, 512)))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    softmax = b.build()
    assert kernel_of(softmax).scratch_bytes == 0  # exponentials lie where their quotients will
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 0)
    assert kernel_of(softmax).scratch_bytes == 2 * 512 * 4  # of a row, and of the next
    assert passes(softmax)


def test_results_of_other_types_do_not_pass(no_caches: None) -> None:
    for op, dtype in (("Less", F32), ("Add", np.int32), ("Add", np.float16)):
        b = GraphBuilder("g")
        b.output("y", b.op(op, b.input("a", dtype, (4, 256)), b.input("b", dtype, (4, 256))))
        assert not passes(b.build())


def test_a_small_part_of_what_is_moved_does_not_pass(no_caches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight hundred rows are added up to one, which the caches hold whatever was read."""
    b = GraphBuilder("g")
    b.output("y", b.op("Neg", b.op("ReduceSum", b.input("x", F32, (800, 512)), axes=(0,))))
    assert not passes(b.build())
    b = GraphBuilder("g")
    e = b.op("Exp", b.op("ReduceSum", b.input("x", F32, (80, 8, 512)), axes=(0,)))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    graph = b.build()
    small = kernel_of(graph)
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 1 << 40)
    assert kernel_of(graph) == small  # values wait in its place as ever


def test_a_table_that_is_gathered_from_counts_by_what_is_gathered() -> None:
    rows = caches.last_level_bytes() // 1024
    b = GraphBuilder("g")
    table, at = b.input("t", F32, (rows * 2, 512)), b.input("i", np.int64, (16,))
    b.output("y", b.op("Neg", b.op("Gather", table, at, axis=0)))
    assert not passes(b.build())


def bound(graph: Graph, generic: int, actual: int) -> Graph:
    """Let an extent stand for another one in the runs of a graph."""
    values = {
        name: replace(value, shape=tuple(Extent(generic, actual) if n == generic else n for n in value.shape))
        for name, value in graph.values.items()
    }
    return replace(graph, values=values)


def number(kernel: Kernel) -> int:
    """What the table says of passing the caches."""
    (name,) = {line.split("if ")[1].split(" ")[0] for line in kernel.source.splitlines() if f">= {streaming.LEAST}" in line}
    return kernel.slots[int(name[1:])].number


def test_a_number_decides_where_extents_are_those_of_a_run() -> None:
    """One text for all batches, small or large."""
    many = caches.last_level_bytes() // 2048 + 1
    made = [kernel_of(bound(layer_norm(7, 512), 7, rows)) for rows in (4, many)]
    assert made[0].source == made[1].source
    assert [number(kernel) for kernel in made] == [0, 1]


def test_results_that_are_a_small_part_of_what_a_run_moves_do_not_pass(no_caches: None) -> None:
    """A batch of one beside a table as large as the whole result of the generic batch."""
    b = GraphBuilder("g")
    x, t = b.input("x", F32, (7, 1, 512)), b.input("t", F32, (1, 20, 512))
    b.output("y", b.op("Mul", b.op("ReduceSum", b.op("Mul", x, t), axes=(1,)), b.op("Exp", x)))
    made = [kernel_of(bound(b.build(), 7, rows)) for rows in (1, 700)]
    assert made[0].source == made[1].source
    assert [number(kernel) for kernel in made] == [0, 1]
