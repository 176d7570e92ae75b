"""Writing one kernel: lines, names, and the numbers that come from the argument table.

The text of a kernel depends on the structure of its group only. Every extent, stride, offset and address is a slot of
the argument table, so one compiled kernel serves all shapes of the same structure. Names in the text are ours: a
letter and a number.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusion_search.codegen.extents import actual
from fusion_search.codegen.packing import Packing
from fusion_search.ir.graph import stored_dtype

#: Dtype codes of the text: storage and the type in which it computes.
STORAGE = {"float32": "f4", "float64": "f8", "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2",
           "uint32": "u4", "uint64": "u8", "bool": "b1", "float16": "f2", "bfloat16": "bf2"}  # fmt: skip
COMPUTE = {**{code: code for code in STORAGE.values()}, "f2": "f4", "bf2": "f4"}

HEADER = """from numba import cfunc
from fusion_search.codegen.rt.kernel import *

"""


#: Bytes from the flag of a run to the count of items that are done, which lies in a cache line of its own.
ARRIVALS = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of an argument table.

    Attributes
    ----------
    value : str or None
        Name of the tensor whose address goes here; None for a number.
    number : int
        The number, or a byte offset from the tensor's address.
    external : bool
        `value` names a function of the library. A flag, not a spelling: a model may call its tensors anything.
    shared : bool
        The address, `number` bytes further, of the memory that all items of the step share.
    packing : Packing, optional
        The address is that of a constant packed so.
    """

    value: str | None
    number: int = 0
    external: bool = False
    shared: bool = False
    packing: Packing | None = None


@dataclass(slots=True)
class Writer:
    """Collects the lines of a kernel and the slots of its table."""

    lines: list[str] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    depth: int = 1
    rows: list[tuple[int, list[list[Slot]]]] = field(default_factory=list)
    compiler: str = ""  # in place of Numba's own: one that gives hints on its loops
    _names: dict[Hashable, str] = field(default_factory=dict)
    _count: int = 0

    def put(self, line: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        """Add a line that opens a block."""
        self.put(line)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, letter: str) -> str:
        """Return a new name."""
        self._count += 1
        return f"{letter}{self._count}"

    def number(self, key: Hashable, value: int) -> str:
        """Return the name of a number in the table; equal keys share a slot."""
        return self._slot(("n", key), Slot(None, actual(value)))

    def address(self, tensor: str) -> str:
        """Return the name of a tensor's address."""
        return self._slot(("p", tensor), Slot(tensor))

    def shared(self, key: Hashable, offset: int) -> str:
        """Return the name of an address in the memory that all items share."""
        return self._slot(("s", key), Slot(None, actual(offset), shared=True))

    def arrivals(self) -> str:
        """Return the name of the address of the number of items that are done: 0 before and after a step."""
        return self._slot(("arrivals",), Slot("", ARRIVALS))

    def packed(self, tensor: str, packing: Packing) -> str:
        """Return the name of the address of a packed constant."""
        return self._slot(("p", tensor, packing), Slot(tensor, packing=packing))

    def external(self, function: str) -> str:
        """Return the name of the address of a library function."""
        return self._slot(("l", function), Slot(function, 0, True))

    def table(self, rows: list[list[Slot]]) -> tuple[str, str]:
        """Put rows of equal length behind the named slots; return the names of their start and their number."""
        start = self.number(("rows", len(self.rows)), 0)
        self.rows.append((int(start[1:]), rows))
        return start, self.number(("row count", len(self.rows)), len(rows))

    def finished(self) -> list[Slot]:
        """Return all slots of the argument table, rows included."""
        slots = list(self.slots)
        for start, rows in self.rows:
            slots[start] = Slot(None, len(slots))
            slots += [slot for row in rows for slot in row]
        return slots

    def _slot(self, key: Hashable, slot: Slot) -> str:
        if key not in self._names:
            self._names[key] = f"n{len(self.slots)}"
            self.slots.append(slot)
        return self._names[key]

    def decorator(self) -> str:
        """Return the line that makes a function a kernel."""
        compiler = f", pipeline_class={self.compiler}" if self.compiler else ""
        return f'@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy"{compiler})'

    def source(self, name: str) -> str:
        """Return the kernel's text."""
        head = [self.decorator(), f"def {name}(A, S, lo, hi):", "    T = table(A)"]
        head += [f"    n{k} = T[{k}]" for k in range(len(self.slots))]
        return "\n".join([*head, *self.lines]) + "\n"


def code_of(dtype: np.dtype[Any]) -> str:
    """Return the storage code of a dtype; KeyError for one that kernels do not handle."""
    return STORAGE[stored_dtype(dtype)]


def load(code: str, text: str) -> str:
    """Wrap the read of a stored element so that it has its compute type."""
    if code == "b1":
        return f"({text} != np.uint8(0))"
    if code == "f2":
        return f"f16_to_f32({text})"
    if code == "bf2":
        return f"bf16_to_f32({text})"
    return text


def store(code: str, text: str) -> str:
    """Wrap a value so that it can be stored."""
    if code == "b1":
        return f"np.uint8({text})"
    if code == "f2":
        return f"f32_to_f16({text})"
    if code == "bf2":
        return f"f32_to_bf16({text})"
    return text


def rounded(code: str, text: str) -> str:
    """Wrap an expression so that it has its dtype's rounding, as at every definition."""
    if code in ("f2", "bf2"):
        return load(code, store(code, text))
    if code == "b1":
        return text
    return f"T_{code}({text})"


def converted(source: str, text: str) -> str:
    """Make a bool operand a number; other types convert in :func:`rounded`."""
    return f"select({text}, np.uint8(1), np.uint8(0))" if source == "b1" else text
