"""Building graphs node by node, with types inferred by each operator's spec."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from fusion_search.errors import ModelError
from fusion_search.ir.graph import Attrs, Graph, Node, PassRecord, Shape, Source, Value
from fusion_search.ir.opaque import RUNTIME, OpaqueCall
from fusion_search.ir.ops import OPS
from fusion_search.ir.orders import row_major, turned
from fusion_search.ir.spec import Array, Type

#: Results of operators on constants are kept up to this size, and beyond it when they are not larger than the operands.
_FOLDED_BYTES = 64 << 20
#: No value of a graph is larger than this: a mistaken extent is refused before anything allocates.
_LARGEST_BYTES = 16 << 30


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
        self._reserved: set[str] = set()
        self._counts: dict[str, int] = {}
        self._node_counts: dict[str, int] = {}

    # ------------------------------------------------------------------ names

    def fresh(self, hint: str) -> str:
        """Return a value name that is not taken, as close to `hint` as possible."""
        return _unused(hint or "v", self._counts, self.values, self._reserved)

    def reserve(self, names: Iterable[str]) -> None:
        """Keep the model's own value names free for :meth:`rename` and :meth:`output`."""
        self._reserved.update(names)

    def mark(self) -> tuple[int, int, int]:
        """Return how much there is: numbers of nodes, values and constants."""
        return len(self.nodes), len(self.values), len(self.constants)

    def new_constants(self, since: tuple[int, int, int]) -> list[str]:
        """Return the constants added since a mark."""
        return list(islice(reversed(self.constants), len(self.constants) - since[2]))

    def rename(self, old: str, new: str, since: tuple[int, int, int]) -> bool:
        """Give a value added since a mark another name; False when it is older or the name is taken."""
        added = list(islice(reversed(self.values), len(self.values) - since[1]))
        if old not in added or new in self.values:
            return False
        for name in added:  # a mark counts from the end, so every value added since is put back in order
            value = self.values[name]
            if value.view_of == old:
                self.values[name] = replace(value, view_of=new)
        self.values[new] = replace(self.values.pop(old), name=new)
        if old in self.constants:
            self.constants[new] = self.constants.pop(old)
        for k in range(since[0], len(self.nodes)):
            node = self.nodes[k]
            if old in node.inputs or old in node.outputs:
                inputs, outputs = (tuple(new if n == old else n for n in names) for names in (node.inputs, node.outputs))
                self.nodes[k] = replace(node, inputs=inputs, outputs=outputs)
        return True

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
        """Add a constant and return its name.

        The array is copied only when it is neither in row-major order nor a large matrix that lies the other way round.
        """
        array = np.asarray(array)
        if not turned(array):
            array = row_major(array)
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
        if value != name and all(known.name != name for known in self._outputs):
            source = Value(name, source.dtype, source.shape, view_of=value)
            self._define(source)
        self._outputs.append(self.values[name])

    # ------------------------------------------------------------------ nodes

    def op(self, op: str, *inputs: str, part: str = "", result: str = "", **attrs: Any) -> str:
        """Apply a core operator and return the name of its value.

        Operators whose operands are all constants are evaluated at once when the result is not larger than 64 MiB or than
        its operands.

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
        frozen: Attrs = tuple(sorted(attrs.items()))
        nbytes = Value("", out.dtype, out.shape).nbytes
        small = nbytes <= max(_FOLDED_BYTES, *(self.values[i].nbytes for i in inputs), 0)
        if small and all(i in self.constants for i in inputs):
            folded = np.asarray(spec.evaluate([self.constants[i] for i in inputs], attrs)).astype(out.dtype, copy=False)
            return self.constant(self._kept_once(folded.reshape(out.shape), inputs), result or op.lower())
        hint = result or (self._origin[0] or op).replace("/", ".") + "." + (part or op.lower())
        name = self._define(Value(self.fresh(hint), out.dtype, out.shape))
        self.nodes.append(Node(self._node_name(part, op), op, inputs, (name,), frozen, *self._origin))
        return name

    def _kept_once(self, array: Array, operands: Sequence[str]) -> Array:
        """Return an array in row-major order; the large matrix that it shows turned is from now on kept as a view of it.

        Most of these are the weights of whole layers, of which there is room for one copy.
        """
        if not turned(array):
            return array
        own = row_major(array)
        for name in operands:
            known = self.constants[name]
            if known.ctypes.data == array.ctypes.data and known.shape == own.T.shape:
                self.constants[name] = own.T
        return own

    def opaque(self, call: OpaqueCall, inputs: Sequence[str], outputs: Sequence[Value]) -> None:
        """Add a node that is run as a whole by `call`; an empty input name is a left-out operand."""
        for value in outputs:
            self._define(value)
        names = tuple(value.name for value in outputs)
        self.nodes.append(Node(self._node_name("", call.op_type), "Opaque", tuple(inputs), names, (("call", call),), *self._origin))

    # ------------------------------------------------------------------ result

    def build(self, *, log: tuple[PassRecord, ...] = (), source: Source | None = None, overridable: frozenset[str] = frozenset()) -> Graph:
        """Return the graph. Nodes were added in topological order, which is kept."""
        values, constants = dict(self.values), dict(self.constants)
        return Graph(self.name, tuple(self._inputs), tuple(self._outputs), tuple(self.nodes), values, constants, log, source, overridable)

    def type_of(self, name: str) -> Type:
        """Dtype and shape of a value."""
        return Type(self.values[name].dtype, self.values[name].shape)

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.values[name].shape

    def _define(self, value: Value) -> str:
        if value.name in self.values:
            raise ModelError(f"value {value.name!r} is defined twice")
        if value.nbytes > _LARGEST_BYTES:
            size = value.nbytes / 2**30
            raise ModelError(f"value {value.name!r}: {value.dtype}{list(value.shape)} takes {size:.3g} GiB, the limit is 16 GiB")
        self.values[value.name] = value
        return value.name

    def _node_name(self, part: str, op: str) -> str:
        origin = self._origin[0]
        if not origin:
            stem = f"{op}_{len(self.nodes)}"
        else:
            stem = f"{origin}/{part}" if part else origin
        name = _unused(stem, self._node_counts, self._node_names)
        self._node_names.add(name)
        return name


def _unused(hint: str, counts: dict[str, int], *taken: Container[str]) -> str:
    """Return `hint`, or `hint.2`, `hint.3` and so on; `counts` remembers where to go on, so that n names take n steps."""
    k = counts.get(hint, 1)
    name = hint if k == 1 else f"{hint}.{k}"
    while any(name in names for names in taken):
        k += 1
        name = f"{hint}.{k}"
    counts[hint] = k
    return name
