"""What may be tried for one group: sizes of its kernel's free blocks, and into how many tasks its items are cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import costmodels
from fusion_search.fusion.analysis import Analysis, analyse, features_under
from fusion_search.fusion.copies import place
from fusion_search.fusion.program import Program
from fusion_search.runtime.refit import recomputed
from fusion_search.runtime.schedules import outer_loop, schedule_of, tiles_under
from fusion_search.runtime.steps import Choice, KernelStep, Made
from fusion_search.search.plan import OuterLoop, Plan, PlanGroup, Schedule

#: Sizes from an eighth to eight times the generator's own, and the whole loop.
OCTAVES = 3
#: Tasks: one, which runs on the calling thread, and so many for each thread.
TASKS_PER_THREAD = (1, 2, 4, 8, 16)

Point = dict[str, int]


@dataclass(frozen=True)
class Candidates:
    """The schedules of one group.

    Attributes
    ----------
    made : Made
    group : PlanGroup
    step : KernelStep
        The group as it runs now.
    axes : mapping of str to tuple of int
        Values of each parameter: ``tile<loop>`` for the kernel's free loops, and ``tasks``.
    start : dict of str to int
        The point that runs now.
    """

    made: Made
    group: PlanGroup
    step: KernelStep
    axes: Mapping[str, tuple[int, ...]]
    start: Point

    @property
    def count(self) -> int:
        """Number of points."""
        return prod(len(values) for values in self.axes.values())

    def points(self) -> Iterator[Point]:
        """Yield every point."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def tiles(self, point: Point) -> dict[int, int]:
        """Return the tiles of a point by the kernel's loops."""
        return {int(name[4:]): size for name, size in point.items() if name.startswith("tile")}

    def choice(self, point: Point) -> Choice:
        """Return how the kernel is to run at a point."""
        tiles = self.tiles(point)
        kernel = self.made.kernel
        items = prod(-(-block.extent // tiles.get(block.loop, block.tile)) for block in kernel.blocks) if kernel.blocks else kernel.items
        return Choice(tiles, max(1, -(-items // point["tasks"])))

    def schedule(self, point: Point) -> Schedule:
        """Return a point as a plan's schedule."""
        return schedule_of(self.made, self.tiles(point))

    def model_point(self) -> Point | None:
        """Return the point at which the group runs by the schedule of least J, where its kernel can."""
        tiles = tiles_under(self.made, self.group.schedule)
        if tiles is None:
            return None
        point = {**self.start, **{f"tile{loop}": size for loop, size in tiles.items() if f"tile{loop}" in self.axes}}
        return point if all(point[name] in values for name, values in self.axes.items()) else None


def candidates_of(made: Made, group: PlanGroup, step: KernelStep, threads: int) -> Candidates:
    """Say what may be tried for a group that runs as `step` now."""
    axes: dict[str, tuple[int, ...]] = {}
    start: Point = {}
    wanted = tiles_under(made, group.schedule) or {}
    now = {block.loop: block.tile for block in step.kernel.blocks}
    for block in made.kernel.blocks:
        if not block.free or block.extent < 2:
            continue
        scaled = [block.tile << k for k in range(OCTAVES + 1)] + [block.tile >> k for k in range(OCTAVES + 1)]
        sizes = {*scaled, block.extent, now[block.loop], wanted.get(block.loop, block.tile)}
        axes[f"tile{block.loop}"] = tuple(sorted(size for size in sizes if 1 <= size <= block.extent))
        start[f"tile{block.loop}"] = now[block.loop]
    tasks = {1, step.tasks, *(threads * per for per in TASKS_PER_THREAD)}
    axes["tasks"] = tuple(sorted(tasks))
    start["tasks"] = step.tasks
    return Candidates(made, group, step, axes, start)


class Pricing:
    """Prices schedules of a plan's groups by the plan's own cost model.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        nodes = [group.nodes for group in plan.groups]
        self.plan, self.program = plan, Program(plan.graph, recomputed(nodes))
        masks = place(self.program, nodes, [group.stores for group in plan.groups])
        assert not isinstance(masks, frozenset), "the program has copies of what several groups compute"
        self._masks = dict(zip(nodes, masks, strict=True))
        self._analyses: dict[tuple[str, ...], Analysis] = {}
        self.model = costmodels.model(plan.cost_model, plan.weights)

    def of(self, nodes: tuple[str, ...], schedule: Schedule) -> tuple[int, float] | None:
        """Return the price in attoseconds and a block's scratch in bytes; None when the schedule's loops are not the group's."""
        program, profile = self.program, self.plan.profile
        if nodes not in self._analyses:
            self._analyses[nodes] = analyse(program, self._masks[nodes], profile.line_bytes)
        analysis = self._analyses[nodes]
        atoms = {_key(outer_loop(program, analysis, atom)): atom for atom in analysis.outer if analysis.loops.extents[atom] != 1}
        blocks = []
        for tile in schedule.tiles:
            found = [atoms.pop(_key(loop), None) for loop in tile.loops]
            if None in found:
                return None
            blocks.append((tuple(atom for atom in found if atom is not None), tile.tile))
        if atoms:
            return None
        features = features_under(program, self._masks[nodes], analysis, blocks, profile.line_bytes)
        terms = self.model.terms(features, profile)
        return costmodels.attoseconds(self.model.cost_s(terms, profile)), float(features.scratch_bytes)


def _key(loop: OuterLoop) -> tuple[object, ...]:
    return (loop.extent, *sorted(loop.carried.items()))
