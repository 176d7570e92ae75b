"""What kernels may take without a closer look: arrays of a planned type, shape and layout, told in compiled code.

In Python, the address of one array takes as long as a small kernel, and its shape, type and flags as long again. One compiled call
(`codegen/rt/ports`) looks at all arrays of a run. `READABLE` says whether it finds its way in this interpreter; where it does not,
every run takes the way through Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion_search.codegen.rt.ports import PORT_FIELDS, admit
from fusion_search.ir.graph import Value

Array = np.ndarray[Any, Any]

_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400
#: What an array that is read needs, and one that is written.
_READ, _WRITTEN = _C_CONTIGUOUS | _ALIGNED, _C_CONTIGUOUS | _ALIGNED | _WRITEABLE


@dataclass(frozen=True, slots=True)
class Ports:
    """The arrays of a run in one table, first those that are read, then those that are written.

    Attributes
    ----------
    table, extents : int64 array
    address : int
        Of the table.
    count : int
    values : tuple of Value
        They keep the dtype objects alive to which the table refers.
    """

    table: Array
    extents: Array
    address: int
    count: int
    values: tuple[Value, ...]


def ports_of(read: Sequence[Value], written: Sequence[Value]) -> Ports:
    """Describe the arrays that a run takes as they are."""
    values = (*read, *written)
    extents = np.array([extent for value in values for extent in value.shape] + [0], np.int64)
    table = np.zeros((len(values), len(PORT_FIELDS)), np.int64)
    at = 0
    for k, value in enumerate(values):
        writes = k >= len(read)
        flags = _WRITTEN if writes else _READ
        table[k] = id(np.ndarray), id(value.dtype), flags, value.nbytes, len(value.shape), extents.ctypes.data + 8 * at, writes
        at += len(value.shape)
    return Ports(table, extents, int(table.ctypes.data), len(values), values)


def _readable() -> bool:
    """Look at arrays of known make through the table, and see whether it tells them apart."""
    if np.intp(0).itemsize != 8 or type(np.empty(0)) is not np.ndarray:
        return False
    plain = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = Value("x", plain.dtype, plain.shape)
    ports = ports_of([value], [])
    place = np.zeros(1, np.int64)

    def fits(array: Any) -> bool:
        held = np.array([id(array)], np.int64)
        return int(admit(ports.address, 1, held.ctypes.data, place.ctypes.data)) < 0

    wrong: tuple[Any, ...] = (
        plain.T,
        plain[:, ::2],
        plain.astype(np.float64),
        plain.reshape(3, 2),
        plain.reshape(6),
        np.zeros((2, 3, 1), np.float32),
        [0.0],
    )
    return fits(plain) and int(place[0]) == plain.ctypes.data and not any(fits(array) for array in wrong)


#: Whether arrays of this interpreter lie as published.
READABLE = _readable()
