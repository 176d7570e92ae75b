"""Lowering of Einsum: each operand reduced and permuted, pairs joined by matrix products, one permutation at the end."""

from __future__ import annotations

import math
import re

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule

_TERM = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


class _Term:
    """A value and the letters of its dimensions."""

    def __init__(self, name: str, letters: str) -> None:
        self.name, self.letters = name, letters


def _parse(ctx: Lowering, call: Call) -> tuple[list[_Term], str]:
    """Split the equation; what an ellipsis stands for gets letters of its own."""
    equation = call.attrs["equation"].replace(" ", "")
    if not _EQUATION.fullmatch(equation):
        raise ValueError(f"malformed equation {equation!r}")
    left, arrow, right = equation.partition("->")
    sides = left.split(",")
    names = call.tensors
    if len(sides) != len(names):
        raise ValueError(f"equation {equation!r} is for {len(sides)} operands, there are {len(names)}")
    longest = max((len(ctx.shape(n)) - len(s.replace("...", "")) for n, s in zip(names, sides, strict=True) if "..." in s), default=0)
    dots = "".join(chr(0x3B1 + k) for k in range(longest))
    terms = []
    for name, side in zip(names, sides, strict=True):
        if "..." in side:
            count = len(ctx.shape(name)) - len(side.replace("...", ""))
            side = side.replace("...", dots[len(dots) - count :])
        if len(side) != len(ctx.shape(name)):
            raise ValueError(f"equation {equation!r} does not fit an operand of {len(ctx.shape(name))} dimensions")
        terms.append(_diagonal(ctx, _Term(name, side)))
    every = "".join(t.letters for t in terms)
    if arrow:
        result = right.replace("...", dots)
    else:
        result = dots + "".join(sorted(c for c in set(every) if c not in dots and every.count(c) == 1))
    if len(set(result)) != len(result) or any(c not in every for c in result):
        raise ValueError(f"equation {equation!r} asks for a dimension that no operand has, or for one twice")
    return terms, result


def einsum(ctx: Lowering, call: Call) -> list[Item]:
    """Products of two operands at a time, from the left."""
    terms, result = _parse(ctx, call)
    dtype = ctx.dtype(terms[0].name)
    extents = [(c, n) for t in terms for c, n in zip(t.letters, ctx.shape(t.name), strict=True)]
    nothing = {c for c, n in extents if n == 0}
    if dtype.kind == "b" or not nothing <= set(result) or any(n for c, n in extents if c in nothing):
        raise NotLowered
    sizes: dict[str, int] = {}
    for t in terms:
        for c, n in zip(t.letters, ctx.shape(t.name), strict=True):
            if sizes.setdefault(c, n) not in (n, 1) and n != 1:
                raise ValueError(f"dimension {c!r} has the extents {sizes[c]} and {n}")
            sizes[c] = max(sizes[c], n)
    terms = [_Term(ctx.widen(t.name), t.letters) for t in terms]
    total = terms.pop(0)
    for k, other in enumerate(terms):
        later = set(result).union(*(t.letters for t in terms[k + 1 :]))
        left = _summed(ctx, total, set(other.letters) | later, f"sum{k}_left")
        total = _pair(ctx, left, _summed(ctx, other, set(total.letters) | later, f"sum{k}_right"), later)
    total = _summed(ctx, total, set(result), "sum")
    return [ctx.narrow(_permuted(ctx, total, result, "order"), dtype)]


def _diagonal(ctx: Lowering, t: _Term) -> _Term:
    """Of dimensions that share a letter, keep the elements at equal places: every n + 1st of the two merged into one."""
    while len(set(t.letters)) != len(t.letters):
        c = next(c for c in t.letters if t.letters.count(c) > 1)
        first, second = t.letters.index(c), t.letters.index(c, t.letters.index(c) + 1)
        shape, rank = ctx.shape(t.name), len(t.letters)
        if shape[first] != shape[second] or not shape[first]:
            raise NotLowered
        order = [d for d in range(rank) if d not in (first, second)] + [first, second]
        name = t.name if order == list(range(rank)) else ctx.op("Transpose", t.name, part="together", perm=tuple(order))
        n, rest = shape[first], [shape[d] for d in order[:-2]]
        flat = ctx.view(name, (*rest, n * n))
        steps, sizes = (*(1,) * len(rest), n + 1 if n > 1 else 1), (*rest, n)
        name = ctx.op("Slice", flat, part="diagonal", starts=(0,) * (len(rest) + 1), steps=steps, sizes=sizes)
        t = _Term(name, "".join(t.letters[d] for d in order[:-1]))
    return t


def _summed(ctx: Lowering, t: _Term, kept: set[str], part: str) -> _Term:
    """Sum over letters that nothing else needs."""
    axes = tuple(d for d, c in enumerate(t.letters) if c not in kept)
    if not axes:
        return t
    reduced = ctx.op("ReduceSum", t.name, part=part, axes=axes)
    letters = "".join(c for c in t.letters if c in kept)
    return _Term(ctx.view(reduced, [n for d, n in enumerate(ctx.shape(t.name)) if d not in axes]), letters)


def _permuted(ctx: Lowering, t: _Term, letters: str, part: str) -> str:
    perm = tuple(t.letters.index(c) for c in letters)
    return t.name if perm == tuple(range(len(perm))) else ctx.op("Transpose", t.name, part=part, perm=perm)


def _pair(ctx: Lowering, a: _Term, b: _Term, later: set[str]) -> _Term:
    """Join two terms: letters of both that are needed no more are summed over by a matrix product."""
    sizes_a, sizes_b = (dict(zip(t.letters, ctx.shape(t.name), strict=True)) for t in (a, b))
    depth = "".join(c for c in a.letters if c in b.letters and c not in later)
    batch = "".join(c for c in a.letters if c in b.letters and c in later)
    rows = "".join(c for c in a.letters if c not in b.letters)
    columns = "".join(c for c in b.letters if c not in a.letters)
    if any(sizes_a[c] != sizes_b[c] for c in depth):
        raise NotLowered
    left, right = _permuted(ctx, a, batch + rows + depth, "left"), _permuted(ctx, b, batch + depth + columns, "right")

    def product(letters: str, sizes: dict[str, int]) -> int:
        return math.prod(sizes[c] for c in letters)

    k = product(depth, sizes_a)
    left = ctx.view(left, (*(sizes_a[c] for c in batch), product(rows, sizes_a), k))
    right = ctx.view(right, (*(sizes_b[c] for c in batch), k, product(columns, sizes_b)))
    if depth:
        out = ctx.op("MatMul", left, right, part="matmul")
    else:
        out = ctx.op("Mul", left, right, part="mul")
    lead = ctx.shape(out)[: len(batch)]
    shape = (*lead, *(sizes_a[c] for c in rows), *(sizes_b[c] for c in columns))
    return _Term(ctx.view(out, shape), batch + rows + columns)


RULES: dict[str, Rule] = {"Einsum": einsum}
