"""Tensors of an ONNX file as NumPy arrays, with their sizes checked before anything is read or allocated."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fusion_search.errors import ModelError, UnsupportedError
from fusion_search.ir.spec import Array

#: Element types that core operators compute with. Everything else is carried by opaque nodes.
_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
_SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)
_UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL)
CORE_DTYPES = frozenset(np.dtype(helper.tensor_dtype_to_np_dtype(code)) for code in (*_FLOATS, *_SIGNED, *_UNSIGNED))
_LARGEST_ELEMENTS = 2**31
_PLAIN = {code for code in TensorProto.DataType.values() if code not in (TensorProto.UNDEFINED, TensorProto.STRING)}


def dtype_of(code: int, where: str) -> np.dtype[Any]:
    """Return the NumPy dtype of an ONNX element type; strings are objects."""
    if code == TensorProto.STRING:
        return np.dtype(object)
    if code not in _PLAIN:
        raise ModelError(f"unknown element type {code}", where=where)
    return np.dtype(helper.tensor_dtype_to_np_dtype(code))


def _bits(code: int) -> int:
    name = TensorProto.DataType.Name(code)
    for width in (2, 4):
        if name in (f"INT{width}", f"UINT{width}", "FLOAT4E2M1" if width == 4 else ""):
            return width
    return 8 * int(np.dtype(helper.tensor_dtype_to_np_dtype(code)).itemsize)


def tensor_array(tensor: TensorProto, where: str) -> Array:
    """Return a tensor's elements, read-only and without a copy where the file stores them raw.

    Raises
    ------
    ModelError
        When the extents are negative or do not fit the stored elements.
    """
    dtype = dtype_of(tensor.data_type, where)
    dims = tuple(tensor.dims)
    if any(n < 0 for n in dims):
        raise ModelError(f"has a negative extent in its shape {list(dims)}", where=where)
    count = math.prod(dims)
    if count > _LARGEST_ELEMENTS:
        raise ModelError(f"has {count} elements, the limit is 2**31", where=where)
    if tensor.data_type != TensorProto.STRING and tensor.HasField("raw_data"):
        raw = tensor.raw_data
        needed = (count * _bits(tensor.data_type) + 7) // 8
        if len(raw) != needed:
            hint = "the file is damaged or was truncated" if len(raw) < needed else ""
            raise ModelError(f"holds {len(raw)} bytes, its shape {list(dims)} needs {needed}", where=where, hint=hint)
        if dtype in CORE_DTYPES and sys.byteorder == "little":
            return np.frombuffer(raw, dtype).reshape(dims)
    try:
        return np.asarray(numpy_helper.to_array(tensor)).reshape(dims)
    except (ValueError, TypeError, OverflowError, AttributeError, NotImplementedError) as error:
        raise ModelError(f"its elements do not fit its shape {list(dims)}: {error}", where=where) from None


def sparse_array(sparse: onnx.SparseTensorProto, where: str) -> Array:
    """Return a sparse tensor as a dense array."""
    dims = tuple(sparse.dims)
    dtype = dtype_of(sparse.values.data_type, where)
    if any(n < 0 for n in dims) or math.prod(dims) > _LARGEST_ELEMENTS:
        raise ModelError(f"shape {list(dims)} is negative or has more than 2**31 elements", where=where)
    values, indices = tensor_array(sparse.values, where), tensor_array(sparse.indices, where)
    dense = np.zeros(dims, dtype)
    try:
        if indices.ndim == 2:
            dense[tuple(indices.T)] = values
        else:
            dense.reshape(-1)[indices] = values
    except (IndexError, ValueError) as error:
        raise ModelError(f"sparse indices do not fit shape {list(dims)}: {error}", where=where) from None
    return dense


def all_tensors(graph: onnx.GraphProto, depth: int = 0) -> Iterator[TensorProto]:
    """Yield every tensor of a graph: initialisers and attributes, in subgraphs too."""
    if depth > 64:
        raise UnsupportedError("subgraphs are nested more than 64 deep")
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from all_tensors(attribute.g, depth + 1)
            for inner in attribute.graphs:
                yield from all_tensors(inner, depth + 1)


def read_external(tensor: TensorProto, folder: Path | None, where: str) -> None:
    """Read a tensor that is stored beside the model into the tensor itself.

    Only files inside the model's own folder are read, whatever the model asks for, and the size is checked first.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError("its data is external, and the model was not read from a file", where=where, hint="load the model from its path")
    path = folder / location
    if not location or Path(location).is_absolute() or ".." in Path(location).parts or "\x00" in location:
        raise ModelError(f"external data at {location!r} is refused", where=where, hint="data must lie in the model's own folder")
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(folder.resolve(strict=True)):
            raise ModelError(
                f"external data at {location!r} leads out of the model's folder", where=where, hint="put a copy beside the model"
            )
        if not real.is_file():
            raise ModelError(f"external data {location!r} is no regular file", where=where)
        size = real.stat().st_size
    except (OSError, RuntimeError) as error:
        raise ModelError(
            f"cannot read external data {location!r}: {_reason(error)}", where=where, hint=f"it must lie in {folder}"
        ) from None
    try:
        offset = int(entries.get("offset", "0") or 0)
        length = int(entries["length"]) if "length" in entries else size - offset
    except ValueError:
        raise ModelError(f"external data {location!r}: offset and length must be integers", where=where) from None
    dtype_of(tensor.data_type, where)
    if tensor.data_type == TensorProto.STRING or any(n < 0 for n in tensor.dims):
        raise ModelError("external data cannot hold strings or negative extents", where=where)
    needed = (math.prod(tensor.dims) * _bits(tensor.data_type) + 7) // 8
    if length != needed or offset < 0 or offset + length > size:
        wrong = f"its shape {list(tensor.dims)} needs {needed} bytes at {offset}, the model says {length}, the file has {size}"
        raise ModelError(f"external data {location!r}: {wrong}", where=where)
    try:
        with real.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(length)
    except OSError as error:
        raise ModelError(f"cannot read external data {location!r}: {_reason(error)}", where=where) from None
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
