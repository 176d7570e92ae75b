"""Which loops of a group are one loop."""

from __future__ import annotations

import numpy as np
import pytest

from fusion_search.fusion.loops import segments
from fusion_search.ir.builder import GraphBuilder
from tests.fusion.programs import F32, graph_of, loops, matmul_bias_gelu, softmax


@pytest.mark.parametrize(
    ("base", "view", "expected"),
    [
        ((4, 6), (24,), [((0, 1), (0,))]),
        ((4, 6), (2, 2, 6), [((1,), (2,)), ((0,), (0, 1))]),
        ((4, 1, 6), (1, 4, 6), [((2,), (2,)), ((0,), (1,))]),
        ((4, 6), (3, 8), [((0, 1), (0, 1))]),
        ((12, 5, 4), (3, 4, 20), [((1, 2), (2,)), ((0,), (0, 1))]),
        ((1, 1), (1,), []),
    ],
)
def test_segments(base: tuple[int, ...], view: tuple[int, ...], expected: list[object]) -> None:
    assert list(segments(base, view)) == expected


def test_maps_of_one_shape_share_all_loops() -> None:
    def chain(b: GraphBuilder) -> None:
        b.output("y", b.op("Tanh", b.op("Exp", b.input("x", F32, (64, 128)))))

    found = loops(graph_of(chain))
    assert found.extents == (64, 128)
    assert found.loops == (((0,), (1,)), ((0,), (1,)))
    assert found.conflicts == frozenset()


def test_reduced_and_broadcast_loops_are_the_row_s_loops() -> None:
    found = loops(graph_of(softmax))
    assert found.extents == (64, 128)
    # canonical order: ReduceMax, Sub, Exp, ReduceSum, Div; a reduction has its loop of extent 1 in second place
    assert found.loops == (((0,), (), (1,)), ((0,), (1,)), ((0,), (1,)), ((0,), (), (1,)), ((0,), (1,)))
    assert all(read.identity for read in found.reads if read.producer >= 0)


def test_a_contraction_has_loops_of_its_own_for_depth() -> None:
    found = loops(graph_of(matmul_bias_gelu))
    assert found.extents == (64, 96, 128)
    assert found.loops[0] == ((0,), (1,), (2,))
    assert all(member == ((0,), (1,)) for member in found.loops[1:])


def test_a_view_cuts_a_loop_where_it_has_a_boundary() -> None:
    def split(b: GraphBuilder) -> None:
        r = b.op("Relu", b.input("x", F32, (8, 96)))
        b.output("y", b.op("Transpose", b.reshape(r, (8, 12, 8)), perm=(1, 0, 2)))

    found = loops(graph_of(split))
    assert sorted(found.extents) == [8, 8, 12]
    relu, transpose = found.loops
    assert [tuple(found.extents[a] for a in loop) for loop in relu] == [(8,), (12, 8)]
    assert transpose == ((relu[1][0],), relu[0], (relu[1][1],))
    assert all(read.identity for read in found.reads if read.producer >= 0)


def test_a_view_whose_boundaries_do_not_divide_is_read_out_of_order() -> None:
    def misfit(b: GraphBuilder) -> None:
        r = b.op("Relu", b.input("x", F32, (4, 6)))
        b.output("y", b.op("Exp", b.reshape(r, (3, 8))))

    found = loops(graph_of(misfit))
    assert sorted(found.extents) == [3, 4, 6, 8]
    (read,) = [read for read in found.reads if read.producer >= 0]
    assert not read.identity
    assert {found.extents[a] for a in read.barred} == {4, 6}


def test_loops_of_extent_one_do_not_exist() -> None:
    def ones(b: GraphBuilder) -> None:
        b.output("y", b.op("Exp", b.op("Relu", b.input("x", F32, (1, 7, 1)))))

    found = loops(graph_of(ones))
    assert found.extents == (7,)
    assert found.loops == (((), (0,), ()), ((), (0,), ()))


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("op", ["Add", "MatMul"])
def test_a_value_and_its_transpose_are_a_conflict_when_it_is_computed(op: str, computed: bool) -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (32, 32))
        x = b.op("Relu", x) if computed else x
        b.output("y", b.op(op, x, b.op("Transpose", x, perm=(1, 0))))

    found = loops(graph_of(build))
    assert bool(found.conflicts) == computed
    if not computed:  # then each reader keeps loops of its own
        last = found.loops[-1]
        assert len({a for loop in last for a in loop}) == len(last)


@pytest.mark.parametrize(("length", "unified"), [(16, False), (17, True)])
def test_live_ins_unify_loops_beyond_a_cache_line(length: int, unified: bool) -> None:
    def siblings(b: GraphBuilder) -> None:
        x = b.input("x", F32, (length,))
        b.output("y", b.op("Exp", x))
        b.output("z", b.op("Tanh", x))

    found = loops(graph_of(siblings))
    assert (found.loops[0] == found.loops[1]) == unified


@pytest.mark.parametrize(
    ("attrs", "barred"),
    [
        ({"starts": (0, 0), "steps": (1, 1), "sizes": (8, 5)}, {5}),
        ({"starts": (7, 0), "steps": (-1, 1), "sizes": (8, 9)}, {8}),
    ],
)
def test_a_slice_bars_the_loops_that_it_moves(attrs: dict[str, tuple[int, ...]], barred: set[int]) -> None:
    def build(b: GraphBuilder) -> None:
        b.output("y", b.op("Slice", b.op("Exp", b.input("x", F32, (8, 9))), **attrs))

    found = loops(graph_of(build))
    (read,) = [read for read in found.reads if read.producer >= 0]
    moved = 9 if barred == {5} else 8
    assert {found.extents[a] for a in read.barred} == {moved}
    assert not read.identity


def test_a_gather_bars_the_axis_that_it_reads_from() -> None:
    def build(b: GraphBuilder) -> None:
        table = b.op("Exp", b.input("t", F32, (50, 32)))
        b.output("y", b.op("Gather", table, b.input("i", np.int64, (7,)), axis=0))

    found = loops(graph_of(build))
    (read,) = [read for read in found.reads if read.producer >= 0]
    assert {found.extents[a] for a in read.barred} == {50}
    assert found.loops[1][1] == found.loops[0][1]
