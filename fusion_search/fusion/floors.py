"""What groups cost at least, without analysing them: the bytes that must cross their borders, and one launch.

For runs of consecutive nodes the bytes of every run are found together. A value that a run reads and does not compute
is read once by it, at least as its first reader there reads it; a value that a run computes and that others need is
written once. A concat that is free when it is alone adds nothing: it may be alone. Spill, recomputation and what is read again only
add to that. All figures are priced by the cost model itself, on the most blocks that a group of these nodes can have, so that a floor
has the same bits as the price of a group to which nothing else adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from costmodels import CostModel, Flops, GroupFeatures, RecomputedFlops
from fusion_search.fusion.analysis import UNBOUNDED_BLOCKS, region
from fusion_search.fusion.program import Member, Program
from hardware_profiles import Profile

Ints = npt.NDArray[np.int64]

#: Floors end here, far above the price of any group that is planned: sums of two still fit 64 bits.
MOST = 1 << 61


@dataclass(frozen=True, slots=True)
class Crossing:
    """One value seen from a sequence of nodes: who computes it, who reads it, what crosses a border.

    Attributes
    ----------
    made : int
        Index of its producer in the sequence; -1 when it comes from outside.
    written : int
        Bytes when it leaves its producer's group.
    leaves : bool
        True when something outside the sequence needs it.
    reads : tuple of (int, int)
        Readers in the sequence, ascending, and the bytes that each reads.
    """

    made: int
    written: int
    leaves: bool
    reads: tuple[tuple[int, int], ...]


class RunFloors:
    """Floors of runs of consecutive nodes of a sequence.

    Parameters
    ----------
    program : Program
    profile : Profile
    model : CostModel
    sequence : sequence of int
        Positions, ascending.
    most : int
        Length of the longest run.
    units : sequence of int, optional
        Lengths of the runs that no plan splits, which make up the sequence; single nodes by default.
    aliases : int
        Positions that cost nothing alone.
    """

    def __init__(
        self,
        program: Program,
        profile: Profile,
        model: CostModel,
        sequence: Sequence[int],
        most: int,
        units: Sequence[int] | None = None,
        aliases: int = 0,
    ) -> None:
        self.program, self.profile, self.model = program, profile, model
        self.sequence, self.most = list(sequence), most
        self.free = [bool(aliases >> p & 1) for p in self.sequence]
        #: The unit of each node.
        self.unit = [u for u, length in enumerate([1] * len(self.sequence) if units is None else units) for _ in range(length)]
        members = [program.members[p] for p in self.sequence]
        self.blocks = max(_blocks(member) for member in members)
        self.values = self._crossings(members)

    def rows(self) -> list[Ints]:
        """Return for each node the floors of the runs of 1, 2, ... nodes that start there, in attoseconds.

        `MOST` stands for a run that touches more tensors than the profile allows. O(nodes * most) in array operations.
        """
        n, most = len(self.sequence), self.most
        traffic, touched = np.zeros(n + 2), np.zeros(n + 2)
        made: list[list[tuple[Crossing, int]]] = [[] for _ in range(n)]
        passed: list[list[tuple[Crossing, int]]] = [[] for _ in range(n)]
        for value in self.values:
            if value.made >= 0:
                if value.leaves or value.reads:
                    traffic[value.made + 1] += value.written
                    touched[value.made + 1] += 1
                if value.reads and not value.leaves:
                    traffic[value.reads[-1][0] + 1] -= value.written
                    touched[value.reads[-1][0] + 1] -= 1
                made[value.made].append((value, 0))
            elif value.reads:
                traffic[value.reads[0][0] + 1] += value.reads[0][1]
                touched[value.reads[0][0] + 1] += 1
            for k, (reader, _) in enumerate(value.reads):
                passed[reader].append((value, k + 1))
        found: list[Ints] = []
        for i in range(n):
            stop = min(i + 1 + most, n + 1)
            floors = self.price(np.cumsum(traffic[i + 1 : stop]))
            many = np.cumsum(touched[i + 1 : stop]) > self.profile.operand_limit
            many[0] = False  # a node alone is always legal
            floors[many] = MOST
            floors[: self._alone(i)] = 0
            found.append(floors)
            # From the next start on, what node i computed or read comes from outside.
            for value, _ in made[i]:
                if value.reads and not value.leaves:
                    traffic[value.reads[-1][0] + 1] += value.written
                    touched[value.reads[-1][0] + 1] += 1
            for value, k in (*made[i], *passed[i]):
                if k < len(value.reads) and value.made <= i:
                    traffic[value.reads[k][0] + 1] += value.reads[k][1]
                    touched[value.reads[k][0] + 1] += 1
        return found

    def _alone(self, i: int) -> int:
        """Length of the longest run from node i that is no kernel: a concat that is free, with its copies."""
        if not self.free[i]:
            return 0
        p = self.sequence[i]
        copies = self.program.copies.get(p, 1 << p)
        return next((k for k, q in enumerate(self.sequence[i:]) if not copies >> q & 1), len(self.sequence) - i)

    def price(self, nbytes: npt.NDArray[np.float64]) -> Ints:
        """Return what groups cost at least that move so many bytes."""
        nothing = RecomputedFlops(0.0, 0.0, 0.0)
        features = GroupFeatures(1, nbytes, 0, (), 1, self.blocks, 0, 0, 1, 0, Flops(0, 0, 0), nothing)  # type: ignore[arg-type]  # one record for many runs
        prices = self.model.prices(features, self.profile)
        return np.minimum(prices, float(MOST)).astype(np.int64)

    def whole(self) -> int:
        """Return what any plan of these nodes costs at least.

        What comes from outside is read once and what others need is written once; what every unit reads, every group
        reads. A group touches a limited number of tensors and holds a limited number of nodes, which limits how few groups there are.
        """
        n, units = self.free.count(False), len({u for u, free in zip(self.unit, self.free, strict=True) if not free})
        if not n:
            return 0
        common = [v for v in self.values if v.made < 0 and len({self.unit[r] for r, _ in v.reads}) == units]
        shared = sum(min(size for _, size in v.reads) for v in common)
        once = sum(min(size for _, size in v.reads) for v in self.values if v.made < 0 and v.reads) - shared
        written = [v.written for v in self.values if v.made >= 0 and v.leaves and not self.free[v.made]]
        once += sum(written)
        tensors = sum(v.made < 0 and bool(v.reads) for v in self.values) + len(written) - len(common)
        alone = max(len({o.base for o in self.program.members[p].operands}) + len(self.program.members[p].outputs) for p in self.sequence)
        room = max(self.profile.operand_limit, alone) - len(common)
        most_units = max(1, self.most // min(Counter(self.unit).values()))
        groups = max(-(-n // self.most), -(-units // most_units), -(-tensors // max(room, 1)))
        each, more = self.price(np.array([float(shared), float(shared + once)]))
        # One attosecond a group for rounding; a model that is not linear in bytes still charges the rest to one group.
        return max(0, int(more) + (groups - 1) * int(each) - groups - 1)

    # ------------------------------------------------------------------ values

    def _crossings(self, members: Sequence[Member]) -> list[Crossing]:
        program, line = self.program, self.profile.line_bytes
        inside = sum(1 << p for p in self.sequence)
        reads: dict[int, dict[int, int]] = {}
        made: dict[int, tuple[int, int]] = {}
        for i, member in enumerate(members):
            for k, operand in enumerate(member.operands):
                if operand.parameter or self.free[i]:
                    continue
                size = region(operand, member.domain.reads[k], member, line)[1]
                full = -(-operand.itemsize * prod(operand.base_shape) // line) * line
                mine = reads.setdefault(operand.base, {})
                mine[i] = max(mine.get(i, 0), min(size, full))
            for value, nbytes in zip(member.outputs, member.output_bytes, strict=True):
                made[value] = (i, 0 if self.free[i] else -(-nbytes // line) * line)
        found = []
        for value in dict.fromkeys((*made, *reads)):
            at, written = made.get(value, (-1, 0))
            leaves = at >= 0 and (value in program.kept or bool(program.readers[value] & ~inside))
            found.append(Crossing(at, written, leaves, tuple(sorted(reads.get(value, {}).items()))))
        return found


def _blocks(member: Member) -> int:
    """Most blocks of a group in which this node's value is stored."""
    if member.spec.kind == "opaque":
        return UNBOUNDED_BLOCKS
    return max(1, prod(member.domain.extents[: member.domain.rank]))
