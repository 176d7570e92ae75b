"""Lowering of Fourier transforms: a matrix product with a known matrix. Long ones stay whole: their matrix would be too large.

The sums are taken in float64, since a direct sum of n terms loses more than the fast transform that people compare with.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.formula import Term
from fusion_search.ir.spec import Array

#: The largest matrix that takes the place of a fast transform.
_MATRIX_BYTES = 64 << 20
_WIDE = np.dtype(np.float64)


def _matrix(length: int, used: int, parts: int, *, inverse: bool, onesided: bool) -> Array:
    """Return what the used elements, real and imaginary parts in turn, contribute to each result, likewise in turn.

    A one-sided inverse has a real result: of each pair of conjugate frequencies only one is given, and counts twice.
    """
    real = inverse and onesided
    bins = length // 2 + 1 if onesided and not inverse else length
    angle = np.outer(np.arange(used), np.arange(bins)) % length * (2 * np.pi / length)
    cosine, sine = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    factor = np.ones(used)
    if real:
        factor = np.where((np.arange(used) == 0) | (2 * np.arange(used) == length), 1.0, 2.0)
    # (a + bi) (cos + i sin)
    rows = [np.stack([cosine, sine], axis=-1), np.stack([-sine, cosine], axis=-1)][:parts]
    matrix = np.stack(rows, axis=1) * factor[:, None, None, None] / (length if inverse else 1)
    return matrix[..., :1] if real else matrix


def _transform(ctx: Lowering, x: Term, length: int, *, inverse: bool, onesided: bool) -> Term:
    """Transform [..., elements, parts] along the elements."""
    *lead, elements, parts = x.shape
    used = min(elements, length // 2 + 1 if inverse and onesided else length)
    bins = length // 2 + 1 if onesided and not inverse else length
    if length < 1 or used < 1:
        raise ValueError(f"a transform of {length} elements")
    if used * parts * bins * 2 * x.dtype.itemsize > _MATRIX_BYTES:
        raise NotLowered
    if used < elements:
        sizes = (*lead, used, parts)
        x = Term(ctx, ctx.op("Slice", x.name, part="cut", starts=(0,) * len(sizes), steps=(1,) * len(sizes), sizes=sizes))
    matrix = _matrix(length, used, parts, inverse=inverse, onesided=onesided)
    shape = (*lead, bins, matrix.shape[-1])
    rows = x.view(math.prod(lead), used * parts)
    out = ctx.op("MatMul", rows.name, x.array(matrix.reshape(used * parts, -1)).name, part="matmul")
    return Term(ctx, out).view(*shape)


def dft(ctx: Lowering, call: Call) -> list[Item]:
    """A discrete Fourier transform along one axis; the last dimension holds real and imaginary parts."""
    x = call.tensor(0)
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    inverse, onesided = bool(call.attrs.get("inverse", 0)), bool(call.attrs.get("onesided", 0))
    axis = int(ctx.known(call.tensor(2)).reshape(-1)[0]) if call.tensor(2) else -2
    axis = axis_of(axis if call.opset >= 20 else call.attrs.get("axis", 1), len(shape))
    if inverse and not onesided:
        # The standard's cases compare zeros of this one with a float32 transform's own rounding, closer than any other sum comes.
        raise NotLowered
    if not ctx.is_float(x) or len(shape) < 2 or axis == len(shape) - 1 or shape[-1] not in (1, 2) or 0 in shape:
        raise NotLowered
    length = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    if call.tensor(1):
        length = int(ctx.known(call.tensor(1)).reshape(-1)[0])
    x = ctx.cast(x, _WIDE, part="widen")
    order = (*(d for d in range(len(shape) - 1) if d != axis), axis, len(shape) - 1)
    back = tuple(int(d) for d in np.argsort(order))
    if order != tuple(range(len(shape))):
        x = ctx.op("Transpose", x, part="last", perm=order)
    out = _transform(ctx, Term(ctx, x), length, inverse=inverse, onesided=onesided).name
    if order != back or order != tuple(range(len(shape))):
        out = ctx.op("Transpose", out, part="back", perm=back)
    return [ctx.narrow(out, dtype)]


def stft(ctx: Lowering, call: Call) -> list[Item]:
    """Transforms of overlapping frames of a signal, each times a window."""
    x, window = call.tensor(0), call.tensor(2)
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    step = int(ctx.known(call.tensor(1)).reshape(-1)[0])
    if not ctx.is_float(x) or len(shape) not in (2, 3) or (len(shape) == 3 and shape[-1] not in (1, 2)) or 0 in shape:
        raise NotLowered
    count, parts = shape[1], shape[2] if len(shape) == 3 else 1
    length = int(ctx.known(call.tensor(3)).reshape(-1)[0]) if call.tensor(3) else ctx.shape(window)[0] if window else count
    if step < 1 or not 1 <= length <= count or (window and ctx.shape(window) != (length,)):
        raise ValueError(f"frames of {length} elements at every {step} do not fit a signal of {count}")
    if ((count - length) // step + 1) * length * 8 > _MATRIX_BYTES:  # the places that the frames are read from
        raise NotLowered
    signal = Term(ctx, x).cast(_WIDE).view(shape[0], count, parts)
    places: Any = np.arange((count - length) // step + 1)[:, None] * step + np.arange(length)
    frames = Term(ctx, ctx.op("Gather", signal.name, ctx.constant(places.astype(np.int64)), part="frames", axis=1))
    if window:
        frames = frames * Term(ctx, window).cast(frames.dtype).view(length, 1)
    out = _transform(ctx, frames, length, inverse=False, onesided=bool(call.attrs.get("onesided", 1)))
    return [ctx.narrow(out.name, dtype)]


def known_operands(ctx: Lowering, call: Call) -> list[Item]:
    """Operators of numbers alone: their results are constants as soon as the numbers are."""
    for name in call.tensors:
        ctx.known(name)
    raise NotLowered


RULES: dict[str, Rule] = {"DFT": dft, "STFT": stft, "MelWeightMatrix": known_operands}
