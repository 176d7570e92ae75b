"""What a rival must offer: ways to run a case, with outputs of its own and, where it can, with given ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from experiments.benchmarks.case import Array, Case


@dataclass(frozen=True)
class Absent:
    """A library that is not here, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Runner:
    """One library, ready to run one case.

    Attributes
    ----------
    fresh : callable
        Runs once and returns outputs that no later run touches, in whatever form the library gives them.
    preallocated : callable, optional
        The same into memory that is reused from run to run; None where the library has no such call.
    arrays : callable
        Turns what either returned into NumPy arrays, outside of any timing.
    """

    fresh: Callable[[], Any]
    preallocated: Callable[[], Any] | None = None
    arrays: Callable[[Any], Sequence[Array]] = field(default=lambda results: [np.asarray(result) for result in as_tuple(results)])


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Make one result a tuple of one."""
    return results if isinstance(results, tuple) else (results,)


class Peer(Protocol):
    """A library."""

    version: str

    def __init__(self, threads: int) -> None:
        """Import the library and limit it to so many threads."""

    def prepare(self, case: Case) -> Runner | str:
        """Make everything ready that need not be timed; a str says why the case does not apply."""
