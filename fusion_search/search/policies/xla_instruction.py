"""Instruction fusion of XLA's CPU backend: each consumer takes in the producers that it can compute in its own loop.

Published rule (what the XLA project says of its instruction fusion pass and of the CPU backend's use of it, in documentation and
discussions; the order and the cases below are our reading of it): visit the instructions in reverse post-order; fuse a producer
into its consumer when the producer can be computed inside a loop (elementwise, layout, gather, reduction), unless it is expensive
and the consumer uses its elements several times. Products are library calls: a matrix-vector product may take in its operand's
producer, and the addition that follows it. Nothing looks at costs.

Adapted: XLA copies cheap producers into each of several consumers; the space has no copies, so a producer is fused when all
that read it are in the consumer by then. Expensive are transcendental functions and reductions. Windows are library calls too.
"""

from __future__ import annotations

from fusion_search.fusion.space import GroupSpace
from fusion_search.search.policies.rules import Board, reuses
from fusion_search.search.space import bits

__all__ = ["xla_instruction"]


def xla_instruction(space: GroupSpace, deadline: float = float("inf")) -> tuple[int, ...]:
    """Fuse producers into consumers in reverse post-order.

    Returns
    -------
    tuple of int
        The groups in execution order. O(edges) merges tried.
    """
    board = Board(space, deadline)
    partition = board.partition
    for v in reversed(range(space.n)):
        tried = 0
        # What the consumer takes in brings operands of its own.
        while fresh := _operands(board, v) & ~tried:
            producer = fresh.bit_length() - 1
            tried |= 1 << producer
            if _fits(board, producer, partition.mask(partition.owner(v))):
                board.join(producer, v)
    return board.groups()


def _operands(board: Board, v: int) -> int:
    mask = board.partition.mask(board.partition.owner(v))
    inputs = 0
    for u in bits(mask):
        inputs |= board.space.preds[u]
    return inputs & ~mask


def _fits(board: Board, producer: int, consumer: int) -> bool:
    space, members = board.space, board.program.members
    readers = space.succs[producer]
    if readers & ~consumer or board.leaves(producer) or space.solo & (1 << producer | consumer):
        return False
    if space.heavy >> producer & 1:
        # The output fusion of a product: one vector and the addition after it.
        return _is_vector(members[producer].shape) and all(members[r].node.op == "Add" for r in bits(readers))
    if any(space.heavy >> r & 1 and not _is_vector(members[r].shape) for r in bits(readers)):
        return False
    expensive = board.reduces >> producer & 1 or members[producer].spec.flop_class == "special"
    return not (expensive and any(reuses(members[r], producer) for r in bits(readers)))


def _is_vector(shape: tuple[int, ...]) -> bool:
    return sum(extent != 1 for extent in shape) <= 1
