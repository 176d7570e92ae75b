"""The checker's own arithmetic: digits and boxes against enumeration, bytes and buffers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import msgspec.structs
import numpy as np
import pytest

import costmodels
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Value
from fusion_search.ir.opaque import OpaqueCall
from fusion_search.search.check import check, counts, digits
from fusion_search.search.check.facts import Facts
from fusion_search.search.plan import Plan, Tile
from tests.search.checked_plans import by_name, f32, plan_of, random_graph, space_of


def _points(extents: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.indices(extents).reshape(len(extents), -1)


@pytest.mark.parametrize("seed", range(60))
def test_digits_and_boxes_agree_with_enumeration(seed: int) -> None:
    facts = Facts(random_graph(seed))
    for step in facts.steps.values():
        if not step.extents or prod(step.extents) > 20_000:
            continue
        points = _points(step.extents)
        for operand in step.operands:
            if any(dim.indirect for dim in operand.access.dims):
                continue
            zero = np.zeros(points.shape[1], int)
            index = [dim.offset + sum((c * points[loop] for loop, c in dim.terms), zero) for dim in operand.access.dims]
            inside = np.ones(points.shape[1], bool)
            for at, n in zip(index, operand.shape, strict=True):
                inside &= (at >= 0) & (at < n)
            box = tuple((int(at[inside].min()), int(at[inside].max())) for at in index)
            assert box == counts.touched(step, operand)
            flat = zero
            for at, n in zip(index, operand.shape, strict=True):
                flat = flat * n + at
            form = digits.flat_form(operand, step.extents)
            for loop, n in enumerate(step.extents):
                for pace in (s for s in (1, 2, 3) if n % s == 0):
                    for extent in (e for e in (2, 3, 4, n) if e > 1 and n // pace % e == 0):
                        mine = points[loop] // pace % extent
                        for stride in (1, 2, 3, 4, 8, 12, 16):
                            true = bool(np.all(flat // stride % extent == mine))
                            digit = digits.Digit(step.name, loop, pace, extent)
                            said = digits.same_digit(form, step.extents, stride, digit)
                            if form.free or not inside.all():  # nothing is read outside, where the form may say anything
                                assert not said or bool(np.all((flat // stride % extent == mine)[inside]))
                            else:
                                assert said == true


def _restated(graph: Graph, *groups: str, read: int | None = None, written: int | None = None) -> Plan:
    """A plan whose bytes are worked out by hand, and priced."""
    space = space_of(graph)
    plan = plan_of(space, by_name(space, *groups))
    out = []
    for group in plan.groups:
        features = space.analysis(space.program.mask(list(group.nodes))).features
        features = replace(features, bytes_read=features.bytes_read if read is None else read)
        features = replace(features, bytes_written=features.bytes_written if written is None else written)
        terms = space.model.terms(features, space.profile)
        cost = costmodels.attoseconds(space.model.cost_s(terms, space.profile))
        out.append(
            msgspec.structs.replace(group, bytes_read=features.bytes_read, bytes_written=features.bytes_written, terms=terms, cost_as=cost)
        )
    return replace(plan, groups=tuple(out), cost_as=sum(group.cost_as for group in out))


def _one(op: str, shape: tuple[int, ...], **attrs: Any) -> Graph:
    b = GraphBuilder("one")
    b.output("y", b.op(op, b.input("x", f32, shape), **attrs))
    return b.build()


def _opaque(outputs: Sequence[Value], shape: tuple[int, ...]) -> Graph:
    b = GraphBuilder("opaque")
    b.opaque(OpaqueCall("Strange", "d", lambda arrays: arrays), [b.input("x", f32, shape)], outputs)
    b.output("y", outputs[0].name)
    return b.build()


def test_bytes_by_hand() -> None:
    """Lines of 64 bytes: 16 numbers of float32."""
    scalar, long, short = Value("s", np.dtype(f32), ()), Value("l", np.dtype(f32), (1000,)), Value("t", np.dtype(f32), (2,))
    one = (1, 1)
    cases = [
        # an opaque operand is read as a whole, and only the result that is needed is written
        (_opaque([scalar], (1000,)), 4032, 64),
        (_opaque([long, short], (16,)), 64, 4032),
        # windows at -1, 3 and 7, two rows each: rows 0 to 8 of 10
        (_one("MaxPool", (10, 16), kernel=(2, 1), strides=(4, 1), dilations=one, before=(1, 0), after=(0, 0)), 9 * 64, 3 * 64),
        # the last row is cut off
        (_one("Pad", (10, 16), before=(2, 0), after=(-1, 0), value=0.0), 9 * 64, 11 * 64),
        (_one("Slice", (10, 16), starts=(0, 0), steps=(3, 1), sizes=(0, 16)), 0, 0),
        (_one("Slice", (10, 16), starts=(1, 4), steps=(2, 1), sizes=(3, 4)), 5 * 64, 64),
        (_one("ReduceSum", (10, 16), axes=(1,)), 640, 64),
    ]
    for graph, read, written in cases:
        assert [str(v) for v in check(graph, _restated(graph, read=read, written=written))] == []


def test_one_region_read_twice_counts_once() -> None:
    b = GraphBuilder("flip")
    x = b.input("x", f32, (10, 16))
    ahead = b.op("Slice", x, starts=(0, 0), steps=(1, 1), sizes=(3, 16))
    back = b.op("Slice", x, starts=(2, 0), steps=(-1, 1), sizes=(3, 16))
    b.output("y", b.op("Add", ahead, back))
    graph = b.build()
    assert check(graph, _restated(graph, "Slice_0 Slice_1 Add_2", read=3 * 64)) == []


def _transposed_sum() -> Graph:
    b = GraphBuilder("square")
    y = b.op("Relu", b.input("x", f32, (300, 300)))
    b.output("z", b.op("Add", y, b.op("Transpose", y, perm=(1, 0))))
    return b.build()


def test_a_value_read_at_two_points_of_one_nest_is_a_buffer() -> None:
    graph = _transposed_sum()
    found = _counts(graph, ("Relu_0", "Transpose_1", "Add_2"))
    assert found.buffers == {"Relu_0", "Transpose_1"}
    assert found.features().scratch_bytes == 2 * 300 * 300 * 4


def _counts(graph: Graph, names: Sequence[str], tiles: Sequence[Tile] = ()) -> counts.Counts:
    facts = Facts(graph)
    steps = [facts.steps[name] for name in names]
    return counts.Counts(facts, steps, {graph.base(value.name) for value in graph.outputs}, tiles, digits.Digits(steps, 64), 64)


def test_no_buffer_where_a_live_in_is_read_twice() -> None:
    b = GraphBuilder("symmetric")
    x = b.input("x", f32, (300, 300))
    b.output("z", b.op("Add", x, b.op("Transpose", x, perm=(1, 0))))
    assert _counts(b.build(), ("Transpose_0", "Add_1")).buffers == set()


def test_an_outer_product_has_another_nest_than_its_factor() -> None:
    b = GraphBuilder("outer")
    w = b.input("w", f32, (300,))
    b.output("z", b.op("Mul", b.op("Exp", w), b.reshape(w, (300, 1))))
    assert _counts(b.build(), ("Exp_0", "Mul_1")).buffers == {"Exp_0"}
