"""Layout operators: no arithmetic, only an index map; free when absorbed into a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusion_search.ir.spec import Access, Array, Dim, Domain, OpSpec, Type, broadcast_access


def _first(dt: str, args: Sequence[str], attrs: dict[str, Any]) -> str:
    return args[0]


def _infer_transpose(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    perm = attrs["perm"]
    if sorted(perm) != list(range(len(types[0].shape))):
        raise ValueError(f"perm {list(perm)} is no permutation of {len(types[0].shape)} dimensions")
    return Type(types[0].dtype, tuple(types[0].shape[p] for p in perm))


def _domain_transpose(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    place = {p: d for d, p in enumerate(attrs["perm"])}
    dims = tuple(Dim(((place[d], 1),)) if n != 1 else Dim() for d, n in enumerate(types[0].shape))
    return Domain(out.shape, 0, (Access(dims),))


def _infer_slice(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return Type(types[0].dtype, tuple(attrs["sizes"]))


def _domain_slice(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    dims = tuple(
        Dim(((d, step),), start) if n != 1 else Dim((), start)
        for d, (n, start, step) in enumerate(zip(out.shape, attrs["starts"], attrs["steps"], strict=True))
    )
    return Domain(out.shape, 0, (Access(dims),))


def _slice(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    x = arrays[0]
    for axis, (start, step, size) in enumerate(zip(attrs["starts"], attrs["steps"], attrs["sizes"], strict=True)):
        x = np.take(x, start + step * np.arange(size), axis=axis)
    return x


def _infer_expand(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    shape = tuple(attrs["shape"])
    if np.broadcast_shapes(types[0].shape, shape) != shape:
        raise ValueError(f"cannot expand {list(types[0].shape)} to {list(shape)}")
    return Type(types[0].dtype, shape)


def _domain_expand(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    return Domain(out.shape, 0, (broadcast_access(types[0].shape, out.shape),))


def _infer_concat(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    axis, first = attrs["axis"], types[0]
    for other in types[1:]:
        same = len(other.shape) == len(first.shape) and all(
            a == b for d, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if d != axis
        )
        if other.dtype != first.dtype or not same:
            raise ValueError(f"cannot join {first.dtype}{list(first.shape)} and {other.dtype}{list(other.shape)} along axis {axis}")
    total = sum(t.shape[axis] for t in types)
    return Type(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _domain_concat(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    reads, start = [], 0
    for t in types:
        dims = []
        for d, n in enumerate(t.shape):
            if d == attrs["axis"]:
                dims.append(Dim(((d, 1),), -start))
            else:
                dims.append(Dim(((d, 1),)) if n != 1 else Dim())
        reads.append(Access(tuple(dims), guarded=True))
        start += t.shape[attrs["axis"]]
    return Domain(out.shape, 0, tuple(reads))


def _infer_pad(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return Type(types[0].dtype, tuple(n + b + a for n, b, a in zip(types[0].shape, attrs["before"], attrs["after"], strict=True)))


def _domain_pad(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    dims = tuple(Dim(((d, 1),), -b) if n != 1 else Dim((), -b) for d, (n, b) in enumerate(zip(out.shape, attrs["before"], strict=True)))
    return Domain(out.shape, 0, (Access(dims, guarded=True),))


def _pad(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    """Constant padding; negative amounts cut."""
    x = arrays[0]
    cut = tuple(slice(max(0, -b), n - max(0, -a)) for n, b, a in zip(x.shape, attrs["before"], attrs["after"], strict=True))
    grow = [(max(0, b), max(0, a)) for b, a in zip(attrs["before"], attrs["after"], strict=True)]
    return np.pad(x[cut], grow, constant_values=np.asarray(attrs["value"]).astype(x.dtype))


SPECS: tuple[OpSpec, ...] = (
    OpSpec(
        "Transpose",
        "layout",
        _infer_transpose,
        _domain_transpose,
        lambda a, k: np.transpose(a[0], k["perm"]),
        _first,
        flop_class="none",
        exact=True,
    ),
    OpSpec("Slice", "layout", _infer_slice, _domain_slice, _slice, _first, flop_class="none", exact=True),
    OpSpec(
        "Expand",
        "layout",
        _infer_expand,
        _domain_expand,
        lambda a, k: np.broadcast_to(a[0], k["shape"]),
        _first,
        flop_class="none",
        exact=True,
    ),
    OpSpec(
        "Concat",
        "layout",
        _infer_concat,
        _domain_concat,
        lambda a, k: np.concatenate(a, axis=k["axis"]),
        None,
        flop_class="none",
        exact=True,
    ),
    OpSpec("Pad", "layout", _infer_pad, _domain_pad, _pad, None, flop_class="none", exact=True),
)
