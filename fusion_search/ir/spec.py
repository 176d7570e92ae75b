"""What is known of an operator: one record from which legality, traffic, registers and code are derived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fusion_search.ir.graph import Node, Shape

Kind = Literal["map", "reduce", "contract", "window", "layout", "gather", "scatter", "opaque"]
FlopClass = Literal["none", "simple", "special", "contract"]
Array = np.ndarray[Any, Any]
#: An attribute that no model gives: the first operand is known to be at most 0 or NaN, so a body may leave out what guards against more.
NEVER_POSITIVE = "never_positive"


class Type(NamedTuple):
    """Dtype and shape of a value."""

    dtype: np.dtype[Any]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Dim:
    """How one dimension of an operand is indexed: ``sum(coefficient * loop) + offset``.

    Attributes
    ----------
    terms : tuple of (int, int)
        Loop and its coefficient; empty for a broadcast dimension.
    offset : int
        Constant part.
    indirect : bool
        True when the index comes from data (a gather); `terms` is then empty.
    """

    terms: tuple[tuple[int, int], ...] = ()
    offset: int = 0
    indirect: bool = False

    @property
    def loop(self) -> int | None:
        """The loop, when the index is exactly one loop; None otherwise."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0 and not self.indirect:
            return self.terms[0][0]
        return None


@dataclass(frozen=True, slots=True)
class Access:
    """How one operand is read.

    Attributes
    ----------
    dims : tuple of Dim
        One index for each dimension of the operand.
    guarded : bool
        True when indices may fall outside the operand, where nothing is read (padding, the parts of a concat).
    """

    dims: tuple[Dim, ...]
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Domain:
    """A node's loops and how its operands are read from them.

    The first loops are the output's dimensions in order, all parallel but some of the uncut ones; `reductions` more follow.

    Attributes
    ----------
    extents : tuple of int
    reductions : int
        How many of the last loops are reductions.
    reads : tuple of Access
        One for each operand, in order.
    uncut : tuple of int
        Dimensions of the result along which no block may be cut, so that none is an outer loop: data decides what is written there,
        or each step needs those before it.
    """

    extents: tuple[int, ...]
    reductions: int
    reads: tuple[Access, ...]
    uncut: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """Number of parallel loops."""
        return len(self.extents) - self.reductions


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One core operator.

    Attributes
    ----------
    name : str
    kind : str
        One of map, reduce, contract, window, layout, gather, scatter, opaque.
    infer : callable
        ``(types, node attributes as dict) -> Type`` of the output; raises ``ValueError`` with a reason.
    domain : callable
        ``(types, output type, attributes) -> Domain``.
    evaluate : callable
        ``(arrays, attributes) -> array``: the reference, in NumPy.
    body : callable or None
        ``(dtype code, argument texts, attributes) -> text``: the scalar expression, for maps. Among the attributes may be
        `NEVER_POSITIVE`.
    combiner : str
        For reductions and windows: sum, max, min, prod.
    flop_class : str
    flops : float
        Operations of that class for each point of the iteration domain.
    exact : bool
        True when the kernel's result has the same bits as NumPy's (numeric class).
    """

    name: str
    kind: Kind
    infer: Callable[[Sequence[Type], dict[str, Any]], Type]
    domain: Callable[[Sequence[Type], Type, dict[str, Any]], Domain]
    evaluate: Callable[[Sequence[Array], dict[str, Any]], Array]
    body: Callable[[str, Sequence[str], dict[str, Any]], str] | None = None
    combiner: str = ""
    flop_class: FlopClass = "simple"
    flops: float = 1.0
    exact: bool = False

    def domain_of(self, node: Node, types: Sequence[Type], out: Type) -> Domain:
        """Return the iteration domain of one node."""
        return self.domain(types, out, dict(node.attrs))


def identity(rank: int) -> Access:
    """Return the access that reads dimension d by loop d."""
    return Access(tuple(Dim(((d, 1),)) for d in range(rank)))


def broadcast_access(shape: Shape, out: Shape) -> Access:
    """Return the access of an operand that is broadcast, aligned at the last dimension."""
    lead = len(out) - len(shape)
    return Access(tuple(Dim() if n == 1 else Dim(((lead + d, 1),)) for d, n in enumerate(shape)))
