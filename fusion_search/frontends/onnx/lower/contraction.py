"""Lowering of matrix products, determinants and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule
from fusion_search.frontends.onnx.lower.formula import Term


def matmul(ctx: Lowering, call: Call) -> list[Item]:
    """A vector operand gets a dimension of 1 that the result loses again."""
    a, b = call.tensor(0), call.tensor(1)
    left, right = ctx.shape(a), ctx.shape(b)
    if not left or not right:
        raise ValueError("operands must have at least one dimension")
    if len(left) == 1:
        a = ctx.view(a, (1, *left))
    if len(right) == 1:
        b = ctx.view(b, (*right, 1))
    out = ctx.op("MatMul", a, b)
    shape = list(ctx.shape(out))
    if len(right) == 1:
        shape.pop()
    if len(left) == 1:
        shape.pop(-1 if len(right) == 1 else -2)
    return [ctx.view(out, shape)]


def gemm(ctx: Lowering, call: Call) -> list[Item]:
    """alpha A B + beta C, with either operand transposed."""
    a, b, c = call.tensor(0), call.tensor(1), call.tensor(2)
    alpha, beta, dtype = call.attrs.get("alpha", 1.0), call.attrs.get("beta", 1.0), ctx.dtype(a)
    if len(ctx.shape(a)) != 2 or len(ctx.shape(b)) != 2:
        raise ValueError(f"operands must be matrices, got {list(ctx.shape(a))} and {list(ctx.shape(b))}")
    if dtype.kind in "iu" and (alpha != int(alpha) or beta != int(beta)):
        raise NotLowered
    if alpha != 1.0 or (c and beta != 0.0):  # something follows the product, so it must not be rounded yet
        a, b, c = ctx.widen(a), ctx.widen(b), ctx.widen(c) if c else c
    if call.attrs.get("transA", 0):
        a = ctx.op("Transpose", a, part="a", perm=(1, 0))
    if call.attrs.get("transB", 0):
        b = ctx.op("Transpose", b, part="b", perm=(1, 0))
    out = ctx.op("MatMul", a, b, part="matmul")
    if alpha != 1.0:
        out = ctx.op("Mul", out, ctx.scalar(alpha, ctx.dtype(out)), part="alpha")
    if c and beta != 0.0:
        if beta != 1.0:
            c = ctx.op("Mul", c, ctx.scalar(beta, ctx.dtype(c)), part="beta")
        shape = ctx.shape(out)
        out = ctx.op("Add", out, c, part="add")
        if ctx.shape(out) != shape:
            raise ValueError(f"C {list(ctx.shape(c))} does not broadcast to {list(shape)}")
    return [ctx.narrow(out, dtype)]


def window_attrs(call: Call, rank: int, kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return strides, dilations and explicit paddings before and after, checked against the number of spatial axes."""
    strides, dilations = (tuple(call.attrs.get(key) or (1,) * rank) for key in ("strides", "dilations"))
    pads = tuple(call.attrs.get("pads") or (0,) * (2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or len(kernel) != rank:
        raise ValueError(f"strides, dilations, pads and kernel must be for {rank} spatial dimensions")
    if min((*strides, *dilations, *kernel), default=1) < 1:
        raise ValueError("strides, dilations and kernel must be at least 1")
    if min(pads, default=0) < 0:
        raise NotLowered
    return strides, dilations, pads[:rank], pads[rank:]


def auto_pads(
    call: Call, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the paddings that ``auto_pad`` stands for; None when they are explicit."""
    mode = call.attrs.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return None
    if mode == "VALID":
        return (0,) * len(sizes), (0,) * len(sizes)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"unknown auto_pad {mode!r}")
    before, after = [], []
    for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (math.ceil(n / s) - 1) * s + d * (k - 1) + 1 - n)
        first = total // 2 if mode == "SAME_UPPER" else total - total // 2
        before.append(first)
        after.append(total - first)
    return tuple(before), tuple(after)


def conv(ctx: Lowering, call: Call) -> list[Item]:
    """x is read as [N, group, C, ...], the weight as [group, M, C, ...]."""
    x, w, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    xs, ws = ctx.shape(x), ctx.shape(w)
    groups, rank = call.attrs.get("group", 1), len(xs) - 2
    if rank < 1 or len(ws) != len(xs):
        raise ValueError(f"input {list(xs)} does not fit weight {list(ws)}")
    if tuple(call.attrs.get("kernel_shape", ws[2:])) != ws[2:]:
        raise ValueError(f"kernel_shape {list(call.attrs['kernel_shape'])} is not that of the weight {list(ws)}")
    if groups < 1 or xs[1] % groups or ws[0] % groups or xs[1] // groups != ws[1]:
        raise ValueError(f"input {list(xs)} does not fit weight {list(ws)} in {groups} groups")
    strides, dilations, before, after = window_attrs(call, rank, ws[2:])
    before, after = auto_pads(call, xs[2:], ws[2:], strides, dilations) or (before, after)
    return [convolve(ctx, x, w, bias, groups, strides, dilations, before, after)]


def convolve(
    ctx: Lowering,
    x: str,
    w: str,
    bias: str,
    groups: int,
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
) -> str:
    xs, ws = ctx.shape(x), ctx.shape(w)
    operands = [ctx.view(x, (xs[0], groups, xs[1] // groups, *xs[2:])), ctx.view(w, (groups, ws[0] // groups, *ws[1:]))]
    if bias:
        operands.append(ctx.view(bias, (groups, ws[0] // groups)))
    attrs: dict[str, Any] = {"strides": tuple(strides), "dilations": tuple(dilations), "before": tuple(before), "after": tuple(after)}
    out = ctx.op("Conv", *operands, **attrs)
    shape = ctx.shape(out)
    return ctx.view(out, (xs[0], ws[0], *shape[3:]))


def conv_transpose(ctx: Lowering, call: Call) -> list[Item]:
    """A convolution over the input with zeros put between its elements, or a pixel shuffle where windows do not overlap."""
    x, w, bias = call.tensor(0), call.tensor(1), call.tensor(2)
    xs, ws = ctx.shape(x), ctx.shape(w)
    groups, rank = call.attrs.get("group", 1), len(xs) - 2
    if rank < 1 or len(ws) != len(xs) or groups < 1 or xs[1] != ws[0] or xs[1] % groups:
        raise ValueError(f"input {list(xs)} does not fit weight {list(ws)} in {groups} groups")
    kernel = ws[2:]
    strides, dilations, before, after = window_attrs(call, rank, kernel)
    extra = tuple(call.attrs.get("output_padding") or (0,) * rank)
    if len(extra) != rank:
        raise ValueError(f"output_padding must be for {rank} spatial dimensions")
    mode, wanted = call.attrs.get("auto_pad", "NOTSET"), call.attrs.get("output_shape")
    full = [s * (n - 1) + e + d * (k - 1) + 1 for s, n, e, d, k in zip(strides, xs[2:], extra, dilations, kernel, strict=True)]
    if wanted or mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = wanted[-rank:] if wanted else [n * s for n, s in zip(xs[2:], strides, strict=True)]
        totals = [max(0, f - n) for f, n in zip(full, sizes, strict=True)]
        first = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
        extra = tuple(e + max(0, n - f) for e, f, n in zip(extra, full, sizes, strict=True))
        before, after = tuple(first), tuple(t - f for t, f in zip(totals, first, strict=True))
    elif mode == "VALID":
        before = after = (0,) * rank
    m = ws[1]
    if tuple(kernel) == strides and not any((*before, *after, *extra)) and all(d == 1 for d in dilations):
        return [_shuffle(ctx, x, w, bias, groups, kernel)]
    # [C, M, ...] becomes [group M, C, ...] with its windows turned around
    split = ctx.view(w, (groups, xs[1] // groups, m, *kernel))
    swapped = ctx.op("Transpose", split, part="swap", perm=(0, 2, 1, *range(3, 3 + rank)))
    sizes = ctx.shape(swapped)
    flipped = ctx.op("Slice", swapped, part="flip", starts=(0, 0, 0, *(k - 1 for k in kernel)), steps=(1, 1, 1, *(-1,) * rank), sizes=sizes)
    w = ctx.view(flipped, (groups * m, xs[1] // groups, *kernel))
    spread = _spread(ctx, x, strides)
    lead = [d * (k - 1) - p for d, k, p in zip(dilations, kernel, before, strict=True)]
    trail = [d * (k - 1) - p + e - (s - 1) for d, k, p, e, s in zip(dilations, kernel, after, extra, strides, strict=True)]
    cut = [(0, 0), *((min(0, b), min(0, a)) for b, a in zip(lead, trail, strict=True))]
    if any(any(pair) for pair in cut):
        spread = ctx.op("Pad", spread, part="cut", before=(0, *(b for b, _ in cut)), after=(0, *(a for _, a in cut)), value=0.0)
    return [convolve(ctx, spread, w, bias, groups, (1,) * rank, dilations, [max(0, b) for b in lead], [max(0, a) for a in trail])]


def _spread(ctx: Lowering, x: str, strides: Sequence[int]) -> str:
    """Put stride - 1 zeros after every element."""
    if all(s == 1 for s in strides):
        return x
    xs = ctx.shape(x)
    apart = ctx.view(x, (*xs[:2], *(n for size in xs[2:] for n in (size, 1))))
    after = (0, 0, *(n for s in strides for n in (0, s - 1)))
    padded = ctx.op("Pad", apart, part="spread", before=(0,) * len(after), after=after, value=0.0)
    return ctx.view(padded, (*xs[:2], *(n * s for n, s in zip(xs[2:], strides, strict=True))))


def _shuffle(ctx: Lowering, x: str, w: str, bias: str, groups: int, kernel: Sequence[int]) -> str:
    """Every element becomes a window of its own: a convolution of 1 by 1 and a transposition."""
    xs, m, rank, window = ctx.shape(x), ctx.shape(w)[1], len(kernel), math.prod(kernel)
    c = xs[1] // groups
    split = ctx.view(w, (groups, c, m * window))
    mixed = ctx.view(ctx.op("Transpose", split, part="swap", perm=(0, 2, 1)), (groups * m * window, c, *(1,) * rank))
    if bias:
        spread = ctx.op("Expand", ctx.view(bias, (groups * m, 1)), part="bias", shape=(groups * m, window))
        bias = ctx.view(spread, (groups * m * window,))
    ones, zeros = (1,) * rank, (0,) * rank
    out = convolve(ctx, x, mixed, bias, groups, ones, ones, zeros, zeros)
    apart = ctx.view(out, (xs[0], groups * m, *kernel, *xs[2:]))
    perm = (0, 1, *(d for k in range(rank) for d in (2 + rank + k, 2 + k)))
    joined = ctx.op("Transpose", apart, part="shuffle", perm=perm)
    return ctx.view(joined, (xs[0], groups * m, *(n * k for n, k in zip(xs[2:], kernel, strict=True))))


#: The largest matrices whose determinant is written out; larger ones take an elimination with a choice of pivots.
_WRITTEN_OUT = 4


def det(ctx: Lowering, call: Call) -> list[Item]:
    """The determinant of small matrices, expanded along the first row."""
    x = call.tensor(0)
    dtype, shape = ctx.dtype(x), ctx.shape(x)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"the operand must be square matrices, got {list(shape)}")
    if not ctx.is_float(x) or not 1 <= shape[-1] <= _WRITTEN_OUT:
        raise NotLowered
    x = ctx.widen(x)
    lead, n = shape[:-2], shape[-1]

    def element(i: int, j: int) -> Term:
        starts = (*(0,) * len(lead), i, j)
        return Term(ctx, ctx.view(ctx.op("Slice", x, part="element", starts=starts, steps=(1,) * len(shape), sizes=(*lead, 1, 1)), lead))

    minors: dict[tuple[int, ...], Term] = {(j,): element(n - 1, j) for j in range(n)}
    for row in reversed(range(n - 1)):  # minors of the last rows, by their columns
        found: dict[tuple[int, ...], Term] = {}
        for columns in combinations(range(n), n - row):
            total = element(row, columns[0]) * minors[columns[1:]]
            for k in range(1, len(columns)):
                term = element(row, columns[k]) * minors[(*columns[:k], *columns[k + 1 :])]
                total = total - term if k % 2 else total + term
            found[columns] = total
        minors = found
    return [ctx.narrow(minors[tuple(range(n))].name, dtype)]


RULES: dict[str, Rule] = {"MatMul": matmul, "Gemm": gemm, "Conv": conv, "ConvTranspose": conv_transpose, "Det": det}
