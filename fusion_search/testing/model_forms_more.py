"""More forms for random ONNX models: resizing, norms, indices; and what is exact: integers, bits, quantised numbers, positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fusion_search.testing.model_drawing import Draw, Form

Shape = tuple[int, ...]


def _norm(d: Draw, x: str, shape: Shape) -> tuple[str, Shape] | None:
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    op = d.one(["LpNormalization", "LRN", "MeanVarianceNormalization", "GlobalMaxPool", "GlobalLpPool", "LpPool"])
    if op == "LpNormalization":
        return d.node(op, x, axis=d.number(0, len(shape) - 1), p=d.number(1, 2)), shape
    if op == "LRN":
        return d.node(op, x, size=d.one([1, 3]), alpha=0.01, beta=0.75, bias=1.0), shape
    if op == "MeanVarianceNormalization":
        return (d.node(op, x), shape) if len(shape) == 4 else None
    if op == "LpPool":
        kernel = [d.number(1, min(2, n)) for n in shape[2:]]
        return d.node(op, x, kernel_shape=kernel, p=2), (*shape[:2], *(n - k + 1 for n, k in zip(shape[2:], kernel, strict=True)))
    return d.node(op, x), (*shape[:2], *([1] * (len(shape) - 2)))


def _resize(d: Draw, x: str, shape: Shape) -> tuple[str, Shape] | None:
    if len(shape) != 4 or 0 in shape:
        return None
    op = d.one(["Resize", "Resize", "DepthToSpace", "SpaceToDepth"])
    n, c, h, w = shape
    if op == "DepthToSpace":
        return (d.node(op, x, blocksize=2, mode=d.one(["DCR", "CRD"])), (n, c // 4, 2 * h, 2 * w)) if c % 4 == 0 else None
    if op == "SpaceToDepth":
        return (d.node(op, x, blocksize=2), (n, 4 * c, h // 2, w // 2)) if h % 2 == 0 and w % 2 == 0 else None
    mode = d.one(["nearest", "linear"])
    turn = d.one(["half_pixel", "asymmetric", "align_corners"])
    sizes = [n, c, d.number(1, 2 * h), d.number(1, 2 * w)]
    attrs: dict[str, Any] = {"nearest_mode": "floor"} if mode == "nearest" else {}
    return d.node("Resize", x, "", "", d.fixed(sizes), mode=mode, coordinate_transformation_mode=turn, **attrs), tuple(sizes)


def _elements(d: Draw, x: str, shape: Shape) -> tuple[str, Shape] | None:
    if not shape or 0 in shape:
        return None
    axis = d.number(0, len(shape) - 1)
    if d.flip():
        wanted = tuple(d.number(1, n) for n in shape)
        return d.node("GatherElements", x, d.fixed(d.rng.integers(-shape[axis], shape[axis], wanted)), axis=axis), wanted
    depth = d.number(1, len(shape))
    points = d.number(1, 4)
    index = np.stack([d.rng.integers(-n, n, points) for n in shape[:depth]], axis=-1)
    return d.node("GatherND", x, d.fixed(index)), (points, *shape[depth:])


def _einsum(d: Draw, x: str, shape: Shape) -> tuple[str, Shape] | None:
    if len(shape) != 2 or 0 in shape:
        return None
    a, b = shape
    n = d.number(1, 4)
    form = d.one(["ij,jk->ik", "ij,kj->ki", "ij->ji", "ij->", "ij,ij->i", "ij,jk->ijk"])
    others = {"ij,jk->ik": (b, n), "ij,kj->ki": (n, b), "ij,ij->i": (a, b), "ij,jk->ijk": (b, n)}
    results: dict[str, Shape] = {"ij,jk->ik": (a, n), "ij,kj->ki": (n, a), "ij->ji": (b, a), "ij->": (), "ij,ij->i": (a,)}
    operands = [x, d.feed(others[form])] if form in others else [x]
    return d.node("Einsum", *operands, equation=form), results.get(form, (a, b, n))


#: Continuous operators on floats.
MORE: tuple[Form, ...] = (_norm, _resize, _elements, _einsum)


# ---------------------------------------------------------------------- whole models whose results are exact


def _positions(d: Draw) -> str:
    shape = d.shape(d.number(1, 3))
    x = d.feed(tuple(max(n, 1) for n in shape), d.one([np.float32, np.int32]), low=-3, high=3)
    op = d.one(["ArgMax", "ArgMin", "Hardmax"])
    axis = d.number(-len(shape), len(shape) - 1)
    if op == "Hardmax":
        return d.node("Hardmax", d.node("Cast", x, to=1), axis=axis)
    return d.node(op, x, axis=axis, keepdims=d.number(0, 1), select_last_index=d.number(0, 1))


def _integers(d: Draw) -> str:
    dtype = d.one([np.int32, np.int64, np.uint8, np.int8, np.uint32])
    shape = d.shape(d.number(0, 3))
    low = 0 if np.dtype(dtype).kind == "u" else -9
    x = d.feed(shape, dtype, low, 9)
    op = d.one(
        ["Add", "Sub", "Mul", "Mod", "Div", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Neg", "Abs", "Max", "BitShift", "Sign"]
    )
    if op == "BitShift":
        x = d.feed(shape, np.uint32, 0, 900)
        return d.node(op, x, d.feed(shape, np.uint32, 0, 12), direction=d.one(["LEFT", "RIGHT"]))
    if op == "Neg" and low == 0:
        op = "Abs"
    if op in ("BitwiseNot", "Neg", "Abs", "Sign"):
        return d.node(op, x)
    if op in ("Mod", "Div"):
        attrs = {"fmod": d.number(0, 1)} if op == "Mod" else {}
        return d.node(op, x, d.feed(shape, dtype, 1, 5), **attrs)
    return d.node(op, x, d.feed(shape, dtype, low, 9))


def _logic(d: Draw) -> str:
    shape = d.shape(d.number(0, 3))
    x, y = d.feed(shape, bool), d.feed(shape, bool)
    op = d.one(["And", "Or", "Xor", "Not"])
    return d.node(op, x) if op == "Not" else d.node(op, x, y)


def _quantised(d: Draw) -> str:
    shape = d.shape(d.number(2, 3))
    if d.flip(0.3):
        k, n = max(shape[-1], 1), d.number(1, 4)
        a = d.feed((*(max(s, 1) for s in shape[:-1]), k), np.uint8, 0, 200)
        return d.node("MatMulInteger", a, d.feed((k, n), np.int8, -90, 90), d.fixed(d.number(0, 9), np.uint8))
    scale, dtype = d.fixed(d.one([0.5, 0.25, 2.0]), np.float32), d.one([np.uint8, np.int8])
    zero = d.fixed(d.number(0, 9), dtype)
    if d.flip():
        return d.node("DequantizeLinear", d.feed(shape, dtype, 0, 100), scale, zero)
    return d.node("QuantizeLinear", d.feed(shape, np.float32, -40, 40), scale, zero)


def _convolved(d: Draw) -> str:
    shape = (1, d.number(1, 3), d.number(2, 5), d.number(2, 5))
    w = d.feed((d.number(1, 3), shape[1], 2, 2), np.int8, -60, 60)
    return d.node("ConvInteger", d.feed(shape, d.one([np.uint8, np.int8]), 0, 100), w, pads=[d.number(0, 1) for _ in range(4)])


def _choice(d: Draw) -> str:
    depth = d.number(1, 5)
    index = d.feed(d.shape(d.number(1, 2)), np.int64, -2, math.ceil(depth))
    return d.node("OneHot", index, d.fixed(depth), d.fixed([0.0, 2.0], np.float32), axis=-1)


#: Draws of whole models whose results must agree exactly.
EXACT: tuple[Callable[[Draw], str], ...] = (_positions, _integers, _integers, _logic, _quantised, _convolved, _choice)
