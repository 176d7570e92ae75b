"""Kernels whose first walk over a row goes with the last one over the row before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.codegen import ahead, caches
from fusion_search.codegen.kernel import Kernel
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep
from fusion_search.testing.graphs import random_feeds
from fusion_search.testing.interpreter import Interpreter
from tests.codegen.agree import differences, disagreements
from tests.codegen.test_streaming import bound, check_anywhere, kernel_of, layer_norm

F32, F64 = np.float32, np.float64


@pytest.fixture
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 0)


def is_ahead(kernel: Kernel) -> bool:
    return "range(lo, hi + 1)" in kernel.source


def norm(shape: tuple[int, ...], dtype: type = F32) -> GraphBuilder:
    """A layer norm whose result is called y, of a sum of two tensors called h."""
    b = GraphBuilder("g")
    h = b.op("Add", b.input("x", dtype, shape), b.input("r", dtype, shape), result="h")
    axis = (len(shape) - 1,)
    d = b.op("Sub", h, b.op("ReduceMean", h, axes=axis))
    s = b.op("Sqrt", b.op("ReduceMean", b.op("Mul", d, d), axes=axis))
    b.output("y", b.op("Div", d, s))
    return b


def plain(rows: int, columns: int) -> Graph:
    return norm((rows, columns)).build()


def kept(rows: int, columns: int) -> Graph:
    """The sum is a result as well: what the first walk keeps lies there, and the last does not write it."""
    b = norm((rows, columns))
    b.output("sum", "h")
    return b.build()


def beside(rows: int, columns: int) -> Graph:
    """The first walk writes a result that nothing else reads."""
    b = norm((rows, columns))
    b.output("twice", b.op("Add", "h", "h"))
    return b.build()


def two_reductions(rows: int, columns: int) -> Graph:
    """The first walk reduces two values and keeps two; the last one reads both."""
    b = GraphBuilder("g")
    x, t = b.input("x", F32, (rows, columns)), b.input("t", F32, (columns,))
    p, q = b.op("Mul", x, t), b.op("Exp", x)
    total, most = b.op("ReduceSum", p, axes=(1,)), b.op("ReduceMax", q, axes=(1,))
    b.output("y", b.op("Sub", b.op("Mul", p, most), b.op("Div", q, total)))
    return b.build()


def scaled(rows: int, columns: int) -> Graph:
    """Each row has a number of its own, which is read before its walks."""
    b = GraphBuilder("g")
    x = b.op("Mul", b.input("x", F32, (rows, columns)), b.input("s", F32, (rows, 1)))
    n = b.op("Mul", b.op("ReduceSum", x, axes=(1,)), b.input("z", F32, (rows, 1)))
    b.output("y", b.op("Sub", x, n))
    return b.build()


def blocks_of_rows(rows: int, columns: int) -> Graph:
    """Two loops outside a row: what is added to all rows of a block keeps them apart."""
    b = GraphBuilder("g")
    x = b.op("Add", b.input("x", F32, (rows, 3, columns)), b.input("c", F32, (rows, 1, columns)))
    b.output("y", b.op("Sub", x, b.op("ReduceMean", x, axes=(2,))))
    return b.build()


def softmax(rows: int, columns: int) -> Graph:
    """Nothing is kept by the first walk, and the walk between stores its values in scratch."""
    b = GraphBuilder("g")
    x = b.input("x", F32, (rows, columns))
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    return b.build()


FORMS = [plain, kept, beside, two_reductions, scaled, blocks_of_rows, softmax]


@pytest.mark.parametrize("shape", [(2, 128), (5, 320), (4, 333), (7, 1100)])
@pytest.mark.parametrize("make", FORMS)
def test_against_the_reference(make: Callable[[int, int], Graph], shape: tuple[int, int], no_caches: None) -> None:
    graph = make(*shape)
    assert is_ahead(kernel_of(graph))
    feeds = random_feeds(graph, 1)
    groups = [[node.name for node in graph.nodes]]
    assert disagreements(graph, groups, feeds) == []
    interpreter = Interpreter(graph, groups)
    for seed in range(3):
        assert differences(graph, feeds, interpreter.outputs(interpreter(feeds, seed))) == []


@pytest.mark.parametrize("make", FORMS)
def test_the_same_bits_as_one_row_after_the_other(make: Callable[[int, int], Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make(40, 777)
    feeds = random_feeds(graph, 3)
    groups = [[node.name for node in graph.nodes]]
    results = []
    for held in (1 << 40, 0):
        monkeypatch.setattr(caches, "last_level_bytes", lambda held=held: held)
        assert is_ahead(kernel_of(graph)) == (held == 0)
        results.append(BoundPlan(graph, groups)(feeds))
    for name, array in results[0].items():
        assert array.tobytes() == results[1][name].tobytes()


def drawn(seed: int) -> Graph:
    """Some maps and reductions of rows, in any order; some of the values are results."""
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(2, 5)), int(rng.integers(128, 200))
    b = GraphBuilder("g")
    rows = [b.input("x", F32, shape), b.input("r", F32, shape)]
    others = [b.input("v", F32, shape[1:]), b.input("s", F32, (shape[0], 1)), b.input("c", F32, ())]
    free: list[str] = []
    for _ in range(int(rng.integers(3, 10))):
        kind = rng.random()
        x = str(rng.choice(rows[-4:]))
        if kind < 0.3:
            others.append(b.op(str(rng.choice(["ReduceSum", "ReduceMax", "ReduceMean"])), x, axes=(1,)))
        elif kind < 0.45:
            rows.append(b.op(str(rng.choice(["Neg", "Tanh", "Abs"])), x))
        else:
            rows.append(b.op(str(rng.choice(["Add", "Sub", "Mul"])), x, str(rng.choice([*rows, *others, others[-1]]))))
        free.append(rows[-1])
    for k, name in enumerate(dict.fromkeys(name for name in free[:-1] if name not in ("x", "r") and rng.random() < 0.1)):
        b.output(f"o{k}", name)
    b.output("y", b.op("Sub", rows[-1], b.op("ReduceSum", rows[-1], axes=(1,))))
    return b.build()


def test_random_rows(no_caches: None) -> None:
    went = 0
    for seed in range(60):
        graph = drawn(seed)
        groups = [[node.name for node in graph.nodes]]
        interpreter = Interpreter(graph, groups)
        went += any(is_ahead(step.kernel) for step in interpreter.steps if isinstance(step, KernelStep))
        feeds = random_feeds(graph, seed)
        assert differences(graph, feeds, interpreter.outputs(interpreter(feeds, seed))) == [], seed
    assert went > 30


def test_float64_rows_begin_anywhere(no_caches: None) -> None:
    graph = norm((5, 300), F64).build()
    assert is_ahead(kernel_of(graph))
    check_anywhere(graph, [{"y": k} for k in range(8)])


def test_rows_begin_anywhere(no_caches: None) -> None:
    check_anywhere(plain(5, 333), [{"y": k} for k in range(16)])


def test_what_the_first_walk_keeps_lies_in_two_rows(no_caches: None) -> None:
    assert kernel_of(plain(5, 320)).scratch_bytes == 2 * 320 * 4
    assert kernel_of(kept(5, 320)).scratch_bytes == 0


def test_only_what_reads_and_writes_memory_goes_ahead(no_caches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_ahead(kernel_of(plain(5, 64)))  # too few whole lines
    assert not is_ahead(kernel_of(plain(5, ahead.LONGEST + 1)))
    assert not is_ahead(kernel_of(bound(layer_norm(7, 512), 7, 40)))  # a number would have to decide
    b = GraphBuilder("g")
    x = b.input("x", F32, (5, 320))
    y = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
    b.output("y", y)
    b.output("z", b.op("Neg", y))
    assert not is_ahead(kernel_of(b.build()))  # two results need not lie alike
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 1 << 40)
    assert not is_ahead(kernel_of(plain(5, 320)))


def test_a_number_in_memory_that_the_row_itself_makes_is_not_read_before_it(no_caches: None) -> None:
    """The mean is a result: it lies in memory, and the last walk reads it there before its loop."""
    b = GraphBuilder("g")
    x = b.input("x", F32, (5, 320))
    m = b.op("ReduceMean", x, axes=(1,))
    b.output("m", m)
    b.output("y", b.op("Sub", x, m))
    graph = b.build()
    assert not is_ahead(kernel_of(graph))
    groups = [[node.name for node in graph.nodes]]
    assert disagreements(graph, groups, random_feeds(graph, 1)) == []
