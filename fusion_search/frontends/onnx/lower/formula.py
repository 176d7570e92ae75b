"""Formulas: Python's operators on values of the graph, for rules that are arithmetic from end to end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusion_search.frontends.onnx.lower.context import Lowering


@dataclass(frozen=True, slots=True)
class Term:
    """A value in a formula; numbers beside it become constants of its dtype.

    Attributes
    ----------
    ctx : Lowering
    name : str
        The value in the graph.
    """

    ctx: Lowering
    name: str

    def of(self, op: str, *others: Term | float, **attrs: Any) -> Term:
        """Apply a core operator to this value and others."""
        names = [other.name if isinstance(other, Term) else self.ctx.scalar(other, self.dtype) for other in others]
        return Term(self.ctx, self.ctx.op(op, self.name, *names, part=op.lower(), **attrs))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The value's dtype."""
        return self.ctx.dtype(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's extents."""
        return self.ctx.shape(self.name)

    def view(self, *shape: int) -> Term:
        """The value in another row-major shape."""
        return Term(self.ctx, self.ctx.view(self.name, shape))

    def cast(self, dtype: Any) -> Term:
        """The value in another dtype."""
        return Term(self.ctx, self.ctx.cast(self.name, np.dtype(dtype), part="cast"))

    def widen(self) -> Term:
        """The value in float32 when it is a 16-bit float."""
        return Term(self.ctx, self.ctx.widen(self.name))

    def number(self, value: float) -> Term:
        """A constant of this value's dtype."""
        return Term(self.ctx, self.ctx.scalar(value, self.dtype))

    def array(self, values: Any) -> Term:
        """A constant tensor of this value's dtype."""
        return Term(self.ctx, self.ctx.constant(np.asarray(values).astype(self.dtype)))

    def where(self, yes: Term | float, no: Term | float) -> Term:
        """Of a condition: a choice between two values, one of which is no number."""
        like = yes if isinstance(yes, Term) else no
        assert isinstance(like, Term)
        names = [v.name if isinstance(v, Term) else self.ctx.scalar(v, like.dtype) for v in (yes, no)]
        return Term(self.ctx, self.ctx.op("Where", self.name, *names, part="where"))

    def __add__(self, other: Term | float) -> Term:
        return self.of("Add", other)

    def __sub__(self, other: Term | float) -> Term:
        return self.of("Sub", other)

    def __mul__(self, other: Term | float) -> Term:
        return self.of("Mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.of("Div", other)

    def __radd__(self, other: float) -> Term:
        return self + other

    def __rsub__(self, other: float) -> Term:
        return self.number(other) - self

    def __rmul__(self, other: float) -> Term:
        return self * other

    def __lt__(self, other: Term | float) -> Term:
        return self.of("Less", other)

    def __le__(self, other: Term | float) -> Term:
        return self.of("LessOrEqual", other)

    def __gt__(self, other: Term | float) -> Term:
        return self.of("Greater", other)

    def __ge__(self, other: Term | float) -> Term:
        return self.of("GreaterOrEqual", other)

    def __and__(self, other: Term) -> Term:
        return self.of("And", other)

    def __or__(self, other: Term) -> Term:
        return self.of("Or", other)
