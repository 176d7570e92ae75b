"""Counts that groups share against the analysis of each group: the same bits, whatever the graph, the group and the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fusion_search.codegen.capability import can_emit, plainly_emitted
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.copies import copyable
from fusion_search.fusion.counting import Counting
from fusion_search.fusion.lasting import refused_for_good
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import F32, LINE, graph_of, layer_norm, matmul_bias_gelu, softmax, space_of, two_blocks, weight


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return np.array_equal(np.asarray(one), np.asarray(other))


def reshaped_heads(b: GraphBuilder) -> None:
    """Rows in heads and back, and a table that both sides read: its loops would meet twice in one member."""
    x, table = b.input("x", F32, (16, 4, 32)), b.input("table", F32, (16, 1, 32))
    left, right = b.op("Mul", x, table), b.op("Mul", b.op("Exp", x), table)
    scores = b.op("MatMul", b.op("Transpose", left, perm=(1, 0, 2)), b.op("Transpose", right, perm=(1, 2, 0)))
    peak = b.op("ReduceMax", scores, axes=(2,))
    b.output("y", b.op("Relu", b.reshape(b.op("Sub", scores, peak), (64, 16))))
    b.output("z", b.op("Tanh", b.reshape(left, (16, 128))))


def projected_heads(b: GraphBuilder) -> None:
    """Batches and rows in one loop of what is projected, apart in heads: as queries and as keys its rows meet in one member."""
    projected = b.reshape(b.input("x", F32, (8, 48)), (2, 4, 48))
    thirds = [b.op("Slice", projected, starts=(0, 0, 16 * k), sizes=(2, 4, 16), steps=(1, 1, 1)) for k in range(3)]
    query, key, value = (b.reshape(third, (2, 4, 2, 8)) for third in thirds)
    scores = b.op("MatMul", b.op("Transpose", query, perm=(0, 2, 1, 3)), b.op("Transpose", key, perm=(0, 2, 3, 1)))
    weights = b.op("Exp", b.op("Sub", scores, b.op("ReduceMax", scores, axes=(3,))))
    b.output("y", b.op("MatMul", weights, b.op("Transpose", value, perm=(0, 2, 1, 3))))


def joined_parts(b: GraphBuilder) -> None:
    """A concat of values that views cut elsewhere, and a window over it."""
    x = b.input("x", F32, (1, 8, 6, 6))
    one, none = (1, 1, 1, 1), (0, 0, 0, 0)
    both = b.op("Concat", b.op("Relu", x), b.op("Tanh", x), axis=1)
    b.output("y", b.op("MaxPool", both, kernel=(1, 1, 2, 2), strides=one, dilations=one, before=none, after=none))
    b.output("z", b.op("Add", b.reshape(both, (4, 4, 36)), weight(b, 4, 1)))


def evaluated_parts(b: GraphBuilder) -> None:
    """Chains of maps under a concat and under a pad, some of which others read too, beside a product and a sum."""
    x, row = b.input("x", F32, (24, 16)), b.input("row", F32, (16,))
    product = b.op("Relu", b.op("MatMul", x, weight(b, 16, 8)))
    shared = b.op("Tanh", x)
    both = b.op("Concat", b.op("Exp", b.op("Mul", x, row)), product, b.op("Neg", shared), axis=1)
    b.output("y", b.op("Sub", both, b.op("ReduceMax", both, axes=(1,))))
    b.output("z", b.op("Pad", b.op("Add", b.op("Sqrt", shared), row), before=(1, 0), after=(0, 2), value=0.0))


NAMED = [projected_heads, evaluated_parts, softmax, layer_norm, matmul_bias_gelu, two_blocks, reshaped_heads, joined_parts]


def programs() -> Iterator[Program]:
    for build in NAMED:
        yield Program(graph_of(build))
    for seed in range(60):
        graph = random_graph(seed, size=8, wide=seed % 4 == 3)
        plain = Program(graph)
        copied = copyable(plain)
        yield Program(graph, copied) if copied else plain


def groups(program: Program, seed: int, count: int = 60) -> Iterator[int]:
    """Random sets of nodes, small ones and large ones, in which nobody reads a copy from memory that the set computes."""
    rng = np.random.default_rng(seed)
    n = len(program.members)
    for _ in range(count):
        share = rng.choice([0.2, 0.5, 0.8, 1.0])
        mask = sum(1 << p for p in range(n) if rng.random() < share) or 1
        for p, copies in program.copies.items():
            if mask >> p & 1 and any(copies & ~mask and program.succs[q] & mask for q in range(n) if copies >> q & 1):
                mask |= copies
        yield mask


@pytest.mark.parametrize("line", [32, 64, 128])
def test_counts_are_those_of_the_analysis(line: int) -> None:
    counted = asked = apart = in_parts = 0
    for seed, program in enumerate(programs()):
        counting = Counting(program, line)
        for group in groups(program, seed):
            asked += 1
            found = counting.count(group)
            if found is None:
                continue
            counted += 1
            want = analyse(program, group, line)
            apart += bool(want.apart)
            in_parts += bool(want.in_parts)
            assert same(found.features, want.features), (seed, bin(group))
            assert found.touched == len(want.live_ins) + len(want.live_outs), (seed, bin(group))
            assert found.apart == want.apart, (seed, bin(group))
            assert not want.loops.conflicts
    assert counted > 0.6 * asked
    assert apart > 20
    assert in_parts > 30


def test_what_lasts_is_what_the_analysis_says() -> None:
    lasting = known = 0
    for seed, program in enumerate(programs()):
        counting = Counting(program, LINE)
        for group in groups(program, seed):
            for memory in (64, 4096):
                found = counting.lasting(group, memory)
                if found is not None:
                    known += 1
                    lasting += found
                    assert found == refused_for_good(program, group, memory), (seed, bin(group))
    assert 100 < lasting < known


def test_shapes_are_equal_where_keys_are() -> None:
    repeated = 0
    for seed, program in enumerate(programs()):
        space = GroupSpace(program, space_of(graph_of(softmax)).profile, space_of(graph_of(softmax)).model)
        counting = Counting(program, LINE)
        key_of: dict[Any, Any] = {}
        shape_of: dict[Any, Any] = {}
        for group in groups(program, seed, 120):
            shape, key = counting.shape(group), space.key(group)
            if shape is not None:
                repeated += shape in key_of
                assert key_of.setdefault(shape, key) == key, (seed, bin(group))
                assert shape_of.setdefault(key, shape) == shape, (seed, bin(group))
    assert repeated > 300


def test_starts_are_dropped_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(graph_of(two_blocks))
    plenty = Counting(program, LINE)
    monkeypatch.setattr("fusion_search.fusion.starts._MOST_STARTS", 20)
    monkeypatch.setattr("fusion_search.fusion.starts._MOST_FRAMES", 2)
    few = Counting(program, LINE)
    for group in groups(program, 0, 200):
        assert same(few.count(group), plenty.count(group))
        assert few.shape(group) is not None


def test_what_nodes_and_edges_say_the_generator_says() -> None:
    said = refused = 0
    for seed, program in enumerate(programs()):
        counting = Counting(program, LINE)
        plainly = plainly_emitted(program, counting.starts.pieces)
        for group in groups(program, seed):
            if not group & (group - 1):
                continue
            held = [edge for edge in plainly.edges if group >> edge[0] & 1 and group >> edge[1] & 1]
            emitted = can_emit(program, analyse(program, group, LINE)) is None
            assert not (held and emitted), (seed, bin(group))
            found = counting.count(group)
            if found is not None and found.once and plainly.says(group, counting.one_loop):
                said += 1
                refused += bool(held)
                assert emitted == (not held), (seed, bin(group))
    assert said > 500
    assert refused > 20


def test_prices_of_a_space_are_the_same_with_and_without_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        graph = random_graph(seed, size=7)
        quick, slow = space_of(graph, "local", can_emit), space_of(graph, "local", can_emit)
        quick.plainly_emitted = plainly_emitted
        monkeypatch.setattr(slow, "_counting", _Nothing(quick.program))
        for group in range(1, 1 << min(quick.n, 9)):
            if not quick.reasons(group):
                assert quick.cost(group) == slow.cost(group), (seed, bin(group))
            elif not slow.reasons(group):
                raise AssertionError((seed, bin(group)))


class _Nothing(Counting):
    """Counts nothing, so that everything is analysed."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, LINE)

    def shape(self, group: int) -> None:
        return None

    def count(self, group: int) -> None:
        return None

    def lasting(self, group: int, fast_memory_bytes: float) -> None:
        return None
