"""Lowering of writes by index: all are one core operator on data [A, N, B], which scatters along N."""

from __future__ import annotations

import math

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.formula import Term
from fusion_search.frontends.onnx.lower.indexing import check_index
from fusion_search.frontends.onnx.lower.layout import broadcast
from fusion_search.ir.ops.windows import window_extent

_INT64 = np.dtype(np.int64)


def _reduction(ctx: Lowering, call: Call, x: str) -> str:
    how = str(call.attrs.get("reduction", "none"))
    if how not in ("none", "add", "mul", "max", "min"):
        raise ValueError(f"unknown reduction {how!r}")
    if how != "none" and ctx.dtype(x) == np.dtype(bool):
        raise NotLowered
    return how


def scatter_elements(ctx: Lowering, call: Call) -> list[Item]:
    """One index for each update, along one axis."""
    x, index, updates = (call.tensor(k) for k in range(3))
    shape, given = ctx.shape(x), ctx.shape(index)
    axis = axis_of(call.attrs.get("axis", 0), len(shape))
    how = _reduction(ctx, call, x)
    others = [d for d in range(len(shape)) if d != axis]
    if ctx.shape(updates) != given or len(given) != len(shape) or any(given[d] > shape[d] for d in others):
        raise ValueError(f"indices {list(given)} and updates {list(ctx.shape(updates))} do not fit data {list(shape)}")
    known = ctx.const(index)
    if known is not None:
        check_index(known, shape[axis])
    if any(given[d] != shape[d] for d in others):  # a corner of the data: every update has a place in the whole tensor
        places = _inside(Term(ctx, index).cast(_INT64), shape[axis], math.prod(shape))
        step = math.prod(shape[axis + 1 :])
        grid = np.zeros((1,) * len(shape), np.int64)
        for d in others:
            grid = grid + np.arange(given[d]).reshape([-1 if k == d else 1 for k in range(len(shape))]) * math.prod(shape[d + 1 :])
        place = places * step + places.array(grid)
        size, count = math.prod(shape), math.prod(given)
        return [_scatter(ctx, x, (1, size, 1), place.name, (1, count, 1), updates, count, how)]
    lead, rows, behind = math.prod(shape[:axis]), given[axis], math.prod(shape[axis + 1 :])
    return [_scatter(ctx, x, (lead, shape[axis], behind), index, (lead, rows, behind), updates, rows, how)]


def _inside(index: Term, extent: int, outside: int) -> Term:
    """Return an index counted from the front, or one that no kernel accepts."""
    index = (index < 0).where(index + extent, index)
    return ((index >= 0) & (index < extent)).where(index, index.number(outside))


def _scatter(
    ctx: Lowering, x: str, sizes: tuple[int, int, int], index: str, places: tuple[int, int, int], updates: str, rows: int, how: str
) -> str:
    data = ctx.view(x, sizes)
    out = ctx.op("Scatter", data, ctx.view(index, places), ctx.view(updates, (sizes[0], rows, sizes[2])), reduction=how)
    return ctx.view(out, ctx.shape(x))


def scatter_nd(ctx: Lowering, call: Call) -> list[Item]:
    """Whole coordinates as indices: each names a row of the data's last dimensions."""
    x, index, updates = (call.tensor(k) for k in range(3))
    shape, given = ctx.shape(x), ctx.shape(index)
    how = _reduction(ctx, call, x)
    depth = given[-1] if given else 0
    if not given or depth > len(shape) or ctx.shape(updates) != (*given[:-1], *shape[depth:]):
        raise ValueError(f"indices {list(given)} and updates {list(ctx.shape(updates))} do not fit data {list(shape)}")
    known = ctx.const(index)
    if known is not None:
        for d in range(depth):
            check_index(known[..., d], shape[d])
    rows, size, row = math.prod(given[:-1]), math.prod(shape[:depth]), math.prod(shape[depth:])
    place = Term(ctx, index).cast(_INT64).view(rows, depth)
    if not depth:
        place = place.array(np.zeros((rows, 1), np.int64))
    elif depth > 1:
        columns = []
        for d in range(depth):
            cut = ctx.op("Slice", place.name, part=f"axis{d}", starts=(0, d), steps=(1, 1), sizes=(rows, 1))
            columns.append(_inside(Term(ctx, cut), shape[d], size))
        place = columns[0]
        for d, column in enumerate(columns[1:], 1):
            place = place * shape[d] + column
        for column in columns:  # one coordinate outside puts the whole place outside, whatever the others say
            place = (column < size).where(place, place.number(size))
    return [_scatter(ctx, x, (1, size, row), place.name, (1, rows, 1), updates, rows, how)]


def tensor_scatter(ctx: Lowering, call: Call) -> list[Item]:
    """A run of rows put into a cache at a place of each batch's own; circular caches wrap around."""
    x, updates, start = (call.tensor(k) for k in range(3))
    shape, mode = ctx.shape(x), call.attrs.get("mode", "linear")
    axis = axis_of(call.attrs.get("axis", -2), len(shape))
    given = ctx.shape(updates)
    if mode not in ("linear", "circular"):
        raise ValueError(f"unknown mode {mode!r}")
    if axis == 0 or len(given) != len(shape) or any(given[d] != n for d, n in enumerate(shape) if d != axis) or given[axis] > shape[axis]:
        raise ValueError(f"updates {list(given)} do not fit a cache {list(shape)} along axis {axis}")
    rows, lead = given[axis], math.prod(shape[:axis])
    steps = np.arange(rows, dtype=np.int64)
    if start:
        place = Term(ctx, start).cast(_INT64).view(shape[0], 1, 1)
        place = place + place.array(steps)
        if mode == "circular":
            place = place.of("Mod", shape[axis])
        else:  # a place before the cache is an error, not a count from its end
            place = (place < 0).where(place.number(shape[axis]), place)
        name = broadcast(ctx, place.name, (shape[0], math.prod(shape[1:axis]), rows), part="places")
    else:
        name = ctx.constant(np.ascontiguousarray(np.broadcast_to(steps, (lead, rows))))
    behind = math.prod(shape[axis + 1 :])
    return [_scatter(ctx, x, (lead, shape[axis], behind), name, (lead, rows, 1), updates, rows, "none")]


def max_unpool(ctx: Lowering, call: Call) -> list[Item]:
    """Every element back to its place in the tensor that was pooled; 0 elsewhere."""
    x, index, wanted = (call.tensor(k) for k in range(3))
    shape, kernel = ctx.shape(x), tuple(call.attrs["kernel_shape"])
    rank = len(kernel)
    strides, pads = tuple(call.attrs.get("strides") or (1,) * rank), tuple(call.attrs.get("pads") or (0,) * (2 * rank))
    if rank != len(shape) - 2 or len(strides) != rank or len(pads) != 2 * rank or ctx.shape(index) != shape:
        raise ValueError(f"kernel {list(kernel)} and indices {list(ctx.shape(index))} do not fit input {list(shape)}")
    spatial = [(n - 1) * s - b - a + k for n, s, b, a, k in zip(shape[2:], strides, pads[:rank], pads[rank:], kernel, strict=True)]
    pooled = (*shape[:2], *spatial)
    full = ctx.ints(wanted) if wanted else pooled
    if min(spatial) < 1 or len(full) != len(pooled) or any(n < m for n, m in zip(full, pooled, strict=True)):
        raise ValueError(f"cannot unpool {list(shape)} to {list(full)}")
    size, count = math.prod(pooled), math.prod(shape)
    zeros = ctx.op("Expand", ctx.scalar(0, ctx.dtype(x)), part="zeros", shape=pooled)
    place = _inside(Term(ctx, index).cast(_INT64), size, size)
    out = _scatter(ctx, zeros, (1, size, 1), place.name, (1, count, 1), x, count, "none")
    if full != pooled:
        after = tuple(n - m for n, m in zip(full, pooled, strict=True))
        out = ctx.op("Pad", out, part="pad", before=(0,) * len(full), after=after, value=0)
    return [out]


def col2im(ctx: Lowering, call: Call) -> list[Item]:
    """Columns added up where the blocks that they come from lie in the image."""
    x, image, block = call.tensor(0), ctx.ints(call.tensor(1)), ctx.ints(call.tensor(2))
    shape, rank = ctx.shape(x), len(image)
    strides, dilations = (tuple(call.attrs.get(key) or (1,) * rank) for key in ("strides", "dilations"))
    pads = tuple(call.attrs.get("pads") or (0,) * (2 * rank))
    fits = len(shape) == 3 and len(block) == len(strides) == len(dilations) == rank and len(pads) == 2 * rank and min(pads) >= 0
    if not fits or min((*image, *block, *strides, *dilations)) < 1 or shape[1] % math.prod(block):
        raise ValueError(f"blocks of {list(block)} of an image {list(image)} do not fit columns {list(shape)}")
    counts = [
        window_extent(n, k, s, d, b, a) for n, k, s, d, b, a in zip(image, block, strides, dilations, pads[:rank], pads[rank:], strict=True)
    ]
    if min(counts) < 1 or math.prod(counts) != shape[2]:
        raise ValueError(f"an image {list(image)} has {counts} blocks of {list(block)}, there are {shape[2]} columns")
    padded = [n + b + a for n, b, a in zip(image, pads[:rank], pads[rank:], strict=True)]
    place = np.zeros((1,) * (2 * rank), np.int64)
    for d in range(rank):
        at = np.arange(block[d])[:, None] * dilations[d] + np.arange(counts[d])[None, :] * strides[d]
        at = at.reshape([block[d] if k == d else counts[d] if k == rank + d else 1 for k in range(2 * rank)])
        place = place + at * math.prod(padded[d + 1 :])
    channels, count = shape[1] // math.prod(block), place.size
    dtype, lead = ctx.dtype(x), shape[0] * channels
    if dtype.kind not in "iuf" and not ctx.is_float(x):
        raise NotLowered
    wide = ctx.widen(x)
    zeros = ctx.op("Expand", ctx.scalar(0, ctx.dtype(wide)), part="zeros", shape=(lead, math.prod(padded), 1))
    columns = ctx.view(wide, (lead, count, 1))
    total = ctx.op("Scatter", zeros, ctx.constant(place.reshape(1, count, 1)), columns, reduction="add")
    out = ctx.view(total, (shape[0], channels, *padded))
    if any(pads):
        out = ctx.op("Slice", out, part="cut", starts=(0, 0, *pads[:rank]), steps=(1,) * (rank + 2), sizes=(*shape[:1], channels, *image))
    return [ctx.narrow(out, dtype)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("ScatterElements", "Scatter"), scatter_elements),
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "MaxUnpool": max_unpool,
    "Col2Im": col2im,
}
