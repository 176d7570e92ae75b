"""Extents that carry two values: the generic one, which decides a kernel's structure, and the one of a run.

A kernel's text must not depend on the extents of symbolic dimensions. So it is generated from a binding of the model to
generic extents (primes that stand for "some extent, not 1"), while the numbers of its argument table are computed from the
extents of the run by the very same arithmetic: every comparison sees the generic value, every sum, product and quotient is
taken of both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusion_search.ir.graph import Graph, Node, Value


class Extent(int):
    """An int, the generic value, that carries the value of a run as `actual`."""

    actual: int

    def __new__(cls, generic: int, actual: int) -> Extent:
        made = super().__new__(cls, generic)
        made.actual = actual
        return made

    def __add__(self, other: int) -> Extent:
        return Extent(int(self) + int(other), self.actual + actual(other))

    __radd__ = __add__

    def __mul__(self, other: int) -> Extent:
        return Extent(int(self) * int(other), self.actual * actual(other))

    __rmul__ = __mul__

    def __sub__(self, other: int) -> Extent:
        return Extent(int(self) - int(other), self.actual - actual(other))

    def __rsub__(self, other: int) -> Extent:
        return Extent(int(other) - int(self), actual(other) - self.actual)

    def __neg__(self) -> Extent:
        return Extent(-int(self), -self.actual)

    def __floordiv__(self, other: int) -> Extent:
        return Extent(int(self) // int(other), _quotient(self.actual, actual(other)))

    def __rfloordiv__(self, other: int) -> Extent:
        return Extent(int(other) // int(self), _quotient(actual(other), self.actual))

    def __reduce__(self) -> tuple[Any, ...]:
        return Extent, (int(self), self.actual)


def _quotient(a: int, b: int) -> int:
    """A quotient of the run's extents; where one is 0 there is nothing to count."""
    return a // b if b else 0


def actual(value: int) -> int:
    """Return the value of the run."""
    return value.actual if isinstance(value, Extent) else int(value)


def paired(generic: Graph, bound: Graph) -> tuple[Graph, dict[str, str]] | None:
    """Lay two bindings of one model over each other.

    Returns
    -------
    tuple of Graph and dict, or None
        The generic graph with an :class:`Extent` wherever the bindings differ, and the bound graph's name for each of its
        values; None when the bindings have not the same nodes.
    """
    if len(generic.nodes) != len(bound.nodes):
        return None
    names: dict[str, str] = {}
    values = dict(generic.values)

    def pair(a: str, b: str) -> bool:
        """Pair two values and what they are views of."""
        base_a, base_b = generic.base(a), bound.base(b)
        for x, y in ((a, b), (base_a, base_b)):
            left, right = generic.values[x], bound.values[y]
            if left.dtype != right.dtype or len(left.shape) != len(right.shape) or names.setdefault(x, y) != y:
                return False
            values[x] = replace(left, shape=_shape(left, right))
        return (base_a in generic.constants) == (base_b in bound.constants)

    nodes: list[Node] = []
    for one, two in zip(generic.nodes, bound.nodes, strict=True):
        alike = (one.name, one.op, len(one.inputs), len(one.outputs)) == (two.name, two.op, len(two.inputs), len(two.outputs))
        pairs = list(zip((*one.inputs, *one.outputs), (*two.inputs, *two.outputs), strict=True)) if alike else []
        if not alike or not all(bool(a) == bool(b) and (not a or pair(a, b)) for a, b in pairs):
            return None
        attrs = _both(one.attrs, two.attrs)
        if attrs is None:
            return None
        nodes.append(replace(one, attrs=attrs))
    outputs = zip(generic.outputs, bound.outputs, strict=True)
    if not all(pair(a.name, b.name) for a, b in outputs):
        return None
    constants = {name: bound.constants.get(names.get(name, ""), array) for name, array in generic.constants.items()}
    return replace(generic, nodes=tuple(nodes), values=values, constants=constants), names


def _shape(a: Value, b: Value) -> tuple[int, ...]:
    return tuple(x if x == y else Extent(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _both(a: Any, b: Any) -> Any:
    """Pair attributes: integers that differ become extents; None when anything else differs."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        parts = [_both(x, y) for x, y in zip(a, b, strict=True)]
        return None if any(part is None for part in parts) else tuple(parts)
    if isinstance(a, int) and isinstance(b, int) and not isinstance(a, bool):
        return a if a == b else Extent(a, b)
    return a if a == b or (a != a and b != b) else None
