"""The schedule of a group: is every outer loop really one loop in all the nodes that are said to carry it?"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from math import prod

from fusion_search.ir.graph import Shape
from fusion_search.search.plan import OuterLoop, Tile

from .digits import Digit, Digits, flat_form, same_digit, strides
from .facts import Operand, Step, Violation
from .in_parts import evaluated_in_parts

#: Points of the reader's loops that are tried on every inner edge, beside the proof.
SAMPLES = 3


def carried(loop: OuterLoop, name: str) -> Digit | None:
    """Return the digit by which a node carries an outer loop, or None."""
    if name not in loop.carried:
        return None
    index, step = loop.carried[name]
    return Digit(name, index, step, loop.extent)


def inside(digit: Digit, whole: Digit) -> bool:
    """Whether a digit is part of a larger one of the same loop."""
    same = (digit.owner, digit.loop) == (whole.owner, whole.loop)
    return same and digit.step >= whole.step and digit.step * digit.extent <= whole.step * whole.extent


class ScheduleCheck:
    """Checks one group's schedule against its members' loops.

    Parameters
    ----------
    steps : sequence of Step
        The members, in canonical order.
    stores : collection of str
        The values that are written to memory.
    tiles : sequence of Tile
        What the plan says.
    digits : Digits
        What the graph says.
    where : str
        Name of the group for messages.
    """

    def __init__(self, steps: Sequence[Step], stores: Collection[str], tiles: Sequence[Tile], digits: Digits, where: str) -> None:
        self.steps, self.stores, self.tiles, self.digits, self.where = steps, set(stores), tiles, digits, where
        self.loops = [loop for tile in tiles for loop in tile.loops]
        self.makers = {value: step for step in steps for value in step.node.outputs}
        self.in_parts = evaluated_in_parts(steps, self.stores, digits)

    def violations(self) -> Iterator[Violation]:
        """Yield what is wrong; later rules only when the earlier ones hold. Loops without points cannot be wrong."""
        if any(0 in step.extents for step in self.steps):
            return
        for rules in ((self._form,), (self._names, self._overlaps, self._edges, self._samples, self._tiles)):
            found = [Violation("schedule", self.where, message) for rule in rules for message in rule()]
            yield from found
            if found:
                return

    def _form(self) -> Iterator[str]:
        members = {step.name: step for step in self.steps}
        if any(step.spec.kind == "opaque" for step in self.steps) and self.loops:
            yield "an opaque node has no outer loops"
        for tile in self.tiles:
            points = prod(loop.extent for loop in tile.loops)
            if not tile.loops or not 1 <= tile.tile <= max(points, 1):
                yield f"a tile of {tile.tile} does not fit loops of {points} points"
        for loop in self.loops:
            if not loop.carried or loop.extent == 1 or loop.extent < 0:
                yield f"a loop of extent {loop.extent} with {len(loop.carried)} nodes is none"
            for name, (index, step) in loop.carried.items():
                if name not in members:
                    yield f"{name} carries a loop but is no member"
                elif not 0 <= index < len(members[name].extents):
                    yield f"{name} has no loop {index}"
                elif index >= members[name].domain.rank:
                    yield f"loop {index} of {name} is a reduction"
                elif index in members[name].domain.uncut:
                    yield f"loop {index} of {name} runs in order, or data says what is written along it: no block can begin inside it"
                elif name in self.in_parts:
                    if loop.carried.get(self.in_parts[name]) != (index, step):
                        yield f"{name} is evaluated in {self.in_parts[name]}, which carries another loop"
                elif step < 1 or (members[name].extents[index] % (step * loop.extent) if loop.extent else members[name].extents[index]):
                    yield f"loop {index} of {name} has no digit of step {step} and extent {loop.extent}"

    def _names(self) -> Iterator[str]:
        """Every carrier has the same atoms, no member reduces one, and whoever has them is named."""
        for k, loop in enumerate(self.loops):
            spelled: dict[tuple[int, ...], str] = {}
            for name in loop.carried:
                if name in self.in_parts:
                    continue
                whole = carried(loop, name)
                assert whole is not None
                atoms = [digit for digit in self.digits.of.get((name, whole.loop), ()) if inside(digit, whole)]
                if prod(digit.extent for digit in atoms) != loop.extent or (loop.extent > 1 and not atoms):
                    yield f"outer loop {k}: no reshape cuts loop {whole.loop} of {name} at step {whole.step}, extent {whole.extent}"
                spelled.setdefault(tuple(self.digits.name[digit] for digit in atoms), name)
            if len(spelled) > 1:
                yield f"outer loop {k} is not one loop: nothing joins {' and '.join(sorted(spelled.values())[:2])} along it"
                continue
            if not spelled:
                yield f"outer loop {k} is carried by nothing but what is evaluated elsewhere"
                continue
            names = set(next(iter(spelled)))
            for step in self.steps:
                if step.name in self.in_parts:
                    if (step.name in loop.carried) != (self.in_parts[step.name] in loop.carried):
                        yield f"outer loop {k}: {step.name} is evaluated in {self.in_parts[step.name]}, and one of them does not carry it"
                    continue
                mine = [digit for digit in self.digits.member(step.name) if self.digits.name[digit] in names]
                if any(not self.digits.parallel(digit) for digit in mine):
                    yield f"outer loop {k} is a reduction loop of {step.name}"
                elif any(digit.loop in step.domain.uncut for digit in mine):
                    yield f"outer loop {k} is a loop of {step.name} inside which no block can begin"
                elif len(mine) > len(names):
                    yield f"{step.name} would have to carry outer loop {k} twice"
                elif mine and step.name not in loop.carried:
                    yield f"outer loop {k}: {step.name} has it but is not said to carry it"
                elif step.name not in loop.carried and not self.stores.isdisjoint(step.node.outputs):
                    yield f"outer loop {k}: {step.name} is stored but does not carry it"

    def _overlaps(self) -> Iterator[str]:
        for step in self.steps:
            mine = sorted((d for loop in self.loops if (d := carried(loop, step.name))), key=lambda d: (d.loop, d.step))
            for a, b in pairwise(mine):
                if a.loop == b.loop and (b.step < a.step * a.extent or b.step % (a.step * a.extent)) and a.extent and b.extent:
                    yield f"{step.name} carries part of loop {a.loop} twice"

    def _inner(self) -> Iterator[tuple[Step, Operand, Step]]:
        for step in self.steps:
            for operand in step.operands:
                if operand.base in self.makers and self.makers[operand.base].name not in self.in_parts:
                    yield step, operand, self.makers[operand.base]

    def _edges(self) -> Iterator[str]:
        """Along every inner edge the element that is read at a loop point is the one computed at that point."""
        for step, operand, maker in self._inner():
            form = flat_form(operand, step.extents)
            stride = strides(operand.base_shape)
            for k, loop in enumerate(self.loops):
                theirs, mine = carried(loop, maker.name), carried(loop, step.name)
                if theirs is None:
                    continue
                if mine is None:
                    yield f"outer loop {k}: {step.name} needs every element of {operand.base} along it"
                elif not same_digit(form, step.extents, stride[theirs.loop] * theirs.step, mine):
                    yield f"outer loop {k}: {step.name} reads {operand.base} at other points than its own"

    def _samples(self) -> Iterator[str]:
        """The same by arithmetic on single points, from loops to indices to the producer's loops."""
        draw = random.Random(0)
        if not self.loops:
            return
        for step, operand, maker in self._inner():
            both = [(a, b) for loop in self.loops if (a := carried(loop, maker.name)) and (b := carried(loop, step.name)) and loop.extent]
            if not both or not all(step.extents):
                continue
            for _ in range(SAMPLES):
                point = [draw.randrange(n) for n in step.extents]
                index = _index(operand, point, draw)
                if index is None:
                    continue
                there = _unravel(_ravel(index, operand.shape), operand.base_shape)
                if any(there[a.loop] // a.step % a.extent != point[b.loop] // b.step % b.extent for a, b in both):
                    yield f"{step.name} at {point} reads element {there} of {operand.base}, which another block computes"
                    break

    def _tiles(self) -> Iterator[str]:
        """Loops that are blocked together are carried and read by the same."""
        for tile in self.tiles:
            for step in self.steps:
                if len({step.name in loop.carried for loop in tile.loops}) > 1:
                    yield f"{step.name} carries some of the loops that are blocked together, not all"
                for operand in step.operands:
                    if operand.base not in self.makers and len({reads_along(step, operand, loop) for loop in tile.loops}) > 1:
                        yield f"{step.name} reads {operand.base} along some of the loops that are blocked together, not all"


def reads_along(step: Step, operand: Operand, loop: OuterLoop) -> bool:
    """Whether what a node reads depends on an outer loop; an index from data may depend on all that its node carries."""
    digit = carried(loop, step.name)
    dims = operand.access.dims
    return digit is not None and any(dim.indirect or any(used == digit.loop for used, _ in dim.terms) for dim in dims)


def _index(operand: Operand, point: Sequence[int], draw: random.Random) -> list[int] | None:
    """Return the index that is read at one point of the loops, or None where nothing is read."""
    index = []
    for dim, n in zip(operand.access.dims, operand.shape, strict=True):
        at = draw.randrange(n) if dim.indirect else dim.offset + sum(c * point[loop] for loop, c in dim.terms)
        if not 0 <= at < n:
            return None
        index.append(at)
    return index


def _ravel(index: Sequence[int], shape: Shape) -> int:
    flat = 0
    for at, n in zip(index, shape, strict=True):
        flat = flat * n + at
    return flat


def _unravel(flat: int, shape: Shape) -> list[int]:
    index = []
    for n in reversed(shape):
        flat, at = divmod(flat, n)
        index.append(at)
    return index[::-1]
