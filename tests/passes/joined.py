"""Programs of concats with maps behind them, drawn: every role that an operand can have, every axis, parts of any size and origin."""

from __future__ import annotations

import random

import numpy as np

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph

F32 = np.float32
UNARY = ("Relu", "Tanh", "Neg", "Abs")
BINARY = ("Add", "Mul", "Sub", "Max")


class _Drawing:
    def __init__(self, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.b = GraphBuilder(f"joined{seed}")
        self.inputs = 0

    def constant(self, shape: tuple[int, ...]) -> str:
        return self.b.constant(self.numbers.standard_normal(shape).astype(F32))

    def input(self, shape: tuple[int, ...]) -> str:
        self.inputs += 1
        return self.b.input(f"x{self.inputs}", F32, shape)

    def value(self, shape: tuple[int, ...]) -> str:
        """Something of a shape: an input, a constant, a map of one, a product, or a view of one."""
        kind = self.rng.choice(["input", "map", "map", "product", "view", "constant"])
        if kind == "constant":
            return self.constant(shape)
        if kind == "product" and len(shape) > 1:
            return self.b.op("MatMul", self.input((*shape[:-1], 3)), self.constant((3, shape[-1])))
        if kind == "view":
            flat = self.b.op("Tanh", self.input((int(np.prod(shape)),)))
            return self.b.reshape(flat, shape)
        return self.input(shape) if kind == "input" else self.b.op(self.rng.choice(UNARY), self.input(shape))

    def joined(self, shape: tuple[int, ...], axis: int, extents: list[int]) -> str:
        parts = [self.value((*shape[:axis], n, *shape[axis + 1 :])) for n in extents]
        if len(set(extents)) < len(extents) and self.rng.random() < 0.2:
            parts = [parts[extents.index(n)] for n in extents]  # one value as several parts
        return self.b.op("Concat", *parts, axis=axis)


def random_joined(seed: int, *, longest: int = 3) -> Graph:
    """Two or more parts and a chain of at most so many maps; who reads the last of them, and whether all is read, is drawn too."""
    d = _Drawing(seed)
    rng, b = d.rng, d.b
    rank = rng.randint(1, 4)
    axis = rng.randrange(rank)
    shape = tuple(1 if k < axis and rng.random() < 0.7 else rng.choice([1, 2, 3, 17]) for k in range(rank))
    extents = [rng.choice([1, 2, 5, 16, 0]) for _ in range(rng.randint(2, 5))]
    total = sum(extents)
    shape = (*shape[:axis], total, *shape[axis + 1 :])
    value = d.joined(shape, axis, extents)
    for _ in range(rng.randint(1, longest)):
        kind = rng.choice(["unary", "number", "row", "varying", "varying", "alike", "other cut", "itself", "wider"])
        shape = b.shape(value)
        if kind == "unary":
            value = b.op(rng.choice(UNARY), value)
        elif kind == "number":
            value = b.op(rng.choice(BINARY), d.constant(()), value)
        elif kind == "row":  # broadcast along the parts
            value = b.op(rng.choice(BINARY), value, d.value((*shape[:axis], 1, *shape[axis + 1 :])))
        elif kind == "varying":  # from the axis on, or all of it
            value = b.op(rng.choice(BINARY), value, d.value(shape[axis:] if rng.random() < 0.5 else shape))
        elif kind == "alike":
            value = b.op(rng.choice(BINARY), d.joined(shape, axis, extents), value)
        elif kind == "other cut":
            value = b.op(rng.choice(BINARY), value, d.joined(shape, axis, extents[::-1]))
        elif kind == "itself":
            value = b.op("Mul", value, value)
        else:  # the map's result has one dimension more
            value = b.op("Add", value, d.value((2, *shape)))
            axis += 1
    if rng.random() < 0.4 and total:
        b.output("sum", b.op("ReduceSum", value, axes=(axis,), keepdims=False))
    b.output("y", value if rng.random() < 0.6 else b.op("Transpose", value, perm=tuple(reversed(range(len(b.shape(value)))))))
    return b.build()
