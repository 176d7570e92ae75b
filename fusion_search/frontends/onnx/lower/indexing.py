"""Lowering of reads by index, and of operators whose result is known from shapes alone."""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.formula import Term
from fusion_search.frontends.onnx.lower.layout import broadcast, cut
from fusion_search.frontends.onnx.tensors import CORE_DTYPES, sparse_array, tensor_array
from fusion_search.ir.spec import Array

_LARGEST = 2**31


def constant(ctx: Lowering, call: Call) -> list[Item]:
    """A value that the node itself carries."""
    attrs = call.attrs
    if "value" in attrs:
        array = tensor_array(attrs["value"], f"node {call.node.name!r} (Constant)")
    elif "sparse_value" in attrs:
        array = sparse_array(attrs["sparse_value"], f"node {call.node.name!r} (Constant)")
    elif "value_float" in attrs or "value_floats" in attrs:
        array = np.asarray(attrs.get("value_float", attrs.get("value_floats")), np.float32)
    elif "value_int" in attrs or "value_ints" in attrs:
        array = np.asarray(attrs.get("value_int", attrs.get("value_ints")), np.int64)
    elif "value_string" in attrs or "value_strings" in attrs:
        array = np.asarray(attrs.get("value_string", attrs.get("value_strings")), object)
    else:
        raise ValueError("has no value")
    return [ctx.constant(array)]


def constant_of_shape(ctx: Lowering, call: Call) -> list[Item]:
    """One number everywhere; large ones are an expansion of a scalar."""
    shape = ctx.ints(call.tensor(0))
    fill = numpy_helper.to_array(call.attrs["value"]).reshape(-1) if "value" in call.attrs else np.zeros(1, np.float32)
    if fill.size != 1 or fill.dtype not in CORE_DTYPES:
        raise NotLowered
    if any(n < 0 for n in shape):
        raise ValueError(f"shape {list(shape)} has a negative extent")
    count = math.prod(shape)
    if count > _LARGEST:
        raise ValueError(f"a result of {list(shape)} has {count} elements, the limit is 2**31")
    # the weights of small example networks come this way, so the limit of constant folding does not hold here
    if count * fill.itemsize <= 2**30:
        return [ctx.constant(np.full(shape, fill[0], fill.dtype))]
    return [broadcast(ctx, ctx.constant(fill.reshape(())), shape)]


def shape(ctx: Lowering, call: Call) -> list[Item]:
    """Extents are known at load."""
    extents = np.asarray(ctx.shape(call.tensor(0)), np.int64)
    start, end = call.attrs.get("start", 0), call.attrs.get("end", len(extents))
    return [ctx.constant(extents[start:end])]


def size(ctx: Lowering, call: Call) -> list[Item]:
    """The number of elements."""
    return [ctx.constant(np.asarray(math.prod(ctx.shape(call.tensor(0))), np.int64))]


def range_(ctx: Lowering, call: Call) -> list[Item]:
    """Numbers in equal steps, when the bounds are known."""
    start, limit, delta = (ctx.known(call.tensor(k)).reshape(-1)[0] for k in range(3))
    if delta == 0:
        raise ValueError("the step must not be 0")
    span = (int(limit) - int(start)) / int(delta) if start.dtype.kind in "iu" else (float(limit) - float(start)) / float(delta)
    if not math.isfinite(span) or span > _LARGEST:
        raise ValueError(f"a result of {span:.6g} elements: the limit is 2**31")
    steps = np.arange(max(0, math.ceil(span)), dtype=start.dtype if start.dtype.kind in "iu" else np.float64)
    return [ctx.constant((start + steps * delta).astype(start.dtype))]


def gather(ctx: Lowering, call: Call) -> list[Item]:
    """Indices that are known and evenly spaced are a slice; the others are read as the kernel runs."""
    x, index = call.tensor(0), call.tensor(1)
    extents = ctx.shape(x)
    axis = axis_of(call.attrs.get("axis", 0), len(extents))
    known, extent = ctx.const(index), extents[axis]
    if known is not None:
        check_index(known, extent)
        flat = np.where(known < 0, known + extent, known).reshape(-1)
        step = int(flat[1] - flat[0]) if flat.size > 1 else 1
        if flat.size and known.ndim <= 1 and step and bool((np.diff(flat) == step).all()):
            part = cut(ctx, x, axis, int(flat[0]), flat.size, step)
            return [part if known.ndim else ctx.view(part, extents[:axis] + extents[axis + 1 :])]
        if known.size != flat.size or bool((known < 0).any()):
            index = ctx.constant(flat.reshape(known.shape).astype(known.dtype))
    return [ctx.op("Gather", x, index, axis=axis)]


def check_index(index: Array, extent: int) -> None:
    """Refuse known indices outside a dimension."""
    if index.size and not -extent <= int(index.min()) <= int(index.max()) < extent:
        raise ValueError(f"index {int(index.min())} to {int(index.max())} is outside of {extent} elements")


def gather_elements(ctx: Lowering, call: Call) -> list[Item]:
    """One index for each element."""
    x, index = call.tensor(0), call.tensor(1)
    axis = axis_of(call.attrs.get("axis", 0), len(ctx.shape(x)))
    if len(ctx.shape(index)) != len(ctx.shape(x)):
        raise ValueError(f"indices {list(ctx.shape(index))} must have as many dimensions as data {list(ctx.shape(x))}")
    known = ctx.const(index)
    if known is not None:
        check_index(known, ctx.shape(x)[axis])
    return [ctx.op("GatherElements", x, index, axis=axis)]


def gather_nd(ctx: Lowering, call: Call) -> list[Item]:
    """Whole coordinates as indices."""
    x, index = call.tensor(0), call.tensor(1)
    lead = call.attrs.get("batch_dims", 0)
    if lead:  # the batch's own places become the first coordinates
        shape = ctx.shape(index)
        if not 0 < lead < min(len(shape), len(ctx.shape(x))) or shape[:lead] != ctx.shape(x)[:lead]:
            raise ValueError(f"batch_dims {lead} does not fit data {list(ctx.shape(x))} and indices {list(shape)}")
        grid = np.stack(np.meshgrid(*(np.arange(n) for n in shape[:lead]), indexing="ij"), -1).astype(ctx.dtype(index))
        grid = np.broadcast_to(grid.reshape((*shape[:lead], *(1,) * (len(shape) - 1 - lead), lead)), (*shape[:-1], lead))
        index = ctx.op("Concat", ctx.constant(np.ascontiguousarray(grid)), index, part="coordinates", axis=len(shape) - 1)
    if not ctx.shape(index) or ctx.shape(index)[-1] > len(ctx.shape(x)):
        raise ValueError(f"indices {list(ctx.shape(index))} do not fit data {list(ctx.shape(x))}")
    known = ctx.const(index)
    if known is not None:
        for d in range(known.shape[-1]):
            check_index(known[..., d], ctx.shape(x)[d])
    return [ctx.op("GatherND", x, index)]


def reverse_sequence(ctx: Lowering, call: Call) -> list[Item]:
    """The first elements of each sequence of a batch the other way round, as many as its length says."""
    x, lengths = call.tensor(0), call.tensor(1)
    extents = ctx.shape(x)
    time, batch = axis_of(call.attrs.get("time_axis", 0), len(extents)), axis_of(call.attrs.get("batch_axis", 1), len(extents))
    if time == batch or ctx.shape(lengths) != (extents[batch],):
        raise ValueError(f"lengths {list(ctx.shape(lengths))} do not fit axis {batch} of {list(extents)}")
    rows = (extents[batch], extents[time])
    order = (batch, time, *(d for d in range(len(extents)) if d not in (batch, time)))
    turned = ctx.op("Transpose", x, part="lead", perm=order) if order != tuple(range(len(extents))) else x
    shape = ctx.shape(turned)
    at = Term(ctx, ctx.constant(np.arange(rows[1], dtype=np.int64)))
    length = Term(ctx, lengths).cast(np.int64).view(rows[0], 1)
    place = (at < length).where(length - 1 - at, at) + at.array(np.arange(rows[0])[:, None] * rows[1])
    flat = ctx.view(turned, (math.prod(rows), *shape[2:]))
    read = ctx.view(ctx.op("Gather", flat, place.view(math.prod(rows)).name, part="gather", axis=0), shape)
    back = tuple(int(d) for d in np.argsort(order))
    return [ctx.op("Transpose", read, part="back", perm=back) if order != tuple(range(len(extents))) else read]


def compress(ctx: Lowering, call: Call) -> list[Item]:
    """The places where a known condition holds."""
    x, condition = call.tensor(0), ctx.known(call.tensor(1)).reshape(-1)
    extents, axis = ctx.shape(x), 0
    if "axis" in call.attrs:
        axis = axis_of(call.attrs["axis"], len(extents))
    else:
        x = ctx.view(x, (math.prod(extents),))
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= ctx.shape(x)[axis]:
        raise ValueError(f"a condition of {condition.size} elements is longer than axis {axis} of {list(extents)}")
    return [ctx.op("Gather", x, ctx.constant(places.astype(np.int64)), axis=axis)]


def array_feature_extractor(ctx: Lowering, call: Call) -> list[Item]:
    """Chosen columns; a vector becomes one row."""
    x, index = call.tensor(0), call.tensor(1)
    extents = ctx.shape(x)
    if not extents:
        raise ValueError("the operand must have at least one dimension")
    x = x if len(extents) > 1 else ctx.view(x, (1, *extents))
    count = math.prod(ctx.shape(index))
    return [ctx.op("Gather", x, ctx.view(index, (count,)), axis=len(ctx.shape(x)) - 1)]


def trilu(ctx: Lowering, call: Call) -> list[Item]:
    """Zero above or below a diagonal: a choice by a known mask."""
    x = call.tensor(0)
    extents = ctx.shape(x)
    if len(extents) < 2:
        raise ValueError("the operand must be a matrix or a stack of them")
    k = int(ctx.known(call.tensor(1)).reshape(-1)[0]) if call.tensor(1) else 0
    # columns minus rows, not np.tri: k may be any 64-bit integer
    distance = np.arange(extents[-1])[None, :] - np.arange(extents[-2])[:, None]
    mask = distance >= k if call.attrs.get("upper", 1) else distance <= k
    return [ctx.op("Where", ctx.constant(mask), x, ctx.scalar(0, ctx.dtype(x)))]


def one_hot(ctx: Lowering, call: Call) -> list[Item]:
    """Comparison of the indices with 0 .. depth - 1, then a choice."""
    index, depth, values = call.tensor(0), int(ctx.known(call.tensor(1)).reshape(-1)[0]), call.tensor(2)
    if ctx.is_float(index):  # places that happen to be stored as floats
        index = ctx.cast(index, np.dtype(np.int64), part="places")
    extents, dtype = ctx.shape(index), ctx.dtype(index)
    axis = axis_of(call.attrs.get("axis", -1), len(extents) + 1)
    if dtype.kind not in "iu" or depth < 1 or depth > _LARGEST:
        raise NotLowered
    spread = ctx.view(index, (*extents[:axis], 1, *extents[axis:]))
    below = ctx.op(
        "Where", ctx.op("Less", spread, ctx.scalar(0, dtype), part="less"), ctx.scalar(depth, dtype), ctx.scalar(0, dtype), part="wrap"
    )
    places = ctx.constant(np.arange(depth).astype(dtype).reshape((depth, *(1,) * (len(extents) - axis))))
    hit = ctx.op("Equal", ctx.op("Add", spread, below, part="add"), places, part="equal")
    off, on = (ctx.view(cut(ctx, values, 0, k, 1, part=f"value{k}"), ()) for k in range(2))
    return [ctx.op("Where", hit, on, off, part="where")]


RULES: dict[str, Rule] = {
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Shape": shape,
    "Size": size,
    "Range": range_,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "ReverseSequence": reverse_sequence,
    "Compress": compress,
    "ai.onnx.ml.ArrayFeatureExtractor": array_feature_extractor,
    "Trilu": trilu,
    "OneHot": one_hot,
}
