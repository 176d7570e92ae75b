"""Lowering of sequences whose length is known: they are lists of values, and no operator handles them."""

from __future__ import annotations

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axis_of
from fusion_search.frontends.onnx.lower.layout import cut, split_sizes


def _sequence(call: Call) -> tuple[str, ...]:
    item = call.inputs[0]
    if isinstance(item, str):
        raise NotLowered
    return item


def _place(ctx: Lowering, call: Call, k: int, count: int, *, end: bool = False) -> int:
    name = call.tensor(k)
    if not name:
        return count if end else count - 1
    place = int(ctx.known(name).reshape(-1)[0])
    if not -count <= place < count + int(end):
        raise ValueError(f"position {place} is outside of a sequence of {count}")
    return place + count if place < 0 else place


def split_to_sequence(ctx: Lowering, call: Call) -> list[Item]:
    """Parts of one axis as a sequence."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    axis, keep = axis_of(call.attrs.get("axis", 0), len(shape)), True
    if not call.tensor(1):
        sizes, keep = [1] * shape[axis], bool(call.attrs.get("keepdims", 1))
    else:
        given = ctx.known(call.tensor(1))
        if given.ndim == 0:
            each = int(given)
            if each < 1:
                raise ValueError(f"parts of {each} elements")
            sizes = split_sizes(ctx, shape[axis], None, -(-shape[axis] // each)) if shape[axis] % each == 0 else []
            sizes = sizes or [min(each, shape[axis] - k) for k in range(0, shape[axis], each)]
        else:
            sizes = split_sizes(ctx, shape[axis], ctx.ints(call.tensor(1)), len(given))
    starts = np.cumsum([0, *sizes]).tolist()
    parts = [cut(ctx, x, axis, starts[k], n, part=f"part{k}") for k, n in enumerate(sizes)]
    if not keep:
        parts = [ctx.view(part, shape[:axis] + shape[axis + 1 :]) for part in parts]
    return [tuple(parts)]


def sequence_at(ctx: Lowering, call: Call) -> list[Item]:
    """One element."""
    items = _sequence(call)
    return [items[_place(ctx, call, 1, len(items))]]


def sequence_construct(ctx: Lowering, call: Call) -> list[Item]:
    """A sequence of the operands."""
    return [tuple(call.tensors)]


def sequence_insert(ctx: Lowering, call: Call) -> list[Item]:
    """One element more."""
    items = _sequence(call)
    at = _place(ctx, call, 2, len(items), end=True)
    return [(*items[:at], call.tensor(1), *items[at:])]


def sequence_erase(ctx: Lowering, call: Call) -> list[Item]:
    """One element less."""
    items = _sequence(call)
    at = _place(ctx, call, 1, len(items))
    return [(*items[:at], *items[at + 1 :])]


def sequence_length(ctx: Lowering, call: Call) -> list[Item]:
    """The number of elements."""
    return [ctx.constant(np.asarray(len(_sequence(call)), np.int64))]


def concat_from_sequence(ctx: Lowering, call: Call) -> list[Item]:
    """All elements joined, along an axis that is there or a new one."""
    items = _sequence(call)
    if not items:
        raise ValueError("the sequence is empty")
    new = bool(call.attrs.get("new_axis", 0))
    shape = ctx.shape(items[0])
    axis = axis_of(call.attrs["axis"], len(shape) + int(new))
    if new:
        items = tuple(ctx.view(name, (*ctx.shape(name)[:axis], 1, *ctx.shape(name)[axis:])) for name in items)
    return [ctx.op("Concat", *items, axis=axis) if len(items) > 1 else items[0]]


RULES: dict[str, Rule] = {
    "SplitToSequence": split_to_sequence,
    "SequenceAt": sequence_at,
    "SequenceConstruct": sequence_construct,
    "SequenceInsert": sequence_insert,
    "SequenceErase": sequence_erase,
    "SequenceLength": sequence_length,
    "ConcatFromSequence": concat_from_sequence,
}
