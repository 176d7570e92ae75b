"""Checked memory for the loop-nest interpreter: buffers that know their bounds, who wrote an element, and their names.

An address is an int: the buffer's number in the high bits, an offset in bytes around the middle of the low ones, so that the
arithmetic of generated code works on it and strays are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_SHIFT = 44
_HALF = 1 << (_SHIFT - 1)
_MASK = (1 << _SHIFT) - 1

#: Storage code to the dtype of its elements in memory.
ELEMENTS = {code: np.dtype(code) for code in ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}
ELEMENTS |= {"b1": ELEMENTS["u1"], "f2": ELEMENTS["u2"], "bf2": ELEMENTS["u2"]}


class AccessError(Exception):
    """Generated code touched what it must not: outside a buffer, never written, or another item's."""


class Buffer:
    """One tensor, or one part of a worker's scratch.

    Parameters
    ----------
    name : str
    nbytes : int
    array : numpy.ndarray, optional
        Its elements; the part of a scratch gets a dtype when it is first used.
    given : bool
        An input or a constant: written before, and never to be written.
    shared : bool
        What items of one kernel write for the last of them to read.
    """

    __slots__ = ("array", "count", "given", "marks", "name", "nbytes", "scratch", "shared")

    def __init__(self, name: str, nbytes: int, array: Array | None = None, *, given: bool = False, shared: bool = False) -> None:
        self.shared = shared
        self.name, self.nbytes, self.given, self.scratch = name, nbytes, given, array is None
        self.array = array
        self.count = array.size if array is not None else 0
        self.marks: list[int] | None = None if given else [0] * self.count

    def use(self, dtype: np.dtype[Any], now: int) -> Buffer:
        """Fix the dtype.

        A place without elements may lie where another one does: scratch that is written already in this call is seen as empty
        through another dtype, and takes that dtype when it is not.
        """
        if self.array is not None and self.array.dtype == dtype:
            return self
        if not self.scratch:
            raise AccessError(f"{self.name} holds {self.array.dtype if self.array is not None else 'nothing'}, used as {dtype}")
        if self.marks and now in self.marks:
            return Buffer(f"{self.name} as {dtype}", 0, np.zeros(0, dtype))
        self.count = self.nbytes // dtype.itemsize
        self.array, self.marks = np.zeros(self.count, dtype), [0] * self.count
        return self


class Memory:
    """All buffers of a run, and which call of which kernel is running.

    Attributes
    ----------
    now : int
        Number of the present call; the elements that it writes are marked with it.
    first : int
        Number of the first call of the present kernel: what is marked lower was written by an earlier kernel.
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer | list[int]] = []
        self.now = self.first = 1

    def add(self, buffer: Buffer | list[int]) -> int:
        """Add a buffer, or an argument table; return its address."""
        self.buffers.append(buffer)
        return (len(self.buffers) << _SHIFT) + _HALF

    def find(self, address: int, dtype: np.dtype[Any]) -> tuple[Buffer, int]:
        """Return the buffer of an address and the element at which that points."""
        number = (address >> _SHIFT) - 1
        if not 0 <= number < len(self.buffers):
            raise AccessError(f"no buffer has the address {address}")
        buffer = self.buffers[number]
        if isinstance(buffer, list):
            raise AccessError("an argument table is used as a tensor")
        buffer = buffer.use(dtype, self.now)
        offset = (address & _MASK) - _HALF
        if offset % dtype.itemsize:
            raise AccessError(f"{buffer.name} is read {offset} bytes from its start, which cuts an element")
        return buffer, offset // dtype.itemsize

    def table(self, address: int) -> list[int]:
        """Return the argument table of an address, from there on."""
        found = self.buffers[(address >> _SHIFT) - 1]
        if not isinstance(found, list):
            raise AccessError("a tensor is used as an argument table")
        offset = (address & _MASK) - _HALF
        return found[offset // 8 :] if offset else found

    # ------------------------------------------------------------------ many elements, for library functions

    def indices(self, address: int, dtype: np.dtype[Any], dims: Sequence[tuple[int, int]]) -> tuple[Buffer, Array]:
        """Return the buffer and the indices of a strided block: (extent, stride in elements) by dimension; checked."""
        buffer, start = self.find(address, dtype)
        index = np.asarray(start)
        for extent, stride in dims:
            index = index[..., None] + np.arange(int(extent)) * int(stride)
        self.check(buffer, index)
        return buffer, index

    def check(self, buffer: Buffer, index: Array) -> None:
        """Refuse indices outside a buffer."""
        if index.size and (int(index.min()) < 0 or int(index.max()) >= buffer.count):
            raise AccessError(f"{buffer.name}: elements {index.min()} .. {index.max()} are touched, it has {buffer.count}")

    def read(self, buffer: Buffer, index: Array) -> Array:
        """Read elements that must have been written."""
        if (marks := buffer.marks) is not None:
            for k in index.ravel().tolist():
                if marks[k] != self.now and not 0 < marks[k] < self.first:
                    raise AccessError(unwritten(buffer, k, marks[k]))
        assert buffer.array is not None
        return np.asarray(buffer.array[index])

    def write(self, buffer: Buffer, index: Array, values: Array) -> None:
        """Write elements."""
        if (marks := buffer.marks) is None:
            raise AccessError(f"{buffer.name} is read-only and written")
        assert buffer.array is not None
        for k in index.ravel().tolist():
            if marks[k] >= self.first and marks[k] != self.now and not buffer.scratch:
                raise AccessError(f"{buffer.name}[{k}] is written by two items")
            marks[k] = self.now
        buffer.array[index] = values

    def pointer(self, code: str) -> Any:
        """Return the function that makes pointers of one storage code."""
        dtype = ELEMENTS[code]

        def make(address: int, offset: int) -> Pointer:
            buffer, start = self.find(address, dtype)
            return Pointer(buffer, start + offset, self.now, self.first)

        return make


def unwritten(buffer: Buffer, k: int, mark: int) -> str:
    """Say what is wrong with a read."""
    return f"{buffer.name}[{k}] is read but " + ("was never written" if mark == 0 or buffer.scratch else "is another item's")


class Pointer:
    """A typed pointer: every access by index is checked."""

    __slots__ = ("array", "buffer", "count", "first", "marks", "now", "start")

    def __init__(self, buffer: Buffer, start: int, now: int, first: int) -> None:
        self.buffer, self.start, self.now, self.first = buffer, start, now, 0 if buffer.scratch else first
        if buffer.shared:  # also of the items before
            self.first = now
        self.array: Any = buffer.array
        self.marks, self.count = buffer.marks, buffer.count

    def __getitem__(self, i: int) -> Any:
        k = self.start + i
        if not 0 <= k < self.count:
            raise AccessError(f"{self.buffer.name}[{k}] is read, it has {self.count} elements")
        marks = self.marks
        if marks is not None and marks[k] != self.now and not 0 < marks[k] < self.first:
            raise AccessError(unwritten(self.buffer, k, marks[k]))
        return self.array[k]

    def __setitem__(self, i: int, value: Any) -> None:
        k = self.start + i
        if not 0 <= k < self.count:
            raise AccessError(f"{self.buffer.name}[{k}] is written, it has {self.count} elements")
        marks = self.marks
        if marks is None:
            raise AccessError(f"{self.buffer.name} is read-only and written")
        if marks[k] >= self.first and marks[k] != self.now and not self.buffer.scratch:
            raise AccessError(f"{self.buffer.name}[{k}] is written by two items")
        marks[k] = self.now
        self.array[k] = value

    def take(self, n: int) -> Array:
        """Read the next `n` elements."""
        if n <= 0:
            return np.zeros(0, self.array.dtype)
        start, stop = self.start, self.start + n
        if not 0 <= start <= stop <= self.count:
            raise AccessError(f"{self.buffer.name}: elements {start} .. {stop - 1} are read, it has {self.count}")
        if self.marks is not None:
            for k, mark in enumerate(self.marks[start:stop], start):
                if mark != self.now and not 0 < mark < self.first:
                    raise AccessError(unwritten(self.buffer, k, mark))
        return np.asarray(self.array[start:stop])


def stack(code: str, n: int, memory: Memory) -> Any:
    """Return the function that makes a stack buffer; it is new at every call."""
    dtype = ELEMENTS[code]

    def make() -> Pointer:
        buffer = Buffer(f"stack {code}", n * dtype.itemsize)
        buffer.use(dtype, memory.now)
        return Pointer(buffer, 0, memory.now, memory.first)

    return make
