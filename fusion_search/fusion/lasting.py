"""Refusals that last: what no group can lift that holds a given one.

Legality is not monotone, so a refused set may be part of a legal one. Some refusals last all the same. Take only the loops
that inner edges join. A member that joins the group later joins or cuts loops, it never parts them; so a loop that some
member reduces, that is read at other places than the reader's own, or that a member carries twice, is an outer loop of no
larger group. Hence two facts of every group that holds this one:

* a member all of whose loops are refused carries no outer loop;
* a value that a contraction or a window reads, or that is finished only after its own loops (a reduction, a contraction), is
  a scratch buffer, which in one block spans at least the refused loops whole.

Loops joined by a live-in do not count: a larger group may have to part them (`x + x.T`).
"""

from __future__ import annotations

from math import prod

from fusion_search.fusion.analysis import needing_outer_loops, pointwise
from fusion_search.fusion.loops import group_loops
from fusion_search.fusion.program import Program

__all__ = ["refused_for_good"]

#: No live-in is larger.
_ANY_SIZE = 1 << 62


def refused_for_good(program: Program, group: int, fast_memory_bytes: float) -> bool:
    """Whether every group that holds these nodes breaks the rule of shared outer loops or that of capacity.

    Linear in members times rank.
    """
    members = [program.members[p] for p in program.distinct(group)]
    loops = group_loops(program, group, _ANY_SIZE)
    carried = [[a for loop in loops.loops[i][: m.domain.rank] for a in loop] for i, m in enumerate(members)]
    refused = set(loops.conflicts)
    for i, member in enumerate(members):
        refused.update(a for loop in loops.loops[i][member.domain.rank :] for a in loop)
    for read in loops.reads:
        refused |= read.barred
    if any(refused.issuperset(carried[i]) for i in needing_outer_loops(members, loops.reads)):
        return True
    buffers = {
        read.producer
        for read in loops.reads
        if read.producer >= 0 and (members[read.reader].spec.kind in ("contract", "window") or not pointwise(members[read.producer]))
    }
    scratch = sum(members[i].itemsize * prod(loops.extents[a] for a in carried[i] if a in refused) for i in buffers)
    return scratch > fast_memory_bytes
