"""The quotient graph of a partition into groups: an execution order, or the groups that wait for each other."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from fusion_search.search.space import bits

__all__ = ["cyclic_components", "execution_order"]


def _edges(preds: Sequence[int], groups: Sequence[int]) -> list[list[int]]:
    """Successor lists of the quotient graph, by position in `groups`."""
    owner = {node: i for i, group in enumerate(groups) for node in bits(group)}
    after: list[list[int]] = [[] for _ in groups]
    for i, group in enumerate(groups):
        inputs = 0
        for node in bits(group):
            inputs |= preds[node]
        for j in sorted({owner[node] for node in bits(inputs & ~group)}):
            after[j].append(i)
    return after


def execution_order(preds: Sequence[int], groups: Sequence[int]) -> list[int] | None:
    """Order groups so that each comes after those it reads from.

    Parameters
    ----------
    preds : sequence of int
        Direct predecessors of each node, as a set.
    groups : sequence of int
        A partition of all nodes.

    Returns
    -------
    list of int or None
        The topological order that always takes the ready group with the smallest node; None when there is a cycle.

    Notes
    -----
    Does not depend on the order of `groups`. O(edges + groups log groups).
    """
    groups = sorted(groups, key=lambda group: group & -group)
    after = _edges(preds, groups)
    waiting = [0] * len(groups)
    for following in after:
        for j in following:
            waiting[j] += 1
    # Sorted by smallest node, so the position itself is the priority.
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(groups[i])
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    return order if len(order) == len(groups) else None


def cyclic_components(preds: Sequence[int], groups: Sequence[int]) -> list[list[int]]:
    """Return the strongly connected sets of two or more groups, each sorted by smallest node.

    Empty exactly when `execution_order` finds an order. Tarjan's algorithm, iterative; O(edges + groups log groups).
    """
    groups = sorted(groups, key=lambda group: group & -group)
    after = _edges(preds, groups)
    index = [-1] * len(groups)
    low = [0] * len(groups)
    on_stack = [False] * len(groups)
    stack: list[int] = []
    found: list[list[int]] = []
    clock = 0
    for root in range(len(groups)):
        if index[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            i, step = work.pop()
            if step == 0:
                index[i] = low[i] = clock
                clock += 1
                stack.append(i)
                on_stack[i] = True
            else:
                low[i] = min(low[i], low[after[i][step - 1]])
            descended = False
            for k in range(step, len(after[i])):
                j = after[i][k]
                if index[j] < 0:
                    work.append((i, k + 1))
                    work.append((j, 0))
                    descended = True
                    break
                if on_stack[j]:
                    low[i] = min(low[i], index[j])
            if descended or low[i] != index[i]:
                continue
            component = []
            while True:
                j = stack.pop()
                on_stack[j] = False
                component.append(groups[j])
                if j == i:
                    break
            if len(component) > 1:
                found.append(sorted(component, key=lambda group: group & -group))
    return sorted(found, key=lambda component: component[0] & -component[0])
