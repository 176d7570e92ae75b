"""Which members are evaluated in the parts of a pad or concat, and what that does to a group's loops, scratch and price."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.fusion.space import Priced
from fusion_search.ir.builder import GraphBuilder
from tests.fusion.programs import F32, graph_of, number, space_of, whole

SHAPE = (2048, 2048)
ONE = {"before": (1, 1), "after": (1, 1), "value": 0.0}


def x(b: GraphBuilder, shape: tuple[int, ...] = SHAPE) -> str:
    return b.input("x", F32, shape)


def cut(b: GraphBuilder, v: str, start: int = 1, less: int = 2) -> str:
    sizes = tuple(n - less for n in b.shape(v))
    return b.op("Slice", v, starts=(start,) * len(sizes), steps=(1,) * len(sizes), sizes=sizes)


def padded(b: GraphBuilder) -> None:
    b.output("y", b.op("Pad", b.op("Relu", b.op("Mul", cut(b, x(b)), number(b, 2))), before=(3, 3), after=(3, 3), value=0.0))


def halves(b: GraphBuilder) -> None:
    v = x(b)
    left, right = (b.op("Slice", v, starts=(0, s), steps=(1, 1), sizes=(2048, 1024)) for s in (0, 1024))
    b.output("y", b.op("Mul", v, b.op("Concat", b.op("Neg", right), left, axis=1)))


def turned(b: GraphBuilder) -> None:
    b.output("y", b.op("Pad", b.op("Tanh", b.op("Transpose", x(b), perm=(1, 0))), **ONE))


def stored_too(b: GraphBuilder) -> None:
    r = b.op("Relu", x(b))
    b.output("r", r)
    b.output("y", b.op("Pad", r, **ONE))


def read_twice(b: GraphBuilder) -> None:
    r = b.op("Relu", x(b))
    b.output("y", b.op("Add", b.op("Pad", r, **ONE), b.op("Pad", b.op("Neg", r), **ONE)))


def joined_with_itself(b: GraphBuilder) -> None:
    r = b.op("Relu", x(b))
    b.output("y", b.op("Concat", r, r, axis=0))


def of_a_reduction(b: GraphBuilder) -> None:
    v = x(b)
    b.output("y", b.op("Pad", b.op("Exp", b.op("Sub", v, b.op("ReduceMax", v, axes=(1,)))), **ONE))


def of_a_product(b: GraphBuilder) -> None:
    b.output("y", b.op("Pad", b.op("Relu", b.op("MatMul", x(b, (64, 64)), b.constant(np.eye(64, dtype=F32)))), **ONE))


def through_a_view(b: GraphBuilder) -> None:
    b.output("y", b.op("Pad", b.reshape(b.op("Relu", x(b)), (1024, 4096)), **ONE))


def spread(b: GraphBuilder) -> None:
    row = b.op("Relu", b.input("row", F32, (1, 2048)))
    b.output("y", b.op("Pad", b.op("Mul", x(b), row), **ONE))


def many(b: GraphBuilder) -> None:
    v = x(b)
    b.output("y", b.op("Concat", *(b.op("Mul", v, number(b, k)) for k in range(5)), axis=0))


@pytest.mark.parametrize(
    ("build", "evaluated"),
    [
        (padded, ["Slice", "Mul", "Relu"]), (halves, ["Slice", "Neg", "Slice"]), (turned, ["Transpose", "Tanh"]),
        (read_twice, ["Neg"]), (stored_too, []), (joined_with_itself, []), (of_a_reduction, []), (of_a_product, []), (through_a_view, []),
        (spread, []), (many, []),
    ],
)  # fmt: skip
def test_what_is_evaluated(build: Callable[[GraphBuilder], None], evaluated: list[str]) -> None:
    graph = graph_of(build)
    found = whole(graph)
    ops = [space_of(graph).program.members[found.positions[i]].node.op for i in sorted(found.in_parts)]
    # what a member reads of the group is evaluated with it: here it reads what another one reads too
    assert ops == ([] if build is read_twice else evaluated)
    for i, place in found.in_parts.items():
        assert found.loops.loops[i] == found.loops.loops[place.host]
        assert i not in found.scratch


def test_a_chain_under_a_pad_is_one_kernel_without_scratch() -> None:
    for profile in ("local", "nvidia-h100-sxm"):
        space = space_of(graph_of(padded), profile)
        everything = space.priced((1 << space.n) - 1)
        assert isinstance(everything, Priced)
        features = space.features((1 << space.n) - 1)
        assert float(np.max(features.scratch_bytes)) == 0
        assert float(np.max(features.recomputed.simple)) == 0
        assert len(space.analysis((1 << space.n) - 1).outer) == 2
        assert everything.cost < sum(space.cost(1 << p) or 0 for p in range(space.n)) / 2
