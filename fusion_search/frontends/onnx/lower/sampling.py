"""Lowering of reads between the elements: grids, regions and deformed windows, each a gather of neighbours and a weighted sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule
from fusion_search.frontends.onnx.lower.contraction import window_attrs
from fusion_search.frontends.onnx.lower.formula import Term
from fusion_search.ir.ops.windows import window_extent

_INT64 = np.dtype(np.int64)
#: The largest tensor of coordinates that is made ahead of a run.
_KNOWN_BYTES = 64 << 20

#: The first neighbour's distance from the element below, and each neighbour's weight as a polynomial in the distance from that
#: element, constant terms first. Cubic is Keys' convolution with the coefficient -3/4.
LINEAR = (0, ((1, 0), (-1, 1)))
CUBIC = (-1, ((0, 1, 0, 0), (-0.75, 0, 0.75, 0), (1.5, -2.25, 1.5, -0.75), (-0.75, 1.25, -1.25, 0.75)))
Kernel = tuple[int, tuple[tuple[float, ...], ...]]

#: Makes of places along a dimension of some extent those whose elements are read, and says where there are elements (None: everywhere).
Edge = Callable[[Term, int], tuple[Term, Term | None]]


def zeros(place: Term, extent: int) -> tuple[Term, Term | None]:
    """Nothing outside."""
    inside = (place >= 0) & (place <= extent - 1)
    return inside.where(place, 0), inside


def border(place: Term, extent: int) -> tuple[Term, Term | None]:
    """The outermost element."""
    return _safe(place.of("Clip", 0, extent - 1), extent), None


def _safe(place: Term, extent: int) -> Term:
    """Let a NaN read the first element: its weights are NaN."""
    return ((place >= 0) & (place <= extent - 1)).where(place, 0)


def _mirrored(aligned: bool) -> Edge:
    def edge(place: Term, extent: int) -> tuple[Term, Term | None]:
        return _safe(_reflected(place, *_limits(extent, aligned)), extent), None

    return edge


def _limits(extent: int, aligned: bool) -> tuple[float, float]:
    return (0.0, extent - 1.0) if aligned else (-0.5, extent - 0.5)


def _reflected(at: Term, low: float, high: float) -> Term:
    """Fold the line between the two limits."""
    span = high - low
    if span <= 0:
        return at.of("Clip", low, low)
    beyond = (low - at).of("Max", at - high)
    folds = (beyond / span).of("Floor")
    rest = beyond - folds * span
    even = folds.of("Mod", 2).of("Equal", 0)
    from_high = (at < low).of("Xor", even)  # below the limits, an even number of folds comes back to the low one
    inside = (at >= low) & (at <= high)
    return inside.where(at, from_high.where(high - rest, rest + low))


def between(x: Term, origin: Term, at: Sequence[Term], sizes: Sequence[int], kernel: Kernel | None, edge: Edge) -> tuple[Term, Term | None]:
    """Return the neighbours of points, and their weights, with one more dimension for each axis.

    Parameters
    ----------
    x : Term
        The operand.
    origin : Term
        Where each plane starts in the flattened operand; its shape broadcasts with the points'.
    at : sequence of Term
        The points' coordinates along each axis of a plane, all of one rank.
    sizes : sequence of int
        Extents of a plane.
    kernel : Kernel or None
        None for coordinates that are whole numbers: one neighbour, and no weights.
    edge : callable
    """
    rank = len(sizes)
    flat, weights, inside = origin.view(*origin.shape, *(1,) * rank), None, None
    for axis, (coordinate, extent) in enumerate(zip(at, sizes, strict=True)):
        place = coordinate.view(*coordinate.shape, *(1,) * rank)
        if kernel is not None:
            first, polynomials = kernel
            along = [len(polynomials[0]) if k == axis else 1 for k in range(rank)]
            below = place.of("Floor")
            distance = place - below
            weight = distance.array(np.reshape(polynomials[-1], along))
            for coefficients in polynomials[-2::-1]:
                weight = weight * distance + distance.array(np.reshape(coefficients, along))
            weights = weight if weights is None else weights * weight
            place = below + below.array(np.reshape(np.arange(first, first + len(polynomials[0])), along))
        place, there = edge(place, extent)
        if there is not None:
            inside = there if inside is None else inside & there
        flat = flat + place.cast(_INT64) * math.prod(sizes[axis + 1 :])
    read = Term(x.ctx, x.ctx.op("Gather", x.view(math.prod(x.shape)).name, flat.name, part="gather", axis=0))
    return (read if inside is None else inside.where(read, 0)), weights


def _summed(read: Term, weights: Term | None, rank: int) -> Term:
    """Add up the weighted neighbours."""
    if weights is not None:
        read = read * weights.cast(read.dtype)
        read = read.of("ReduceSum", axes=tuple(range(len(read.shape) - rank, len(read.shape))))
    return read.view(*read.shape[: len(read.shape) - rank])


def _origins(ctx: Lowering, lead: Sequence[int], plane: int, rest: int) -> Term:
    """Where each of the planes [*lead] starts, with `rest` more dimensions."""
    starts = (np.arange(math.prod(lead), dtype=np.int64) * plane).reshape((*lead, *(1,) * rest))
    return Term(ctx, ctx.constant(starts))


def grid_sample(ctx: Lowering, call: Call) -> list[Item]:
    """Points of each image at coordinates from -1 to 1."""
    x, grid = Term(ctx, call.tensor(0)), Term(ctx, call.tensor(1))
    shape, points, rank = x.shape, grid.shape, len(x.shape) - 2
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(m := call.attrs.get("mode", "linear"), m)
    padding, aligned = call.attrs.get("padding_mode", "zeros"), bool(call.attrs.get("align_corners", 0))
    if rank < 1 or len(points) != rank + 2 or points[0] != shape[0] or points[-1] != rank:
        raise ValueError(f"a grid {list(points)} does not fit input {list(shape)}")
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise ValueError(f"unknown mode {mode!r} or padding_mode {padding!r}")
    if not ctx.is_float(x.name) or not ctx.is_float(grid.name) or 0 in shape:
        raise NotLowered
    count, dtype = math.prod(points[1:-1]), x.dtype
    grid, at = grid.widen(), []
    for axis, extent in enumerate(shape[2:]):
        sizes = (*points[:-1], 1)
        part = ctx.op(
            "Slice", grid.name, part=f"axis{axis}", starts=(*(0,) * (rank + 1), rank - 1 - axis), steps=(1,) * len(sizes), sizes=sizes
        )
        n = Term(ctx, part).view(shape[0], 1, count)
        place = (n + 1) / 2 * (extent - 1) if aligned else ((n + 1) * extent - 1) / 2
        if mode == "nearest":
            place = place.of("Round")
        low, high = _limits(extent, aligned)
        if padding == "border":
            place = ((place < low) | (place > high)).where(place.of("Clip", 0, extent - 1), place)
        elif padding == "reflection":
            place = _reflected(place, low, high)
        at.append(place)
    edge = {"zeros": zeros, "border": border}.get(padding) or _mirrored(aligned)
    kernel = {"nearest": None, "linear": LINEAR, "cubic": CUBIC}[mode]
    origin = _origins(ctx, shape[:2], math.prod(shape[2:]), 1)
    read, weights = between(x.widen(), origin, at, shape[2:], kernel, edge)
    out = _summed(read, weights, rank)
    return [ctx.view(ctx.narrow(out.name, dtype), (*shape[:2], *points[1:-1]))]


def affine_grid(ctx: Lowering, call: Call) -> list[Item]:
    """Coordinates of a regular grid under an affine map: a matrix product with the known grid."""
    theta, size = call.tensor(0), ctx.ints(call.tensor(1))
    sizes, dtype = size[2:], ctx.dtype(theta)
    rank, aligned = len(sizes), bool(call.attrs.get("align_corners", 0))
    if rank not in (2, 3) or ctx.shape(theta) != (size[0], rank, rank + 1):
        raise ValueError(f"theta {list(ctx.shape(theta))} does not fit a grid {list(size)}")
    if (aligned and 1 in sizes) or min(sizes) < 1 or math.prod(sizes) * (rank + 1) * 8 > _KNOWN_BYTES:
        raise NotLowered
    axes = [np.linspace(-1, 1, n) if aligned else (np.arange(n) * 2 + 1) / n - 1 for n in sizes]
    grid = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(sizes)], axis=-1).reshape(-1, rank + 1)
    wide = ctx.widen(theta)
    turned = ctx.op("Transpose", wide, part="theta", perm=(0, 2, 1))
    out = ctx.op("MatMul", ctx.constant(grid.astype(ctx.dtype(wide))), turned, part="matmul")
    return [ctx.view(ctx.narrow(out, dtype), (size[0], *sizes, rank))]


def roi_align(ctx: Lowering, call: Call) -> list[Item]:
    """The mean or the largest of a fixed number of points in each bin of a region."""
    x, rois, batch = (Term(ctx, call.tensor(k)) for k in range(3))
    shape, count, dtype, attrs = x.shape, batch.shape[0], x.dtype, call.attrs
    samples, scale = attrs.get("sampling_ratio", 0), attrs.get("spatial_scale", 1.0)
    centred = call.opset >= 16 and attrs.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    mode = attrs.get("mode", "avg")
    if len(shape) != 4 or rois.shape != (count, 4) or mode not in ("avg", "max"):
        raise ValueError(f"regions {list(rois.shape)} of {count} images do not fit input {list(shape)}")
    if samples < 1 or not ctx.is_float(x.name) or 0 in shape:  # the number of points then depends on the regions
        raise NotLowered
    bins_of = attrs.get("output_height", 1), attrs.get("output_width", 1)
    if min(bins_of) < 1 or max(bins_of) * samples * 8 > _KNOWN_BYTES:
        raise NotLowered
    rois = rois.widen()
    at, weights_at = [], []
    for axis, (extent, bins) in enumerate(zip(shape[2:], bins_of, strict=True)):
        start, end = (
            Term(ctx, ctx.op("Slice", rois.name, part=f"side{k}", starts=(0, k), steps=(1, 1), sizes=(count, 1)))
            .of("Mul", scale)
            .of("Sub", 0.5 if centred else 0.0)
            for k in (1 - axis, 3 - axis)
        )
        length = end - start if centred else (end - start).of("Max", 1)
        step = (length / bins).view(count, 1, 1)
        first = start.view(count, 1, 1) + step * step.array(np.arange(bins)[:, None])
        place = first + step.array(np.arange(samples) + 0.5) * step / samples
        missed = (place < -1) | (place > extent)
        place = place.of("Max", 0).of("Min", extent - 1)  # at the last element, the weights of the next one are 0
        # dimensions: region, channel, then the bins and then the samples of both axes
        full = [count, 1, *(bins if k == axis else 1 for k in range(2)), *(samples if k == axis else 1 for k in range(2))]
        at.append(place.view(*full))
        weights_at.append(missed.view(*full, 1, 1))
    channels = _origins(ctx, (1, shape[1]), math.prod(shape[2:]), 0)
    origin = batch.cast(_INT64).view(count, 1) * math.prod(shape[1:]) + channels
    origin = origin.view(count, shape[1], 1, 1, 1, 1)
    read, weights = between(x.widen(), origin, at, shape[2:], LINEAR, border)
    assert weights is not None
    weights = (weights_at[0] | weights_at[1]).where(0, weights)
    read = read * weights.cast(read.dtype)
    if mode == "avg":
        out = read.of("ReduceSum", axes=(4, 5, 6, 7)) / samples**2
    else:
        out = read.of("ReduceMax", axes=(4, 5, 6, 7))
    return [ctx.view(ctx.narrow(out.name, dtype), out.shape[:4])]


def deform_conv(ctx: Lowering, call: Call) -> list[Item]:
    """A convolution whose points are moved by offsets: its columns gathered, then a matrix product."""
    x, w, offset = (Term(ctx, call.tensor(k)) for k in range(3))
    bias, mask = call.tensor(3), call.tensor(4)
    shape, kernel, dtype = x.shape, w.shape[2:], x.dtype
    if len(shape) != 4 or not ctx.is_float(x.name) or 0 in shape:
        raise NotLowered
    groups, parts = call.attrs.get("group", 1), call.attrs.get("offset_group", 1)
    strides, dilations, before, after = window_attrs(call, 2, kernel)
    sizes = [window_extent(n, k, s, d, b, a) for n, k, s, d, b, a in zip(shape[2:], kernel, strides, dilations, before, after, strict=True)]
    taps, count = math.prod(kernel), math.prod(sizes)
    fits = shape[1] == w.shape[1] * groups and w.shape[0] % groups == 0 and shape[1] % parts == 0
    if not fits or offset.shape != (shape[0], parts * taps * 2, *sizes):
        raise ValueError(f"weight {list(w.shape)} and offsets {list(offset.shape)} do not fit input {list(shape)}")
    moved = offset.widen().view(shape[0], parts, taps, 2, count)
    at = []
    for axis in range(2):
        part = ctx.op(
            "Slice", moved.name, part=f"axis{axis}", starts=(0, 0, 0, axis, 0), steps=(1,) * 5, sizes=(*moved.shape[:3], 1, count)
        )
        tap = np.arange(kernel[axis]).reshape([-1 if k == axis else 1 for k in range(2)]) * dilations[axis]
        place = np.arange(sizes[axis]).reshape([-1 if k == axis else 1 for k in range(2)]) * strides[axis] - before[axis]
        still = np.broadcast_to(tap, kernel).reshape(taps, 1) + np.broadcast_to(place, sizes).reshape(1, count)
        at.append(Term(ctx, part).view(shape[0], parts, 1, taps, count) + moved.array(still))
    each = shape[1] // parts
    origin = _origins(ctx, (shape[0], parts, each), math.prod(shape[2:]), 2)
    read, weights = between(x.widen(), origin, at, shape[2:], LINEAR, zeros)
    columns = _summed(read, weights, 2)
    if mask:
        columns = columns * Term(ctx, mask).view(shape[0], parts, 1, taps, count).cast(columns.dtype)
    columns = columns.view(shape[0], groups, shape[1] // groups * taps, count)
    rows = w.cast(columns.dtype).view(groups, w.shape[0] // groups, shape[1] // groups * taps)
    out = Term(ctx, ctx.op("MatMul", rows.name, columns.name, part="matmul")).view(shape[0], w.shape[0], count)
    if bias:
        out = out + Term(ctx, bias).view(w.shape[0], 1).cast(out.dtype)
    return [ctx.view(ctx.narrow(out.name, dtype), (shape[0], w.shape[0], *sizes))]


RULES: dict[str, Rule] = {"GridSample": grid_sample, "AffineGrid": affine_grid, "RoiAlign": roi_align, "DeformConv": deform_conv}
