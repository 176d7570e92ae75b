"""Lowering of operators that move elements: views where memory order stays, layout operators where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule, axes_of, axis_of


def reshape(ctx: Lowering, call: Call) -> list[Item]:
    """0 keeps an extent (unless allowzero), -1 takes what is left."""
    x = call.tensor(0)
    shape, given = ctx.shape(x), list(ctx.ints(call.tensor(1)))
    wanted = list(given)
    size = math.prod(shape)
    if not call.attrs.get("allowzero", 0):
        for d, n in enumerate(wanted):
            if n == 0:
                if d >= len(shape):
                    raise ValueError(f"cannot view {list(shape)} as {given}: there is no dimension {d} to keep")
                wanted[d] = shape[d]
    if wanted.count(-1) > 1 or any(n < -1 for n in wanted):
        raise ValueError(f"cannot view {list(shape)} as {given}: at most one -1")
    if -1 in wanted:
        rest = math.prod(n for n in wanted if n != -1)
        if rest == 0 and size:
            raise ValueError(f"cannot view {list(shape)} as {given}")
        wanted[wanted.index(-1)] = size // rest if rest else 0
    if math.prod(wanted) != size:
        raise ValueError(f"cannot view {list(shape)} as {given}: {size} elements do not fit")
    return [ctx.view(x, wanted)]


def flatten(ctx: Lowering, call: Call) -> list[Item]:
    """Two dimensions: what is before the axis, and the rest."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    axis = axis_of(call.attrs.get("axis", 1), len(shape), end=True)
    return [ctx.view(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))]


def _axes(ctx: Lowering, call: Call) -> tuple[int, ...] | None:
    if call.opset >= 13:
        return ctx.ints(call.tensor(1)) if call.tensor(1) else None
    return tuple(call.attrs["axes"]) if "axes" in call.attrs else None


def squeeze(ctx: Lowering, call: Call) -> list[Item]:
    """Drop dimensions of extent 1."""
    x = call.tensor(0)
    shape, axes = ctx.shape(x), _axes(ctx, call)
    drop = axes_of(axes, len(shape)) if axes is not None else tuple(d for d, n in enumerate(shape) if n == 1)
    if any(shape[d] != 1 for d in drop):
        raise ValueError(f"cannot drop dimensions {list(drop)} of {list(shape)}: their extents are not 1")
    return [ctx.view(x, [n for d, n in enumerate(shape) if d not in drop])]


def unsqueeze(ctx: Lowering, call: Call) -> list[Item]:
    """Add dimensions of extent 1."""
    x = call.tensor(0)
    shape, axes = list(ctx.shape(x)), _axes(ctx, call) or ()
    for axis in axes_of(axes, len(shape) + len(axes)):
        shape.insert(axis, 1)
    return [ctx.view(x, shape)]


def transpose(ctx: Lowering, call: Call) -> list[Item]:
    """Permute dimensions."""
    x = call.tensor(0)
    perm = tuple(call.attrs.get("perm", range(len(ctx.shape(x)))[::-1]))
    return [ctx.op("Transpose", x, perm=perm) if perm != tuple(range(len(ctx.shape(x)))) else x]


def cut(ctx: Lowering, x: str, axis: int, start: int, size: int, step: int = 1, part: str = "") -> str:
    """Return a part of one axis; the value itself when it is all of it."""
    shape = ctx.shape(x)
    if (start, size, step) == (0, shape[axis], 1):
        return x
    starts, steps = ([v if d == axis else other for d in range(len(shape))] for v, other in ((start, 0), (step, 1)))
    sizes = tuple(size if d == axis else n for d, n in enumerate(shape))
    return ctx.op("Slice", x, part=part, starts=tuple(starts), steps=tuple(steps), sizes=sizes)


def slice_(ctx: Lowering, call: Call) -> list[Item]:
    """Bounds are clamped as the standard says; steps may be negative."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    if call.opset < 10:
        starts, ends = tuple(call.attrs["starts"]), tuple(call.attrs["ends"])
        axes, steps = tuple(call.attrs.get("axes", range(len(starts)))), (1,) * len(starts)
    else:
        starts, ends = ctx.ints(call.tensor(1)), ctx.ints(call.tensor(2))
        axes = ctx.ints(call.tensor(3)) if call.tensor(3) else tuple(range(len(starts)))
        steps = ctx.ints(call.tensor(4)) if call.tensor(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError("starts, ends, axes and steps must have as many elements each")
    first, stride, sizes = [0] * len(shape), [1] * len(shape), list(shape)
    axes_of(axes, len(shape))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = axis_of(axis, len(shape))
        if step == 0:
            raise ValueError("a step must not be 0")
        # an end of -2**63 or so means all the way down, which Python's own rules give for None
        span = range(*slice(start, end, step).indices(shape[d]))
        first[d], stride[d], sizes[d] = (span.start if len(span) else 0), step, len(span)
        if len(span) <= 1:
            stride[d] = 1
    if not ctx.symbolic and tuple(sizes) == shape and not any(first) and all(s == 1 for s in stride):
        return [x]
    return [ctx.op("Slice", x, starts=tuple(first), steps=tuple(stride), sizes=tuple(sizes))]


def split_sizes(ctx: Lowering, total: int, sizes: Sequence[int] | None, count: int) -> list[int]:
    """Return the extents of the parts: given ones, or equal ones of which the last may be smaller."""
    if sizes is not None:
        if sum(sizes) != total or min(sizes, default=0) < 0:
            raise ValueError(f"parts of {list(sizes)} do not add up to {total}")
        return list(sizes)
    each = -(-total // count)
    return [min(each, max(0, total - k * each)) for k in range(count)]


def split(ctx: Lowering, call: Call) -> list[Item]:
    """Parts of one axis."""
    x = call.tensor(0)
    axis = axis_of(call.attrs.get("axis", 0), len(ctx.shape(x)))
    given: tuple[int, ...] | None
    if call.opset >= 13:
        given = ctx.ints(call.tensor(1)) if call.tensor(1) else None
    else:
        given = tuple(call.attrs["split"]) if "split" in call.attrs else None
    sizes = split_sizes(ctx, ctx.shape(x)[axis], given, call.attrs.get("num_outputs", len(call.wanted)))
    if len(sizes) < len(call.wanted):
        raise ValueError(f"{len(sizes)} parts for {len(call.wanted)} outputs")
    starts = np.cumsum([0, *sizes]).tolist()
    return [cut(ctx, x, axis, starts[k], sizes[k], part=f"part{k}") if wanted else "" for k, wanted in enumerate(call.wanted)]


def concat(ctx: Lowering, call: Call) -> list[Item]:
    """Join along one axis."""
    names = call.tensors
    axis = axis_of(call.attrs["axis"], len(ctx.shape(names[0])))
    return [ctx.op("Concat", *names, axis=axis) if len(names) > 1 else names[0]]


def pad(ctx: Lowering, call: Call) -> list[Item]:
    """Constant padding; the other modes read existing elements again, by a gather with known indices."""
    x = call.tensor(0)
    shape = ctx.shape(x)
    rank, mode = len(shape), call.attrs.get("mode", "constant")
    fill: float = 0
    if call.opset < 11:
        amounts, fill, axes = tuple(call.attrs["pads"]), call.attrs.get("value", 0.0), tuple(range(rank))
    else:
        amounts = ctx.ints(call.tensor(1))
        if call.tensor(2):
            fill = ctx.known(call.tensor(2)).reshape(-1)[0].item()
        axes = tuple(axis_of(a, rank) for a in ctx.ints(call.tensor(3))) if call.tensor(3) else tuple(range(rank))
    if len(amounts) != 2 * len(axes):
        raise ValueError(f"{len(amounts)} amounts for {len(axes)} axes: there must be two for each")
    before, after = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        before[axis], after[axis] = amounts[k], amounts[k + len(axes)]
    if not any(before) and not any(after):
        return [x]
    if any(n + b + a < 0 for n, b, a in zip(shape, before, after, strict=True)):
        raise ValueError(f"cannot cut {before} and {after} off {list(shape)}")
    if mode == "constant":
        return [ctx.op("Pad", x, before=tuple(before), after=tuple(after), value=fill)]
    if mode not in ("edge", "reflect", "wrap"):
        raise ValueError(f"unknown mode {mode!r}")
    for axis, (n, b, a) in enumerate(zip(shape, before, after, strict=True)):
        if not b and not a:
            continue
        if n == 0:
            raise ValueError(f"cannot pad an empty dimension by mode {mode!r}")
        places = np.arange(max(0, -b), n - max(0, -a))
        if mode == "reflect" and max(b, a) >= len(places):
            raise NotLowered
        places = np.pad(places, (max(0, b), max(0, a)), mode=mode)
        x = ctx.op("Gather", x, ctx.constant(places.astype(np.int64)), part=f"axis{axis}", axis=axis)
    return [x]


def expand(ctx: Lowering, call: Call) -> list[Item]:
    """Broadcast to a shape, both ways."""
    x = call.tensor(0)
    wanted = ctx.ints(call.tensor(1))
    if any(n < 0 for n in wanted):
        raise ValueError(f"cannot expand to {list(wanted)}: extents must not be negative")
    try:
        shape = tuple(int(n) for n in np.broadcast_shapes(ctx.shape(x), wanted))
    except ValueError:
        raise ValueError(f"cannot expand {list(ctx.shape(x))} to {list(wanted)}") from None
    return [broadcast(ctx, x, shape)]


def broadcast(ctx: Lowering, x: str, shape: tuple[int, ...], part: str = "") -> str:
    """Expand a value, or give the value itself when it has that shape whatever the dimensions."""
    count = math.prod(shape)
    if count > 2**31:
        raise ValueError(f"a result of {list(shape)} has {count} elements, the limit is 2**31")
    return x if ctx.shape(x) == shape and not ctx.symbolic else ctx.op("Expand", x, part=part, shape=shape)


def tile(ctx: Lowering, call: Call) -> list[Item]:
    """Repetition: a new dimension before each that is repeated, expanded and merged into it."""
    x = call.tensor(0)
    shape, repeats = ctx.shape(x), ctx.ints(call.tensor(1))
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        raise ValueError(f"repeats {list(repeats)} do not fit {list(shape)}")
    if all(r == 1 for r in repeats) and not ctx.symbolic:
        return [x]
    narrow = [n for size, r in zip(shape, repeats, strict=True) for n in ((1, size) if r != 1 else (size,))]
    wide = [n for size, r in zip(shape, repeats, strict=True) for n in ((r, size) if r != 1 else (size,))]
    out = broadcast(ctx, ctx.view(x, narrow), tuple(wide))
    return [ctx.view(out, [n * r for n, r in zip(shape, repeats, strict=True)])]


def depth_to_space(ctx: Lowering, call: Call) -> list[Item]:
    """Move channels into blocks of pixels, or back."""
    x, block = call.tensor(0), call.attrs["blocksize"]
    shape = ctx.shape(x)
    if len(shape) != 4 or block < 1:
        raise ValueError(f"blocksize {block} does not fit {list(shape)}")
    n, c, h, w = shape
    if call.op == "SpaceToDepth":
        if h % block or w % block:
            raise ValueError(f"blocksize {block} does not divide {list(shape)}")
        apart = ctx.view(x, (n, c, h // block, block, w // block, block))
        perm = (0, 3, 5, 1, 2, 4) if call.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
        return [ctx.view(ctx.op("Transpose", apart, perm=perm), (n, c * block * block, h // block, w // block))]
    if c % (block * block):
        raise ValueError(f"blocksize {block} does not divide the channels of {list(shape)}")
    deep = c // (block * block)
    if call.attrs.get("mode", "DCR") == "DCR":
        apart, perm = ctx.view(x, (n, block, block, deep, h, w)), (0, 3, 4, 1, 5, 2)
    else:
        apart, perm = ctx.view(x, (n, deep, block, block, h, w)), (0, 1, 4, 2, 5, 3)
    return [ctx.view(ctx.op("Transpose", apart, perm=perm), (n, deep, h * block, w * block))]


RULES: dict[str, Rule] = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Slice": slice_,
    "Split": split,
    "Concat": concat,
    "Pad": pad,
    "Expand": expand,
    "Tile": tile,
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), depth_to_space),
}
