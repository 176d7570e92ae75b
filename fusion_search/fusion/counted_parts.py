"""Maps that are evaluated where a pad or a concat reads them (`fusion.parts`), for groups that are counted on masks."""

from __future__ import annotations

from typing import NamedTuple

from fusion_search.fusion.frames import Node, Operand, Start

__all__ = ["Seen", "seen"]


class Seen(NamedTuple):
    """A group as its counts see it: the loops of what is evaluated in a part are those of its host.

    Attributes
    ----------
    carriers : list of int
        Members that carry each atom.
    barred : int
        Pieces along which a member is read elsewhere.
    used : list of int
        Pieces that decide what each live-in's read touches.
    evaluated : int
        Members that are evaluated in a part.
    """

    carriers: list[int]
    barred: int
    used: list[int]
    evaluated: int


def seen(start: Start, leave: int) -> Seen | None:
    """Return how a group is seen whose atoms are known; None where that is not known on masks.

    Parameters
    ----------
    start : Start
    leave : int
        Members that are stored.
    """
    assert start.atoms is not None
    if not start.parted:
        return Seen(start.carriers, start.barred, [operand.used for operand in start.live], 0)
    if len(start.places) != len(start.nodes):  # copies of a node
        return None
    hosts = _hosts(start, leave)
    if hosts is None:
        return None
    evaluated = sum(hosts)
    carriers = []
    for atom, whose in zip(start.atoms, start.carriers, strict=True):
        mine = whose & ~evaluated
        for bit, place in hosts.items():
            if atom & place.parallel:
                mine |= bit
        carriers.append(mine)
    barred = 0
    for _, operand in start.inner:
        if not operand.source & evaluated:
            barred |= operand.barred
    used = []
    for node in start.nodes:
        host = hosts.get(node.bit)
        for operand in node.operands:
            if not (operand.producer >= 0 and operand.source & start.members):
                used.append(operand.used if host is None else _through(host, operand))
    return Seen(carriers, barred, used, evaluated)


def _through(host: Node, operand: Operand) -> int:
    """Pieces of a host that decide what a member which is evaluated in it reads."""
    pieces = host.parallel if operand.indirect else 0
    for loop in operand.loops:
        pieces |= host.loops[loop]
    return pieces


def _hosts(start: Start, leave: int) -> dict[int, Node] | None:
    """Where members are evaluated: the host of each, by the member's bit; None when a host's loops are cut."""
    reads: dict[int, tuple[Node, Operand]] = {}
    twice = 0
    sources: dict[int, int] = {}
    for node, operand in start.inner:
        if operand.source in reads:
            twice |= operand.source
        reads[operand.source] = (node, operand)
        sources[node.bit] = sources.get(node.bit, 0) | operand.source
    found: dict[int, Node] = {}
    for node in reversed(start.nodes):
        if node.bit not in reads or not node.expression or (twice | leave) & node.bit:
            continue
        reader, operand = reads[node.bit]
        if reader.bit in found:
            if operand.in_place:
                found[node.bit] = found[reader.bit]
        elif operand.in_part:
            if any(pieces & (pieces - 1) for pieces in reader.loops):
                return None
            found[node.bit] = reader
    for node in start.nodes:
        if node.bit in found and any(bit not in found for bit in _each(sources.get(node.bit, 0))):
            del found[node.bit]
    for node in reversed(start.nodes):
        if node.bit in found:
            reader, operand = reads[node.bit]
            if not operand.in_part and reader.bit not in found:
                del found[node.bit]
    return found


def _each(mask: int) -> list[int]:
    """The bits of a mask, each as a mask."""
    found = []
    while mask:
        found.append(mask & -mask)
        mask &= mask - 1
    return found
