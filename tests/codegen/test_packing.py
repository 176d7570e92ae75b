"""Packed constants: each element in its place, and the bits of the same operand when it is an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.kernel import build
from fusion_search.codegen.packing import Packing
from fusion_search.fusion.analysis import Analysis, analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.ir.orders import turned
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.interpreter import interpret
from tests.frontends.modeling import random

Array = np.ndarray[Any, Any]
Operand = Callable[[GraphBuilder, Array], str]


def test_every_element_is_packed_where_its_block_and_term_say() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        shape = tuple(int(n) for n in rng.integers(1, 9, 4))
        array = rng.standard_normal(shape).astype(rng.choice(["f4", "f8"]))
        steps = [s // array.itemsize for s in array.strides]
        order = rng.permutation(4)
        cut = sorted(int(n) for n in rng.integers(0, 5, 2))
        matrices, side, depth = (tuple((shape[d], steps[d]) for d in sorted(part)) for part in np.split(order, cut))
        width = int(rng.choice([3, 16, 64]))
        packed = Packing(width, matrices, side, depth).pack(array)
        assert packed.ctypes.data % 64 == 0
        turned = array.transpose([*sorted(order[: cut[0]]), *sorted(order[cut[0] : cut[1]]), *sorted(order[cut[1] :])])
        count, columns, terms = (int(np.prod([n for n, _ in part])) for part in (matrices, side, depth))
        want = np.zeros((count, -(-columns // width) * width, terms), array.dtype)
        want[:, :columns] = turned.reshape(count, columns, terms)
        np.testing.assert_array_equal(packed.reshape(count, -1, terms, width), want.reshape(count, -1, width, terms).swapaxes(2, 3))


def _matmul(left: tuple[int, ...], right: tuple[int, ...], dtype: str = "float32") -> Callable[[Operand], Graph]:
    def make(operand: Operand) -> Graph:
        b = GraphBuilder("product")
        x = b.input("x", np.dtype(dtype), left)
        b.output("y", b.op("MatMul", x, operand(b, random(right, 1).astype(dtype))))
        return b.build()

    return make


def _left(constant: tuple[int, ...], right: tuple[int, ...]) -> Callable[[Operand], Graph]:
    def make(operand: Operand) -> Graph:
        b = GraphBuilder("filters")
        x = b.input("x", np.float32, right)
        b.output("y", b.op("MatMul", operand(b, random(constant, 2)), x))
        return b.build()

    return make


def _conv(x: tuple[int, ...], w: tuple[int, ...], pad: int, stride: int = 1, bias: bool = True) -> Callable[[Operand], Graph]:
    def make(operand: Operand) -> Graph:
        b = GraphBuilder("windows")
        out = [(n + 2 * pad - k) // stride + 1 for n, k in zip(x[3:], w[3:], strict=True)]
        given = [operand(b, random(w, 3))] + ([b.constant(random(w[:2], 4))] if bias else [])
        kinds = {"strides": (stride,) * len(out), "dilations": (1,) * len(out), "before": (pad,) * len(out), "after": (pad,) * len(out)}
        y = b.op("Conv", b.input("x", np.float32, x), *given, **kinds)
        b.output("y", b.op("Relu", y))
        return b.build()

    return make


CASES = {
    "rows": _matmul((37, 70), (70, 130)),
    "float64": _matmul((37, 70), (70, 130), "float64"),
    "matrices": _matmul((3, 20, 33), (3, 33, 70)),
    "one right side": _matmul((3, 20, 33), (33, 70)),
    "long sums": _matmul((9, 900), (900, 66)),
    "one row": _matmul((1, 50), (50, 99)),
    "filters by pixels": _left((70, 150), (150, 49)),
    "short sums": _left((70, 20), (20, 49)),
    "pointwise": _conv((2, 1, 130, 7, 7), (1, 70, 130, 1, 1), 0),
    "small planes": _conv((2, 1, 40, 7, 7), (1, 70, 40, 3, 3), 1),
    "strided groups": _conv((1, 2, 40, 15, 15), (2, 66, 40, 3, 3), 1, 2, bias=False),
    "large planes": _conv((1, 1, 20, 30, 30), (1, 18, 20, 3, 3), 1),
}


def constant(b: GraphBuilder, array: Array) -> str:
    return b.constant(array)


def given(b: GraphBuilder, array: Array) -> str:
    return b.input("w", array.dtype, array.shape)


def whole(graph: Graph) -> tuple[Program, Analysis]:
    program = Program(graph)
    return program, analyse(program, (1 << len(program.members)) - 1, 64)


@pytest.mark.parametrize("name", CASES)
def test_a_constant_operand_gives_the_bits_of_a_fed_one(name: str) -> None:
    held, fed = CASES[name](constant), CASES[name](given)
    (x,) = (v for v in held.inputs)
    feeds = {"x": random(x.shape, 5).astype(x.dtype)}
    weights = next(a for a in held.constants.values() if a.shape == {v.name: v.shape for v in fed.inputs}["w"])
    groups = [[node.name for node in held.nodes]]
    got = BoundPlan(held, groups)(feeds)["y"]
    want = BoundPlan(fed, [[node.name for node in fed.nodes]])({**feeds, "w": weights})["y"]
    assert got.tobytes() == want.tobytes()
    # the text, access by access; it adds up without fused multiply-adds
    np.testing.assert_allclose(interpret(held, groups, feeds)["y"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "packing",
    [
        Packing(32, (), ((500, 1),), ((600, 500),)),
        Packing(16, (), ((600, 500),), ((500, 1),)),  # rows are what is blocked
        Packing(64, (), ((70, 1),), ((600, 500),), 430),  # the last columns
        Packing(32, ((5, 100),), ((100, 1),), ((600, 500),)),  # heads side by side
        Packing(32, ((6, 50000),), ((500, 1),), ((100, 500),)),
        Packing(6, (), ((60, 5000),), ((10, 500), (500, 1))),  # two loops in one
        Packing(32, (), ((500, 2),), ((300, 1000),)),  # from one row into the next
    ],
    ids=str,
)
def test_a_matrix_that_lies_turned_is_packed_alike(packing: Packing) -> None:
    array = random((500, 600), 3)
    assert turned(array.T)
    np.testing.assert_array_equal(packing.pack(array.T), packing.pack(np.ascontiguousarray(array.T)))


def test_what_is_packed() -> None:
    def forms(name: str) -> list[str]:
        return list(Emitter(*whole(CASES[name](constant))).forms.values())

    for name in ("rows", "float64", "matrices", "one right side", "long sums"):
        assert forms(name) == ["packed"], name
    for name in ("filters by pixels", "pointwise", "small planes", "strided groups"):
        assert forms(name) == ["turned"], name
    # one row is read once; a short sum, or a plane that fills its vectors, does not pay for turning the result
    for name in ("one row", "short sums", "large planes"):
        assert not forms(name), name
    assert not any(slot.packing for slot in build(*whole(CASES["rows"](given))).slots)
