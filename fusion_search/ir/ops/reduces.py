"""Reductions: parallel and reduction loops, and a combiner. Reduced dimensions stay as extents of 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusion_search.ir.spec import Access, Array, Dim, Domain, OpSpec, Type


def _infer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    axes = set(attrs["axes"])
    return Type(types[0].dtype, tuple(1 if d in axes else n for d, n in enumerate(types[0].shape)))


def _domain(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    shape, axes = types[0].shape, sorted(attrs["axes"])
    loop_of = {axis: len(shape) + k for k, axis in enumerate(axes)}
    dims = tuple(Dim(((loop_of.get(d, d), 1),)) if n != 1 else Dim() for d, n in enumerate(shape))
    return Domain(out.shape + tuple(shape[axis] for axis in axes), len(axes), (Access(dims),))


def _evaluate(function: Callable[..., Array]) -> Callable[[Sequence[Array], dict[str, Any]], Array]:
    def evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
        x, axes = arrays[0], tuple(attrs["axes"])
        with np.errstate(all="ignore"):
            if x.dtype.itemsize == 2 and x.dtype.kind not in "iu":
                return np.asarray(function(x.astype(np.float32), axis=axes, keepdims=True)).astype(x.dtype)
            return np.asarray(function(x, axis=axes, keepdims=True)).astype(x.dtype, copy=False)

    return evaluate


def _sum(x: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _prod(x: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def _reduce(name: str, function: Callable[..., Array], combiner: str) -> OpSpec:
    return OpSpec(name, "reduce", _infer, _domain, _evaluate(function), combiner=combiner)


SPECS: tuple[OpSpec, ...] = (
    _reduce("ReduceSum", _sum, "sum"),
    _reduce("ReduceMean", np.mean, "mean"),
    _reduce("ReduceMax", np.max, "max"),
    _reduce("ReduceMin", np.min, "min"),
    _reduce("ReduceProd", _prod, "prod"),
)
