"""The state of a random graph while it is drawn: its values so far, their bounds, and how operands are found or made to fit.

Values stay tame by construction: every value has a bound, and an operator whose result could be large, or that is not
defined everywhere, gets its operands through one that makes them fit. A value is *exact* when it has the same bits under
any evaluation order; operators that are not continuous (comparisons, roundings, casts to integers) read exact values only,
so that a tolerance on the results means something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Shape
from fusion_search.ir.spec import Array
from fusion_search.testing.values import special_array

F16, F32, F64, I32, I64, BOOL = (np.dtype(t) for t in ("float16", "float32", "float64", "int32", "int64", "bool"))
BF16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = tuple(np.dtype(t) for t in ("int64", "int32", "int64", "int32", "int8", "int16", "uint8", "uint16", "uint32", "uint64"))
#: Elements of the largest value.
LARGEST = 6000
#: The same for graphs that a plain Python interpreter runs.
SMALL = 300
#: A value with a larger bound is not used by operators that could make it larger.
TAME = 64.0
_EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 37, 64, 67)
_EXTENT_WEIGHTS = np.array([3, 2, 2, 2, 2, 2, 2, 1, 2, 2, 1, 1, 1, 1, 1], float) / 25


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value with its largest magnitude, and whether any order of evaluation gives its bits."""

    name: str
    bound: float
    exact: bool


class Skip(Exception):
    """An operator does not fit the value that was drawn."""


class Drawer:
    """A graph while it is drawn; see the module."""

    def __init__(self, seed: int, extents: int, wide: bool) -> None:
        self.wide, self.largest = wide, SMALL if wide else LARGEST
        self.rng = np.random.default_rng([seed, 1])
        self.sizes = np.random.default_rng([seed, 2, extents])
        self.b = GraphBuilder(f"random{seed}")
        self.main = (F32, F32, F32, F32, F32, F64, F16)[int(self.rng.integers(7))]
        if wide:
            self.main = (F32, F32, F32, F64, F16, BF16)[int(self.rng.integers(6))]
        self.palette = [int(n) for n in self.sizes.choice(_EXTENTS, size=5, p=_EXTENT_WEIGHTS)]
        if self.sizes.random() < (0.08 if wide else 0.03):
            self.palette[0] = 0
        self.pool: list[Tensor] = []
        self.read: set[str] = set()

    def draw(self, size: int, ops: Sequence[str], forms: Mapping[str, Callable[[Drawer], Tensor]]) -> Graph:
        """Draw `size` operators out of `ops`."""
        b, rng = self.b, self.rng
        for _ in range(1 + int(rng.integers(2))):
            self.pool.append(self.input(self.main, self.shape_of_rank(int(rng.choice([1, 2, 2, 3, 3, 4])))))
        made, attempts = 0, 0
        while made < size and attempts < 30 * size:
            attempts += 1
            name = ops[int(rng.integers(len(ops)))]
            before = b.mark()
            try:
                result = forms[name](self)
            except Skip:
                continue
            if b.mark()[0] == before[0]:
                continue
            self.pool.append(result)
            made += 1
        self._outputs()
        return b.build()

    def _outputs(self) -> None:
        b, rng = self.b, self.rng
        read = {self._base(name) for node in b.nodes for name in node.inputs}
        computed = {node.output for node in b.nodes}
        drawn: dict[str, str] = {}
        for tensor in self.pool:
            base = self._base(tensor.name)
            if base in computed:
                drawn[base] = tensor.name
        chosen = [drawn.get(base, base) for base in (node.output for node in b.nodes) if base not in read]
        chosen += [name for base, name in drawn.items() if base in read and rng.random() < 0.2]
        for k, name in enumerate(chosen or [self.pool[0].name]):
            b.output(f"out{k}", name)

    def _base(self, name: str) -> str:
        while (view := self.b.values[name].view_of) is not None:
            name = view
        return name

    # ------------------------------------------------------------------ drawing operands

    def extent(self) -> int:
        return self.palette[int(self.rng.integers(len(self.palette)))]

    def shape_of_rank(self, rank: int) -> Shape:
        shape = [self.extent() for _ in range(rank)]
        while math.prod(shape) > self.largest // 2:
            largest = shape.index(max(shape))
            shape[largest] = max(1, shape[largest] // 3)
        return tuple(shape)

    def input(self, dtype: np.dtype[Any], shape: Shape) -> Tensor:
        name = self.b.input(f"in{len(self.b._inputs)}", dtype, shape)
        return Tensor(name, 8.0 if dtype.kind in "iu" else 2.0, True)

    def constant(self, dtype: np.dtype[Any], shape: Shape) -> Tensor:
        array: Array
        if self.wide and self.sizes.random() < 0.3:
            return Tensor(self.b.constant(special_array(self.sizes, dtype, shape)), math.inf, True)
        if dtype == BOOL:
            array = self.sizes.random(shape) < 0.5
        elif dtype.kind in "iu":
            array = self.sizes.integers(-8, 8, shape)
        else:
            array = self.sizes.uniform(-2, 2, shape)
        return Tensor(self.b.constant(np.asarray(array).astype(dtype)), 8.0 if dtype.kind in "iu" else 2.0, True)

    def fresh(self, dtype: np.dtype[Any], shape: Shape) -> Tensor:
        """A constant or an input."""
        if math.prod(shape) > self.largest:
            raise Skip
        return self.constant(dtype, shape) if self.rng.random() < 0.6 else self.input(dtype, shape)

    def some(self, kinds: str = "fiub", *, exact: bool = False, bound: float = math.inf, rank: int = 0) -> Tensor:
        """A value of the pool, a late one more likely."""
        fits = [
            t for t in self.pool if self.kind(t) in kinds and (t.exact or not exact) and t.bound <= bound and len(self.shape(t)) >= rank
        ]
        if not fits:
            raise Skip
        weights = np.arange(1, len(fits) + 1, dtype=float) ** 2
        return fits[int(self.rng.choice(len(fits), p=weights / weights.sum()))]

    def integer(self) -> Tensor:
        try:
            return self.some("iu" if self.wide else "i", bound=math.inf if self.wide else 1e6)
        except Skip:
            dtype = INTEGERS[int(self.rng.integers(len(INTEGERS)))] if self.wide else I64 if self.rng.random() < 0.6 else I32
            self.pool.insert(0, self.input(dtype, self.shape_of_rank(2)))
            return self.pool[0]

    def number(self, **rules: Any) -> Tensor:
        """A float mostly, an integer now and then."""
        if self.rng.random() < (0.3 if self.wide else 0.2):
            return self.integer()
        return self.some("f", **rules)

    def boolean(self) -> Tensor:
        try:
            return self.some("b")
        except Skip:
            self.pool.insert(0, self.input(BOOL, self.shape_of_rank(2)))
            return self.pool[0]

    def dtype(self, t: Tensor) -> np.dtype[Any]:
        return self.b.values[t.name].dtype

    def kind(self, t: Tensor) -> str:
        """The dtype's kind; bfloat16 is a float."""
        dtype = self.dtype(t)
        return "f" if dtype == BF16 else dtype.kind

    def shape(self, t: Tensor) -> Shape:
        return self.b.values[t.name].shape

    def partner(self, x: Tensor, *, exact: bool = False) -> Tensor:
        """A value that broadcasts with `x`: of the pool, a parameter, or a fresh one."""
        shape, dtype = self.shape(x), self.dtype(x)
        if self.rng.random() < 0.6:
            fits = []
            for t in self.pool:
                if self.dtype(t) != dtype or (exact and not t.exact) or t.bound > TAME:
                    continue
                try:
                    joint = np.broadcast_shapes(self.shape(t), shape)
                except ValueError:
                    continue
                if math.prod(joint) <= self.largest:
                    fits.append(t)
            if fits:
                return fits[int(self.rng.integers(len(fits)))]
        if self.rng.random() < 0.4:
            return self.constant(dtype, (1,) * int(self.rng.integers(2)))
        drop = int(self.rng.integers(len(shape) + 1)) if self.rng.random() < 0.4 else 0
        return self.fresh(dtype, tuple(1 if self.rng.random() < 0.25 else n for n in shape[drop:]))

    # ------------------------------------------------------------------ making operands fit

    def op(self, name: str, *operands: Tensor, bound: float, exact: bool = True, **attrs: Any) -> Tensor:
        result = self.b.op(name, *(t.name for t in operands), **attrs)
        return Tensor(result, bound, exact and all(t.exact for t in operands))

    def tame(self, x: Tensor, limit: float = TAME) -> Tensor:
        """`x` itself when its bound is small, else something that is."""
        if x.bound <= limit:
            return x
        if self.kind(x) in "iu":
            return self.op("Mod", x, self.number_of(x, min(7, int(limit))), bound=min(7, int(limit)))
        return self.op("Clip", x, self.number_of(x, -limit), self.number_of(x, limit), bound=limit)

    def number_of(self, x: Tensor, value: float) -> Tensor:
        return Tensor(self.b.constant(np.asarray(max(value, 0) if self.kind(x) == "u" else value).astype(self.dtype(x))), abs(value), True)

    def positive(self, x: Tensor) -> Tensor:
        """At least a half."""
        return self.op("Add", self.op("Abs", x, bound=x.bound), self.number_of(x, 0.5), bound=x.bound + 0.5)

    def view(self, x: Tensor, shape: Shape) -> Tensor:
        return Tensor(self.b.reshape(x.name, shape), x.bound, x.exact)

    def flip(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def cut(self, n: int) -> int:
        """A number from 0 to n - 1; the same share of n for any n."""
        return min(int(self.rng.random() * n), max(n - 1, 0))
