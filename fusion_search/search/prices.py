"""Node prices: lower bounds on any cover, and the reduced costs that tell which groups cannot be in a best one.

Prices y are *feasible* when no group's price, the sum over its nodes, exceeds its cost. The sum over all nodes is then
a lower bound on every partition (weak duality), and cost minus price of a group, its reduced cost, is what using that
group adds to the bound: one over (upper bound - sum of prices) is in no better plan. All arithmetic that a bound rests
on is on integers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from fusion_search.search.space import bits

__all__ = ["linear_prices", "proportional_prices", "reduced"]


def proportional_prices(groups: Sequence[tuple[int, int]], size: int) -> list[int]:
    """Share each group's cost among its nodes in proportion to their own cost, and give a node its least share.

    Feasible, because the shares of one group, each rounded down, add up to at most its cost.

    Parameters
    ----------
    groups : sequence of (int, int)
        Set and cost of each group, all singletons among them.
    size : int
        Number of nodes.

    Returns
    -------
    list of int
        A price for each node. O(sum of group sizes).
    """
    alone = [0] * size
    for group, cost in groups:
        if group & (group - 1) == 0:
            alone[group.bit_length() - 1] = cost
    prices = alone.copy()
    for group, cost in groups:
        nodes = list(bits(group))
        total = sum(alone[v] for v in nodes)
        if cost < total:
            for v in nodes:
                prices[v] = min(prices[v], cost * alone[v] // total)
    return prices


def linear_prices(groups: Sequence[tuple[int, int]], size: int, deadline: float) -> list[int]:
    """Prices of near the largest sum, from the linear relaxation of set partitioning.

    Column generation: the relaxation over few groups, whose duals tell which other groups to add. The solver's
    floating-point duals are only a suggestion: they are rounded to integers and lowered, group by group, until no
    group's price exceeds its cost. Lowering a price never makes another group infeasible, so one pass is enough; when
    time ran out before the last column was found, it only gives a weaker bound. Never worse than
    `proportional_prices`.
    """
    # Most searches never get here, and these take longer to import than most searches.
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csc_array, csr_array

    fallback = proportional_prices(groups, size)
    members = [list(bits(group)) for group, _ in groups]
    indptr = np.concatenate(([0], np.cumsum([len(nodes) for nodes in members])))
    columns = np.fromiter((v for nodes in members for v in nodes), dtype=np.int32, count=int(indptr[-1]))
    holds = csr_array((np.ones(len(columns)), columns, indptr), shape=(len(groups), size))
    scale = float(max(cost for _, cost in groups)) or 1.0
    costs = np.array([cost / scale for _, cost in groups])
    suggested = np.array([price / scale for price in fallback])
    active = np.zeros(len(groups), dtype=bool)
    active[np.diff(indptr) == 1] = True
    step = 4 * size + 100
    while time.monotonic() < deadline:
        missing = costs - holds @ suggested
        missing[active] = np.inf
        # The first round takes the groups nearest to their proportional price.
        worst = np.argsort(missing, kind="stable")[:step]
        worst = worst[missing[worst] < (-1e-9 if active.sum() > size else np.inf)]
        if not len(worst):
            break
        active[worst] = True
        answer = linprog(
            costs[active],
            A_eq=cast(Any, csc_array(holds[active].T)),  # the stubs know dense matrices only
            b_eq=np.ones(size),
            method="highs",
            options={"time_limit": max(0.1, deadline - time.monotonic())},
        )
        if answer.status != 0:
            break
        suggested = answer.eqlin.marginals
    prices = [round(float(price) * scale) for price in suggested]
    for nodes, (_, cost) in zip(members, groups, strict=True):
        excess = sum([prices[v] for v in nodes]) - cost
        if excess > 0:
            each = -(-excess // len(nodes))
            for v in nodes:
                prices[v] -= each
    return prices if sum(prices) > sum(fallback) else fallback


def reduced(groups: Sequence[tuple[int, int]], prices: Sequence[int]) -> list[int]:
    """Return the reduced cost of each group, none of them negative when the prices are feasible."""
    return [cost - sum(prices[v] for v in bits(group)) for group, cost in groups]
