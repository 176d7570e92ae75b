"""Lowering of pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, nothing_along
from fusion_search.frontends.onnx.lower.contraction import auto_pads, window_attrs
from fusion_search.frontends.onnx.lower.formula import Term
from fusion_search.frontends.onnx.lower.scan import power_sum
from fusion_search.ir.ops.windows import window_extent

#: The largest table of window places that a pool's places are read from.
_TABLE_BYTES = 64 << 20


def _geometry(ctx: Lowering, call: Call) -> dict[str, Any]:
    """Return kernel, strides, dilations, before and after for all dimensions of the operand.

    With ``ceil_mode`` a last, partial window counts when it starts inside the input or the padding before it.
    """
    shape = ctx.shape(call.tensor(0))
    rank, kernel = len(shape) - 2, tuple(call.attrs["kernel_shape"])
    if rank < 1 or rank != len(kernel):
        raise ValueError(f"kernel {list(kernel)} does not fit input {list(shape)}")
    strides, dilations, before, after = window_attrs(call, rank, kernel)
    before, after = auto_pads(call, shape[2:], kernel, strides, dilations) or (before, after)
    if call.attrs.get("ceil_mode", 0):
        ends = []
        for n, k, s, d, b, e in zip(shape[2:], kernel, strides, dilations, before, after, strict=True):
            span = d * (k - 1) + 1
            count = -(-(n + b + e - span) // s) + 1
            if (count - 1) * s >= n + b:
                count -= 1
            end = max(0, (count - 1) * s + span - n - b)
            if count < 1 or window_extent(n, k, s, d, b, end) != count:
                raise NotLowered
            ends.append(end)
        after = tuple(ends)
    ones, zeros = (1, 1), (0, 0)
    return {
        "kernel": ones + kernel,
        "strides": ones + strides,
        "dilations": ones + dilations,
        "before": zeros + before,
        "after": zeros + after,
    }


def max_pool(ctx: Lowering, call: Call) -> list[Item]:
    """The largest element of each window, and its place when that is wanted."""
    if call.wants(1):
        return _with_places(ctx, call, _geometry(ctx, call))
    return [ctx.op("MaxPool", call.tensor(0), **_geometry(ctx, call))]


def _with_places(ctx: Lowering, call: Call, geometry: dict[str, Any]) -> list[Item]:
    """Windows gathered into a dimension of their own, the extreme of each, and the first place in the operand that has it."""
    x = call.tensor(0)
    shape, rank = ctx.shape(x), len(ctx.shape(x)) - 2
    table, inside = np.zeros((1,) * (2 * rank), np.int64), np.ones((1,) * (2 * rank), bool)
    for d in range(rank):
        n, kernel, stride, dilation, before, after = (
            shape[d + 2],
            *(geometry[key][d + 2] for key in ("kernel", "strides", "dilations", "before", "after")),
        )
        count = window_extent(n, kernel, stride, dilation, before, after)
        at = np.arange(count)[:, None] * stride - before + np.arange(kernel)[None, :] * dilation
        at = at.reshape([count if k == d else kernel if k == rank + d else 1 for k in range(2 * rank)])
        inside = inside & (at >= 0) & (at < n)
        table = table * n + np.clip(at, 0, n - 1)
    out, taps, plane, lead = table.shape[:rank], math.prod(table.shape[rank:]), math.prod(shape[2:]), math.prod(shape[:2])
    table, inside = table.reshape(-1, taps), np.broadcast_to(inside, table.shape).reshape(-1, taps)
    if 0 in shape or not inside.any(axis=1).all() or table.nbytes > _TABLE_BYTES:
        raise NotLowered
    read = Term(ctx, ctx.op("Gather", ctx.view(x, (lead, plane)), ctx.constant(table), part="windows", axis=1))
    there = Term(ctx, ctx.constant(np.ascontiguousarray(inside)))
    padded = not inside.all() or ctx.symbolic
    if padded:
        lowest = -np.inf if ctx.is_float(x) else np.iinfo(read.dtype).min
        read = there.where(read, lowest)
    best = read.of("ReduceMax", axes=(2,))
    hit = read.of("Equal", best)
    if ctx.is_float(x):
        hit = hit | read.of("IsNaN")
    if padded:
        hit = hit & there
    place = hit.where(Term(ctx, ctx.constant(table)), plane).of("ReduceMin", axes=(2,)).view(lead, len(table))
    if call.attrs.get("storage_order", 0):  # places in a plane laid out the other way round
        turned = np.arange(plane).reshape(shape[2:][::-1]).transpose()
        turned = np.ascontiguousarray(turned).reshape(-1)
        place = Term(ctx, ctx.op("Gather", ctx.constant(turned), place.name, part="order", axis=0))
    place = place + place.array(np.arange(lead)[:, None] * plane)
    return [ctx.view(name, (*shape[:2], *out)) for name in (best.name, place.name)]


def average_pool(ctx: Lowering, call: Call) -> list[Item]:
    """The sum of each window divided by how many elements it has."""
    x = call.tensor(0)
    dtype, shape, geometry = ctx.dtype(x), ctx.shape(x), _geometry(ctx, call)
    total = ctx.op("SumPool", ctx.widen(x), part="sum", **geometry)
    pads = call.attrs.get("pads") or (0,) * (2 * (len(shape) - 2))
    counts = np.ones((), np.int64)
    for d in range(2, len(shape)):
        k, s, dilation, b = (geometry[key][d] for key in ("kernel", "strides", "dilations", "before"))
        explicit = call.attrs.get("auto_pad", "NOTSET") == "NOTSET"
        # what ceil_mode reads beyond the padding never counts
        padded = pads[d - 2 + len(shape) - 2] if explicit else geometry["after"][d]
        low, high = (-b, shape[d] + padded) if call.attrs.get("count_include_pad", 0) else (0, shape[d])
        at = np.arange(ctx.shape(total)[d])[:, None] * s - b + np.arange(k)[None, :] * dilation
        counts = counts[..., None] * ((at >= low) & (at < high)).sum(axis=1)
    wide = ctx.dtype(total)
    if counts.size and (counts == counts.reshape(-1)[0]).all():
        divisor = ctx.scalar(int(counts.reshape(-1)[0]), wide)
    else:
        divisor = ctx.constant(counts.astype(wide))
    return [ctx.narrow(ctx.op("Div", total, divisor, part="div"), dtype)]


def global_pool(ctx: Lowering, call: Call) -> list[Item]:
    """One element for each channel."""
    x = call.tensor(0)
    core = "ReduceMean" if call.op == "GlobalAveragePool" else "ReduceMax"
    axes = tuple(range(2, len(ctx.shape(x))))
    if not axes or nothing_along(ctx.shape(x), axes):
        raise NotLowered
    return [ctx.op(core, x, axes=axes)]


def lp_pool(ctx: Lowering, call: Call) -> list[Item]:
    """The norm of each window; padding adds nothing to it."""
    x = call.tensor(0)
    dtype, geometry = ctx.dtype(x), _geometry(ctx, call)
    out = power_sum(ctx, ctx.widen(x), call.attrs.get("p", 2), lambda v: ctx.op("SumPool", v, part="sum", **geometry))
    return [ctx.narrow(out, dtype)]


def lrn(ctx: Lowering, call: Call) -> list[Item]:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta."""
    x, size = call.tensor(0), call.attrs["size"]
    rank, dtype = len(ctx.shape(x)), ctx.dtype(x)
    if rank < 2 or size < 1:
        raise ValueError(f"size {size} does not fit input {list(ctx.shape(x))}")

    def along(channel: int, other: int) -> tuple[int, ...]:
        return (other, channel, *(other,) * (rank - 2))

    x = ctx.widen(x)
    wide = ctx.dtype(x)
    square = ctx.op("Mul", x, x, part="square")
    before = (size - 1) // 2
    geometry: dict[str, Any] = {
        "kernel": along(size, 1),
        "strides": (1,) * rank,
        "dilations": (1,) * rank,
        "before": along(before, 0),
        "after": along(size - 1 - before, 0),
    }
    total = ctx.op("SumPool", square, part="sum", **geometry)
    scaled = ctx.op("Mul", total, ctx.scalar(call.attrs.get("alpha", 1e-4) / size, wide), part="scale")
    base = ctx.op("Add", scaled, ctx.scalar(call.attrs.get("bias", 1.0), wide), part="bias")
    return [ctx.narrow(ctx.op("Div", x, _root(ctx, base, call.attrs.get("beta", 0.75)), part="div"), dtype)]


def _root(ctx: Lowering, base: str, beta: float) -> str:
    # the usual 3/4 is a square root times the root of that root: no power is computed
    if math.isclose(beta, 0.75, rel_tol=1e-7):
        root = ctx.op("Sqrt", base, part="sqrt")
        return ctx.op("Mul", root, ctx.op("Sqrt", root, part="sqrt2"), part="pow")
    return ctx.op("Pow", base, ctx.scalar(beta, ctx.dtype(base)), part="pow")


RULES: dict[str, Rule] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), global_pool),
    "LpPool": lp_pool,
    "LRN": lrn,
}
