"""Shares: the items of a group whose first reductions end in few results, each a part of their terms.

A share is as large as what the walk over all terms sums before it starts anew, so both give the same bits, and no schedule or number
of threads shows. Its partial results lie in memory that all items share; the last item to arrive adds them up, and runs what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusion_search.codegen import blocks
from fusion_search.codegen.access import GroupAccess
from fusion_search.codegen.blocks import by_lanes, is_reduce
from fusion_search.codegen.extents import actual
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE

#: Chunks that the rows of a matrix must have for each to be a share: with fewer, its columns keep the threads better busy.
FEWEST_CHUNKS = 4
#: Columns of a matrix whose rows are shares: they are walked whole, in long pieces, and a share's sums stay in the second-level cache.
MOST_COLUMNS = 1 << 16


@dataclass(frozen=True, slots=True)
class Shares:
    """How the first stage of a group is cut.

    Attributes
    ----------
    count : int
        The items of the group.
    rows : int or None
        The loop over the rows of a matrix that are summed; None where everything is reduced, in lanes along one loop.
    """

    count: int
    rows: int | None


def find_shares(group: GroupAccess, stages: Sequence[Stage], stored: set[int], codes: Mapping[int, str]) -> Shares | None:
    """Say how a group is cut into shares, or return None where it has outer loops to be cut along.

    Parameters
    ----------
    group : GroupAccess
    stages : sequence of Stage
    stored : set of int
        Members whose result lies in a tensor.
    codes : mapping of int to str
        The storage code of each member's result.
    """
    if not stages or stages[0].kind != "loop":
        return None
    first = stages[0]
    reducers = [i for i in first.members if is_reduce(group.members[i])]
    maps = set(first.members).difference(reducers, stored)
    if any(producer in maps and reader not in first.members for (reader, _), producer in group.producers.items()):
        return None  # their values would lie in the scratch of many threads, and what reads them runs on one
    if not reducers or group.loops[reducers[0]].reduced != (first.order if len(first.order) == 1 else first.order[:-1]):
        return None
    lanes = by_lanes(group.members[reducers[0]])
    if len(first.order) == 1 and lanes and not group.outer and {COMPUTE[codes[i]] for i in reducers} <= {"f4", "f8"}:
        return Shares(max(1, -(-actual(group.extents[first.order[0]]) // blocks.SHARE)), None)
    if len(first.order) == 2 and not lanes and _summed_by_rows(group, stages, reducers, codes):
        return Shares(max(1, -(-actual(group.extents[first.order[0]]) // blocks.CHUNK_TERMS)), first.order[0])
    return None


def _summed_by_rows(group: GroupAccess, stages: Sequence[Stage], reducers: list[int], codes: Mapping[int, str]) -> bool:
    """Whether a group sums the rows of a tall matrix, and what follows is no larger than one of them.

    Only sums of float32 run in chunks of a fixed size.
    """
    rows, columns = stages[0].order
    if group.outer != {columns} or not (
        group.extents[rows] >= FEWEST_CHUNKS * blocks.CHUNK_TERMS and group.extents[columns] <= MOST_COLUMNS
    ):
        return False
    if any(group.members[i].spec.combiner not in ("sum", "mean") or COMPUTE[codes[i]] != "f4" for i in reducers):
        return False
    if any(group.loops[i].all != {rows, columns} for i in stages[0].members):
        return False
    return not any(rows in group.loops[i].all for stage in stages[1:] for i in (*stage.members, *stage.inside))
