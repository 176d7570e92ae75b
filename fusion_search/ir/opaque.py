"""A call to an operator that has no spec: carried whole, run by a reference evaluator, a barrier to fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Dtype of a value whose type is known only when it runs (a sequence, a string tensor, a data-dependent shape).
#: Every reader of such a value is opaque too.
RUNTIME = np.dtype(object)


@dataclass(frozen=True, slots=True)
class OpaqueCall:
    """What an opaque node does.

    Attributes
    ----------
    op_type : str
        The model's operator.
    digest : str
        Identifies the call's attributes, subgraphs and operator-set version; equal calls have equal digests.
    function : callable
        ``(inputs) -> outputs``, inputs in the order of the node's; None for an input that is left out.
    """

    op_type: str
    digest: str
    function: Callable[[Sequence[Any]], Sequence[Any]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueCall) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"{self.op_type}:{self.digest[:8]}"
