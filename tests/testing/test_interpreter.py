"""The interpreter sees what generated code must not do, and runs what it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fusion_search.codegen.kernel import Kernel
from fusion_search.codegen.writer import Slot
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep
from fusion_search.testing.fuzz import small_blocks
from fusion_search.testing.graphs import random_feeds
from fusion_search.testing.interpreter import Interpreter, KernelError, interpret


def softmax() -> Graph:
    b = GraphBuilder("softmax")
    x = b.input("x", np.dtype(np.float32), (3, 70))
    top = b.op("ReduceMax", x, axes=(1,))
    e = b.op("Exp", b.op("Sub", x, top))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
    return b.build()


def together(graph: Graph) -> list[tuple[str, ...]]:
    return [tuple(node.name for node in graph.nodes)]


def edited(graph: Graph, change: Callable[[Kernel], Kernel]) -> Interpreter:
    interpreter = Interpreter(graph, together(graph))
    (step,) = interpreter.steps
    assert isinstance(step, KernelStep)
    interpreter.steps = [replace(step, kernel=change(step.kernel))]
    return interpreter


def test_a_fused_kernel_gives_the_bits_of_the_compiled_one() -> None:
    b = GraphBuilder("moments")
    x = b.input("x", np.dtype(np.float32), (5, 133))
    mean = b.op("ReduceMean", x, axes=(1,))
    b.output("m", mean)
    b.output("c", b.op("Mul", b.op("Sub", x, mean), b.op("Sub", x, mean)))
    graph = b.build()
    feeds = random_feeds(graph, 0)
    got, want = interpret(graph, together(graph), feeds), BoundPlan(graph, together(graph))(feeds)
    assert [got[name].tobytes() for name in want] == [want[name].tobytes() for name in want]


def test_the_order_of_items_does_not_matter() -> None:
    graph = softmax()
    feeds = random_feeds(graph, 1)
    with small_blocks(16):
        results = [interpret(graph, together(graph), feeds, seed)["y"] for seed in range(3)]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    np.testing.assert_allclose(results[0], evaluate(graph, feeds)["y"], rtol=1e-5)


def test_an_access_outside_its_buffer_is_an_error() -> None:
    graph = softmax()

    def longer(kernel: Kernel) -> Kernel:
        return replace(kernel, slots=tuple(replace(s, number=71) if s == Slot(None, 70) else s for s in kernel.slots))

    with pytest.raises(KernelError, match=r"x\[210\] is read, it has 210 elements; line \d+|elements .* are touched|are read, it has"):
        edited(graph, longer)(random_feeds(graph, 0))


def test_a_read_of_what_no_one_wrote_is_an_error() -> None:
    graph = softmax()

    def forget(kernel: Kernel) -> Kernel:
        lines = kernel.source.splitlines()
        first = next(k for k, line in enumerate(lines) if "[lane] = " in line or "[j] = " in line)
        return replace(kernel, source="\n".join(line for k, line in enumerate(lines) if k != first))

    with pytest.raises(KernelError, match="was never written"):
        edited(graph, forget)(random_feeds(graph, 0))


def test_two_items_on_one_element_are_an_error() -> None:
    graph = softmax()

    def twice(kernel: Kernel) -> Kernel:
        return replace(kernel, source=kernel.source.replace("for item in range(lo, hi):", "for item in range(0, hi):"))

    with pytest.raises(KernelError, match="is written by two items"):
        edited(graph, twice)(random_feeds(graph, 0), 3)


def test_inputs_are_read_only() -> None:
    graph = softmax()

    def into_input(kernel: Kernel) -> Kernel:
        names = {"x", graph.base("y")}
        swap = {name: other for name in names for other in names if other != name}
        return replace(kernel, slots=tuple(replace(s, value=swap.get(s.value, s.value)) if s.value else s for s in kernel.slots))

    with pytest.raises(KernelError, match=r"read-only|never written"):
        edited(graph, into_input)(random_feeds(graph, 0))
