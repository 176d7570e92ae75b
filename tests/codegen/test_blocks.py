"""Blocks of convolutions and products: nothing lost, nothing too large, the same text for any number of threads."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fusion_search.codegen import blocks
from fusion_search.codegen.kernel import build
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from tests.codegen.test_forms import CASES, built


def test_blocks_of_dense_convolutions() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows, width, filters, others = (
            int(rng.choice(v)) for v in ([0, 1, 2, 7, 14, 35, 112], [1, 5, 7, 56, 300], [0, 1, 5, 64, 1000], [0, 1, 8])
        )
        for threads in (1, 2, 3, 16):
            row_block, cuts = blocks.dense_blocks(rows, width, filters, others, (True, True), threads, bool(rng.integers(2)))
            assert 1 <= row_block <= max(rows, 1)
            assert cuts == 1 or filters // cuts >= 3 * blocks.KERNEL_ROWS
            assert row_block == 1 or 4 * -(-filters // cuts) * row_block * width <= blocks.BLOCK_BYTES
            assert blocks.dense_blocks(rows, width, filters, others, (False, True), threads)[0] == max(rows, 1)


def test_both_threads_get_the_same_share_of_common_layers() -> None:
    for rows, filters in ((112, 64), (56, 64), (28, 128), (14, 256), (7, 512)):
        row_block, cuts = blocks.dense_blocks(rows, rows, filters, 1, (True, True), 2)
        assert -(-rows // row_block) * cuts % 2 == 0


@pytest.mark.parametrize("name", CASES)
def test_the_text_does_not_depend_on_the_number_of_threads(name: str) -> None:
    program = Program(built(name))
    analysis = analyse(program, (1 << len(program.members)) - 1, 64)
    kernels = [build(program, analysis, threads=threads) for threads in (1, 2, 7)]
    # how LLVM is to treat the loops may depend on how long they are
    assert len({re.sub(r"pipeline_class=\w+", "", kernel.source) for kernel in kernels}) == 1


def test_a_block_of_a_pointwise_convolution_is_of_one_image() -> None:
    b = GraphBuilder("images")
    x = b.reshape(b.input("x", np.float32, (8, 32, 28, 28)), (8, 1, 32, 28, 28))
    w = b.constant(np.ones((1, 96, 32, 1, 1), np.float32))
    y = b.op("Conv", x, w, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0))
    b.output("y", b.op("Relu", b.reshape(y, (8, 96, 28, 28))))
    program = Program(b.build())
    kernel = build(program, analyse(program, (1 << len(program.members)) - 1, 64), threads=2)
    pixels = -(-28 * 28 // blocks.PANEL_COLUMNS)
    assert kernel.items == 8 * pixels


def branches(wide: int, narrow: int) -> Graph:
    """A pointwise convolution and one over windows, of one image, joined."""
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (1, 16, 55, 55))
    point, window = (b.constant(np.ones((1, n, 16, k, k), np.float32)) for n, k in ((wide, 1), (narrow, 3)))
    grouped = b.reshape(x, (1, 1, 16, 55, 55))
    attrs = {"strides": (1, 1), "dilations": (1, 1)}
    parts = [b.op("Conv", grouped, w, before=(k, k), after=(k, k), **attrs) for w, k in ((point, 0), (window, 1))]  # type: ignore[arg-type]
    b.output("y", b.op("Concat", *(b.reshape(part, (1, n, 55, 55)) for part, n in zip(parts, (wide, narrow), strict=True)), axis=1))
    return b.build()


@pytest.mark.parametrize(("wide", "narrow", "several"), [(64, 64, True), (640, 16, False)])
def test_blocks_suit_the_convolution_that_is_most_of_the_work(wide: int, narrow: int, several: bool) -> None:
    """Several rows of pixels an item for a window; no more pixels than fill a panel for a product."""
    program = Program(branches(wide, narrow))
    kernel = build(program, analyse(program, (1 << len(program.members)) - 1, 64))
    rows, _ = (block for block in kernel.blocks if block.extent == 55)
    assert (rows.tile > 1) == several


def test_siblings_copy_what_all_of_them_read_once() -> None:
    """Columns of a value that lie apart are put side by side for all products of a block; rows are read where they lie."""
    for name, copies, calls in (("branches_of_one_point", 1, 4), ("three_projections_of_columns", 0, 3), ("three_projections", 0, 3)):
        program = Program(built(name))
        kernel = build(program, analyse(program, (1 << len(program.members)) - 1, 64), threads=2)
        assert kernel.source.count("call_address") == calls
        assert len(re.findall(r"for k in range\(.*\):\n *for j in", kernel.source)) == copies
