"""Writes at places that data names: the result is a copy of one tensor with rows of another put, or combined, into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusion_search.ir.spec import Access, Array, Dim, Domain, OpSpec, Type

_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "none": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _infer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    data, index, updates = types
    if any(len(t.shape) != 3 for t in types) or index.dtype.kind not in "iu":
        raise ValueError("a scatter takes data [A, N, B], integer indices [A, M, B] and updates [A, M, B]")
    (a, _, b), (m,) = data.shape, updates.shape[1:2]
    fits = updates.shape == (a, m, b) and index.shape[1] == m and index.shape[0] in (1, a) and index.shape[2] in (1, b)
    if not fits or updates.dtype != data.dtype:
        raise ValueError(f"indices {list(index.shape)} and updates {list(updates.shape)} do not fit data {list(data.shape)}")
    if attrs["reduction"] not in _COMBINE:
        raise ValueError(f"unknown reduction {attrs['reduction']!r}")
    return Type(data.dtype, data.shape)


def _domain(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    """Row m of the updates meets every element of the data's middle dimension, since data decides which one it changes."""

    def dims(shape: Sequence[int], loops: Sequence[int]) -> Access:
        return Access(tuple(Dim(((loop, 1),)) if n != 1 else Dim() for loop, n in zip(loops, shape, strict=True)))

    data, index, updates = (t.shape for t in types)
    reads = (dims(data, (0, 1, 2)), dims(index, (0, 3, 2)), dims(updates, (0, 3, 2)))
    return Domain((*out.shape, updates[1]), 1, reads, uncut=(1,))


def _evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    """Update by update in their order: of two that meet, the later one wins, or is combined later."""
    data, index, updates = arrays
    out, combine = data.copy(), _COMBINE[attrs["reduction"]]
    rows, columns = np.arange(data.shape[0])[:, None], np.arange(data.shape[2])[None, :]
    if index.size and not -data.shape[1] <= int(index.min()) <= int(index.max()) < data.shape[1]:
        raise ValueError(f"an index is outside of {data.shape[1]} elements")
    # NumPy's extremes of float16 take the other one of two zeros than those of float32, in which numbers of 16 bits are compared here.
    wide = np.float32 if data.dtype.itemsize == 2 and data.dtype.kind in "fV" else data.dtype
    with np.errstate(all="ignore"):
        for m in range(updates.shape[1]):
            at = np.broadcast_to(index[:, m], updates[:, m].shape)
            out[rows, at, columns] = combine(out[rows, at, columns].astype(wide), updates[:, m].astype(wide)).astype(data.dtype)
    return out


SPECS: tuple[OpSpec, ...] = (OpSpec("Scatter", "scatter", _infer, _domain, _evaluate, flop_class="none", exact=True),)
