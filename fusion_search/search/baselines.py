"""Plans that no search was spent on, for comparison on the same cost: how much is fusion, and how much is choosing it.

Each returns the groups of an acyclic partition in execution order. All are deterministic; none looks at costs beyond
asking whether a group is legal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from fusion_search.search.partition import Partition
from fusion_search.search.quotient import execution_order
from fusion_search.search.space import Facts, GroupSpace, derive_facts, structurally_fit

__all__ = ["fuse_all", "per_operator", "unfused"]


def _ordered(space: GroupSpace, partition: Partition) -> tuple[int, ...]:
    order = execution_order(space.preds, partition.masks)
    assert order is not None, "Partition keeps the quotient graph acyclic"
    return tuple(order)


def unfused(space: GroupSpace) -> tuple[int, ...]:
    """One group for each node."""
    return tuple(1 << v for v in range(space.n))


def per_operator(
    space: GroupSpace, operator_of: Sequence[int], *, facts: Facts | None = None, deadline: float = float("inf")
) -> tuple[int, ...]:
    """One group for each operator of the model, as a runtime without fusion but with whole composites would run it.

    Parameters
    ----------
    space : GroupSpace
        The space.
    operator_of : sequence of int
        The model operator that each node comes from.
    facts : Facts, optional
        The closures of the space, when known.
    deadline : float
        When to merge no more, on the clock of `time.monotonic`.

    Returns
    -------
    tuple of int
        The groups. An operator whose nodes may not be one group, or whose group would close a cycle with groups made
        before, is merged as far as it can be in canonical order.
    """
    facts = facts or derive_facts(space)
    partition = Partition(space, facts, deadline=deadline)
    wholes: dict[int, int] = {}
    for v, operator in enumerate(operator_of):
        wholes[operator] = wholes.get(operator, 0) | 1 << v
    # By smallest node: dicts keep the order in which nodes came.
    for whole in wholes.values():
        if whole & (whole - 1):
            fit = time.monotonic() <= deadline and structurally_fit(space, facts, whole) and space.cost(whole) is not None
            if fit and not partition.waits(whole):
                partition.merge(whole)
            else:
                partition.merge_maximally(whole)
    return _ordered(space, partition)


def fuse_all(space: GroupSpace, *, facts: Facts | None = None, deadline: float = float("inf")) -> tuple[int, ...]:
    """Maximal fusion: merge neighbouring groups in canonical order wherever that is legal and stays acyclic, until time is up."""
    partition = Partition(space, facts or derive_facts(space), deadline=deadline)
    partition.merge_maximally((1 << space.n) - 1)
    return _ordered(space, partition)
