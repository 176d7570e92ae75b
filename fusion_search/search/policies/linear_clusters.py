"""Linear clusters: maximal chains of operators that have one consumer each.

Published rule: a task and its only dependent become one task, again and again (a special case of linear clustering, after Kim and
Browne, ICPP 1988; Dask calls it `dask.optimization.fuse_linear`). The simplest policy in use, and what many runtimes do before
anything else.

Adapted: weights and other constants do not count as dependencies. Where two chains end in one operator the one that its first
operand comes from goes on and the others end. A chain is cut where the space refuses the merge, before a second contraction,
say.
"""

from __future__ import annotations

from fusion_search.fusion.space import GroupSpace
from fusion_search.search.policies.rules import Board

__all__ = ["linear_clusters"]


def linear_clusters(space: GroupSpace, deadline: float = float("inf")) -> tuple[int, ...]:
    """Merge maximal chains of single-consumer operators.

    Returns
    -------
    tuple of int
        The groups in execution order. O(edges) merges tried.
    """
    board = Board(space, deadline)
    for v, member in enumerate(space.program.members):
        producers = dict.fromkeys(operand.producer for operand in member.operands if operand.producer >= 0)
        for producer in producers:
            # The producer is the end of its chain: its only reader is v.
            if board.only_reader(producer) == v:
                board.join(producer, v)
                break
    return board.groups()
