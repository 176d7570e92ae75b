"""Kernels that evaluate maps in the parts of pads and concats: the same bits as one kernel for each node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.codegen import stages
from fusion_search.codegen.capability import can_emit
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.kernel import build as build_kernel
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.fuzz import small_blocks
from fusion_search.testing.graphs import random_feeds, random_partition
from fusion_search.testing.interpreter import Interpreter
from tests.frontends.modeling import info, model, node
from tests.fusion.padded import random_padded
from tests.fusion.programs import F32, graph_of, number, space_of
from tests.fusion.test_parts import halves, many, padded, turned


def drawn(seed: int) -> tuple[Graph, list[tuple[str, ...]], int]:
    graph = random_padded(seed)
    space = space_of(graph, "local", can_emit)
    masks = random_partition(space, np.random.default_rng(seed))
    return graph, [space.program.names(mask) for mask in masks], sum(len(space.analysis(mask).in_parts) for mask in masks)


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in b)


@pytest.mark.parametrize("elements", [16, 4096])
def test_random_programs_with_every_access_checked(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "PART_ROW", 1)  # the programs are small
    evaluated = read = 0
    for seed in range(90):
        graph, groups, count = drawn(seed)
        evaluated += count
        read += sum(parts_with_readers(graph, group) for group in groups)
        feeds = random_feeds(graph, seed)
        with small_blocks(elements):
            fused, single = Interpreter(graph, groups), Interpreter(graph, [(n.name,) for n in graph.nodes])
            assert same(fused.outputs(fused(feeds)), single.outputs(single(feeds))), f"seed {seed}"
    assert evaluated > 20
    assert read > 10


def test_compiled() -> None:
    for seed in [seed for seed in range(60) if drawn(seed)[2]][:12]:
        graph, groups, _ = drawn(seed)
        feeds = random_feeds(graph, seed)
        assert same(BoundPlan(graph, groups)(feeds), BoundPlan(graph, [(n.name,) for n in graph.nodes])(feeds))


@pytest.mark.parametrize("build", [padded, halves, turned])
def test_large(build: object) -> None:
    graph = graph_of(build)  # type: ignore[arg-type]
    feeds = random_feeds(graph, 0)
    (found,), (wanted,) = BoundPlan(graph, [tuple(n.name for n in graph.nodes)])(feeds).values(), evaluate(graph, feeds).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def parts_with_readers(graph: Graph, group: tuple[str, ...]) -> int:
    """How many concats and pads of a group take the nest of their readers into their parts."""
    program = Program(graph)
    emitter = Emitter(program, analyse(program, program.mask(group), 64))
    return sum(stage.kind == "parts" and len(stage.members) > 1 for stage in emitter.stages)


def rotary(b: GraphBuilder, dtype: type = F32, rows: int = 40) -> None:
    x, cosine, sine = b.input("x", dtype, (3, rows, 64)), b.input("c", dtype, (rows, 64)), b.input("s", dtype, (rows, 64))
    left, right = (b.op("Slice", x, starts=(0, 0, k), steps=(1, 1, 1), sizes=(3, rows, 32)) for k in (0, 32))
    turn = b.op("Concat", b.op("Neg", right), left, axis=2)
    b.output("y", b.op("Add", b.op("Mul", x, cosine), b.op("Mul", turn, sine)))


def rotary_in_half_precision(b: GraphBuilder) -> None:
    rotary(b, np.float16)


def stored_and_read(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (5, 40)), b.input("y", F32, (5, 40))
    both = b.op("Concat", x, b.op("Relu", y), axis=0)
    b.output("both", both)
    b.output("z", b.op("Mul", both, b.input("f", F32, (10, 1))))


def of_numbers(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (5, 40)), b.input("n", F32, (1, 40))
    b.output("z", b.op("Sub", b.input("w", F32, (6, 40)), b.op("Concat", x, y, axis=0)))


def in_a_frame(b: GraphBuilder) -> None:
    x = b.input("x", F32, (6, 38))
    p = b.op("Pad", b.op("Neg", x), before=(1, 2), after=(3, 1), value=1.5)
    b.output("z", b.op("Add", b.op("Mul", p, p), b.input("w", F32, (10, 41))))


def two_of_them(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (4, 40)), b.input("y", F32, (4, 40))
    b.output("z", b.op("Sub", b.op("Concat", x, y, axis=0), b.op("Concat", y, x, axis=0)))


@pytest.mark.parametrize("build", [rotary, rotary_in_half_precision, stored_and_read, of_numbers, in_a_frame, two_of_them])
def test_readers_in_the_parts(build: Callable[[GraphBuilder], None]) -> None:
    graph = graph_of(build)
    group = tuple(n.name for n in graph.nodes)
    assert parts_with_readers(graph, group) == 1
    feeds = random_feeds(graph, 3)
    with small_blocks(48):
        fused, single = Interpreter(graph, [group]), Interpreter(graph, [(name,) for name in group])
        assert same(fused.outputs(fused(feeds)), single.outputs(single(feeds)))
    assert same(BoundPlan(graph, [group])(feeds), BoundPlan(graph, [(name,) for name in group])(feeds))


def test_a_row_of_a_concat_waits_in_no_scratch() -> None:
    graph = graph_of(rotary)
    program = Program(graph)
    assert build_kernel(program, analyse(program, (1 << len(graph.nodes)) - 1, 64)).scratch_bytes == 0


def short_parts(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (50, 8)), b.input("y", F32, (50, 8))
    b.output("z", b.op("Mul", b.op("Concat", x, y, axis=1), b.input("f", F32, (50, 16))))


def special_readers(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (5, 40)), b.input("y", F32, (5, 40))
    b.output("z", b.op("Tanh", b.op("Concat", x, y, axis=0)))


def reduced(b: GraphBuilder) -> None:
    x, y = b.input("x", F32, (5, 40)), b.input("y", F32, (5, 40))
    b.output("z", b.op("ReduceSum", b.op("Concat", x, y, axis=0), axes=(1,)))


def long_nest(b: GraphBuilder) -> None:
    v = b.op("Concat", b.input("x", F32, (5, 40)), b.input("y", F32, (5, 40)), axis=0)
    for k in range(stages.FEW_DEFINITIONS + 1):
        v = b.op("Mul", v, number(b, k + 1))
    b.output("z", v)


@pytest.mark.parametrize("build", [short_parts, special_readers, reduced, long_nest, many])
def test_readers_that_keep_a_nest_of_their_own(build: Callable[[GraphBuilder], None]) -> None:
    graph = graph_of(build)
    assert parts_with_readers(graph, tuple(n.name for n in graph.nodes)) == 0


def test_one_kernel_for_every_extent() -> None:
    nodes = [
        node("Slice", ["x", "one", "end", "axes"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Pad", ["r", "pads"], ["p"]),
        node("Tanh", ["p"], ["y"]),
    ]
    constants = {"one": np.array([1]), "end": np.array([1 << 40]), "axes": np.array([1]), "pads": np.array([1, 1, 0, 1])}
    graph = fs.load(model(nodes, [info("x", ["n", "m"])], constants=constants), dims={"n": 4, "m": 6})
    run = fs.compile(fs.search(graph, fs.load_profile("local")))
    before = run.compilations
    for n, m in ((1, 2), (9, 300), (64, 7)):
        x = np.random.default_rng(n).standard_normal((n, m)).astype(F32)
        wanted = np.tanh(np.pad(np.maximum(x[:, 1:], 0), ((1, 0), (1, 1))))
        np.testing.assert_allclose(run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-6)
    assert run.compilations == before
