"""What a search returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SearchResult", "Statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a search did.

    Attributes
    ----------
    grown, groups, dominated : int
        Connected convex sets visited; groups kept; legal groups dropped because splitting them is strictly cheaper.
    states, transitions, pruned : int
        Of all dynamic programs together.
    parts, parts_reused, parts_joined : int
        Independent parts of two nodes or more; those answered by an equal part; parts solved again together because
        their groups waited for each other.
    enumeration_complete : bool
        Whether every group was seen.
    seconds : float
        Wall-clock time; the one number here that differs from run to run.
    """

    grown: int
    groups: int
    dominated: int
    states: int
    transitions: int
    pruned: int
    parts: int
    parts_reused: int
    parts_joined: int
    enumeration_complete: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A plan with its certificate.

    Attributes
    ----------
    groups : tuple of int
        Sets that partition the nodes, in execution order (of the ready groups, the one with the smallest node first).
    cost, lower_bound : int
        Attoseconds. No plan of the space costs less than `lower_bound`.
    status : {"optimal", "feasible"}
        "optimal" exactly when the bound equals the cost.
    statistics : Statistics
        What was explored.
    """

    groups: tuple[int, ...]
    cost: int
    lower_bound: int
    status: Literal["optimal", "feasible"]
    statistics: Statistics
