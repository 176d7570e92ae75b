"""Reductions, products, windows, layouts, gathers and scatters of random graphs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fusion_search.ir.graph import Shape
from fusion_search.testing.drawing import BOOL, I32, I64, Drawer, Skip, Tensor


def _reduce(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.number(rank=1)
        shape = d.shape(x)
        if not shape:
            raise Skip
        many = 1 + (d.cut(len(shape)) if d.flip(0.4) else 0)
        axes = [len(shape) - 1] if many == 1 and d.flip() else sorted(int(a) for a in d.rng.choice(len(shape), many, replace=False))
        count = math.prod(shape[a] for a in axes)
        if count == 0 and name in ("ReduceMax", "ReduceMin", "ReduceMean"):
            raise Skip
        floating = d.kind(x) == "f"
        if name == "ReduceProd":
            if count > 40:
                raise Skip
            x = d.op("Mul", d.tame(x, 8.0), d.number_of(x, 0.125), bound=1.0) if floating else x
            return d.op(name, x, bound=1.0 if floating else 1e9, exact=not floating, axes=tuple(axes))
        if name == "ReduceMean" and not floating:
            raise Skip
        x = d.tame(x) if name == "ReduceSum" else x
        bound = x.bound * max(count, 1) if name == "ReduceSum" else x.bound
        return d.op(name, x, bound=bound, exact=not floating or name in ("ReduceMax", "ReduceMin"), axes=tuple(axes))

    return draw


def _matmul(d: Drawer) -> Tensor:
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
        raise Skip
    exact = d.kind(x) == "i"
    return d.op("MatMul", x, y, bound=x.bound * y.bound * max(shape[-1], 1), exact=exact)


def _window_attrs(d: Drawer, spatial: Shape, kernel: Shape) -> dict[str, Shape]:
    dilations = tuple(2 if n > 2 * k and d.flip(0.2) else 1 for n, k in zip(spatial, kernel, strict=True))
    before = tuple(d.cut(k) if d.flip() else 0 for k in kernel)
    after = tuple(d.cut(k) if d.flip() else 0 for k in kernel)
    strides = tuple(1 + d.cut(2) if d.flip(0.4) else 1 for _ in kernel)
    for n, k, dil, b, a in zip(spatial, kernel, dilations, before, after, strict=True):
        if n == 0 or n + a + b < dil * (k - 1) + 1:
            raise Skip
    return {"strides": strides, "dilations": dilations, "before": before, "after": after}


def _conv(d: Drawer) -> Tensor:
    x = d.tame(d.some("fiu" if d.wide else "f", rank=3), 8.0)
    shape = d.shape(x)
    if len(shape) > 4 or 0 in shape:
        raise Skip
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
        raise Skip
    return d.view(y, (out[0], groups * filters, *out[3:]))


def _pool(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.number(rank=2)
        shape = d.shape(x)
        if 0 in shape or len(shape) < 2:
            raise Skip
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


def _running(name: str) -> Callable[[Drawer], Tensor]:
    def draw(d: Drawer) -> Tensor:
        x = d.number(rank=1)
        return d.op(name, x, bound=math.inf, exact=False, axis=d.cut(len(d.shape(x))), exclusive=d.flip(0.3))

    return draw


def _transpose(d: Drawer) -> Tensor:
    x = d.some(rank=2)
    return d.op("Transpose", x, bound=x.bound, perm=tuple(int(p) for p in d.rng.permutation(len(d.shape(x)))))


def _slice(d: Drawer) -> Tensor:
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


def _concat(d: Drawer) -> Tensor:
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
        raise Skip
    return d.op("Concat", *parts, bound=max(t.bound for t in parts), axis=axis)


def _pad(d: Drawer) -> Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    before = tuple(int(d.rng.choice([0, 0, 0, 1, 2, -1])) for _ in shape)
    after = tuple(int(d.rng.choice([0, 0, 0, 1, 3, -1])) for _ in shape)
    if any(n + min(b, 0) + min(a, 0) < 0 for n, b, a in zip(shape, before, after, strict=True)):
        raise Skip
    if math.prod(n + b + a for n, b, a in zip(shape, before, after, strict=True)) > d.largest:
        raise Skip
    value = float(d.rng.integers(0 if d.kind(x) == "u" else -2, 3)) if d.dtype(x) != BOOL else float(d.rng.integers(2))
    return d.op("Pad", x, bound=max(x.bound, 2.0), before=before, after=after, value=value)


def _expand(d: Drawer) -> Tensor:
    x = d.some()
    shape = tuple(d.extent() if n == 1 else n for n in d.shape(x))
    shape = (*(d.extent() for _ in range(int(d.rng.integers(2)))), *shape)
    if math.prod(shape) > d.largest or shape == d.shape(x):
        raise Skip
    return d.op("Expand", x, bound=x.bound, shape=shape)


def _index(d: Drawer, shape: Shape, n: int) -> Tensor:
    """Indices below n: a constant, an input, or computed; negative ones now and then."""
    if n == 0 or math.prod(shape) > d.largest:
        raise Skip
    dtype = I64 if d.flip(0.7) else I32
    if d.flip(0.4):
        return Tensor(d.b.constant(d.sizes.integers(-n if d.flip(0.3) else 0, n, shape).astype(dtype)), n, True)
    x = d.input(dtype, shape)
    if n >= 8 and d.flip():
        return x
    return d.op("Mod", x, d.number_of(x, n), bound=n)


def _gather(d: Drawer) -> Tensor:
    x = d.some(rank=1) if d.flip(0.6) else d.fresh(d.main, d.shape_of_rank(2))
    axis = d.cut(len(d.shape(x)))
    index = _index(d, d.shape_of_rank(d.cut(3)), d.shape(x)[axis])
    y = d.op("Gather", x, index, bound=x.bound, axis=axis)
    if math.prod(d.shape(y)) > 4 * d.largest:
        raise Skip
    return y


def _gather_elements(d: Drawer) -> Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    axis = d.cut(len(shape))
    index = _index(d, tuple(d.extent() if k == axis else max(n - d.cut(2), min(n, 1)) for k, n in enumerate(shape)), shape[axis])
    return d.op("GatherElements", x, index, bound=x.bound, axis=axis)


def _gather_nd(d: Drawer) -> Tensor:
    x = d.some(rank=1)
    shape = d.shape(x)
    depth = 1 + d.cut(min(len(shape), 2))
    index = _index(d, (*d.shape_of_rank(1 + d.cut(2)), depth), min(shape[:depth]))
    y = d.op("GatherND", x, index, bound=x.bound)
    if math.prod(d.shape(y)) > 4 * d.largest:
        raise Skip
    return y


def _scatter(d: Drawer) -> Tensor:
    """One axis of a tensor with everything before and behind it, and indices that may be the same for all of either."""
    x = d.some(rank=1)
    shape = d.shape(x)
    axis = d.cut(len(shape))
    lead, extent, behind, rows = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), d.extent()
    how = "none" if d.kind(x) == "b" else str(d.rng.choice(["none", "add", "max", "min"]))
    x = d.tame(x) if how == "add" else x
    index = _index(d, (1 if d.flip() else lead, rows, 1 if d.flip() else behind), extent)
    if lead * rows * behind > d.largest:
        raise Skip
    updates = d.fresh(d.dtype(x), (lead, rows, behind))
    bound = x.bound + rows * updates.bound if how == "add" else max(x.bound, updates.bound)
    return d.view(d.op("Scatter", d.view(x, (lead, extent, behind)), index, updates, bound=bound, reduction=how), shape)


def _reshape(d: Drawer) -> Tensor:
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
        raise Skip
    return d.op("Mul", d.view(x, tuple(shape)), d.number_of(x, 0.5), bound=x.bound)


#: What can be drawn: core operators, and ``View`` for a reshape.
STRUCTURED: dict[str, Callable[[Drawer], Tensor]] = {
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
    "Scatter": _scatter,
    "View": _reshape,
}
#: What can be drawn besides in wide graphs.
RUNNING: dict[str, Callable[[Drawer], Tensor]] = {name: _running(name) for name in ("CumSum", "CumProd")}
