"""A second bound and a second optimum, from a solver that shares no code with the search: the set-partitioning form.

Minimise the sum of cost(g) x(g) over the enumerated groups g, where each node is in exactly one chosen group. What that form leaves
out is the order: circles of chosen groups that wait for each other are found after solving and cut off, with all groups that would
close the same circle, until none is left. HiGHS, behind `scipy.optimize.milp`, solves it. Dominated groups are in no optimal plan
(`enumerate`), so leaving them out changes nothing.

HiGHS computes in floating point, with costs scaled to about a million for the dearest node. The groups it chooses are priced in integers
again; its own bound is lowered by what its tolerances allow, so `lower_bound` is true up to those, and below the optimum by
about a millionth. For tests, and for those who would rather trust two solvers than one (`fusion_search.search(..., bound="milp")`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np

from fusion_search.search.enumerate import enumerate_groups
from fusion_search.search.quotient import cyclic_components, execution_order
from fusion_search.search.space import GroupSpace, bits, derive_facts

__all__ = ["MilpResult", "milp_plan"]

# Relative: what the tolerances of the solver may add to an objective.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class MilpResult:
    """What the solver found.

    Attributes
    ----------
    groups : tuple of int
        A plan in execution order; empty when none was found in time.
    cost : int or None
        Its cost in attoseconds, added up in integers.
    lower_bound : int
        No plan costs less, as far as the solver's tolerances go.
    closed : bool
        Whether the solver proved its plan optimal, within its tolerances.
    cuts : int
        Circles that were cut off.
    """

    groups: tuple[int, ...]
    cost: int | None
    lower_bound: int
    closed: bool
    cuts: int


def milp_plan(space: GroupSpace, *, time_limit_s: float = 60.0, max_sets: int = 500_000) -> MilpResult:
    """Plan by integer programming.

    Parameters
    ----------
    space : GroupSpace
        The groups and their costs.
    time_limit_s : float
        Wall-clock budget, for enumeration and solver together.
    max_sets : int
        Most sets to enumerate. A space with more has no bound but 0 here, and no plan.

    Returns
    -------
    MilpResult
        The optimum when `closed`, otherwise a true lower bound and the best plan at hand.

    Notes
    -----
    Not meant for speed: exponential in the worst case, as integer programming is.
    """
    deadline = time.monotonic() + time_limit_s
    everything = (1 << space.n) - 1
    found = enumerate_groups(space, derive_facts(space), everything, max_sets=max_sets, deadline=deadline, reuse=False)
    if not found.complete:
        return MilpResult((), None, 0, False, 0)
    if not space.n:
        return MilpResult((), 0, 0, True, 0)
    groups, costs = [group for group, _ in found.groups], [cost for _, cost in found.groups]
    bound = 0
    cuts: dict[tuple[int, ...], int] = {}  # positions of groups, and how many of them a plan may hold
    while True:
        chosen, value = _solve(groups, costs, space.n, cuts, deadline - time.monotonic())
        bound = max(bound, value)
        if chosen is None:
            return MilpResult((), None, bound, False, len(cuts))
        plan = [groups[i] for i in chosen]
        components = cyclic_components(space.preds, plan)
        if not components:
            cost = sum(costs[i] for i in chosen)
            order = execution_order(space.preds, plan)
            assert order is not None, "no circles"
            return MilpResult(tuple(order), cost, min(bound, cost), cost - bound <= cost * 2 * _TOLERANCE + 2, len(cuts))
        for component in components:
            for start in range(len(component)):
                circle = _circle(space.preds, component, start)
                cuts[_holding(groups, circle)] = len(circle) - 1


def _circle(preds: Sequence[int], component: Sequence[int], start: int) -> list[int]:
    """A shortest circle through one group of a strongly connected set: for each group on it the nodes where it enters and leaves."""
    came: dict[int, tuple[int, int, int]] = {}  # group -> group that it depends on, by which edge
    fresh, end = [start], -1
    while end < 0:
        following = []
        for i in fresh:
            for v in bits(component[i]):
                for j, other in enumerate(component):
                    made = preds[v] & other
                    if made and j != i and j not in came:
                        came[j] = (i, made.bit_length() - 1, v)
                        following.append(j)
        fresh = following
        end = start if start in came else -1
    # Walk back from the start to itself: each step is an edge from a node of `at` to a node of the group before.
    edges: list[tuple[int, int]] = []
    at = start
    while not edges or at != start:
        before, made, reader = came[at]
        edges.append((made, reader))
        at = before
    # The edges are made -> reader, and the reader of one lies in the group that makes the next.
    return [1 << reader | 1 << following_made for (_, reader), (following_made, _) in zip(edges, [*edges[1:], edges[0]], strict=True)]


def _holding(groups: Sequence[int], circle: Sequence[int]) -> tuple[int, ...]:
    """Groups that hold the nodes where the circle enters and leaves one of its groups, and not those of two.

    If each pair of nodes is in a group of its own, the groups wait for each other. Of the groups that hold one pair a plan has at most one.
    """
    return tuple(i for i, group in enumerate(groups) if sum(pair & ~group == 0 for pair in circle) == 1)


def _solve(
    groups: Sequence[int], costs: Sequence[int], size: int, cuts: Mapping[tuple[int, ...], int], seconds: float
) -> tuple[list[int] | None, int]:
    """Choose groups of least cost that cover each node once and hold no circle whole; also a lower bound on their cost."""
    # Most runs never come here, and SciPy takes longer to import than most searches.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    if seconds <= 0:
        return None, 0
    scale = max(max(costs) / 1e6, 1.0)
    rows = [v for group in groups for v in bits(group)]
    columns = [i for i, group in enumerate(groups) for _ in bits(group)]
    covers = csr_array((np.ones(len(rows)), (rows, columns)), shape=(size, len(groups)))
    constraints = [LinearConstraint(covers, 1, 1)]
    if cuts:
        at = [k for k, circle in enumerate(cuts) for _ in circle]
        held = csr_array((np.ones(len(at)), (at, [i for circle in cuts for i in circle])), shape=(len(cuts), len(groups)))
        constraints.append(LinearConstraint(held, -np.inf, list(cuts.values())))
    answer = milp(
        np.array([cost / scale for cost in costs]),
        constraints=constraints,
        integrality=np.ones(len(groups), np.uint8),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    dual = getattr(answer, "mip_dual_bound", None)
    bound = 0 if dual is None or not np.isfinite(dual) else max(0, floor(dual * scale * (1 - _TOLERANCE)) - 1)
    if answer.x is None:
        return None, bound
    return [i for i, x in enumerate(answer.x) if x > 0.5], bound
