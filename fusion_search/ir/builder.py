"""Building graphs node by node, with types inferred by each operator's spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from collections.abc import Iterator
from typing import Any

import numpy as np

from fusion_search.errors import ModelError
from fusion_search.ir.graph import Attrs, Graph, Node, PassRecord, Shape, Source, Value
from fusion_search.ir.opaque import RUNTIME, OpaqueCall
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Array, Type


class GraphBuilder:
    """Adds inputs, constants, nodes and views, and makes a :class:`Graph` of them.

    Parameters
    ----------
    name : str
        The graph's name, for people.

    Examples
    --------
    >>> b = GraphBuilder("example")
    >>> x = b.input("x", np.float32, (4, 8))
    >>> b.output("y", b.op("Relu", x))
    >>> [node.op for node in b.build().nodes]
    ['Relu']
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self._inputs: list[Value] = []
        self._outputs: list[Value] = []
        self._node_names: set[str] = set()
        self._origin: tuple[str, str] = ("", "")
        self._evaluated: dict[tuple[Any, ...], str] = {}

    # ------------------------------------------------------------------ names

    def fresh(self, hint: str) -> str:
        """Return a value name that is not taken, as close to `hint` as possible."""
        return _unused(hint or "v", self.values)

    @contextmanager
    def origin(self, name: str, op: str) -> Iterator[None]:
        """Nodes added inside come from the model's node `name` of operator `op`."""
        before, self._origin = self._origin, (name, op)
        try:
            yield
        finally:
            self._origin = before

    # ------------------------------------------------------------------ values

    def input(self, name: str, dtype: Any, shape: Sequence[int]) -> str:
        """Add a graph input and return its name."""
        value = Value(name, np.dtype(dtype), tuple(int(n) for n in shape))
        self._define(value)
        self._inputs.append(value)
        return name

    def constant(self, array: Any, name: str = "") -> str:
        """Add a constant and return its name. The array is not copied."""
        array = np.asarray(array)
        name = self.fresh(name or "const")
        self._define(Value(name, array.dtype, array.shape))
        self.constants[name] = array
        return name

    def reshape(self, name: str, shape: Sequence[int], result: str = "") -> str:
        """Return a view of a value in another row-major shape; constants are reshaped themselves."""
        value, shape = self.values[name], tuple(int(n) for n in shape)
        if value.dtype == RUNTIME:
            raise ModelError(f"{name}: cannot be viewed as {list(shape)}: its shape is known only at run time")
        if Value("", value.dtype, shape).size != value.size:
            raise ModelError(f"{name}: cannot view {list(value.shape)} as {list(shape)}: {value.size} elements do not fit")
        if name in self.constants:
            return self.constant(self.constants[name].reshape(shape), result or name)
        if shape == value.shape and not result:
            return name
        view = Value(self.fresh(result or f"{name}.view"), value.dtype, shape, view_of=name)
        self._define(view)
        return view.name

    def output(self, name: str, value: str) -> None:
        """Make a value an output under a public name (several outputs may return one value)."""
        source = self.values[value]
        if value == name:
            self._outputs.append(source)
            return
        view = Value(_unused(name, self.values), source.dtype, source.shape, view_of=value)
        self._define(view)
        self._outputs.append(view if view.name == name else view)

    # ------------------------------------------------------------------ nodes

    def op(self, op: str, *inputs: str, part: str = "", result: str = "", **attrs: Any) -> str:
        """Apply a core operator and return the name of its value.

        Operators whose operands are all constants are evaluated at once when the result is not larger than 64 MiB.

        Raises
        ------
        ModelError
            When the operands do not fit the operator.
        """
        spec = OPS[op]
        types = [Type(self.values[i].dtype, self.values[i].shape) for i in inputs]
        try:
            out = spec.infer(types, attrs)
        except ValueError as error:
            where = self._origin[0] or result or op
            raise ModelError(f"node {where!r} ({self._origin[1] or op}): {error}") from None
        if all(i in self.constants for i in inputs) and Value("", out.dtype, out.shape).nbytes <= 64 << 20:
            folded = np.asarray(spec.evaluate([self.constants[i] for i in inputs], attrs)).astype(out.dtype, copy=False)
            return self.constant(folded.reshape(out.shape), result or op.lower())
        frozen: Attrs = tuple(sorted(attrs.items()))
        name = self._define(Value(self.fresh(result or (self._origin[0] or op).replace("/", ".") + "." + (part or op.lower())), out.dtype, out.shape))
        self.nodes.append(Node(self._node_name(part, op), op, inputs, (name,), frozen, *self._origin))
        return name

    def opaque(self, call: OpaqueCall, inputs: Sequence[str], outputs: Sequence[Value]) -> None:
        """Add a node that is run as a whole by `call`; an empty input name is a left-out operand."""
        for value in outputs:
            self._define(value)
        names = tuple(value.name for value in outputs)
        self.nodes.append(Node(self._node_name("", call.op_type), "Opaque", tuple(inputs), names, (("call", call),), *self._origin))

    # ------------------------------------------------------------------ result

    def build(self, *, log: tuple[PassRecord, ...] = (), source: Source | None = None) -> Graph:
        """Return the graph. Nodes were added in topological order, which is kept."""
        return Graph(self.name, tuple(self._inputs), tuple(self._outputs), tuple(self.nodes), dict(self.values), dict(self.constants), log, source)

    def type_of(self, name: str) -> Type:
        """Dtype and shape of a value."""
        return Type(self.values[name].dtype, self.values[name].shape)

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.values[name].shape

    def _define(self, value: Value) -> str:
        if value.name in self.values:
            raise ModelError(f"value {value.name!r} is defined twice")
        self.values[value.name] = value
        return value.name

    def _node_name(self, part: str, op: str) -> str:
        origin = self._origin[0]
        if not origin:
            stem = f"{op}_{len(self.nodes)}"
        else:
            stem = f"{origin}/{part}" if part else origin
        name = _unused(stem, self._node_names)
        self._node_names.add(name)
        return name


def _unused(hint: str, taken: Mapping[str, Any] | set[str]) -> str:
    name, k = hint, 1
    while name in taken:
        k += 1
        name = f"{hint}.{k}"
    return name
