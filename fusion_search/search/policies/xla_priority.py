"""Priority fusion of XLA's GPU backend: the producer whose fusion saves most time goes first, until none saves any.

Published rule (OpenXLA's own account of priority fusion and of the cost model behind it: "Cost Models in XLA GPU - Present and
Future", https://github.com/openxla/xla/discussions/10065, and the RFC that it names): a producer's priority is the estimated time
of producer and consumers apart, less the time with the producer inside every consumer. The producer of highest priority is fused,
the priorities of its neighbours are computed again, and the pass ends when the highest is negative. Producer and consumer may not
both hold a reduction. Before it, rewriters give products and convolutions, which are library calls, their bias, residual and
activation. After it, the pass for fusions with several outputs merges producers with one of their consumers, and siblings that read
one value, where the estimate says that this is faster.

Adapted: times are our J. The space has no copies, so a producer and all its consumers become one group rather than one for each
consumer; where that is illegal only the last pass can fuse it.
"""

from __future__ import annotations

import heapq
from itertools import islice

from fusion_search.fusion.space import GroupSpace
from fusion_search.search.policies.rules import Board
from fusion_search.search.space import bits

__all__ = ["xla_priority"]

#: Bias, residual, activation.
_EPILOGUE = 3
# A value with a thousand readers would otherwise give a million pairs of siblings.
_SIBLINGS = 8


def xla_priority(space: GroupSpace, deadline: float = float("inf")) -> tuple[int, ...]:
    """Fuse producers into all their consumers in the order of what that saves.

    Returns
    -------
    tuple of int
        The groups in execution order. A heap of producers; each merge evaluates its neighbours again.
    """
    board = Board(space, deadline)
    board.join_epilogues(_EPILOGUE)
    _into_all_consumers(board)
    _several_outputs(board)
    return board.groups()


def _fusible(board: Board, producer: int, consumer: int) -> bool:
    """Whether the rules, costs apart, let two groups be one."""
    one, two = board.partition.mask(producer), board.partition.mask(consumer)
    if (one | two) & (board.space.heavy | board.space.solo):
        return False
    return not (one & board.reduces and two & board.reduces)


def _into_all_consumers(board: Board) -> None:
    partition = board.partition
    heap: list[tuple[int, int, int]] = []

    def propose(name: int) -> None:
        readers = partition.readers(name)
        if readers and all(_fusible(board, name, reader) for reader in readers):
            mask = partition.joint_of([name, *readers])
            if mask:
                # Of equal priorities the youngest instruction's is taken.
                heapq.heappush(heap, (-board.gain([name, *readers], mask), -name, mask))

    for name in partition.names:
        propose(name)
    while heap:
        loss, minus_name, mask = heapq.heappop(heap)
        if loss > 0:
            break
        name = -minus_name
        # A group that has changed since was proposed again when it did.
        if not partition.mask(name) or mask != _with_readers(board, name) or partition.waits(mask):
            continue
        merged = partition.merge(mask)
        for changed in (merged, *partition.operands(merged)):
            propose(changed)


def _with_readers(board: Board, name: int) -> int:
    mask = board.partition.mask(name)
    for reader in board.partition.readers(name):
        mask |= board.partition.mask(reader)
    return mask


def _several_outputs(board: Board) -> None:
    partition = board.partition

    def try_pair(a: int, b: int) -> int:
        """Merge two groups where that is faster; return the name of the result, -1 if it is not."""
        mask = partition.joint(a, b) if _fusible(board, a, b) else 0
        return partition.merge(mask) if mask and board.gain([a, b], mask) > 0 else -1

    program = board.program
    producers = {value: v for v, member in enumerate(program.members) for value in member.outputs}
    inputs = [value for value in range(len(program.readers)) if value not in producers]
    for value in (*inputs, *producers):
        name = partition.owner(producers[value]) if value in producers else -1
        for reader in partition.readers(name) if name >= 0 else ():
            if partition.mask(reader):
                merged = try_pair(name, reader)
                name = merged if merged >= 0 else name
        heads: list[int] = []
        for reader in sorted({partition.owner(r) for r in bits(program.readers[value])} - {name}):
            for k, head in islice(enumerate(heads), _SIBLINGS):
                merged = try_pair(head, reader)
                if merged >= 0:
                    heads[k] = merged
                    break
            else:
                heads.append(reader)
