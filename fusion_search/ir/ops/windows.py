"""Contractions and windows: multiply-add or a combiner over reduction loops, read through affine maps.

``Conv`` has its groups as a dimension of its own (the front end reads tensors through views), so that every map is
affine: x [N, G, C, *spatial], w [G, M, C, *kernel], bias [G, M]; result [N, G, M, *spatial].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusion_search.ir.ops.maps import broadcast
from fusion_search.ir.spec import Access, Array, Dim, Domain, OpSpec, Type, broadcast_access


def _infer_matmul(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    a, b = types
    if a.dtype != b.dtype:
        raise ValueError(f"operands have different dtypes: {a.dtype} and {b.dtype}")
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"cannot multiply {list(a.shape)} by {list(b.shape)}")
    batch = broadcast((Type(a.dtype, a.shape[:-2]), Type(b.dtype, b.shape[:-2])))
    return Type(a.dtype, (*batch, a.shape[-2], b.shape[-1]))


def _domain_matmul(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    a, b = types
    rank = len(out.shape)

    def dim(loop: int, extent: int) -> Dim:
        return Dim(((loop, 1),)) if extent != 1 else Dim()

    batch = out.shape[:-2]
    reads = []
    for t, last in ((a, (rank - 2, rank)), (b, (rank, rank - 1))):
        lead = broadcast_access(t.shape[:-2], batch).dims
        reads.append(Access((*lead, dim(last[0], t.shape[-2]), dim(last[1], t.shape[-1]))))
    return Domain((*out.shape, a.shape[-1]), 1, tuple(reads))


def _matmul(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    a, b = arrays
    with np.errstate(all="ignore"):
        if a.dtype.itemsize == 2 and a.dtype.kind not in "iu":
            return np.asarray(np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype))
        return np.asarray(np.matmul(a, b))


def window_extent(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Number of positions of a window along one axis."""
    return (size + before + after - dilation * (kernel - 1) - 1) // stride + 1


def _infer_conv(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    x, w = types[0], types[1]
    if len(x.shape) != len(w.shape) or x.shape[1] != w.shape[0] or x.shape[2] != w.shape[2]:
        raise ValueError(f"input {list(x.shape)} does not fit weight {list(w.shape)} (as [N, group, C, ...] and [group, M, C, ...])")
    spatial = tuple(
        window_extent(n, k, s, d, b, e)
        for n, k, s, d, b, e in zip(
            x.shape[3:], w.shape[3:], attrs["strides"], attrs["dilations"], attrs["before"], attrs["after"], strict=True
        )
    )
    if any(n < 0 for n in spatial):
        raise ValueError(f"kernel {list(w.shape[3:])} does not fit input {list(x.shape)}")
    return Type(x.dtype, (x.shape[0], w.shape[0], w.shape[1], *spatial))


def _window_dim(axis: int, loop: int, extents: tuple[int, int], stride: int, dilation: int, before: int) -> Dim:
    """Index of one windowed axis; loops of extent 1 are left out."""
    terms = []
    if extents[0] != 1:
        terms.append((axis, stride))
    if extents[1] != 1:
        terms.append((loop, dilation))
    return Dim(tuple(terms), -before)


def _domain_conv(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    x, w = types[0].shape, types[1].shape
    spatial = len(x) - 3
    channel = len(out.shape)  # first reduction loop

    def dim(loop: int, extent: int) -> Dim:
        return Dim(((loop, 1),)) if extent != 1 else Dim()

    x_dims = [dim(0, x[0]), dim(1, x[1]), dim(channel, x[2])]
    w_dims = [dim(1, w[0]), dim(2, w[1]), dim(channel, w[2])]
    for k in range(spatial):
        pair = (out.shape[3 + k], w[3 + k])
        x_dims.append(_window_dim(3 + k, channel + 1 + k, pair, attrs["strides"][k], attrs["dilations"][k], attrs["before"][k]))
        w_dims.append(dim(channel + 1 + k, w[3 + k]))
    guarded = any(attrs["before"]) or any(attrs["after"])
    reads = [Access(tuple(x_dims), guarded), Access(tuple(w_dims))]
    if len(types) > 2:
        reads.append(Access((dim(1, w[0]), dim(2, w[1]))))
    return Domain((*out.shape, *w[2:]), 1 + spatial, tuple(reads))


def _patches(x: Array, kernel: Sequence[int], attrs: dict[str, Any], lead: int, fill: float) -> Array:
    """Return the windows of `x` as [..., *positions, *kernel]."""
    pads = [(0, 0)] * lead + list(zip(attrs["before"], attrs["after"], strict=True))
    padded = np.pad(x, pads, constant_values=fill)
    axes = tuple(range(lead, x.ndim))
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, attrs["dilations"], strict=True))
    views = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=axes)
    pick = [slice(None)] * lead + [slice(None, None, s) for s in attrs["strides"]] + [slice(None, None, d) for d in attrs["dilations"]]
    return views[tuple(pick)]


def _conv(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    x, w = arrays[0], arrays[1]
    dtype = x.dtype
    if dtype.itemsize == 2 and dtype.kind not in "iu":
        x, w = x.astype(np.float32), w.astype(np.float32)
    spatial = x.ndim - 3
    views = _patches(x, w.shape[3:], attrs, 3, 0)  # N G C *pos *k
    out = np.empty((x.shape[0], w.shape[0], w.shape[1], *views.shape[3 : 3 + spatial]), x.dtype)
    for g in range(w.shape[0]):
        v = np.moveaxis(views[:, g], 1, 1 + spatial)  # N *pos C *k
        flat = np.ascontiguousarray(v).reshape(x.shape[0], -1, int(np.prod(w.shape[2:])))
        result = flat @ w[g].reshape(w.shape[1], -1).T
        out[:, g] = np.moveaxis(result.reshape(x.shape[0], *views.shape[3 : 3 + spatial], w.shape[1]), -1, 1)
    if len(arrays) > 2:
        out = out + arrays[2].astype(out.dtype).reshape(1, w.shape[0], w.shape[1], *([1] * spatial))
    return out.astype(dtype, copy=False)


def _infer_pool(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    shape = tuple(
        window_extent(n, k, s, d, b, e)
        for n, k, s, d, b, e in zip(
            types[0].shape, attrs["kernel"], attrs["strides"], attrs["dilations"], attrs["before"], attrs["after"], strict=True
        )
    )
    if any(n < 0 for n in shape):
        raise ValueError(f"kernel {list(attrs['kernel'])} does not fit input {list(types[0].shape)}")
    return Type(types[0].dtype, shape)


def _domain_pool(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    kernel = attrs["kernel"]
    windowed = [d for d, k in enumerate(kernel) if k != 1]
    rank = len(out.shape)
    dims = []
    for d in range(rank):
        loop = rank + windowed.index(d) if d in windowed else rank
        dims.append(_window_dim(d, loop, (out.shape[d], kernel[d]), attrs["strides"][d], attrs["dilations"][d], attrs["before"][d]))
    guarded = any(attrs["before"]) or any(attrs["after"])
    return Domain((*out.shape, *(kernel[d] for d in windowed)), len(windowed), (Access(tuple(dims), guarded),))


def _pool(combiner: str) -> Any:
    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        x = arrays[0]
        if combiner == "max":
            fill = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf  # kind V is bfloat16
            views = _patches(x, attrs["kernel"], attrs, 0, fill)
            return np.asarray(np.max(views, axis=tuple(range(x.ndim, 2 * x.ndim))))
        views = _patches(x, attrs["kernel"], attrs, 0, 0)
        return np.asarray(np.sum(views, axis=tuple(range(x.ndim, 2 * x.ndim)), dtype=x.dtype))

    return evaluate


def _infer_running(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return types[0]


def _domain_running(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    """Every point reads its own element; the total goes along the axis from point to point, one operation each."""
    dims = [Dim(((d, 1),)) if extent != 1 else Dim() for d, extent in enumerate(out.shape)]
    return Domain(out.shape, 0, (Access(tuple(dims)),), uncut=(attrs["axis"],))


def _running(function: Any) -> Any:
    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        x, axis = arrays[0], attrs["axis"]
        wide = x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x
        with np.errstate(all="ignore"):
            total = np.asarray(function.accumulate(wide, axis=axis, dtype=wide.dtype))
            if attrs["exclusive"]:
                shifted = np.full_like(total, function.identity)
                rest = [slice(None)] * x.ndim
                head, tail = list(rest), list(rest)
                head[axis], tail[axis] = slice(1, None), slice(None, -1)
                shifted[tuple(head)] = total[tuple(tail)]
                total = shifted
            return total.astype(x.dtype)

    return evaluate


SPECS: tuple[OpSpec, ...] = (
    OpSpec("MatMul", "contract", _infer_matmul, _domain_matmul, _matmul, combiner="sum", flop_class="contract", flops=2.0),
    OpSpec("Conv", "window", _infer_conv, _domain_conv, _conv, combiner="sum", flop_class="contract", flops=2.0),
    OpSpec("MaxPool", "window", _infer_pool, _domain_pool, _pool("max"), combiner="max"),
    OpSpec("SumPool", "window", _infer_pool, _domain_pool, _pool("sum"), combiner="sum"),
    # running totals: the axis runs in order
    OpSpec("CumSum", "window", _infer_running, _domain_running, _running(np.add), combiner="sum"),
    OpSpec("CumProd", "window", _infer_running, _domain_running, _running(np.multiply), combiner="prod"),
)
