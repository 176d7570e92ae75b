"""Features counted by hand. Cache lines have 64 bytes."""

from __future__ import annotations

import numpy as np

from costmodels import Flops
from fusion_search.fusion.analysis import TEMPLATE_LIVE
from fusion_search.ir.builder import GraphBuilder
from tests.fusion.programs import F32, column_sum, graph_of, layer_norm, matmul_bias_gelu, softmax, weight, whole


def test_softmax() -> None:
    found = whole(graph_of(softmax))
    f = found.features
    assert (f.bytes_read, f.bytes_written) == (64 * 128 * 4, 64 * 128 * 4)
    assert f.rereads == ()
    assert found.knobs == ()
    assert f.blocks == 64
    # the maximum, then Sub, Exp and the sum in one nest, then the division
    assert found.stages == (0, 1, 1, 1, 2)
    assert f.scratch_bytes == 4 + 128 * 4 + 4  # maximum, row of exponentials, sum
    assert f.flops == Flops(simple=4 * 8192, special=8192, contract=0)
    assert (f.recomputed.simple, f.recomputed.special, f.recomputed.contract) == (0, 0, 0)
    assert f.iterations == 64 * 128
    assert (f.nodes, f.launches, f.itemsize) == (5, 1, 4)
    # Sub reads x and the maximum, and its result takes the place of one of them
    assert f.live == TEMPLATE_LIVE + 2


def test_layer_norm() -> None:
    found = whole(graph_of(layer_norm))
    f = found.features
    assert f.bytes_read == 64 * 128 * 4 + 128 * 4
    assert f.bytes_written == 64 * 128 * 4
    # rows are blocks; the scale is not indexed by rows, so rows are tiled: 1, 2, 4, ..., 64
    assert [tiling for (tiling,) in found.tilings] == [1, 2, 4, 8, 16, 32, 64]
    np.testing.assert_array_equal(f.blocks, [64, 32, 16, 8, 4, 2, 1])
    (again,) = f.rereads
    assert again.operand_bytes == 512
    np.testing.assert_array_equal(again.extra_reads, [63, 31, 15, 7, 3, 1, 0])
    # for each row of a block: mean, centred row, variance, and the root that every element divides by
    np.testing.assert_array_equal(f.scratch_bytes, np.array([1, 2, 4, 8, 16, 32, 64]) * (4 + 512 + 4 + 4))


def test_matmul_bias_gelu() -> None:
    found = whole(graph_of(matmul_bias_gelu))
    f = found.features
    assert f.bytes_read == 64 * 128 * 4 + 128 * 96 * 4 + 96 * 4
    assert f.bytes_written == 64 * 96 * 4
    k = found.tilings.index((16, 32))
    rows, columns = 64 // 16, 96 // 32
    extra = {again.operand_bytes: np.broadcast_to(again.extra_reads, len(found.tilings))[k] for again in f.rereads}
    assert extra == {64 * 128 * 4: columns - 1, 128 * 96 * 4: rows - 1, 96 * 4: rows - 1}
    assert np.asarray(f.blocks)[k] == rows * columns
    assert np.asarray(f.scratch_bytes)[k] == 16 * 32 * 4  # the product; the map nest keeps the rest in registers
    assert f.flops == Flops(simple=4 * 64 * 96, special=64 * 96, contract=2 * 64 * 96 * 128)


def test_column_sum() -> None:
    found = whole(graph_of(column_sum))
    f = found.features
    assert f.bytes_read == 64 * 1000 * 4
    assert f.bytes_written == 4032  # 4000 in whole lines
    assert f.blocks == 1000
    assert f.scratch_bytes == 0
    assert found.stages == (0, 0)


def test_full_sum_is_one_block() -> None:
    def build(b: GraphBuilder) -> None:
        b.output("y", b.op("ReduceSum", b.op("Cos", b.input("x", F32, (64, 128))), axes=(0, 1)))

    f = whole(graph_of(build)).features
    assert (f.blocks, f.bytes_written, f.scratch_bytes) == (1, 64, 0)


def test_a_member_that_lacks_an_outer_loop_is_computed_again_for_each_block() -> None:
    def build(b: GraphBuilder) -> None:
        e = b.op("Exp", b.input("v", F32, (32,)))
        b.output("y", b.op("Add", b.input("x", F32, (8, 32)), e))

    found = whole(graph_of(build))
    assert found.knobs != ()
    for tiling, blocks, special in zip(found.tilings, found.features.blocks, found.features.recomputed.special, strict=True):
        along_rows = -(-8 // tiling[0])
        assert special == 32 * (along_rows - 1)
        assert blocks == along_rows * 32


def test_a_slice_reads_whole_lines_of_its_runs() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (64, 128))
        b.output("y", b.op("Slice", x, starts=(8, 16), steps=(1, 1), sizes=(10, 5)))

    f = whole(graph_of(build)).features
    assert f.bytes_read == 10 * 64
    assert f.bytes_written == 256  # 200 in whole lines


def test_two_slices_of_one_tensor_read_both_regions_but_never_more_than_all() -> None:
    def build(rows: int) -> int:
        def slices(b: GraphBuilder) -> None:
            x = b.input("x", F32, (64, 16))
            parts = [b.op("Slice", x, starts=(at, 0), steps=(1, 1), sizes=(rows, 16)) for at in (0, 64 - rows)]
            b.output("y", b.op("Add", *parts))

        return whole(graph_of(slices)).features.bytes_read

    assert build(20) == 2 * 20 * 64
    assert build(50) == 64 * 64


def test_concat_reads_each_part_once() -> None:
    def build(b: GraphBuilder) -> None:
        x, y = b.input("x", F32, (16, 32)), b.input("y", F32, (16, 48))
        b.output("o", b.op("Relu", b.op("Concat", x, y, x, axis=1)))

    f = whole(graph_of(build)).features
    assert f.bytes_read == 16 * 32 * 4 + 16 * 48 * 4
    assert f.bytes_written == 16 * 112 * 4


def test_gather_reads_no_more_rows_than_it_takes() -> None:
    def build(b: GraphBuilder) -> None:
        b.output("y", b.op("Gather", weight(b, 50, 32), b.input("i", np.int64, (2, 9)), axis=0))

    f = whole(graph_of(build)).features
    assert f.bytes_read == 18 * 128 + 192  # rows, and 144 bytes of indices
    assert f.bytes_written == 18 * 128


def test_a_parameter_is_no_traffic_and_an_inner_value_neither() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.op("Mul", b.input("x", F32, (64, 64)), b.constant(np.array(2.0, F32)))
        b.output("y", b.op("Exp", x))

    found = whole(graph_of(build))
    assert len(found.live_ins) == len(found.live_outs) == 1
    assert found.features.bytes_read == found.features.bytes_written == 64 * 64 * 4


def test_an_inner_value_that_is_an_output_is_written() -> None:
    def build(b: GraphBuilder) -> None:
        e = b.op("Exp", b.input("x", F32, (64, 64)))
        b.output("e", e)
        b.output("y", b.op("Tanh", e))

    found = whole(graph_of(build))
    assert len(found.live_outs) == 2
    assert found.features.bytes_written == 2 * 64 * 64 * 4
