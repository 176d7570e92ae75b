"""The exhaustive oracle, for tests only: every partition of at most nine nodes, nothing pruned, nothing shared.

It shares no code with the exact search, and of the space it asks only `n`, `preds` and `cost`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fusion_search.search.space import GroupSpace

__all__ = ["exhaustive"]

_MOST_NODES = 9


def _partitions(rest: int, costs: list[int | None]) -> Iterator[list[int]]:
    """Yield every partition of `rest` into sets that have a cost."""
    if not rest:
        yield []
        return
    first = rest & -rest
    others = rest ^ first
    subset = others
    while True:
        block = subset | first
        if costs[block] is not None:
            for blocks in _partitions(rest ^ block, costs):
                yield [block, *blocks]
        if not subset:
            return
        subset = (subset - 1) & others


def _can_run(blocks: list[int], inputs: list[int]) -> bool:
    """Whether blocks can be run one by one, each after all that it reads."""
    done, left = 0, blocks
    while left:
        stuck = []
        for block in left:
            if inputs[block] & ~block & ~done:
                stuck.append(block)
            else:
                done |= block
        if len(stuck) == len(left):
            return False
        left = stuck
    return True


def exhaustive(space: GroupSpace) -> tuple[int, tuple[int, ...]]:
    """Return the least cost of any plan, and the plan of that cost with fewest groups (then the smallest masks).

    Parameters
    ----------
    space : GroupSpace
        At most nine nodes, else ValueError.

    Returns
    -------
    cost : int
        Exact.
    groups : tuple of int
        Sorted as integers, not in execution order.
    """
    if space.n > _MOST_NODES:
        raise ValueError(f"the oracle tries every partition: {space.n} nodes are too many, {_MOST_NODES} the most")
    costs: list[int | None] = [None] * (1 << space.n)
    inputs = [0] * (1 << space.n)
    for block in range(1, 1 << space.n):
        costs[block] = space.cost(block)
        for v in range(space.n):
            if block >> v & 1:
                inputs[block] |= space.preds[v]
    best: tuple[int, int, tuple[int, ...]] | None = None
    for blocks in _partitions((1 << space.n) - 1, costs):
        total = sum(costs[block] or 0 for block in blocks)
        if best is not None and total > best[0]:
            continue
        candidate = (total, len(blocks), tuple(sorted(blocks)))
        if (best is None or candidate < best) and _can_run(blocks, inputs):
            best = candidate
    assert best is not None, "single nodes are always legal and acyclic"
    return best[0], best[2]
