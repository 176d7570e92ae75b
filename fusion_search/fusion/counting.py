"""Counts of many groups that overlap: the features that `fusion.analysis` gives, at a fraction of the work.

A group is a start (`fusion.starts`): its atoms are masks of pieces, so which members carry an atom, reduce it or read by it are a few
operations on integers. The counts have the bits that the analysis gives. What is not known here gives None, and the caller
analyses: nodes of several results or of none, operators without a spec, views that cannot be matched piece by piece, loops that a
member carries twice whatever live-ins are left apart, loops of no steps or of more than a float counts, many contractions, and pads
and concats that evaluate maps in parts where views cut their loops or a node has copies.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from costmodels import Flops, GroupFeatures, RecomputedFlops, Reread
from fusion_search.fusion.analysis import TEMPLATE_LIVE
from fusion_search.fusion.counted_parts import seen
from fusion_search.fusion.frames import Frame, Start
from fusion_search.fusion.loops import MAX_CONTRACTIONS
from fusion_search.fusion.program import Program
from fusion_search.fusion.starts import Starts
from fusion_search.fusion.tilings import Tilings, tilings_of

__all__ = ["Counting", "Counts"]

_NOTHING = RecomputedFlops(0.0, 0.0, 0.0)


class Counts(NamedTuple):
    """What the search needs to know of a group.

    Attributes
    ----------
    features : GroupFeatures
    touched : int
        Tensors that it reads or writes in memory.
    apart : tuple of int
        Members (indices in the group) that have to carry an outer loop and carry none.
    once : bool
        True when it is known that no member carries a loop twice.
    """

    features: GroupFeatures
    touched: int
    apart: tuple[int, ...]
    once: bool


class Counting:
    """Counts the groups of one program.

    Parameters
    ----------
    program : Program
    line_bytes : int
        Cache line: live-ins of this size or less do not unify loops, and bytes are counted in whole lines.

    Attributes
    ----------
    counted : dict of Hashable to Counts
        By shape, or what else is equal for equal keys; filled in by whoever asks, since machines differ in prices, seldom in counts.
    """

    def __init__(self, program: Program, line_bytes: int) -> None:
        self.starts = Starts(program, line_bytes)
        self.counted: dict[Hashable, Counts] = {}

    # ------------------------------------------------------------------ what the space asks

    def shape(self, group: int) -> Hashable | None:
        """Return what is equal for groups of equal structural keys, or None where that is not known here."""
        start = self.starts.of(group)
        if start is None:
            return None
        pattern = leave = 0
        if len(start.places) == len(start.nodes):
            for node in start.nodes:
                pattern += pattern
                if node.always or node.readers & ~group:
                    pattern += 1
        else:
            for node in start.places:
                if node.always or node.readers & ~group:
                    leave |= node.bit
            for node in start.nodes:
                pattern = pattern << 1 | bool(leave & node.bit)
        return start.shape, pattern

    def count(self, group: int) -> Counts | None:
        """Return the counts of a group, or None where the group has to be analysed."""
        start = self._united(group)
        return None if start is None else self._count(start, group, self.starts.frame(group))

    def one_loop(self, group: int, one: int, other: int) -> bool:
        """Whether two pieces, by their numbers, are one loop in a group that can be counted."""
        start = self._united(group)
        assert start is not None, "such a group was counted"
        assert start.atoms is not None
        base = self.starts.frame(group).first_piece
        both = 1 << one - base | 1 << other - base
        return any(atom & both == both for atom in start.atoms)

    def _united(self, group: int) -> Start | None:
        """Return a group's members with its atoms, those live-ins apart that would make a member carry a loop twice.

        None when that is not enough.
        """
        start = self.starts.of(group)
        if start is None or start.heavy.bit_count() > MAX_CONTRACTIONS:  # the columns of more are joined
            return None
        frame = self.starts.frame(group)
        dropped: frozenset[int] = frozenset()
        while True:
            self.starts.unify(frame, start, dropped)
            if not start.tangled:
                return start
            more = self.starts.guilty(frame, start) - dropped
            if not more:
                return None
            dropped |= more
            start = self.starts.walk(frame, group, dropped)
            assert start is not None, "the members are the same"

    def lasting(self, group: int, fast_memory_bytes: float) -> bool | None:
        """Whether every group that holds these nodes breaks a rule (`fusion.lasting`), or None where that is not known here."""
        known = self.starts.of(group)
        if known is None or known.parted:
            return None
        frame = self.starts.frame(group)
        start = self.starts.walk(frame, group, None)
        assert start is not None, "the members are the same"
        self.starts.unify(frame, start, None)
        if start.tangled:
            return None
        reduced = start.barred
        for node in start.nodes:
            reduced |= node.reduced
        assert start.atoms is not None
        refused = [(atom, carriers) for atom, carriers in zip(start.atoms, start.carriers, strict=True) if atom & reduced]
        free = 0
        for atom, carriers in zip(start.atoms, start.carriers, strict=True):
            if not atom & reduced:
                free |= carriers
        if self._needing(start) & ~free:
            return True
        buffers = 0
        for _, operand in start.inner:
            if operand.buffered:
                buffers |= operand.source
        scratch = 0
        for node in start.nodes:
            if buffers & node.bit:
                size = node.itemsize
                for atom, _ in refused:
                    if atom & node.parallel:
                        size *= self.starts.extent(frame, atom & node.parallel)
                scratch += size
        return scratch > fast_memory_bytes

    @staticmethod
    def _needing(start: Start) -> int:
        """Members that have to carry an outer loop."""
        return start.window | (start.heavy if start.heavy & (start.heavy - 1) else 0)

    # ------------------------------------------------------------------ counting

    def _count(self, start: Start, group: int, frame: Frame) -> Counts | None:
        leave = written = outs = 0
        for node in start.places:
            if not leave & node.bit and (node.always or node.readers & ~group):
                leave |= node.bit
                written += node.written
                outs += 1
        assert start.atoms is not None
        view = seen(start, leave)
        if view is None:
            return None
        never = start.refused | view.barred
        outer: list[tuple[int, int]] = []
        rest: list[int] = []
        carried = 0
        for atom, carriers in zip(start.atoms, view.carriers, strict=True):
            if atom & never or leave & ~carriers or not carriers:
                rest.append(carriers)
            else:
                outer.append((atom, carriers))
                carried |= carriers
        # in the order in which members have them
        outer.sort(key=lambda pair: pair[0] & -pair[0])
        scratch = self._scratch(start, rest, view.evaluated) & ~view.evaluated
        knobs: dict[tuple[int, int, int], list[int]] = {}
        others = 1
        for k, (atom, carriers) in enumerate(outer):
            missing, bit = 0, 1
            for used in view.used:
                if not used & atom:
                    missing |= bit
                bit += bit
            again = start.members & ~carriers
            if missing or again:
                knobs.setdefault((missing, again, scratch & carriers), []).append(k)
            else:
                others *= self.starts.extent(frame, atom & -atom)
        extents = [self.starts.extent(frame, atom & -atom) for atom, _ in outer] if knobs or scratch else []
        tilings = tilings_of(tuple(prod(extents[k] for k in knob) for knob in knobs.values()))
        bytes_read, rereads = self._reads(start, tilings, list(knobs))
        size_all: Any = 0.0
        for node in start.nodes if scratch else ():
            if scratch & node.bit:
                span = node.span
                for k, (_, carriers) in enumerate(outer):
                    if carriers & node.bit:
                        span //= extents[k]
                size: Any = float(node.itemsize * span)
                for tile, knob in zip(tilings.tiles, knobs.values(), strict=True):
                    if outer[knob[0]][1] & node.bit:
                        size = size * tile
                size_all = size_all + size
        flops = [0, 0, 0]
        iterations = itemsize = 1
        for node in start.nodes:
            if node.points > iterations:
                iterations = node.points
            if node.itemsize > itemsize:
                itemsize = node.itemsize
            if node.work:
                flops[node.flop_class] += node.work
        features = GroupFeatures(
            nodes=len(start.nodes),
            bytes_read=bytes_read,
            bytes_written=written,
            rereads=rereads,
            launches=1,
            blocks=float(others) * tilings.blocks,
            iterations=iterations,
            live=TEMPLATE_LIVE + self._live(start, scratch),
            itemsize=itemsize,
            scratch_bytes=size_all,
            flops=Flops(*flops),
            recomputed=self._recomputed(start, tilings, list(knobs)) if knobs else _NOTHING,
        )
        lone = self._needing(start) & ~carried
        apart = tuple(i for i, node in enumerate(start.nodes) if lone & node.bit) if lone else ()
        return Counts(features, len(start.outside) + outs, apart, True)

    @staticmethod
    def _scratch(start: Start, rest: Sequence[int], evaluated: int) -> int:
        """Members whose value crosses stages; `rest` are the carriers of loops that are not outer, `evaluated` members in parts."""
        stages: dict[int, int] = {}
        links = []
        staged = False
        for node, operand in start.inner:
            later = 1
            if operand.shares or operand.source & evaluated:
                pair = operand.source | node.bit
                for carriers in rest:
                    both = carriers & pair
                    if both and both != pair:
                        break
                else:
                    later = 0
            if later:
                staged = True
            links.append((node.bit, operand.source, later))
        if not staged:
            return 0
        scratch = 0
        for reader, source, later in links:
            stage = stages.get(source, 0) + later
            if stage > stages.get(reader, 0):
                stages[reader] = stage
        for reader, source, _ in links:
            if stages.get(reader, 0) > stages.get(source, 0):
                scratch |= source
        return scratch

    @staticmethod
    def _reads(start: Start, tilings: Tilings, knobs: Sequence[tuple[int, int, int]]) -> tuple[int, tuple[Reread, ...]]:
        """Bytes of the distinct live-ins, and the operands that are read again."""
        masks = [missing for missing, _, _ in knobs]
        found: dict[int, tuple[int, list[int]]] = {}
        several: dict[int, dict[Any, int]] = {}
        bit = 1
        for operand in start.live:
            base, inside, mark = operand.base, 0, 1
            for missing in masks:
                if not missing & bit:
                    inside |= mark
                mark += mark
            bit += bit
            known = found.get(base)
            if known is None:
                found[base] = operand.size, [inside]
            else:
                if inside not in known[1]:
                    known[1].append(inside)
                if base not in several:
                    first = next(other for other in start.live if other.base == base)
                    several[base] = {first.region: first.nbytes}
                several[base][operand.region] = operand.nbytes
                found[base] = min(operand.full, sum(several[base].values())), known[1]
        total = 0
        rereads = []
        for size, patterns in found.values():
            total += size
            if masks:
                more, positive = tilings.more(patterns[0])
                for inside in patterns[1:]:
                    other, also = tilings.more(inside)
                    more, positive = np.maximum(more, other), positive or also
                if positive:
                    rereads.append(Reread(size, more))
        return total, tuple(rereads)

    @staticmethod
    def _recomputed(start: Start, tilings: Tilings, knobs: Sequence[tuple[int, int, int]]) -> RecomputedFlops:
        outside = 0
        for _, again, _ in knobs:
            outside |= again
        if not outside:
            return _NOTHING
        works: dict[tuple[int, int], int] = {}
        for node in start.nodes:
            if node.bit & outside and node.flop_class >= 0:
                inside = 0
                for k, (_, again, _) in enumerate(knobs):
                    if not again & node.bit:
                        inside |= 1 << k
                key = (node.flop_class, inside)
                works[key] = works.get(key, 0) + node.work
        again_flops: list[Any] = [0.0, 0.0, 0.0]
        for (cls, inside), work in works.items():
            again_flops[cls] = again_flops[cls] + work * tilings.more(inside)[0]
        return RecomputedFlops(*again_flops)

    @staticmethod
    def _live(start: Start, scratch: int) -> int:
        """Largest number of scalars that are alive at once when the members run in canonical order (`fusion.analysis`)."""
        nodes = start.nodes
        seen = registers = 0
        ended = []
        for node in reversed(nodes):
            ended.append(node.names & ~seen)
            seen |= node.names
            if not scratch & node.bit:
                registers |= node.own
        registers &= seen
        alive = most = 0
        for node, end in zip(nodes, reversed(ended), strict=True):
            alive |= node.names
            count = alive.bit_count()
            if count > most:
                most = count
            alive &= ~end
            count = alive.bit_count() + 1
            if count > most:
                most = count
            alive |= node.own & registers
        return most
