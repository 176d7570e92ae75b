"""What a stretch of nodes looks like from inside: equal descriptions mean equal groups, somewhere else in the graph.

A node's description says what it computes, where its operands come from and whether its values are read further on, all as
distances. A distance above `reach` is only "far": a value that comes from far away is the same value for two readers when a chain
of readers links them, each the next one that reads it. In a stretch of at most `reach` consecutive nodes everything that the key,
the neighbours and the rules of a group inside it depend on can be read off the descriptions: operations, shapes, which operands are
inside, which ones outside are the same, which values leave. So two stretches with equal descriptions hold the same groups,
shifted, at the same cost.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from fusion_search.fusion.program import Program, bits

_FAR = "far"


def describe_nodes(program: Program, clusters: Sequence[int], reach: int, apart: int = 0) -> list[int]:
    """Describe nodes that are runs of consecutive positions of a program, each by a number.

    Parameters
    ----------
    program : Program
    clusters : sequence of int
        The positions behind each node, ascending.
    reach : int
        The longest stretch, in nodes, about which descriptions are to be complete.
    apart : int
        Positions that are like no others, whatever they compute.

    Returns
    -------
    list of int
        Equal numbers for equal descriptions. O(operands).
    """
    place = {p: (c, i) for c, cluster in enumerate(clusters) for i, p in enumerate(bits(cluster))}
    read_before: dict[int, tuple[int, int]] = {}
    numbers: dict[Hashable, int] = {}
    found = []
    for c, cluster in enumerate(clusters):
        parts: list[Hashable] = []
        for p in bits(cluster):
            member = program.members[p]
            parts.append(member.signature)
            for operand in member.operands:
                if operand.parameter:
                    continue
                made, index = place.get(operand.producer, (-1, -1))
                before, slot = read_before.get(operand.base, (-1, -1))
                if made >= 0 and c - made <= reach:
                    output = program.members[operand.producer].outputs.index(operand.base)
                    parts.append((c - made, index, output))
                else:
                    parts.append((c - before, slot) if before >= 0 and c - before <= reach else _FAR)
                # Parts come in an order that is the node's own, so their count names the operand.
                read_before[operand.base] = (c, len(parts))
            parts += [_last_reader(program, value, c, place, reach) for value in member.outputs]
        described: Hashable = ("apart", c) if cluster & apart else tuple(parts)
        found.append(numbers.setdefault(described, len(numbers)))
    return found


def _last_reader(program: Program, value: int, c: int, place: Mapping[int, tuple[int, int]], reach: int) -> int:
    """How far the last reader of a value is; one more than `reach` when somebody far or outside needs it."""
    if value in program.kept:
        return reach + 1
    readers = program.readers[value]
    if not readers:
        return 0
    # Positions ascend with nodes, so the last reader is the furthest, if it is one of the nodes at all.
    if any(p not in place for p in (readers.bit_length() - 1, (readers & -readers).bit_length() - 1)):
        return reach + 1
    return min(place[readers.bit_length() - 1][0] - c, reach + 1)
