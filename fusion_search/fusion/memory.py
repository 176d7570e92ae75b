"""Live memory of a plan that runs group by group: what is stored and still needed, and what a group needs besides.

`demands.PeakBytes` has the definition. What is alive after some nodes have run depends on the set of these nodes only, not on the
groups that ran them: a value is alive when a node that has not run reads it, or the caller gets it, and a value that lives inside a
group has neither. So the sets are down-sets, and what is alive is a function of them.
"""

from __future__ import annotations

import math

import numpy as np

from fusion_search.errors import UsageError
from fusion_search.fusion.program import bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.opaque import RUNTIME

__all__ = ["LiveMemory"]


class LiveMemory:
    """Counts live bytes on one space of groups.

    Parameters
    ----------
    space : GroupSpace
        Without demands.

    Raises
    ------
    UsageError
        When the size of a computed value is known only at run time.
    """

    def __init__(self, space: GroupSpace) -> None:
        self.space, self.program = space, space.program
        program = self.program
        for member in program.members:
            for name in member.node.outputs:
                if program.graph.values[name].dtype == RUNTIME:
                    raise UsageError(
                        f"live memory cannot be limited: the size of {name!r} is known only at run time", hint="leave peak_bytes out"
                    )
        self.nbytes = {value: size for member in program.members for value, size in zip(member.outputs, member.output_bytes, strict=True)}
        self.owner = {value: p for p, member in enumerate(program.members) for value in member.outputs}
        #: For each node the computed values that it reads.
        self.reads = [
            tuple(dict.fromkeys(operand.base for operand in member.operands if operand.producer >= 0)) for member in program.members
        ]
        self._scratch: dict[int, int] = {}

    def stored(self, group: int) -> list[int]:
        """Return the values that a group stores."""
        program = self.program
        return [
            value for p in bits(group) for value in program.members[p].outputs if value in program.kept or program.readers[value] & ~group
        ]

    def stored_bytes(self, group: int) -> int:
        """Return the bytes that a group stores."""
        return sum(self.nbytes[value] for value in self.stored(group))

    def freed_bytes(self, done: int, group: int) -> int:
        """Return the bytes that nobody needs once a group has run after the nodes in `done`."""
        program, after = self.program, done | group
        read = {value for p in bits(group) for value in self.reads[p]}
        gone = 0
        for value in read:
            if done >> self.owner[value] & 1 and value not in program.kept and not program.readers[value] & ~after:
                gone += self.nbytes[value]
        return gone

    def scratch_bytes(self, group: int) -> int:
        """Return the scratch of the blocks of a group that run at once, under the schedule of its least J."""
        if group not in self._scratch:
            priced = self.space.priced(group)
            if isinstance(priced, Reason):  # demanded, and in no plan
                self._scratch[group] = 0
            else:
                features = self.space.features(group)
                scratch, blocks = (_entry(counted, priced.tiling) for counted in (features.scratch_bytes, features.blocks))
                self._scratch[group] = math.ceil(scratch * min(max(blocks, 1), self.space.profile.parallel_units))
        return self._scratch[group]

    def footprint(self, group: int) -> int:
        """Return what is alive at least while a group runs, its scratch left out: the computed values it reads, and those it stores."""
        inputs = {value for p in bits(group) for value in self.reads[p] if not group >> self.owner[value] & 1}
        return sum(self.nbytes[value] for value in inputs) + self.stored_bytes(group)

    def tensors(self, group: int) -> tuple[str, ...]:
        """Return the names of the values that `footprint` counts, the largest first."""
        inputs = {value for p in bits(group) for value in self.reads[p] if not group >> self.owner[value] & 1}
        found = sorted({*inputs, *self.stored(group)}, key=lambda value: (-self.nbytes[value], value))
        return tuple(self.program.value_name[value] for value in found)


def _entry(counted: object, index: int) -> float:
    if isinstance(counted, np.ndarray):
        return float(counted[index if counted.size > 1 else 0])
    assert isinstance(counted, int | float)
    return float(counted)
