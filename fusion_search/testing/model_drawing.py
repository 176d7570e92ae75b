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


@dataclass(slots=True)
class Draw:
    """A model while it is drawn."""

    rng: np.random.Generator
    dtype: Any
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
        while math.prod(shape) > 200:
            shape[int(np.argmax(shape))] -= 1
        return tuple(shape)

    def feed(self, shape: tuple[int, ...], dtype: Any = None, low: float = -2, high: float = 2) -> str:
        """An input, or a constant now and then."""
        dtype = np.dtype(dtype or self.dtype)
        raw: Array = self.rng.uniform(low, high, shape)
        if dtype.kind in "iub":
            raw = self.rng.integers(0 if dtype.kind == "b" else int(low), 2 if dtype.kind == "b" else int(high) + 1, shape)
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
