"""A kernel's blocks as a plan's schedule, and back: which loops of the nodes an item covers, and how much of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from fusion_search.codegen.extents import actual
from fusion_search.codegen.kernel import Block
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.program import Program
from fusion_search.runtime.steps import Choice, Choose, Made
from fusion_search.search.plan import OuterLoop, Schedule, Tile, Tuned


def outer_loop(program: Program, analysis: Analysis, atom: int) -> OuterLoop:
    """Say which loop of which node an atom of a group is, for the extents of the run."""
    carried: dict[str, tuple[int, int]] = {}
    extents = analysis.loops.extents
    for p, loops in zip(analysis.positions, analysis.loops.loops, strict=True):
        for loop, atoms in enumerate(loops):
            if atom in atoms:
                inside = prod(actual(extents[a]) for a in atoms[atoms.index(atom) + 1 :])
                carried[program.members[p].node.name] = (loop, inside)
    return OuterLoop(actual(extents[atom]), carried)


def loops_of(made: Made, block: Block) -> tuple[OuterLoop, ...]:
    """Return the loops that a block cuts, outermost first; those of one step are none."""
    found = (outer_loop(made.program, made.analysis, atom) for atom in block.atoms)
    return tuple(loop for loop in found if loop.extent != 1)


def schedule_of(made: Made, tiles: Mapping[int, int]) -> Schedule:
    """Return the schedule by which a kernel runs with some tiles in place of its own."""
    return Schedule(
        tuple(
            Tile(min(tiles.get(block.loop, block.tile), block.extent), loops)
            for block in made.kernel.blocks
            if (loops := loops_of(made, block))
        )
    )


def tiles_under(made: Made, schedule: Schedule) -> dict[int, int] | None:
    """Return the tiles that run a kernel by a schedule, or None when the schedule cuts loops that the kernel does not."""
    wanted = {_named(tile.loops): tile.tile for tile in schedule.tiles}
    tiles: dict[int, int] = {}
    for block in made.kernel.blocks:
        loops = loops_of(made, block)
        if not loops:
            continue
        size = wanted.pop(_named(loops), None)
        if size is None or (not block.free and size != block.tile):
            return None
        if block.free:
            tiles[block.loop] = size
    return None if wanted else tiles


def _named(loops: Sequence[OuterLoop]) -> tuple[tuple[object, ...], ...]:
    return tuple((loop.extent, *sorted(loop.carried.items())) for loop in loops)


def chooser(tuned: Mapping[tuple[str, ...], Tuned]) -> Choose | None:
    """Return what makes groups run by their tuned schedules; a schedule for a kernel of another form is left out."""
    if not tuned:
        return None

    def choose(made: Made) -> Choice | None:
        record = tuned.get(made.nodes)
        tiles = tiles_under(made, record.schedule) if record is not None else None
        return Choice(tiles, record.items_per_task) if record is not None and tiles is not None else None

    return choose
