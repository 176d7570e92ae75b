"""What a lowering rule sees: one call of a model operator, and the graph being built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from fusion_search.frontends.onnx.tensors import CORE_DTYPES
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Shape
from fusion_search.ir.spec import Array

#: A value of the graph by name, or a sequence of such names whose length is known.
Item = str | tuple[str, ...]


class NotLowered(Exception):
    """A rule does not cover this form of its operator."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model operator.

    Attributes
    ----------
    op : str
    opset : int
        Version of the operator set that the model imports.
    inputs : tuple of Item
        Values of the graph; an empty name is an operand that is left out.
    attrs : dict
        Attributes as Python values; strings decoded.
    wanted : tuple of bool
        Which outputs the model names.
    node : onnx.NodeProto
    """

    op: str
    opset: int
    inputs: tuple[Item, ...]
    attrs: dict[str, Any]
    wanted: tuple[bool, ...]
    node: onnx.NodeProto

    def tensor(self, k: int) -> str:
        """Return operand `k`, which must be a tensor; an empty name when it is left out."""
        item = self.inputs[k] if k < len(self.inputs) else ""
        if not isinstance(item, str):
            raise NotLowered
        return item

    @property
    def tensors(self) -> list[str]:
        """All operands that are there."""
        return [name for name in (self.tensor(k) for k in range(len(self.inputs))) if name]

    def wants(self, k: int) -> bool:
        """Whether the model names output `k`."""
        return k < len(self.wanted) and self.wanted[k]


class Lowering:
    """The graph being built, with what most rules need.

    Parameters
    ----------
    builder : GraphBuilder
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        #: True for a model with symbolic dimensions: rules then keep what does nothing for the present extents only, so
        #: that every binding has the same nodes; the passes take out what does nothing for any extents.
        self.symbolic = False
        self._scalars: dict[tuple[str, str, int], str] = {}
        #: Graph inputs whose elements a rule needed and did not have: axes, extents, repeats and the like.
        self.asked: set[str] = set()

    def op(self, op: str, *inputs: str, part: str = "", **attrs: Any) -> str:
        """Apply a core operator."""
        return self.builder.op(op, *inputs, part=part, **attrs)

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.builder.values[name].shape

    def dtype(self, name: str) -> np.dtype[Any]:
        """Dtype of a value."""
        return self.builder.values[name].dtype

    def const(self, name: str) -> Array | None:
        """Elements of a value that is known, else None."""
        return self.builder.constants.get(name)

    def known(self, name: str) -> Array:
        """Elements of a value that must be known for a rule to apply."""
        array = self.builder.constants.get(name)
        if array is None:
            self._ask(name)
            raise NotLowered
        return array

    def _ask(self, name: str) -> None:
        """Note the inputs that determine a value, when they are all scalars and vectors: what a caller could bind as it binds extents."""
        builder = self.builder

        def base(name: str) -> str:
            while (owner := builder.values[name].view_of) is not None:
                name = owner
            return name

        needed = {base(name)}
        for node in reversed(builder.nodes):
            if not needed.isdisjoint(node.outputs):
                needed = (needed - set(node.outputs)) | {base(i) for i in node.inputs if i}
        inputs = {n for n in needed if n not in builder.constants}
        if all(len(self.shape(n)) <= 1 and self.dtype(n) in CORE_DTYPES for n in inputs):
            self.asked |= inputs

    def ints(self, name: str) -> tuple[int, ...]:
        """Elements of a known integer tensor."""
        return tuple(int(v) for v in self.known(name).reshape(-1))

    def constant(self, array: Array) -> str:
        """Add a constant."""
        return self.builder.constant(array)

    def scalar(self, value: Any, dtype: np.dtype[Any], rank: int = 0) -> str:
        """Add a constant of one element, or find it again."""
        array = np.asarray(value).astype(dtype).reshape((1,) * rank)
        key = (dtype.name, array.tobytes().hex(), rank)
        if key not in self._scalars:
            self._scalars[key] = self.builder.constant(array, f"const.{np.asarray(value).item()}")
        return self._scalars[key]

    def view(self, name: str, shape: Sequence[int]) -> str:
        """Read a value in another row-major shape."""
        return self.builder.reshape(name, shape)

    def cast(self, name: str, dtype: np.dtype[Any], part: str = "") -> str:
        """Convert a value; itself when it has the dtype already."""
        return name if self.dtype(name) == dtype else self.op("Cast", name, part=part, to=dtype.name)

    def widen(self, name: str) -> str:
        """Convert 16-bit floats to float32: composites compute in it and round once, at their end."""
        dtype = self.dtype(name)
        narrow = dtype.itemsize == 2 and dtype.kind not in "iu"
        return self.cast(name, np.dtype(np.float32), part="widen") if narrow else name

    def narrow(self, name: str, dtype: np.dtype[Any]) -> str:
        """Round the end of a composite to the model's dtype."""
        return self.cast(name, dtype, part="round")

    def is_float(self, name: str) -> bool:
        """Whether a value has a floating-point dtype."""
        return self.dtype(name) in CORE_DTYPES and self.dtype(name).kind in "fV"


Rule = Callable[[Lowering, Call], Sequence[Item]]


def axis_of(axis: int, rank: int, *, end: bool = False) -> int:
    """Return an axis counted from the front; `end` allows one past the last."""
    if not -rank <= axis <= (rank if end else rank - 1):
        raise ValueError(f"axis {axis} is outside of {rank} dimensions")
    return axis + rank if axis < 0 else axis


def axes_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return distinct axes counted from the front, ascending; 0 and -1 name all there is of a scalar, as in NumPy's reductions."""
    if rank == 0 and all(axis in (0, -1) for axis in axes):
        return ()
    found = sorted(axis_of(axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"axes {list(axes)} name a dimension twice")
    return tuple(found)


def nothing_along(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether there is nothing to reduce along some axes. Other dimensions of extent 0 are like any extent: one form serves them all."""
    return any(shape[a] == 0 for a in axes)
