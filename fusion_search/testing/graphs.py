"""Random graphs of core operators, inputs for them, and random legal partitions: all from seeds."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fusion_search.fusion.program import bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.search.quotient import execution_order
from fusion_search.testing.draw_loops import RUNNING, STRUCTURED
from fusion_search.testing.draw_maps import ELEMENTWISE
from fusion_search.testing.drawing import Drawer
from fusion_search.testing.values import random_feeds, special_feeds

#: What can be drawn: core operators, and ``View`` for a reshape; and what besides in wide graphs.
DRAWN = {**ELEMENTWISE, **STRUCTURED}
WIDE = RUNNING


def random_graph(seed: int, *, size: int = 6, ops: Collection[str] | None = None, extents: int = 0, wide: bool = False) -> Graph:
    """Make a valid graph.

    Parameters
    ----------
    seed : int
        The same seed gives the same graph.
    size : int
        Operators to draw; a few more nodes make their operands fit.
    ops : collection of str, optional
        Names out of :data:`DRAWN`; all of them by default.
    extents : int
        Seeds the sizes: another number gives mostly the same operators at other extents, which need no new kernels.
    wide : bool
        Also draw bfloat16, every integer, running totals and constants like NaN, with small tensors; then nothing is tame.

    Returns
    -------
    Graph
        With one or more outputs; every node is needed by one.
    """
    forms = {**DRAWN, **WIDE}
    return Drawer(seed, extents, wide).draw(size, sorted(ops or (forms if wide else DRAWN)), forms)


def random_partition(space: GroupSpace, rng: np.random.Generator, *, tries: int = 0) -> list[int]:
    """Merge groups at random as long as the result is legal.

    Parameters
    ----------
    space : GroupSpace
    rng : numpy.random.Generator
    tries : int
        Merges to try; four a node by default.

    Returns
    -------
    list of int
        Sets of positions that cover the graph, in an order in which they can run.
    """
    groups = [1 << p for p in range(space.n)]
    for _ in range(tries or 4 * space.n):
        if len(groups) < 2:
            break
        first = groups[int(rng.integers(len(groups)))]
        near = 0
        for p in bits(first):
            near |= space.neighbours[p]
        others = [group for group in groups if group != first and group & near]
        if not others:
            continue
        merged = {first, others[int(rng.integers(len(others)))]}
        if rng.random() < 0.3:  # an illegal pair may be legal with a third
            merged.add(others[int(rng.integers(len(others)))])
        union = sum(merged)
        trial = [group for group in groups if group not in merged] + [union]
        if not space.reasons(union) and execution_order(space.preds, trial) is not None:
            groups = trial
    order = execution_order(space.preds, groups)
    assert order is not None
    return list(order)


__all__ = ["DRAWN", "WIDE", "random_feeds", "random_graph", "random_partition", "special_feeds"]
