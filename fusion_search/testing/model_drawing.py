"""The state of a random ONNX model while it is drawn: its nodes, inputs and constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from fusion_search.ir.spec import Array

_USUAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 1e4, -1e4]
#: What special inputs are made of, by dtype: no largest numbers, whose sums depend on their order.
_SPECIAL = {name: [*_USUAL, float(np.finfo(name).tiny), -float(np.finfo(name).smallest_subnormal)] for name in ("float32", "float64")}


@dataclass(slots=True)
class Draw:
    """A model while it is drawn.

    Attributes
    ----------
    rng : numpy.random.Generator
        Decides the structure.
    dtype : dtype
        Of the floats.
    data : numpy.random.Generator
        Gives the numbers, so that the structure does not depend on how many there are.
    batch : int or None
        The first extent of what a model starts from, whatever was drawn.
    special : bool
        Feed floats that are NaN, infinite, negative zeros or denormal as well.
    """

    rng: np.random.Generator
    dtype: Any
    data: np.random.Generator
    batch: int | None = None
    special: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def flip(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return int(self.rng.integers(low, high + 1))

    def one(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def shape(self, rank: int, least: int = 1) -> tuple[int, ...]:
        """Extents whose product stays small."""
        shape = [max(least, int(self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7], p=[0.02, *[0.14] * 7]))) for _ in range(rank)]
        given = shape[:1] if self.batch is not None else []
        shape = shape[len(given) :]
        while math.prod(shape) > (200 if not given else 15):
            shape[int(np.argmax(shape))] -= 1
        return (*((self.batch,) if given and self.batch is not None else ()), *shape)

    def feed(self, shape: tuple[int, ...], dtype: Any = None, low: float = -2, high: float = 2) -> str:
        """An input, or a constant now and then."""
        dtype = np.dtype(dtype or self.dtype)
        raw: Array = self.data.uniform(low, high, shape)
        if dtype.kind in "iub":
            raw = self.data.integers(0 if dtype.kind == "b" else int(low), 2 if dtype.kind == "b" else int(high) + 1, shape)
        elif self.special:
            raw = np.where(self.data.random(shape) < 0.2, self.data.choice(_SPECIAL[dtype.name], shape), raw)
        given = self.constants if self.inputs and self.flip(0.3) else self.inputs
        name = f"{'c' if given is self.constants else 'x'}{len(given)}"
        given[name] = np.asarray(raw).astype(dtype)
        return name

    def fixed(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype)
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"n{len(self.nodes)}", **attrs))
        return names[0]


#: Draws one or more nodes that read a value of a shape; returns the result and its shape, or None when nothing fits.
Form = Callable[[Draw, str, tuple[int, ...]], tuple[str, tuple[int, ...]] | None]
