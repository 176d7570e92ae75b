"""Symbolic dimensions: what a model's inputs are called, and what a caller binds them to."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from fusion_search.errors import FeedError, ModelError, UnsupportedError, UsageError
from fusion_search.frontends.onnx.reader import OnnxModel
from fusion_search.frontends.onnx.tensors import dtype_of
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.spec import Array

_LARGEST_EXTENT = 2**40
#: Small, so that what is folded for generic extents stays small.
_PRIMES = (13, 29, 37, 43, 53, 61, 71, 79, 89, 101, 107, 113, 131, 139, 151, 163)


def input_shapes(model: OnnxModel) -> dict[str, tuple[str | int, ...]]:
    """Return each true input's shape, with symbolic dimensions by name.

    A dimension with neither name nor extent is called after its place: dimension 1 of ``x`` is ``x_dim1``. Inputs that are no
    tensors (sequences, optionals) have the shape ().
    """
    shapes: dict[str, tuple[str | int, ...]] = {}
    for value in model.proto.graph.input:
        if value.name in model.constants:
            continue
        where = f"input {value.name!r}"
        if value.type.HasField("sparse_tensor_type"):
            raise UnsupportedError("is a sparse tensor", where=where, hint="feed it dense")
        if not value.type.HasField("tensor_type"):
            if value.type.WhichOneof("value") is None:
                raise ModelError("has no type", where=where)
            shapes[value.name] = ()
            continue
        tensor = value.type.tensor_type
        dtype_of(tensor.elem_type, where)
        if not tensor.HasField("shape"):
            raise ModelError("has no shape, not even a rank", where=where, hint="export the model with shapes for its inputs")
        shape: list[str | int] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value"):
                if not 0 <= dim.dim_value <= _LARGEST_EXTENT:
                    raise ModelError(f"dimension {axis} has the extent {dim.dim_value}", where=where)
                shape.append(int(dim.dim_value))
            else:
                shape.append(dim.dim_param or f"{value.name}_dim{axis}")
        shapes[value.name] = tuple(shape)
    return shapes


def generic_dims(model: OnnxModel) -> dict[str, int]:
    """Return an extent for every symbolic dimension that stands for any: a prime that is no other extent of the model.

    What holds for such extents by chance (an equal extent, an extent of 1) holds for all; empty when nothing is symbolic.
    """
    shapes = input_shapes(model)
    taken = {n for shape in shapes.values() for n in shape if isinstance(n, int)}
    taken |= {int(n) for array in model.constants.values() for n in array.shape}
    primes = iter(p for p in _PRIMES if p not in taken)
    names = sorted({n for shape in shapes.values() for n in shape if isinstance(n, str)})
    found = dict(zip(names, primes, strict=False))
    return found if len(found) == len(names) else {}


def bind_dims(shapes: Mapping[str, tuple[str | int, ...]], dims: Mapping[str, int] | None) -> dict[str, int]:
    """Check what a caller binds, and return it as plain integers.

    Raises
    ------
    UsageError
        When a dimension is unbound, unknown, negative or no integer.
    """
    known: dict[str, str] = {}
    for name, shape in shapes.items():
        for dim in shape:
            if isinstance(dim, str):
                known.setdefault(dim, name)
    order = list(known)
    bound: dict[str, int] = {}
    example = "dims={" + ", ".join(f"{name!r}: 1" for name in order) + "}"
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError(f"dims must map names to integers, got {type(dims).__name__}", hint=f"such as {example}" if order else "")
    for name, extent in (dims or {}).items():
        if name not in known:
            hint = f"it has {', '.join(map(repr, order))}" if order else "all its extents are fixed"
            raise UsageError(f"the model has no symbolic dimension {name!r}", where="dims", hint=hint)
        try:
            value = operator.index(extent)
        except TypeError:
            value = -1
        if isinstance(extent, bool) or not 0 <= value <= _LARGEST_EXTENT:
            raise UsageError(
                f"dimension {name!r} must be an integer of at least 0, got {extent!r}", where="dims", hint=f"such as {example}"
            )
        bound[name] = value
    for name in order:
        if name not in bound:
            what = f"dimension {name!r} of input {known[name]!r} {list(shapes[known[name]])} is not bound"
            raise UsageError(what, where="dims", hint=f"pass {example}")
    return bound


def bound_shape(shape: tuple[str | int, ...], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with its symbolic dimensions replaced."""
    return tuple(dims[dim] if isinstance(dim, str) else dim for dim in shape)


def static_type(value: onnx.ValueInfoProto, dims: Mapping[str, int]) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return dtype and shape that the model declares for a value, when the bound dimensions fix them."""
    return type_of_proto(value.type, dims)


def type_of_proto(proto: onnx.TypeProto, dims: Mapping[str, int]) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return dtype and shape of a tensor type when both are known, else None."""
    if not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    if proto.tensor_type.elem_type == onnx.TensorProto.UNDEFINED:
        return None
    dtype = dtype_of(proto.tensor_type.elem_type, "value")
    shape = []
    for dim in proto.tensor_type.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(int(dim.dim_value))
        elif dim.dim_param in dims:
            shape.append(dims[dim.dim_param])
        else:
            return None
    return None if dtype == RUNTIME else (dtype, tuple(shape))


def check_values(model: OnnxModel, dims: Mapping[str, int], values: Mapping[str, Any]) -> dict[str, Array]:
    """Check the elements that a caller binds inputs to, and return them as arrays of the inputs' dtypes.

    Raises
    ------
    UsageError
        When a name is no input, or the elements have another shape or do not fit the input's dtype.
    """
    shapes = input_shapes(model)
    protos = {value.name: value for value in model.proto.graph.input}
    checked: dict[str, Array] = {}
    for name, given in values.items():
        if name not in shapes:
            raise UsageError(f"the model has no input {name!r}", where="values", hint=f"it has {', '.join(map(repr, shapes)) or 'none'}")
        dtype = (
            dtype_of(protos[name].type.tensor_type.elem_type, f"input {name!r}") if protos[name].type.HasField("tensor_type") else RUNTIME
        )
        if dtype == RUNTIME:
            raise UsageError(f"input {name!r} has no plain tensor type", where="values")
        wanted = bound_shape(shapes[name], dims)
        try:
            array = np.asarray(given)
            if array.ndim <= 1 and array.size == math.prod(wanted) == 1:  # a number for a vector of one, and the other way round
                array = array.reshape(wanted)
            converted = array.astype(dtype)
            fits = array.shape == wanted and bool(np.all((converted == array) | (array != array)))
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise UsageError(f"elements of input {name!r} must be {dtype}{list(wanted)}", where="values", hint=f"got {str(given)[:80]}")
        checked[name] = np.ascontiguousarray(converted).reshape(wanted)
    return checked


def check_overrides(model: OnnxModel, overrides: Mapping[str, Array] | None) -> dict[str, Array]:
    """Check the initialisers that a caller feeds in place of the model's own.

    Raises
    ------
    FeedError
        When a name is no overridable initialiser, or dtype or rank differ.
    """
    checked: dict[str, Array] = {}
    for name, array in (overrides or {}).items():
        if name not in model.overridable:
            names = ", ".join(map(repr, sorted(model.overridable)[:8])) or "there are none"
            raise FeedError(f"{name!r} is no initialiser that a caller may feed", hint=f"initialisers listed as graph inputs: {names}")
        own, given = model.constants[name], np.asarray(array)
        if given.dtype != own.dtype or given.shape != own.shape:
            raise FeedError(f"{name!r} must be {own.dtype}{list(own.shape)}, got {given.dtype}{list(given.shape)}")
        checked[name] = given
    return checked
