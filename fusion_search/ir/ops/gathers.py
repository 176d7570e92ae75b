"""Data-dependent reads, and the barrier for whatever has no spec of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusion_search.ir.spec import Access, Array, Dim, Domain, OpSpec, Type


def _infer_gather(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    axis, data, index = attrs["axis"], types[0].shape, types[1].shape
    return Type(types[0].dtype, (*data[:axis], *index, *data[axis + 1 :]))


def _domain_gather(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    axis, data, index = attrs["axis"], types[0].shape, types[1].shape

    def dim(loop: int, extent: int) -> Dim:
        return Dim(((loop, 1),)) if extent != 1 else Dim()

    dims = [Dim(indirect=True) if d == axis else dim(d if d < axis else d - 1 + len(index), n) for d, n in enumerate(data)]
    reads = (Access(tuple(dims)), Access(tuple(dim(axis + d, n) for d, n in enumerate(index))))
    return Domain(out.shape, 0, reads)


def _gather(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    return np.take(arrays[0], arrays[1], axis=attrs["axis"])


def _infer_gather_elements(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    return Type(types[0].dtype, types[1].shape)


def _domain_gather_elements(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    def dim(loop: int, extent: int) -> Dim:
        return Dim(((loop, 1),)) if extent != 1 else Dim()

    data = tuple(Dim(indirect=True) if d == attrs["axis"] else dim(d, out.shape[d]) for d in range(len(types[0].shape)))
    return Domain(out.shape, 0, (Access(data), Access(tuple(dim(d, n) for d, n in enumerate(out.shape)))))


def _gather_elements(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    data, index = arrays
    cut = tuple(slice(None) if d == attrs["axis"] else slice(0, n) for d, n in enumerate(index.shape))
    size = data.shape[attrs["axis"]]
    return np.take_along_axis(data[cut], np.where(index < 0, index + size, index), axis=attrs["axis"])


def _infer_gather_nd(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    data, index = types[0].shape, types[1].shape
    return Type(types[0].dtype, (*index[:-1], *data[index[-1] :]))


def _domain_gather_nd(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    data, index = types[0].shape, types[1].shape
    depth, lead = index[-1], len(index) - 1

    def dim(loop: int, extent: int) -> Dim:
        return Dim(((loop, 1),)) if extent != 1 else Dim()

    data_dims = tuple(Dim(indirect=True) if d < depth else dim(lead + d - depth, n) for d, n in enumerate(data))
    # the coordinates of one point are read together: no loop runs over the index tensor's last dimension
    index_dims = (*(dim(d, n) for d, n in enumerate(index[:-1])), Dim(indirect=True))
    return Domain(out.shape, 0, (Access(data_dims), Access(index_dims)))


def _gather_nd(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    data, index = arrays
    return np.asarray(data[tuple(np.moveaxis(index, -1, 0))])


def _no_infer(types: Sequence[Type], attrs: dict[str, Any]) -> Type:
    raise ValueError("an opaque node's types come from the model")


def _opaque_domain(types: Sequence[Type], out: Type, attrs: dict[str, Any]) -> Domain:
    # a barrier: every operand is read as a whole
    return Domain(out.shape, 0, tuple(Access(tuple(Dim(indirect=True) for _ in t.shape)) for t in types))


def _no_evaluate(arrays: Sequence[Array], attrs: dict[str, Any]) -> Array:
    raise ValueError("an opaque node is evaluated by its own call")


SPECS: tuple[OpSpec, ...] = (
    OpSpec("Gather", "gather", _infer_gather, _domain_gather, _gather, flop_class="none", exact=True),
    OpSpec("GatherElements", "gather", _infer_gather_elements, _domain_gather_elements, _gather_elements, flop_class="none", exact=True),
    OpSpec("GatherND", "gather", _infer_gather_nd, _domain_gather_nd, _gather_nd, flop_class="none", exact=True),
    OpSpec("Opaque", "opaque", _no_infer, _opaque_domain, _no_evaluate, flop_class="none"),
)
