"""TorchInductor's scheduler: pairs of nodes by the bytes that they share, in rounds, with a limit on the size of a kernel.

Published rule (Ansel et al., "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
Compilation", ASPLOS 2024, on the scheduler; defaults of `torch._inductor.config`: `max_fusion_size`,
`score_fusion_memory_threshold`): find all pairs that may be fused, vertical or horizontal; score each by the kind of fusion, then
by the bytes of the buffers that both read or write, then by how near they are in the order; fuse greedily from the highest score;
do so in rounds until nothing changes, at most ten. A pair that shares fewer than 10 bytes is not fused, nor one of more than 64
nodes. Pointwise loops fuse when they have as many iterations; a reduction with pointwise loops over its output or its input; two
reductions when both numbers agree. Templates, the generated products, take pointwise epilogues and nothing before them.

Adapted: products, convolutions and pools are templates, as with autotuning; by default most are library calls and take nothing. The
inlining of cheap producers into several consumers, which copies, has no counterpart in the space.
"""

from __future__ import annotations

from itertools import combinations, islice
from math import prod

from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.opaque import RUNTIME
from fusion_search.search.policies.rules import Board
from fusion_search.search.space import bits

__all__ = ["inductor"]

MIN_SHARED_BYTES = 10
MAX_NODES = 64
ROUNDS = 10
# Pairs of users of one buffer; Inductor bounds them too.
_ATTEMPTS = 64 * 63 // 2


def inductor(space: GroupSpace, deadline: float = float("inf")) -> tuple[int, ...]:
    """Fuse pairs of groups by shared bytes.

    Returns
    -------
    tuple of int
        The groups in execution order. At most ten rounds of O(pairs log pairs).
    """
    scheduler = _Scheduler(Board(space, deadline))
    for _ in range(ROUNDS):
        if not scheduler.fuse_once():
            break
    return scheduler.board.groups()


class _Scheduler:
    def __init__(self, board: Board) -> None:
        self.board, self.partition = board, board.partition
        program = board.program
        values = [program.graph.values[name] for name in program.value_name]
        self.sizes = [0 if value.dtype == RUNTIME else value.nbytes for value in values]
        self.touched: list[set[int]] = []
        self.loops: list[tuple[int, int]] = []
        for member in program.members:
            self.touched.append({operand.base for operand in member.operands if not operand.parameter} | set(member.outputs))
            extents, rank = member.domain.extents, member.domain.rank
            self.loops.append((prod(extents[:rank]), prod(extents[rank:])))

    def fuse_once(self) -> bool:
        """One round: score all pairs, then fuse from the best down those whose groups are still what was scored."""
        scored = []
        for a, b in self._pairs():
            shared = self._shared(a, b)
            if shared >= MIN_SHARED_BYTES and self._fusible(a, b):
                one, two = self.partition.mask(a), self.partition.mask(b)
                template = bool((one | two) & self.board.space.heavy)
                alike = bool(one & self.board.reduces) == bool(two & self.board.reduces)
                distance = max((one & -one).bit_length(), (two & -two).bit_length()) - min(one.bit_length(), two.bit_length())
                scored.append((not template, not alike, -shared, max(distance, 0), one, two))
        changed = False
        for *_, one, two in sorted(scored):
            a, b = ((mask & -mask).bit_length() - 1 for mask in (one, two))
            if self.partition.mask(a) == one and self.partition.mask(b) == two:
                mask = self.partition.joint(a, b)
                if mask:
                    self.partition.merge(mask)
                    changed = True
        return changed

    def _pairs(self) -> list[tuple[int, int]]:
        users: dict[int, list[int]] = {}
        for name in self.partition.names:
            for value in sorted(self._values(name)):
                users.setdefault(value, []).append(name)
        found: dict[tuple[int, int], None] = {}
        for names in users.values():
            found.update(dict.fromkeys(islice(combinations(names, 2), _ATTEMPTS)))
        return list(found)

    def _values(self, name: int) -> set[int]:
        found: set[int] = set()
        for v in bits(self.partition.mask(name)):
            found |= self.touched[v]
        return found

    def _shared(self, a: int, b: int) -> int:
        return sum(self.sizes[value] for value in self._values(a) & self._values(b))

    def _fusible(self, a: int, b: int) -> bool:
        board, partition = self.board, self.partition
        one, two = partition.mask(a), partition.mask(b)
        if (one | two).bit_count() > MAX_NODES or (one | two) & board.space.solo:
            return False
        if (one | two) & board.space.heavy:
            # The template comes first and what follows it is pointwise, over as many points.
            first, second = (a, b) if one & board.space.heavy else (b, a)
            follows = second in partition.readers(first) and first not in partition.readers(second)
            head = (partition.mask(first) & board.space.heavy).bit_length() - 1
            return follows and not partition.mask(second) & (board.space.heavy | board.reduces) and self._over(second, self.loops[head][0])
        loops = {self.loops[v] for v in bits((one | two) & board.reduces)}
        if len(loops) > 1:
            return False
        if loops:
            ((points, reduced),) = loops
            return all(self.loops[v][0] in (points, points * reduced) for v in bits((one | two) & ~board.reduces))
        return len({self.loops[v][0] for v in bits(one | two)}) == 1

    def _over(self, name: int, points: int) -> bool:
        return all(self.loops[v][0] == points for v in bits(self.partition.mask(name)))
