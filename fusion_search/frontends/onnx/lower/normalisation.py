"""Lowering of normalisations and softmax, along the standard's own function bodies."""

from __future__ import annotations

import math

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of, nothing_along
from fusion_search.ir.spec import Array


def softmax(ctx: Lowering, call: Call) -> list[Item]:
    """Softmax and LogSoftmax: of one axis, or before version 13 of all from that axis on."""
    x = call.tensor(0)
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    x = ctx.widen(x)
    if call.opset < 13:
        axis = axis_of(call.attrs.get("axis", 1), len(shape), end=True)
        x, axes = ctx.view(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))), (1,)
    else:
        x = x if shape else ctx.view(x, (1,))
        axes = (axis_of(call.attrs.get("axis", -1), max(len(shape), 1)),)
    if nothing_along(ctx.shape(x), axes):
        return [call.tensor(0)]
    shifted = ctx.op("Sub", x, ctx.op("ReduceMax", x, part="max", axes=axes), part="sub")
    grown = ctx.op("Exp", shifted, part="exp")
    total = ctx.op("ReduceSum", grown, part="sum", axes=axes)
    if call.op == "Softmax":
        out = _over(ctx, grown, total)
    else:
        out = ctx.op("Sub", shifted, ctx.op("Log", total, part="log"), part="sub_log")
    return [ctx.view(ctx.narrow(out, dtype), shape)]


def batch_normalization(ctx: Lowering, call: Call) -> list[Item]:
    """Inference: one multiplication and one addition for each channel when the statistics are known."""
    if call.attrs.get("training_mode", 0):
        return _batch_statistics(ctx, call)
    if any(call.wanted[1:]) or not call.attrs.get("spatial", 1):
        raise NotLowered
    x, *names = (call.tensor(k) for k in range(5))
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    if len(shape) < 2 or any(ctx.shape(name) != shape[1:2] for name in names):
        raise ValueError(f"scale, bias, mean and variance must have as many elements as input {list(shape)} has channels")
    x, epsilon = ctx.widen(x), call.attrs.get("epsilon", 1e-5)
    wide, spread = ctx.dtype(x), (shape[1], *(1,) * (len(shape) - 2))
    known = [ctx.const(name) for name in names]
    factors = _affine([array for array in known if array is not None], epsilon, wide) if all(a is not None for a in known) else None
    if factors is not None:
        factor, offset = (ctx.constant(array.reshape(spread)) for array in factors)
        out = ctx.op("Add", ctx.op("Mul", x, factor, part="scale"), offset, part="shift")
        return [ctx.narrow(out, dtype)]
    scale, bias, mean, var = (ctx.view(ctx.cast(name, wide), spread) for name in names)
    root = ctx.op("Sqrt", ctx.op("Add", var, ctx.scalar(epsilon, wide), part="epsilon"), part="sqrt")
    centred = ctx.op("Sub", x, mean, part="sub")
    scaled = ctx.op("Mul", _over(ctx, centred, root), scale, part="scale")
    return [ctx.narrow(ctx.op("Add", scaled, bias, part="shift"), dtype)]


def _batch_statistics(ctx: Lowering, call: Call) -> list[Item]:
    """Training: statistics of the batch itself, and the running ones moved towards them."""
    x, *names = (call.tensor(k) for k in range(5))
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    spread, axes = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 1 else (), (0, *range(2, len(shape)))
    if len(shape) < 2 or nothing_along(shape, axes):
        raise NotLowered
    x = ctx.widen(x)
    wide = ctx.dtype(x)
    out, mean, _, var = _normalise_with_variance(ctx, x, axes, call.attrs.get("epsilon", 1e-5))
    scale, bias = (ctx.view(ctx.cast(name, wide), spread) for name in names[:2])
    out = ctx.op("Add", ctx.op("Mul", out, scale, part="scale"), bias, part="shift")
    results: list[Item] = [ctx.narrow(out, dtype)]
    momentum = call.attrs.get("momentum", 0.9)
    for name, new, part in ((names[2], mean, "mean"), (names[3], var, "var")):
        kept = ctx.op("Mul", ctx.cast(name, wide), ctx.scalar(momentum, wide), part=f"{part}_old")
        moved = ctx.op("Mul", ctx.view(new, shape[1:2]), ctx.scalar(1 - momentum, wide), part=f"{part}_new")
        results.append(ctx.narrow(ctx.op("Add", kept, moved, part=f"running_{part}"), ctx.dtype(name)))
    return results


def _affine(arrays: list[Array], epsilon: float, dtype: np.dtype[np.float32]) -> tuple[Array, Array] | None:
    """Return factor and offset of a known normalisation; None when they are not finite and would hide what the steps give."""
    scale, bias, mean, var = (array.astype(np.float64) for array in arrays)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + epsilon)
        pair = factor.astype(dtype), (bias - mean * factor).astype(dtype)
    return pair if all(np.isfinite(array.astype(np.float64)).all() for array in pair) else None


def _normalise(ctx: Lowering, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, str, str]:
    """Return (x - mean) / sqrt(variance + epsilon), the mean and the root. Two passes: no cancellation."""
    out, mean, root, _ = _normalise_with_variance(ctx, x, axes, epsilon)
    return out, mean, root


def _normalise_with_variance(ctx: Lowering, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, str, str, str]:
    mean = ctx.op("ReduceMean", x, part="mean", axes=axes)
    centred = ctx.op("Sub", x, mean, part="sub")
    var = ctx.op("ReduceMean", ctx.op("Mul", centred, centred, part="square"), part="variance", axes=axes)
    root = ctx.op("Sqrt", ctx.op("Add", var, ctx.scalar(epsilon, ctx.dtype(x)), part="epsilon"), part="sqrt")
    return _over(ctx, centred, root), mean, root, var


def _over(ctx: Lowering, x: str, total: str) -> str:
    """Divide rows by one number each: a division for each row and a product for each element, which is ten times cheaper.

    Rounded twice, so 1.5 ulp in place of 0.5; runtimes do the same.
    """
    return ctx.op("Mul", x, ctx.op("Reciprocal", total, part="inverse"), part="normalise")


def layer_normalization(ctx: Lowering, call: Call) -> list[Item]:
    """LayerNormalization over the axes from `axis` on."""
    x, scale, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    dtype, rank = ctx.dtype(x), len(ctx.shape(x))
    axes = tuple(range(axis_of(call.attrs.get("axis", -1), rank), rank))
    if nothing_along(ctx.shape(x), axes):
        raise NotLowered
    x = ctx.widen(x)
    wide = ctx.dtype(x)
    out, mean, root = _normalise(ctx, x, axes, call.attrs.get("epsilon", 1e-5))
    out = ctx.op("Mul", out, ctx.cast(scale, wide), part="scale")
    if bias:
        out = ctx.op("Add", out, ctx.cast(bias, wide), part="bias")
    if ctx.shape(out) != ctx.shape(x):
        raise ValueError(f"scale {list(ctx.shape(scale))} does not broadcast to {list(ctx.shape(x))}")
    results: list[Item] = [ctx.narrow(out, dtype)]
    if call.wants(1) or call.wants(2):
        results += [mean, ctx.op("Reciprocal", root, part="inverse_root") if call.wants(2) else ""]
    return results


def rms_normalization(ctx: Lowering, call: Call) -> list[Item]:
    """RMSNormalization over the axes from `axis` on."""
    x, scale = call.tensor(0), call.tensor(1)
    dtype, rank = ctx.dtype(x), len(ctx.shape(x))
    axes = tuple(range(axis_of(call.attrs.get("axis", -1), rank), rank))
    if nothing_along(ctx.shape(x), axes):
        raise NotLowered
    x = ctx.widen(x)
    wide = ctx.dtype(x)
    mean = ctx.op("ReduceMean", ctx.op("Mul", x, x, part="square"), part="mean", axes=axes)
    root = ctx.op("Sqrt", ctx.op("Add", mean, ctx.scalar(call.attrs.get("epsilon", 1e-5), wide), part="epsilon"), part="sqrt")
    out = ctx.op("Mul", _over(ctx, x, root), ctx.cast(scale, wide), part="scale")
    return [ctx.narrow(out, dtype)]


def group_normalization(ctx: Lowering, call: Call) -> list[Item]:
    """InstanceNormalization and GroupNormalization: statistics of each group of channels of each image."""
    x, scale, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    if len(shape) < 2 or 0 in shape[1:]:
        raise NotLowered
    groups = shape[1] if call.op == "InstanceNormalization" else call.attrs["num_groups"]
    if groups < 1 or shape[1] % groups:
        raise ValueError(f"{shape[1]} channels do not divide into {groups} groups")
    x = ctx.widen(x)
    wide = ctx.dtype(x)
    split = ctx.view(x, (shape[0], groups, shape[1] // groups, math.prod(shape[2:])))
    out, _, _ = _normalise(ctx, split, (2, 3), call.attrs.get("epsilon", 1e-5))
    per_group = call.op == "GroupNormalization" and call.opset < 21
    spread = (groups, 1, 1) if per_group else (groups, shape[1] // groups, 1)
    out = ctx.op("Mul", out, ctx.view(ctx.cast(scale, wide), spread), part="scale")
    out = ctx.op("Add", out, ctx.view(ctx.cast(bias, wide), spread), part="bias")
    return [ctx.view(ctx.narrow(out, dtype), shape)]


def mean_variance_normalization(ctx: Lowering, call: Call) -> list[Item]:
    """(x - mean) / (standard deviation + 1e-9) over the axes given."""
    x = call.tensor(0)
    dtype, rank = ctx.dtype(x), len(ctx.shape(x))
    axes = tuple(axis_of(a, rank) for a in call.attrs.get("axes", (0, 2, 3)))
    if nothing_along(ctx.shape(x), axes):
        raise NotLowered
    x = ctx.widen(x)
    centred = ctx.op("Sub", x, ctx.op("ReduceMean", x, part="mean", axes=axes), part="sub")
    var = ctx.op("ReduceMean", ctx.op("Mul", centred, centred, part="square"), part="variance", axes=axes)
    root = ctx.op("Add", ctx.op("Sqrt", var, part="sqrt"), ctx.scalar(1e-9, ctx.dtype(x)), part="epsilon")
    return [ctx.narrow(_over(ctx, centred, root), dtype)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), softmax),
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), group_normalization),
    "MeanVarianceNormalization": mean_variance_normalization,
}
