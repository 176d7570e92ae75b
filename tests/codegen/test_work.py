"""Rough times of members: more for more work, and what is read counts once."""

from __future__ import annotations

import numpy as np

from fusion_search.codegen.work import BYTE_NS, reading_ns, serial_ns
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder


def test_members_take_as_long_as_they_are_work() -> None:
    b = GraphBuilder("work")
    x, w = b.input("x", np.float32, (64, 256)), b.input("w", np.float32, (256, 512))
    mapped = b.op("Add", x, x)
    b.output("y", b.op("Tanh", b.op("MatMul", mapped, w)))
    add, product, tanh = Program(b.build()).members
    assert serial_ns(product) > serial_ns(tanh) > serial_ns(add) > 0
    assert serial_ns(product) > 100 * serial_ns(add)


def test_only_what_lies_outside_is_read_and_no_more_of_a_table_than_is_used() -> None:
    b = GraphBuilder("reading")
    table, where, x = b.input("t", np.float32, (10_000, 8)), b.input("i", np.int64, (4,)), b.input("x", np.float32, (4, 8))
    b.output("y", b.op("Add", b.op("Gather", table, where, axis=0), x))
    gather, add = Program(b.build()).members
    assert reading_ns(add, {0}) == BYTE_NS * 4 * 8 * 4
    assert reading_ns(add, set()) == 2 * reading_ns(add, {0})
    assert 0 < reading_ns(gather, set()) <= BYTE_NS * (4 * 8 * 4 + 4 * 8)
