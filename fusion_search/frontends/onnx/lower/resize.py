"""Lowering of Resize and Upsample: axis by axis, each a few gathers with known indices and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.layout import broadcast
from fusion_search.ir.spec import Array

#: Neighbours that are read and added one by one; more are summed along a dimension of their own.
_FEW_TAPS = 4
#: Most weights of one axis that are known ahead of a run.
_MOST_WEIGHTS = 1 << 22

_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


def resize(ctx: Lowering, call: Call) -> list[Item]:
    """Nearest, linear and cubic interpolation, each with its filter widened against aliasing, or from a part of the operand."""
    x, attrs = call.tensor(0), call.attrs
    shape = ctx.shape(x)
    coordinates = attrs.get("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    if not ctx.is_float(x) and attrs.get("mode", "nearest") != "nearest":
        raise NotLowered
    axes = tuple(axis_of(a, len(shape)) for a in attrs.get("axes") or range(len(shape)))
    scales, sizes = _target(ctx, call, [shape[axis] for axis in axes])
    mode = attrs.get("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise ValueError(f"unknown mode {mode!r}")
    if mode == "nearest" and attrs.get("antialias", 0):
        raise ValueError("the nearest element has no filter against aliasing")
    crop = [(0.0, 1.0)] * len(axes)
    if coordinates == "tf_crop_and_resize":
        given = [float(v) for v in ctx.known(call.tensor(1)).reshape(-1)] if call.tensor(1) else []
        if len(given) != 2 * len(axes):
            raise ValueError(f"roi must be two numbers for each of {len(axes)} axes, got {len(given)}")
        crop = list(zip(given[: len(axes)], given[len(axes) :], strict=True))
    dtype = ctx.dtype(x)
    if mode != "nearest":
        x = ctx.widen(x)
    for k, axis in enumerate(axes):
        n = shape[axis]
        # the standard rounds the size down but keeps the scale as given
        out = sizes[k] if sizes else math.floor(n * (crop[k][1] - crop[k][0]) * scales[k])
        scale = scales[k] if scales else out / n if n else 1.0
        if out < 0 or (out and not n):
            raise ValueError(f"cannot resize {list(shape)} to {out} along dimension {axis}")
        if out == n and scale == 1.0 and crop[k] == (0.0, 1.0):
            continue
        if not out:
            raise NotLowered
        # which neighbour is nearest can hang on the last bit, and the common runtimes compute it in float32
        number = np.float32 if mode == "nearest" else np.float64
        if coordinates == "tf_crop_and_resize":
            at = _cropped(np.arange(out, dtype=number), n, number(n * scale), *map(number, crop[k]))
        else:
            at = _coordinates(np.arange(out, dtype=number), number(scale), n, out, number(n * scale), coordinates)
        outside = (at < 0) | (at > n - 1)
        x = _axis(ctx, call, x, axis, at, mode, min(1.0, scale) if attrs.get("antialias", 0) else 1.0)
        if coordinates == "tf_crop_and_resize" and (outside.any() or ctx.symbolic):
            fill = ctx.scalar(attrs.get("extrapolation_value", 0.0), ctx.dtype(x))
            mask = ctx.constant(outside.reshape((out, *(1,) * (len(shape) - axis - 1))))
            x = ctx.op("Where", mask, fill, x, part=f"axis{axis}_outside")
    return [ctx.narrow(x, dtype)]


def _target(ctx: Lowering, call: Call, extents: Sequence[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return scales or sizes, whichever the call gives; both where one scale is to hold for all axes."""
    count = len(extents)
    if call.op == "Upsample" and call.opset < 9:
        scales: tuple[float, ...] = tuple(call.attrs["scales"])
        sizes: tuple[int, ...] = ()
    else:
        at = 1 if call.opset < 11 else 2
        given = ctx.known(call.tensor(at)).reshape(-1) if call.tensor(at) else np.zeros(0)
        scales = tuple(float(v) for v in given)
        sizes = ctx.ints(call.tensor(3)) if not scales and call.tensor(3) else ()
    if len(scales or sizes) != count or any(not s > 0 for s in scales):
        raise ValueError(f"scales or sizes must be {count} positive numbers")
    policy = call.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise ValueError(f"unknown keep_aspect_ratio_policy {policy!r}")
    if sizes and policy != "stretch":
        if 0 in extents:
            raise NotLowered
        ratios = [size / n for size, n in zip(sizes, extents, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        scales, sizes = (scale,) * count, tuple(math.floor(scale * n + 0.5) for n in extents)
    return scales, sizes


def _cropped(out: Array, n: int, wanted: Any, start: Any, end: Any) -> Array:
    """Map positions of the result to positions of the part of the operand from `start` to `end`, as fractions of its length."""
    if wanted == 1:
        return np.full_like(out, (end - start) * (n - 1) / 2 + start * (n - 1))
    return np.asarray(out * (end - start) * (n - 1) / (wanted - 1) + start * (n - 1))


def _coordinates(out: Array, scale: Any, n: int, size: int, wanted: Any, mode: str) -> Array:
    """Map positions of the result to positions of the operand."""
    centred = (out + 0.5) / scale - 0.5
    if mode == "asymmetric":
        at = out / scale
    elif mode == "half_pixel" or (mode == "pytorch_half_pixel" and size > 1):
        at = centred
    elif mode == "align_corners" and size > 1 and wanted != 1:
        at = out * ((n - 1) / (wanted - 1))
    elif mode in ("align_corners", "pytorch_half_pixel"):
        at = np.zeros_like(out)
    elif mode == "tf_half_pixel_for_nn":
        at = (out + 0.5) / scale
    elif mode == "half_pixel_symmetric":
        at = n / 2 * (1 - size / wanted) + centred
    else:
        raise NotLowered
    return np.asarray(at)


def _axis(ctx: Lowering, call: Call, x: str, axis: int, at: Array, mode: str, squeeze: float) -> str:
    """Resize one axis; the filter is wider by what it is squeezed, so that every element that a wide step passes has its part."""
    shape = ctx.shape(x)
    n, out = shape[axis], len(at)
    if mode == "nearest":
        default = "round_prefer_floor" if call.opset >= 11 else "floor"
        how = call.attrs.get("nearest_mode", default)
        if how not in _ROUNDED:
            raise NotLowered
        places = np.clip(_ROUNDED[how](at), 0, n - 1).astype(np.int64)
        if out % n == 0 and bool((places == np.arange(out) // (out // n)).all()):
            apart = ctx.view(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
            wide = broadcast(ctx, apart, (*shape[: axis + 1], out // n, *shape[axis + 1 :]), part=f"axis{axis}")
            return ctx.view(wide, (*shape[:axis], out, *shape[axis + 1 :]))
        return ctx.op("Gather", x, ctx.constant(places), part=f"axis{axis}", axis=axis)
    base = np.floor(at)
    frac = at - base
    cubic = call.attrs.get("cubic_coeff_a", -0.75) if mode == "cubic" else None
    if squeeze < 1:
        taps = _wide(base, frac, squeeze, cubic)
    elif cubic is None:
        taps = [(base, 1 - frac), (base + 1, frac)]
    else:
        taps = _cubic(base, frac, cubic)
    if call.attrs.get("exclude_outside", 0):
        taps = [(place, np.where((place < 0) | (place >= n), 0, weight)) for place, weight in taps]
        total = sum(weight for _, weight in taps)
        taps = [(place, weight / np.where(total == 0, 1, total)) for place, weight in taps]
    if len(taps) > _FEW_TAPS:
        return _many_taps(ctx, x, axis, taps)
    dtype, spread = ctx.dtype(x), (out, *(1,) * (len(shape) - axis - 1))
    result = ""
    for k, (place, weight) in enumerate(taps):
        index = ctx.constant(np.clip(place, 0, n - 1).astype(np.int64))
        read = ctx.op("Gather", x, index, part=f"axis{axis}_tap{k}", axis=axis)
        term = ctx.op("Mul", read, ctx.constant(weight.astype(dtype).reshape(spread)), part=f"axis{axis}_weight{k}")
        result = ctx.op("Add", result, term, part=f"axis{axis}_sum{k}") if result else term
    return result


def _many_taps(ctx: Lowering, x: str, axis: int, taps: list[tuple[Array, Array]]) -> str:
    """Gather all neighbours into a dimension of their own and sum over it."""
    shape = ctx.shape(x)
    places = np.clip(np.stack([place for place, _ in taps], axis=1), 0, shape[axis] - 1).astype(np.int64)
    weights = np.stack([weight for _, weight in taps], axis=1).astype(ctx.dtype(x))
    read = ctx.op("Gather", x, ctx.constant(places), part=f"axis{axis}_taps", axis=axis)
    spread = ctx.constant(weights.reshape((*weights.shape, *(1,) * (len(shape) - axis - 1))))
    total = ctx.op("ReduceSum", ctx.op("Mul", read, spread, part=f"axis{axis}_weights"), part=f"axis{axis}_sum", axes=(axis + 1,))
    return ctx.view(total, (*shape[:axis], len(places), *shape[axis + 1 :]))


def _wide(base: Array, t: Array, scale: float, a: float | None) -> list[tuple[Array, Array]]:
    """A triangle, or Keys' cubic with the coefficient `a`, stretched by 1 / scale; the weights of each point add up to 1."""
    first = math.floor((-1 if a is None else -2) / scale) + 1
    if (2 - 2 * first) * max(len(base), 1) > _MOST_WEIGHTS:
        raise NotLowered
    taps = []
    for k in range(first, 2 - first):
        x = np.abs((k - t) * scale)
        if a is None:
            weight = np.clip(1 - x, 0, 1)
        else:
            near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
            weight = np.where(x <= 1, near, np.where(x < 2, far, 0))
        taps.append((base + k, weight))
    total = sum(weight for _, weight in taps)
    return [(place, weight / total) for place, weight in taps]


def _cubic(base: Array, t: Array, a: float) -> list[tuple[Array, Array]]:
    """Keys' cubic convolution with the coefficient `a`."""
    weights = (
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    )
    return [(base + k - 1, weight) for k, weight in enumerate(weights)]


RULES: dict[str, Rule] = {"Resize": resize, "Upsample": resize}
