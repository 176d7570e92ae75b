"""A group's features, counted again from their definitions under the tiles that the plan states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from math import prod

from costmodels import Flops, GroupFeatures, RecomputedFlops, Reread
from fusion_search.search.plan import Tile

from .digits import Digits, flat_form, same_digit, strides
from .facts import Facts, Operand, Step
from .in_parts import evaluated_in_parts
from .schedules import carried, inside, reads_along

#: Scalars that every kernel keeps live: the loop counter, the bound and addresses.
TEMPLATE_LIVE = 4
#: Blocks of an opaque node, whose parallelism is its own.
OPAQUE_BLOCKS = 1 << 30


class Counts:
    """Counts one group.

    Parameters
    ----------
    facts : Facts
    steps : sequence of Step
        The members, in canonical order.
    stores : collection of str
        The values that are written to memory.
    tiles : sequence of Tile
        The schedule, found sound before.
    digits : Digits
    line_bytes : int
    """

    def __init__(
        self, facts: Facts, steps: Sequence[Step], stores: Collection[str], tiles: Sequence[Tile], digits: Digits, line_bytes: int
    ) -> None:
        self.facts, self.steps, self.stores, self.tiles, self.digits, self.line = facts, steps, stores, tiles, digits, line_bytes
        self.blocks: list[int] = []
        self.makers = {value: step for step in steps for value in step.node.outputs}
        self.in_parts = evaluated_in_parts(steps, stores, digits)
        # what does not depend on the sizes of tiles
        self.buffers = self._buffers()
        self.live = TEMPLATE_LIVE + self._live()
        stored = [value for value in self.makers if value in stores]
        self.written = sum(self._lines(facts.stored_bytes(value)) for value in stored)
        self.sizes, self.uses = self._regions()

    def features(self, tiles: Sequence[Tile] | None = None) -> GroupFeatures:
        """Return the counts, or what they would be if the same loops had tiles of other sizes."""
        self.tiles = self.tiles if tiles is None else tiles
        self.blocks = [-(-prod(loop.extent for loop in tile.loops) // tile.tile) for tile in self.tiles]
        steps = self.steps
        rereads = self._rereads()
        flops = {"simple": 0, "special": 0, "contract": 0}
        again = {"simple": 0.0, "special": 0.0, "contract": 0.0}
        for step in steps:
            if step.spec.flop_class != "none":
                work = int(prod(step.extents) * step.spec.flops)
                flops[step.spec.flop_class] += work
                again[step.spec.flop_class] += work * self._extra([step.name in tile.loops[0].carried for tile in self.tiles])
        opaque = steps[0].spec.kind == "opaque"
        return GroupFeatures(
            nodes=len(steps),
            bytes_read=sum(self.sizes.values()),
            bytes_written=self.written,
            rereads=rereads,
            launches=1,
            blocks=OPAQUE_BLOCKS if opaque else float(prod(self.blocks)),
            iterations=max(1, *(prod(step.extents) for step in steps)),
            live=self.live,
            itemsize=max(step.itemsize for step in steps),
            scratch_bytes=float(sum(self._buffer_bytes(self.facts.steps[name]) for name in self.buffers)),
            flops=Flops(**flops),
            recomputed=RecomputedFlops(**again),
        )

    def _lines(self, nbytes: int) -> int:
        return -(-nbytes // self.line) * self.line

    def _extra(self, depends: Sequence[bool]) -> float:
        """How many more times than once something is done that depends only on some of the tiles."""
        return float(prod(n for n, needed in zip(self.blocks, depends, strict=True) if not needed)) - 1.0

    # ------------------------------------------------------------------ memory

    def _regions(self) -> tuple[dict[str, int], list[tuple[str, list[bool]]]]:
        """Bytes of the distinct live-ins, and for every read of one the tiles that it depends on."""
        boxes: dict[str, dict[object, int]] = {}
        whole: dict[str, int] = {}
        uses = []
        for step in self.steps:
            for operand in step.operands:
                if operand.base in self.makers or operand.parameter:
                    continue
                box = touched(step, operand)
                boxes.setdefault(operand.base, {})[operand.shape, box] = self._box_bytes(operand, box)
                whole[operand.base] = self._lines(operand.nbytes)
                uses.append((operand.base, [reads_along(step, operand, tile.loops[0]) for tile in self.tiles]))
        return {base: min(whole[base], sum(parts.values())) for base, parts in boxes.items()}, uses

    def _rereads(self) -> tuple[Reread, ...]:
        """The passes over each live-in after the first, in the order of first reads, in which a sum of floats is to be repeated."""
        passes: dict[str, float] = {}
        for base, depends in self.uses:
            passes[base] = max(passes.get(base, 0.0), self._extra(depends))
        return tuple(Reread(self.sizes[base], passes[base]) for base in self.sizes if passes[base] > 0)

    def _box_bytes(self, operand: Operand, box: tuple[tuple[int, int], ...]) -> int:
        """Bytes of a box, each contiguous run in whole cache lines."""
        spans = [max(0, high - low + 1) for low, high in box]
        partial = [d for d, (span, n) in enumerate(zip(spans, operand.shape, strict=True)) if span != n]
        cut = partial[-1] if partial else 0  # behind this dimension all is contiguous
        return prod(spans[:cut]) * self._lines(operand.itemsize * prod(spans[cut:]))

    def _buffer_bytes(self, step: Step) -> int:
        """Bytes of a member's value in one block."""
        size = step.itemsize * prod(step.extents[: step.domain.rank])
        for tile in self.tiles:
            if step.name in tile.loops[0].carried:
                size = size // max(prod(loop.extent for loop in tile.loops), 1) * tile.tile
        return size

    # ------------------------------------------------------------------ stages

    def _buffers(self) -> set[str]:
        """Members whose value one loop nest leaves for a later one.

        A reader joins its operand's nest where it reads at its own point; reads that together would put a loop of some
        member at two places of one nest, as in ``y + y.T``, leave it.
        """
        reads = [(step, operand) for step in self.steps for operand in step.operands if operand.base in self.makers]
        edges = [(step, operand, self.makers[operand.base]) for step, operand in reads]
        joining = {(step.name, operand) for step, operand, maker in edges if self._one_nest(maker, step, operand)}
        tangled = self.digits.tangled(joining)
        stage = {step.name: 0 for step in self.steps}
        for step, operand, maker in edges:
            alone = (step.name, operand) not in joining or not tangled.isdisjoint(self.digits.member(maker.name))
            stage[step.name] = max(stage[step.name], stage[maker.name] + alone)
        # what is evaluated in parts is computed where it is read, whatever the stage
        return {maker.name for step, _, maker in edges if stage[step.name] > stage[maker.name] and maker.name not in self.in_parts}

    def _one_nest(self, maker: Step, reader: Step, operand: Operand) -> bool:
        """Whether a value can be computed where it is read: same loops, same point, known at once."""
        if maker.name in self.in_parts:
            return True
        expression = maker.spec.kind in ("map", "gather") or (maker.spec.kind == "layout" and maker.spec.body is not None)
        if not expression or reader.spec.kind in ("contract", "window"):
            return False
        name, mine = self.digits.name, self.digits.member(reader.name)
        form, stride = flat_form(operand, reader.extents), strides(operand.base_shape)
        reached = set()
        for digit in self.digits.member(maker.name):
            place = stride[digit.loop] * digit.step
            equal = [d for d in mine if name[d] == name[digit] and same_digit(form, reader.extents, place, d)]
            reached.update(equal[:1])
            if not equal:
                return False
        outer = [d for tile in self.tiles for loop in tile.loops if (d := carried(loop, reader.name)) is not None]
        return all(digit in reached or any(inside(digit, d) for d in outer) for digit in mine)

    def _live(self) -> int:
        """Most scalars alive at once: from definition (in a register) or first load to the last read.

        A result may take the register of an operand that is read for the last time.
        """
        spans: dict[tuple[str, str], tuple[int, int]] = {}
        for k, step in enumerate(self.steps):
            for operand in step.operands:
                maker = self.makers.get(operand.base)
                if operand.parameter:
                    continue
                kept = maker is not None and maker.name not in self.buffers
                key = ("computed" if kept else "loaded", operand.base)
                first = spans[key][0] if key in spans else 2 * k
                spans[key] = (first, 2 * k)
            # defined between this step's reads and the next step's
            spans["computed", step.node.output] = (2 * k + 1, 2 * k + 1)
        change = [0] * (2 * len(self.steps) + 2)
        for first, last in spans.values():
            change[first] += 1
            change[last + 1] -= 1
        return max(accumulate(change))


def touched(step: Step, operand: Operand) -> tuple[tuple[int, int], ...]:
    """Return the first and last index of each dimension that a read touches, as a box within the operand."""
    if step.spec.kind == "opaque":
        return tuple((0, n - 1) for n in operand.shape)
    used = {loop for dim in operand.access.dims for loop, _ in dim.terms}
    # no result, or no point of the loops that walk the operand: no read; a scatter of no updates still copies
    if 0 in step.extents[: step.domain.rank] or any(step.extents[loop] == 0 for loop in used):
        return tuple((0, -1) for _ in operand.shape)
    lookups = prod(n for loop, n in enumerate(step.extents) if loop not in used)
    box = []
    for dim, n in zip(operand.access.dims, operand.shape, strict=True):
        if dim.indirect:
            box.append((0, min(n, lookups) - 1))
        else:
            moves = [c * (step.extents[loop] - 1) for loop, c in dim.terms]
            low, high = dim.offset + sum(min(0, m) for m in moves), dim.offset + sum(max(0, m) for m in moves)
            box.append((max(low, 0), min(high, n - 1)))
    return tuple(box)
