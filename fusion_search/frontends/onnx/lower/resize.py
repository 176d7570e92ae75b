"""Lowering of Resize and Upsample: axis by axis, each a few gathers with known indices and weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.layout import broadcast
from fusion_search.ir.spec import Array

_ROUNDED: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
}


def resize(ctx: Lowering, call: Call) -> list[Item]:
    """Nearest, linear and cubic interpolation; cropping and antialiasing stay opaque."""
    x, attrs = call.tensor(0), call.attrs
    shape = ctx.shape(x)
    coordinates = attrs.get("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    if coordinates == "tf_crop_and_resize" or attrs.get("antialias", 0) or attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotLowered
    if not ctx.is_float(x) and attrs.get("mode", "nearest") != "nearest":
        raise NotLowered
    axes = tuple(axis_of(a, len(shape)) for a in attrs.get("axes") or range(len(shape)))
    scales, sizes = _target(ctx, call, len(axes))
    mode = attrs.get("mode", "nearest")
    dtype = ctx.dtype(x)
    if mode != "nearest":
        x = ctx.widen(x)
    for k, axis in enumerate(axes):
        n = shape[axis]
        # the standard rounds the size down but keeps the scale as given
        out = sizes[k] if sizes else math.floor(n * scales[k])
        scale = scales[k] if scales else out / n if n else 1.0
        if out < 0 or (out and not n):
            raise ValueError(f"cannot resize {list(shape)} to {out} along dimension {axis}")
        if out == n and scale == 1.0:
            continue
        if not out:
            raise NotLowered
        # which neighbour is nearest can hang on the last bit, and the common runtimes compute it in float32
        number = np.float32 if mode == "nearest" else np.float64
        at = _coordinates(np.arange(out, dtype=number), number(scale), n, out, number(n * scale), coordinates)
        x = _axis(ctx, call, x, axis, at, mode, coordinates)
    return [ctx.narrow(x, dtype)]


def _target(ctx: Lowering, call: Call, count: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return scales or sizes, whichever the call gives."""
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
    return scales, sizes


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


def _axis(ctx: Lowering, call: Call, x: str, axis: int, at: Array, mode: str, coordinates: str) -> str:
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
    if mode == "linear":
        taps = [(base, 1 - frac), (base + 1, frac)]
    elif mode == "cubic":
        taps = _cubic(base, frac, call.attrs.get("cubic_coeff_a", -0.75))
        if call.attrs.get("exclude_outside", 0):
            taps = [(place, np.where((place < 0) | (place >= n), 0, weight)) for place, weight in taps]
            total = sum(weight for _, weight in taps)
            taps = [(place, weight / total) for place, weight in taps]
    else:
        raise NotLowered
    dtype, spread = ctx.dtype(x), (out, *(1,) * (len(shape) - axis - 1))
    result = ""
    for k, (place, weight) in enumerate(taps):
        index = ctx.constant(np.clip(place, 0, n - 1).astype(np.int64))
        read = ctx.op("Gather", x, index, part=f"axis{axis}_tap{k}", axis=axis)
        term = ctx.op("Mul", read, ctx.constant(weight.astype(dtype).reshape(spread)), part=f"axis{axis}_weight{k}")
        result = ctx.op("Add", result, term, part=f"axis{axis}_sum{k}") if result else term
    return result


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
