"""Starts of groups: the members of a group up to some node, what is known of them alone, and which of their loops are one.

Groups that a search asks about overlap: they grow from one node and differ in a node or two. So a group is built up member by member in
canonical order, and what is known of each start is kept, as long as groups of the same lowest node are asked about. Loops are
numbered pieces (`fusion.pieces`), sets of pieces are bit masks relative to the lowest node's first, and an *atom* is the mask of the pieces
that are one loop in the group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

from fusion_search.fusion.analysis import pointwise, region, slides
from fusion_search.fusion.frames import Frame, Node, Operand, Start
from fusion_search.fusion.loops import matched_operands
from fusion_search.fusion.parts import is_expression, joins_parts
from fusion_search.fusion.pieces import Pieces, cut_everywhere
from fusion_search.fusion.program import Program

__all__ = ["Starts"]

#: Nodes of more points are not counted here: floats lose units.
_MOST_POINTS = 1 << 50
#: Starts of groups that are kept, and lowest nodes that they are kept for.
_MOST_STARTS, _MOST_FRAMES = 60_000, 64
#: Places in `Flops`.
_CLASSES = {"simple": 0, "special": 1, "contract": 2}


class Starts:
    """Starts of the groups of one program.

    Parameters
    ----------
    program : Program
    line_bytes : int
        Live-ins of this size or less do not unify loops.
    """

    def __init__(self, program: Program, line_bytes: int) -> None:
        self.program, self.line = program, line_bytes
        self._pieces: Pieces | None = None
        self._frames: dict[int, Frame] = {}
        self._kept = 0
        self._known: list[tuple[int, int] | None] = []
        self._regions: dict[tuple[int, int], tuple[Any, int]] = {}
        self._shapes: dict[Hashable, int] = {}
        self._last: tuple[int, Start | None] = (0, None)

    @property
    def pieces(self) -> Pieces:
        """The loops of the program, cut when they are first asked for."""
        if self._pieces is None:
            self._pieces = cut_everywhere(self.program)
            self._known = [self._fact(p) for p in range(len(self.program.members))]
        return self._pieces

    # ------------------------------------------------------------------ starts

    def of(self, group: int) -> Start | None:
        """Return the members of a group, or None when some of them are not counted here."""
        if self._last[0] == group:
            return self._last[1]
        pieces = self.pieces
        low = (group & -group).bit_length() - 1
        frame = self._frames.get(low)
        if frame is None or self._kept > _MOST_STARTS:
            if len(self._frames) >= _MOST_FRAMES or self._kept > _MOST_STARTS:
                self._frames.clear()
                self._kept = 0
            fact = self._known[low]
            first = next((piece for loop in pieces.loops[low] for piece in loop), None)
            if first is None:  # no loops: those of the next node are the first
                first = next((piece for p in range(low, len(self._known)) for loop in pieces.loops[p] for piece in loop), 0)
            frame = self._frames[low] = Frame(first, low if fact is None else fact[0])
        start = self.walk(frame, group, frozenset())
        self._last = (group, start)
        return start

    def walk(self, frame: Frame, group: int, dropped: frozenset[int] | None) -> Start | None:
        """Return a group's members, built up from the longest start that is known. Live-ins in `dropped` unify nothing; with None, all."""
        starts = frame.starts.setdefault(dropped, {0: Start()})
        known, todo = group, []
        start = starts.get(known)
        while start is None:
            top = known.bit_length() - 1
            todo.append(top)
            known ^= 1 << top
            start = starts.get(known)
        for p in reversed(todo):
            node = self._node(frame, p)
            if node is None:
                return None
            start = self._with(frame, start, node, known)
            known |= 1 << p
            starts[known] = start
            self._kept += 1
        return start

    def _with(self, frame: Frame, parent: Start, node: Node, before: int) -> Start:
        start = Start()
        start.parent, start.last = parent, node
        start.places = (*parent.places, node)
        start.members, start.heavy, start.window = parent.members, parent.heavy, parent.window
        start.active, start.barred, start.refused = parent.active, parent.barred, parent.refused
        start.nodes, start.inner, start.live = parent.nodes, parent.inner, parent.live
        start.outside, start.shared, start.shape = parent.outside, parent.shared, parent.shape
        start.atoms, start.parted = None, parent.parted
        if start.members & node.bit:  # another copy of a member
            return start
        start.nodes = (*parent.nodes, node)
        start.members |= node.bit
        start.active |= node.mask
        start.refused |= node.refused
        if node.heavy:
            start.heavy |= node.bit
        outside, seen = parent.outside, []
        part = [parent.shape, node.signature]
        for operand in node.operands:
            if operand.producer >= 0 and before >> operand.producer & 1:
                part.append((parent.members & (operand.source - 1)).bit_count())
                start.inner = (*start.inner, (node, operand))
                start.barred |= operand.barred
                start.parted |= operand.in_part
                if operand.slides:
                    start.window |= operand.source
                continue
            number = outside.get(operand.base)
            if number is None:
                if outside is parent.outside:
                    outside = dict(outside)
                number = outside[operand.base] = len(outside)
            elif operand.wide and operand.base not in start.shared:
                start.shared = (*start.shared, operand.base)
            seen.append(operand)
            part.append(-1 - number)
        start.outside = outside
        if seen:
            start.live = (*parent.live, *seen)
        key = tuple(part)
        start.shape = self._shapes.setdefault(key, len(self._shapes) + 1)
        return start

    # ------------------------------------------------------------------ which loops are one

    def unify(self, frame: Frame, start: Start, dropped: frozenset[int] | None) -> None:
        """Fill in the atoms of a start, and of those that it was built from."""
        todo = []
        at: Start = start
        while at.atoms is None:
            todo.append(at)
            assert at.parent is not None
            at = at.parent
        for at in reversed(todo):
            parent, node = at.parent, at.last
            assert parent is not None
            assert node is not None
            assert parent.atoms is not None
            if at.members == parent.members:
                at.atoms, at.carriers, at.tangled = parent.atoms, parent.carriers, parent.tangled
                continue
            atoms, carriers, tangled = [*parent.atoms, *node.pieces], parent.carriers + [node.bit] * len(node.pieces), parent.tangled
            active = at.active
            done = []
            for operand in node.operands:
                base = operand.base
                if base in done:
                    continue
                done.append(base)
                if base in at.outside and (dropped is None or base in dropped or base not in at.shared):
                    continue
                for pieces in frame.hyper[base]:
                    touched = pieces & active
                    if not touched & (touched - 1):
                        continue
                    joined = holders = 0
                    k = len(atoms)
                    while k:
                        k -= 1
                        atom = atoms[k]
                        if atom & touched:
                            joined |= atom
                            if holders & carriers[k]:
                                tangled = True
                            holders |= carriers[k]
                            atoms[k] = atoms[-1]
                            carriers[k] = carriers[-1]
                            atoms.pop()
                            carriers.pop()
                    atoms.append(joined)
                    carriers.append(holders)
            at.atoms, at.carriers, at.tangled = atoms, carriers, tangled

    @staticmethod
    def guilty(frame: Frame, start: Start) -> frozenset[int]:
        """Live-ins that join loops of which a member carries one twice."""
        assert start.atoms is not None
        twice = 0
        for atom, carriers in zip(start.atoms, start.carriers, strict=True):
            if atom.bit_count() != carriers.bit_count():
                twice |= atom
        twice &= start.active
        return frozenset(base for base in start.shared if any(pieces & twice for pieces in frame.hyper[base]))

    # ------------------------------------------------------------------ tables

    def frame(self, group: int) -> Frame:
        """The tables from the lowest node of a group on, which was asked for last."""
        return self._frames[(group & -group).bit_length() - 1]

    def extent(self, frame: Frame, piece: int) -> int:
        """Extent of a piece, given as a mask of one bit or of several, of which the highest counts."""
        return self.pieces.extents[frame.first_piece + piece.bit_length() - 1]

    def _fact(self, p: int) -> tuple[int, int] | None:
        """What is known of a position whatever the frame; None for one that is not counted here."""
        program, pieces = self.program, self._pieces
        assert pieces is not None
        member = program.members[p]
        points = prod(member.domain.extents)
        known = len(member.outputs) == 1 and member.spec.kind != "opaque" and 0 < points < _MOST_POINTS
        if not known or any(slots is None for slots in pieces.read[p]):
            return None
        home = program.copies[p] & -program.copies[p] if p in program.copies else 1 << p
        return home.bit_length() - 1, points

    def _node(self, frame: Frame, p: int) -> Node | None:
        """Return the table of a position, made when it is first met in a frame."""
        found = frame.nodes.get(p)
        if found is not None:
            return found
        fact = self._known[p]
        if fact is None:
            return None
        home, points = fact
        program, pieces, member = self.program, self._pieces, self.program.members[p]
        assert pieces is not None
        loops, base = pieces.loops[p], frame.first_piece

        def masked(chosen: Sequence[int]) -> int:
            return sum(1 << piece - base for loop in chosen for piece in loops[loop])

        rank = member.domain.rank
        parallel, reduced = masked(range(rank)), masked(range(rank, len(loops)))
        operands = tuple(
            self._operand(frame, p, k, masked, parallel) for k in range(len(member.operands)) if not member.operands[k].parameter
        )
        own = pieces.made[p]
        made = tuple((slot, 1 << piece - base) for slot, piece in own)
        value = member.outputs[0]
        for number, slots in ((value, made), *((operand.base, operand.joins) for operand in operands)):
            hyper = frame.hyper.setdefault(number, [])
            for slot, piece in slots:
                hyper += [0] * (slot + 1 - len(hyper))
                hyper[slot] |= piece
        names = 0
        for operand in operands:
            names |= self._name(frame, operand.base)
        cls = _CLASSES.get(member.spec.flop_class, -1)
        always, readers = value in program.kept, program.readers[value]
        if p in program.copies:
            always, readers = program.leaves(p, value, -1), program.succs[p]
        found = frame.nodes[p] = Node(
            position=p,
            signature=member.signature,
            bit=1 << home - frame.first_home,
            pieces=tuple(1 << piece - base for loop in loops for piece in loop),
            mask=parallel | reduced,
            parallel=parallel,
            refused=reduced | masked(member.domain.uncut),
            reduced=reduced,
            operands=operands,
            names=names,
            own=self._name(frame, value),
            always=always,
            readers=readers,
            written=-(-member.output_bytes[0] // self.line) * self.line,
            itemsize=member.itemsize,
            points=points,
            span=prod(member.domain.extents[:rank]),
            flop_class=cls,
            work=int(points * member.spec.flops) if cls >= 0 else 0,
            heavy=member.spec.kind in ("contract", "window"),
            expression=is_expression(member),
            loops=tuple(masked((loop,)) for loop in range(len(loops))),
        )
        return found

    def _operand(self, frame: Frame, p: int, k: int, masked: Any, parallel: int) -> Operand:
        program, pieces = self.program, self._pieces
        assert pieces is not None
        member = program.members[p]
        operand, access, match = member.operands[k], member.domain.reads[k], matched_operands(program, p)[k]
        sized = self._regions.get((member.signature, k))
        if sized is None:
            sized = self._regions[member.signature, k] = region(operand, access, member, self.line)
        used = masked(match.used)
        if any(dim.indirect for dim in access.dims):
            used |= parallel
        source = barred = 0
        shares = buffered = in_part = in_place = False
        reader_waits = member.spec.kind in ("contract", "window")
        q = operand.producer
        made_at = self._known[q] if q >= 0 else None
        if made_at is not None:
            producer = program.members[q]
            source_home, _ = made_at
            if source_home >= frame.first_home:
                source = 1 << source_home - frame.first_home
                barred = sum(1 << piece - frame.first_piece for d in match.others for piece in pieces.loops[q][d])
                shares = not match.others and pointwise(producer) and not reader_waits
                buffered = reader_waits or not pointwise(producer)
                in_part = is_expression(producer) and joins_parts(member, k)
                whole = operand.shape == operand.base_shape == member.shape
                in_place = whole and not match.others and producer.shape == member.shape
        full = operand.itemsize * prod(operand.base_shape)
        slots = pieces.read[p][k] or ()
        lines = -(-full // self.line) * self.line
        return Operand(
            base=operand.base,
            producer=q,
            source=source,
            used=used,
            barred=barred,
            joins=tuple((slot, 1 << piece - frame.first_piece) for slot, piece in slots),
            wide=full > self.line,
            shares=shares,
            buffered=buffered,
            in_part=in_part,
            in_place=in_place,
            loops=tuple({loop for dim in access.dims for loop, _ in dim.terms}),
            indirect=any(dim.indirect for dim in access.dims),
            slides=member.spec.kind == "window" and slides(member, k),
            region=sized[0],
            nbytes=sized[1],
            full=lines,
            size=min(sized[1], lines),
        )

    @staticmethod
    def _name(frame: Frame, value: int) -> int:
        found = frame.names.get(value)
        if found is None:
            found = frame.names[value] = 1 << len(frame.names)
        return found
