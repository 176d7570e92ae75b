"""Random graphs of core operators, inputs for them, and random legal partitions: all from seeds.

Values stay tame by construction: every value has a bound, and an operator whose result could be large, or that is not
defined everywhere, gets its operands through one that makes them fit. A value is *exact* when it has the same bits under
any evaluation order; operators that are not continuous (comparisons, roundings, casts to integers) read exact values only,
so that a tolerance on the results means something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fusion_search.fusion.program import bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Shape
from fusion_search.ir.spec import Array
from fusion_search.search.quotient import execution_order

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
class _Tensor:
    name: str
    bound: float
    exact: bool


class _Skip(Exception):
    """An operator does not fit the value that was drawn."""


def random_graph(seed: int, *, size: int = 6, ops: Collection[str] | None = None, extents: int = 0, wide: bool = False) -> Graph:
    """Make a valid graph.

    Parameters
    ----------
    seed : int
        The same seed gives the same graph.
    size : int
        Operators to draw; a few more nodes make their operands fit.
    ops : collection of str, optional
        Names out of :data:`DRAWN`; all of them by default.
    extents : int
        Seeds the sizes: another number gives mostly the same operators at other extents, which need no new kernels.
    wide : bool
        Also draw bfloat16, every integer, running totals and constants like NaN, with small tensors; then nothing is tame.

    Returns
    -------
    Graph
        With one or more outputs; every node is needed by one.
    """
    return _Drawer(seed, extents, wide).draw(size, sorted(ops or {**DRAWN, **(WIDE if wide else {})}))


def random_feeds(graph: Graph, seed: int) -> dict[str, Array]:
    """Make inputs: floats in [-2, 2] with some zeros and ones, integers in [-8, 8), bools."""
    rng = np.random.default_rng([seed, 77])
    feeds = {}
    for value in graph.inputs:
        if value.dtype == BOOL:
            feeds[value.name] = rng.random(value.shape) < 0.5
        elif value.dtype.kind in "iu":
            feeds[value.name] = rng.integers(-8, 8, value.shape).astype(value.dtype)
        else:
            smooth = rng.uniform(-2, 2, value.shape)
            feeds[value.name] = np.where(rng.random(value.shape) < 0.05, np.rint(smooth), smooth).astype(value.dtype)
    return feeds


def special_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Make numbers of which a third are NaN, infinite, negative zeros, denormal, or the extremes of their dtype."""
    if dtype == BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    odd: list[Any]
    plain: Array
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        odd = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, info.max // 2]
        plain = rng.integers(0 if dtype.kind == "u" else -8, 8, shape)
    else:
        limits = ml_dtypes.finfo(dtype)
        tiny, least, most = float(limits.tiny), float(limits.smallest_subnormal), float(limits.max)
        odd = [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny, least, -3 * least, most, -most, 1.0, -1.0, 0.5, 1.5, 2.5, 300.0, -70000.0, 3e9]
        plain = rng.normal(0, 3, shape)
    share = float(rng.choice([0.02, 0.3, 0.9]))
    with np.errstate(all="ignore"):
        picked = np.array(odd, dtype)[rng.integers(len(odd), size=shape)]
        return np.where(rng.random(shape) < share, picked, plain.astype(dtype))


def special_feeds(graph: Graph, seed: int) -> dict[str, Array]:
    """Make inputs with special numbers among them; what indexes a gather stays as :func:`random_feeds` has it."""
    rng = np.random.default_rng([seed, 78])
    feeds = random_feeds(graph, seed)
    gathers = ("Gather", "GatherElements", "GatherND")
    indices = {graph.base(node.inputs[1]) for node in graph.nodes if node.op in gathers}
    return {name: feed if name in indices or rng.random() < 0.3 else special_array(rng, feed.dtype, feed.shape) for name, feed in feeds.items()}


def random_partition(space: GroupSpace, rng: np.random.Generator, *, tries: int = 0) -> list[int]:
    """Merge groups at random as long as the result is legal.

    Parameters
    ----------
    space : GroupSpace
    rng : numpy.random.Generator
    tries : int
        Merges to try; four a node by default.

    Returns
    -------
    list of int
        Sets of positions that cover the graph, in an order in which they can run.
    """
    groups = [1 << p for p in range(space.n)]
    for _ in range(tries or 4 * space.n):
        if len(groups) < 2:
            break
        first = groups[int(rng.integers(len(groups)))]
        near = 0
        for p in bits(first):
            near |= space.neighbours[p]
        others = [group for group in groups if group != first and group & near]
        if not others:
            continue
        merged = {first, others[int(rng.integers(len(others)))]}
        if rng.random() < 0.3:  # an illegal pair may be legal with a third
            merged.add(others[int(rng.integers(len(others)))])
        union = sum(merged)
        trial = [group for group in groups if group not in merged] + [union]
        if not space.reasons(union) and execution_order(space.preds, trial) is not None:
            groups = trial
    order = execution_order(space.preds, groups)
    assert order is not None
    return list(order)


class _Drawer:
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
        self.pool: list[_Tensor] = []
        self.read: set[str] = set()

    def draw(self, size: int, ops: list[str]) -> Graph:
        b, rng = self.b, self.rng
        for _ in range(1 + int(rng.integers(2))):
            self.pool.append(self.input(self.main, self.shape_of_rank(int(rng.choice([1, 2, 2, 3, 3, 4])))))
        made, attempts = 0, 0
        while made < size and attempts < 30 * size:
            attempts += 1
            name = ops[int(rng.integers(len(ops)))]
            before = b.mark()
            try:
                result = {**DRAWN, **WIDE}[name](self)
            except _Skip:
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

    def input(self, dtype: np.dtype[Any], shape: Shape) -> _Tensor:
        name = self.b.input(f"in{len(self.b._inputs)}", dtype, shape)
        return _Tensor(name, 8.0 if dtype.kind in "iu" else 2.0, True)

    def constant(self, dtype: np.dtype[Any], shape: Shape) -> _Tensor:
        array: Array
        if self.wide and self.sizes.random() < 0.3:
            return _Tensor(self.b.constant(special_array(self.sizes, dtype, shape)), math.inf, True)
        if dtype == BOOL:
            array = self.sizes.random(shape) < 0.5
        elif dtype.kind in "iu":
            array = self.sizes.integers(-8, 8, shape)
        else:
            array = self.sizes.uniform(-2, 2, shape)
        return _Tensor(self.b.constant(np.asarray(array).astype(dtype)), 8.0 if dtype.kind in "iu" else 2.0, True)

    def fresh(self, dtype: np.dtype[Any], shape: Shape) -> _Tensor:
        """A constant or an input."""
        if math.prod(shape) > self.largest:
            raise _Skip
        return self.constant(dtype, shape) if self.rng.random() < 0.6 else self.input(dtype, shape)

    def some(self, kinds: str = "fiub", *, exact: bool = False, bound: float = math.inf, rank: int = 0) -> _Tensor:
        """A value of the pool, a late one more likely."""
        fits = [
            t
            for t in self.pool
            if self.kind(t) in kinds and (t.exact or not exact) and t.bound <= bound and len(self.shape(t)) >= rank
        ]
        if not fits:
            raise _Skip
        weights = np.arange(1, len(fits) + 1, dtype=float) ** 2
        return fits[int(self.rng.choice(len(fits), p=weights / weights.sum()))]

    def integer(self) -> _Tensor:
        try:
            return self.some("iu" if self.wide else "i", bound=math.inf if self.wide else 1e6)
        except _Skip:
            dtype = INTEGERS[int(self.rng.integers(len(INTEGERS)))] if self.wide else I64 if self.rng.random() < 0.6 else I32
            self.pool.insert(0, self.input(dtype, self.shape_of_rank(2)))
            return self.pool[0]

    def number(self, **rules: Any) -> _Tensor:
        """A float mostly, an integer now and then."""
        if self.rng.random() < (0.3 if self.wide else 0.2):
            return self.integer()
        return self.some("f", **rules)

    def boolean(self) -> _Tensor:
        try:
            return self.some("b")
        except _Skip:
            self.pool.insert(0, self.input(BOOL, self.shape_of_rank(2)))
            return self.pool[0]

    def dtype(self, t: _Tensor) -> np.dtype[Any]:
        return self.b.values[t.name].dtype

    def kind(self, t: _Tensor) -> str:
        """The dtype's kind; bfloat16 is a float."""
        dtype = self.dtype(t)
        return "f" if dtype == BF16 else dtype.kind

    def shape(self, t: _Tensor) -> Shape:
        return self.b.values[t.name].shape

    def partner(self, x: _Tensor, *, exact: bool = False) -> _Tensor:
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

    def op(self, name: str, *operands: _Tensor, bound: float, exact: bool = True, **attrs: Any) -> _Tensor:
        result = self.b.op(name, *(t.name for t in operands), **attrs)
        return _Tensor(result, bound, exact and all(t.exact for t in operands))

    def tame(self, x: _Tensor, limit: float = TAME) -> _Tensor:
        """`x` itself when its bound is small, else something that is."""
        if x.bound <= limit:
            return x
        if self.kind(x) in "iu":
            return self.op("Mod", x, self.number_of(x, min(7, int(limit))), bound=min(7, int(limit)))
        return self.op("Clip", x, self.number_of(x, -limit), self.number_of(x, limit), bound=limit)

    def number_of(self, x: _Tensor, value: float) -> _Tensor:
        return _Tensor(self.b.constant(np.asarray(max(value, 0) if self.kind(x) == "u" else value).astype(self.dtype(x))), abs(value), True)

    def positive(self, x: _Tensor) -> _Tensor:
        """At least a half."""
        return self.op("Add", self.op("Abs", x, bound=x.bound), self.number_of(x, 0.5), bound=x.bound + 0.5)

    def view(self, x: _Tensor, shape: Shape) -> _Tensor:
        return _Tensor(self.b.reshape(x.name, shape), x.bound, x.exact)

    def flip(self, p: float = 0.5) -> bool:
        return bool(self.rng.random() < p)

    def cut(self, n: int) -> int:
        """A number from 0 to n - 1; the same share of n for any n."""
        return min(int(self.rng.random() * n), max(n - 1, 0))


# ---------------------------------------------------------------------- operators


def _binary(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.tame(d.number())
        y = d.tame(d.partner(x))
        if d.flip():
            x, y = y, x
        bound = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Mul": x.bound * y.bound}.get(name, max(x.bound, y.bound))
        return d.op(name, x, y, bound=bound)

    return draw


def _div(d: _Drawer) -> _Tensor:
    x = d.tame(d.number())
    y = d.tame(d.partner(x))
    if d.kind(x) == "f":
        y = d.positive(y)
        return d.op("Div", x, y, bound=2 * x.bound)
    return d.op("Div", x, y, bound=x.bound)


def _mod(d: _Drawer) -> _Tensor:
    x = d.some("f", exact=True, bound=TAME) if d.flip(0.3) else d.integer()
    y = d.partner(x, exact=True)
    if d.kind(x) == "f":
        y = d.positive(y)
    return d.op("FMod" if d.flip(0.3) else "Mod", x, y, bound=max(x.bound, y.bound))


def _bitwise(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.integer() if d.wide else d.tame(d.integer())
        if name == "BitwiseNot":
            return d.op(name, x, bound=x.bound + 1)
        y = d.partner(x)
        if name.startswith("Shift") and not d.wide:
            return d.op(name, x, d.op("Mod", y, d.number_of(y, 8), bound=8), bound=128 * x.bound)
        return d.op(name, x, y, bound=2 * max(x.bound, y.bound))

    return draw


def _bit_cast(d: _Drawer) -> _Tensor:
    x = d.some("f", exact=True)
    bits = d.op("BitCast", x, bound=math.inf, to=f"int{8 * d.dtype(x).itemsize}")
    return d.op("BitwiseAnd", bits, d.number_of(bits, 255), bound=255)


def _acosh(d: _Drawer) -> _Tensor:
    x = d.positive(d.tame(d.some("f")))
    return d.op("Acosh", d.op("Add", x, d.number_of(x, 1), bound=x.bound + 1), bound=6.0, exact=False)


def _pow(d: _Drawer) -> _Tensor:
    if d.wide:
        x = d.number()
        return d.op("Pow", x, d.partner(x), bound=math.inf, exact=False)
    x = d.tame(d.some("f"), 4.0)
    y = d.tame(d.partner(x), 2.0)
    return d.op("Pow", d.positive(x), y, bound=21.0, exact=False)


def _unary(name: str, kinds: str, *, exact: bool = True, limit: float = math.inf, bound: float = 0.0, only_exact: bool = False) -> Any:
    def draw(d: _Drawer) -> _Tensor:
        x = d.some("f", exact=only_exact) if kinds == "f" or d.flip(0.75) else d.integer()
        x = d.tame(x, limit)
        return d.op(name, x, bound=bound or x.bound + (0.5 if only_exact else 0), exact=exact)

    return draw


def _guarded(name: str, bound: Callable[[float], float], exact: bool) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.positive(d.tame(d.some("f")))
        return d.op(name, x, bound=bound(x.bound), exact=exact)

    return draw


def _compare(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.some("f", exact=True) if d.flip(0.6) else d.integer()
        return d.op(name, x, d.partner(x, exact=True), bound=1.0)

    return draw


def _logical(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.boolean()
        return d.op(name, x, bound=1.0) if name == "Not" else d.op(name, x, d.partner(x), bound=1.0)

    return draw


def _is_nan(d: _Drawer) -> _Tensor:
    return d.op("IsNaN", d.some("f"), bound=1.0)


def _where(d: _Drawer) -> _Tensor:
    x = d.number()
    y = d.partner(x)
    shape = np.broadcast_shapes(d.shape(x), d.shape(y))
    fits = [t for t in d.pool if d.dtype(t) == BOOL and d.shape(t) == shape]
    c = fits[0] if fits else d.fresh(BOOL, tuple(1 if d.flip(0.3) else n for n in shape))
    return d.op("Where", c, x, y, bound=max(x.bound, y.bound))


def _clip(d: _Drawer) -> _Tensor:
    x = d.number()
    return d.op("Clip", x, d.number_of(x, -1), d.number_of(x, 2), bound=2.0)


def _cast(d: _Drawer) -> _Tensor:
    x = d.some("fib")
    kinds = [F32, F32, d.main, F64, F16]
    if d.wide:
        kinds += [BF16, *INTEGERS, BOOL]
    elif x.exact and x.bound < 1e6:
        kinds += [I32, I64, BOOL]
    to = kinds[int(d.rng.integers(len(kinds)))]
    if to == d.dtype(x):
        raise _Skip
    if to == F16 and not d.wide:
        x = d.tame(x)
    return d.op("Cast", x, bound=max(x.bound, 1.0), to=to.name)


def _reduce(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.number(rank=1)
        shape = d.shape(x)
        if not shape:
            raise _Skip
        many = 1 + (d.cut(len(shape)) if d.flip(0.4) else 0)
        axes = [len(shape) - 1] if many == 1 and d.flip() else sorted(int(a) for a in d.rng.choice(len(shape), many, replace=False))
        count = math.prod(shape[a] for a in axes)
        if count == 0 and name in ("ReduceMax", "ReduceMin", "ReduceMean"):
            raise _Skip
        floating = d.kind(x) == "f"
        if name == "ReduceProd":
            if count > 40:
                raise _Skip
            x = d.op("Mul", d.tame(x, 8.0), d.number_of(x, 0.125), bound=1.0) if floating else x
            return d.op(name, x, bound=1.0 if floating else 1e9, exact=not floating, axes=tuple(axes))
        if name == "ReduceMean" and not floating:
            raise _Skip
        x = d.tame(x) if name == "ReduceSum" else x
        bound = x.bound * max(count, 1) if name == "ReduceSum" else x.bound
        return d.op(name, x, bound=bound, exact=not floating or name in ("ReduceMax", "ReduceMin"), axes=tuple(axes))

    return draw


def _matmul(d: _Drawer) -> _Tensor:
    x = d.tame(d.some("f" if d.flip(0.5 if d.wide else 0.95) else "fiu" if d.wide else "fi", rank=2), 8.0)
    shape = d.shape(x)
    fits = [t for t in d.pool if t.bound <= 8 and d.dtype(t) == d.dtype(x) and len(d.shape(t)) >= 2 and d.shape(t)[-2] == shape[-1]]
    y = None
    for t in fits:
        try:
            np.broadcast_shapes(d.shape(t)[:-2], shape[:-2])
            y = t
        except ValueError:
            continue
    if y is None or d.flip(0.3):
        lead = shape[:-2][d.cut(len(shape) - 1) :] if d.flip(0.6) else ()
        lead = tuple(1 if d.flip(0.3) else n for n in lead)
        y = d.fresh(d.dtype(x), (*lead, shape[-1], d.extent()))
    batch = np.broadcast_shapes(shape[:-2], d.shape(y)[:-2])
    if math.prod(batch) * shape[-2] * d.shape(y)[-1] > d.largest:
        raise _Skip
    exact = d.kind(x) == "i"
    return d.op("MatMul", x, y, bound=x.bound * y.bound * max(shape[-1], 1), exact=exact)


def _window_attrs(d: _Drawer, spatial: Shape, kernel: Shape) -> dict[str, Shape]:
    dilations = tuple(2 if n > 2 * k and d.flip(0.2) else 1 for n, k in zip(spatial, kernel, strict=True))
    before = tuple(d.cut(k) if d.flip() else 0 for k in kernel)
    after = tuple(d.cut(k) if d.flip() else 0 for k in kernel)
    strides = tuple(1 + d.cut(2) if d.flip(0.4) else 1 for _ in kernel)
    for n, k, dil, b, a in zip(spatial, kernel, dilations, before, after, strict=True):
        if n == 0 or n + a + b < dil * (k - 1) + 1:
            raise _Skip
    return {"strides": strides, "dilations": dilations, "before": before, "after": after}


def _conv(d: _Drawer) -> _Tensor:
    x = d.tame(d.some("fiu" if d.wide else "f", rank=3), 8.0)
    shape = d.shape(x)
    if len(shape) > 4 or 0 in shape:
        raise _Skip
    channels, spatial = shape[1], shape[2:]
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    groups = 1 if d.flip() else divisors[d.cut(len(divisors))] if d.flip() else channels
    kernel = (1,) * len(spatial) if d.flip(0.25) else tuple(1 + d.cut(min(3, n)) for n in spatial)
    attrs = _window_attrs(d, spatial, kernel)
    filters = 1 + d.cut(9)
    inner = channels // groups
    w = (
        d.constant(d.dtype(x), (groups, filters, inner, *kernel))
        if d.flip(0.85)
        else d.input(d.dtype(x), (groups, filters, inner, *kernel))
    )
    operands = [d.view(x, (shape[0], groups, inner, *spatial)), w]
    if d.flip():
        operands.append(d.fresh(d.dtype(x), (groups, filters)))
    y = d.op("Conv", *operands, bound=x.bound * 2 * math.prod((inner, *kernel)) + 2, exact=False, **attrs)
    out = d.shape(y)
    if math.prod(out) > 4 * d.largest:
        raise _Skip
    return d.view(y, (out[0], groups * filters, *out[3:]))


def _pool(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.number(rank=2)
        shape = d.shape(x)
        if 0 in shape or len(shape) < 2:
            raise _Skip
        x = d.tame(x) if name == "SumPool" else x
        lead = 0 if d.flip(0.1) else max(len(shape) - 2, 1)
        kernel = (1,) * lead + tuple(1 + d.cut(min(3, n)) for n in shape[lead:])
        attrs = _window_attrs(d, shape, kernel)
        free = [k == 1 and i < lead for i, k in enumerate(kernel)]
        attrs["strides"] = tuple(1 if f else s for s, f in zip(attrs["strides"], free, strict=True))
        bound = x.bound * math.prod(kernel) if name == "SumPool" else x.bound
        floating = d.kind(x) == "f"
        exact = name == "MaxPool" or not floating
        y = d.op(name, x, bound=bound, exact=exact, kernel=kernel, **attrs)
        if name == "MaxPool" and floating and (any(attrs["before"]) or any(attrs["after"])):
            y = d.op("Max", y, d.number_of(y, -x.bound), bound=x.bound)  # a window of padding alone is -inf
        return y

    return draw


def _running(name: str) -> Callable[[_Drawer], _Tensor]:
    def draw(d: _Drawer) -> _Tensor:
        x = d.number(rank=1)
        return d.op(name, x, bound=math.inf, exact=False, axis=d.cut(len(d.shape(x))), exclusive=d.flip(0.3))

    return draw


def _transpose(d: _Drawer) -> _Tensor:
    x = d.some(rank=2)
    return d.op("Transpose", x, bound=x.bound, perm=tuple(int(p) for p in d.rng.permutation(len(d.shape(x)))))


def _slice(d: _Drawer) -> _Tensor:
    x = d.some(rank=1)
    starts, steps, sizes = [], [], []
    for n in d.shape(x):
        step = int(d.rng.choice([1, 1, 1, 2, 3, -1, -2]))
        start = d.cut(n) if d.flip() else (0 if step > 0 else max(n - 1, 0))
        room = (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
        room = min(room, n)
        starts.append(start)
        steps.append(step)
        sizes.append(room if d.flip() else min(room, 1 + d.cut(room)))
    return d.op("Slice", x, bound=x.bound, starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


def _concat(d: _Drawer) -> _Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    axis = d.cut(len(shape))
    parts = [x]
    for _ in range(1 + int(d.rng.integers(2))):
        fits = [
            t
            for t in d.pool
            if d.dtype(t) == d.dtype(x)
            and len(d.shape(t)) == len(shape)
            and all(a == b for k, (a, b) in enumerate(zip(d.shape(t), shape, strict=True)) if k != axis)
        ]
        if d.flip(0.7):
            parts.append(fits[int(d.rng.integers(len(fits)))])
        else:
            parts.append(d.fresh(d.dtype(x), (*shape[:axis], d.extent(), *shape[axis + 1 :])))
    if d.flip():
        parts.reverse()
    if sum(math.prod(d.shape(t)) for t in parts) > d.largest:
        raise _Skip
    return d.op("Concat", *parts, bound=max(t.bound for t in parts), axis=axis)


def _pad(d: _Drawer) -> _Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    before = tuple(int(d.rng.choice([0, 0, 0, 1, 2, -1])) for _ in shape)
    after = tuple(int(d.rng.choice([0, 0, 0, 1, 3, -1])) for _ in shape)
    if any(n + min(b, 0) + min(a, 0) < 0 for n, b, a in zip(shape, before, after, strict=True)):
        raise _Skip
    if math.prod(n + b + a for n, b, a in zip(shape, before, after, strict=True)) > d.largest:
        raise _Skip
    value = float(d.rng.integers(0 if d.kind(x) == "u" else -2, 3)) if d.dtype(x) != BOOL else float(d.rng.integers(2))
    return d.op("Pad", x, bound=max(x.bound, 2.0), before=before, after=after, value=value)


def _expand(d: _Drawer) -> _Tensor:
    x = d.some()
    shape = tuple(d.extent() if n == 1 else n for n in d.shape(x))
    shape = (*(d.extent() for _ in range(int(d.rng.integers(2)))), *shape)
    if math.prod(shape) > d.largest or shape == d.shape(x):
        raise _Skip
    return d.op("Expand", x, bound=x.bound, shape=shape)


def _index(d: _Drawer, shape: Shape, n: int) -> _Tensor:
    """Indices below n: a constant, an input, or computed; negative ones now and then."""
    if n == 0 or math.prod(shape) > d.largest:
        raise _Skip
    dtype = I64 if d.flip(0.7) else I32
    if d.flip(0.4):
        return _Tensor(d.b.constant(d.sizes.integers(-n if d.flip(0.3) else 0, n, shape).astype(dtype)), n, True)
    x = d.input(dtype, shape)
    if n >= 8 and d.flip():
        return x
    return d.op("Mod", x, d.number_of(x, n), bound=n)


def _gather(d: _Drawer) -> _Tensor:
    x = d.some(rank=1) if d.flip(0.6) else d.fresh(d.main, d.shape_of_rank(2))
    axis = d.cut(len(d.shape(x)))
    index = _index(d, d.shape_of_rank(d.cut(3)), d.shape(x)[axis])
    y = d.op("Gather", x, index, bound=x.bound, axis=axis)
    if math.prod(d.shape(y)) > 4 * d.largest:
        raise _Skip
    return y


def _gather_elements(d: _Drawer) -> _Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    axis = d.cut(len(shape))
    index = _index(d, tuple(d.extent() if k == axis else max(n - d.cut(2), min(n, 1)) for k, n in enumerate(shape)), shape[axis])
    return d.op("GatherElements", x, index, bound=x.bound, axis=axis)


def _gather_nd(d: _Drawer) -> _Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    depth = 1 + d.cut(min(len(shape), 2))
    index = _index(d, (*d.shape_of_rank(1 + d.cut(2)), depth), min(shape[:depth]))
    y = d.op("GatherND", x, index, bound=x.bound)
    if math.prod(d.shape(y)) > 4 * d.largest:
        raise _Skip
    return y


def _reshape(d: _Drawer) -> _Tensor:
    """A view, read by a map so that it is a node's operand."""
    x = d.tame(d.some("f", rank=1))
    shape = list(d.shape(x))
    for _ in range(1 + int(d.rng.integers(2))):
        at = d.cut(len(shape))
        what = d.rng.random()
        if what < 0.45 and len(shape) > 1:
            at = min(at, len(shape) - 2)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif what < 0.8:
            factors = [f for f in range(2, shape[at]) if shape[at] % f == 0]
            if factors:
                f = factors[d.cut(len(factors))]
                shape[at : at + 1] = [f, shape[at] // f]
        elif shape[at] == 1 and len(shape) > 1:
            del shape[at]
        else:
            shape.insert(at, 1)
    if len(shape) > 5:
        raise _Skip
    return d.op("Mul", d.view(x, tuple(shape)), d.number_of(x, 0.5), bound=x.bound)


#: What can be drawn: core operators, and ``View`` for a reshape.
DRAWN: dict[str, Callable[[_Drawer], _Tensor]] = {
    **{name: _binary(name) for name in ("Add", "Sub", "Mul", "Max", "Min")},
    "Div": _div,
    "Mod": _mod,
    "FMod": _mod,
    **{name: _bitwise(name) for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "ShiftLeft", "ShiftRight")},
    "BitCast": _bit_cast,
    "Pow": _pow,
    **{name: _unary(name, "fi") for name in ("Neg", "Abs", "Relu")},
    "Sign": _unary("Sign", "fi", bound=1.0, only_exact=True),
    **{name: _unary(name, "f", only_exact=True) for name in ("Floor", "Ceil", "Round")},
    "Exp": _unary("Exp", "f", exact=False, limit=4.0, bound=55.0),
    "Tanh": _unary("Tanh", "f", exact=False, bound=1.0),
    "Sigmoid": _unary("Sigmoid", "f", exact=False, bound=1.0),
    "Erf": _unary("Erf", "f", exact=False, bound=1.0),
    "Sin": _unary("Sin", "f", exact=False, limit=TAME, bound=1.0),
    "Cos": _unary("Cos", "f", exact=False, limit=TAME, bound=1.0),
    "Tan": _unary("Tan", "f", exact=False, limit=1.0, bound=2.0),
    **{name: _unary(name, "f", exact=False, limit=0.9, bound=4.0) for name in ("Asin", "Acos", "Atanh")},
    **{name: _unary(name, "f", exact=False, bound=6.0) for name in ("Atan", "Asinh")},
    **{name: _unary(name, "f", exact=False, limit=4.0, bound=28.0) for name in ("Sinh", "Cosh")},
    "Acosh": _acosh,
    "Sqrt": _guarded("Sqrt", math.sqrt, True),
    "Log": _guarded("Log", lambda n: max(1.0, math.log(n)), False),
    "Reciprocal": _guarded("Reciprocal", lambda n: 2.0, True),
    **{name: _compare(name) for name in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")},
    **{name: _logical(name) for name in ("And", "Or", "Xor", "Not")},
    "IsNaN": _is_nan,
    "Where": _where,
    "Clip": _clip,
    "Cast": _cast,
    **{name: _reduce(name) for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")},
    "MatMul": _matmul,
    "Conv": _conv,
    "MaxPool": _pool("MaxPool"),
    "SumPool": _pool("SumPool"),
    "Transpose": _transpose,
    "Slice": _slice,
    "Expand": _expand,
    "Concat": _concat,
    "Pad": _pad,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "View": _reshape,
}

#: What can be drawn besides in wide graphs.
WIDE: dict[str, Callable[[_Drawer], _Tensor]] = {name: _running(name) for name in ("CumSum", "CumProd")}
