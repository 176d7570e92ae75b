"""Plans for the checker: of chosen groups, of random graphs, and with one thing changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import msgspec.structs
import numpy as np

import costmodels
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.ir.verify import verify_graph
from fusion_search.search.check import Violation
from fusion_search.search.plan import OuterLoop, Plan, PlanGroup, Schedule, Tile
from fusion_search.search.quotient import execution_order
from hardware_profiles import Profile, load

f32 = np.float32


# ---------------------------------------------------------------------- from groups to plans


def group_of(space: GroupSpace, mask: int, priced: Priced | None = None) -> PlanGroup:
    """Convert what the space says of one group to the plan's record."""
    program = space.program
    found = priced or space.priced(mask)
    assert isinstance(found, Priced), found
    analysis = space.analysis(mask)
    free = space.free(mask)
    members = [program.members[p] for p in analysis.positions]

    def outer(atom: int) -> OuterLoop:
        carried = {}
        for member, loops in zip(members, analysis.loops.loops, strict=True):
            for loop in range(member.domain.rank):
                if atom in loops[loop]:
                    behind = loops[loop][loops[loop].index(atom) + 1 :]
                    carried[member.node.name] = (loop, prod(analysis.loops.extents[a] for a in behind))
        return OuterLoop(analysis.loops.extents[atom], carried)

    tiles = [Tile(tile, tuple(map(outer, knob))) for knob, tile in zip(analysis.knobs, analysis.tilings[found.tiling], strict=True)]
    knobbed = {atom for knob in analysis.knobs for atom in knob}
    tiles += [Tile(1, (outer(atom),)) for atom in analysis.outer if atom not in knobbed]
    return PlanGroup(
        nodes=tuple(member.node.name for member in members),
        origin=tuple(dict.fromkeys(member.node.origin for member in members)),
        stores=tuple(program.value_name[v] for v in analysis.live_outs),
        schedule=Schedule() if free else Schedule(tuple(tiles)),
        terms=found.terms,
        cost_as=found.cost,
        bytes_read=0 if free else analysis.features.bytes_read,
        bytes_written=0 if free else analysis.features.bytes_written,
        alias=free,
    )


def plan_of(space: GroupSpace, masks: Sequence[int], status: str = "feasible") -> Plan:
    order = execution_order(space.preds, masks)
    assert order is not None
    groups = tuple(group_of(space, mask) for mask in order)
    cost = sum(group.cost_as for group in groups)
    model = space.model
    bound = cost if status == "optimal" else 0
    named = {"name": space.name}
    return Plan(space.program.graph, space.profile, model.name, dict(model.weights), "test", groups, status, cost, bound, named, {})


def merged(space: GroupSpace, rng: random.Random, tries: int = 40) -> list[int]:
    """Merge random pairs of groups as long as they stay legal and nothing waits for each other."""
    groups = [1 << p for p in range(space.n)]
    for _ in range(tries):
        if len(groups) < 2:
            break
        a, b = rng.sample(groups, 2)
        rest = [g for g in groups if g not in (a, b)]
        if not space.reasons(a | b) and execution_order(space.preds, [*rest, a | b]) is not None:
            groups = [*rest, a | b]
    return groups


def by_name(space: GroupSpace, *groups: str) -> list[int]:
    """Masks from texts such as "Relu_0 Add_1"; nodes that are not named run alone."""
    masks = [space.program.mask(group.split()) for group in groups]
    return masks + [1 << p for p in range(space.n) if not any(mask >> p & 1 for mask in masks)]


def space_of(graph: Graph, profile: Profile | str = "nvidia-h100-sxm", model: str = "weighted") -> GroupSpace:
    verify_graph(graph)
    return GroupSpace(Program(graph), load(profile) if isinstance(profile, str) else profile, costmodels.model(model))


def rules(violations: Sequence[Violation]) -> set[str]:
    return {violation.rule for violation in violations}


# ---------------------------------------------------------------------- random graphs


class _Random:
    """Small graphs in which every kind of operator, view and read occurs."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = GraphBuilder(f"random{seed}")
        rng = self.rng
        self.sizes = rng.sample([2, 3, 4, 6, 8, 12, 16], 3)
        self.pool = [self.b.input(f"x{k}", f32, self._shape()) for k in range(rng.randint(1, 3))]
        for _ in range(rng.randint(2, 11)):
            self._step()
        for k, name in enumerate(self.pool[-rng.randint(1, 3) :]):
            self.b.output(f"y{k}", name)

    def _shape(self) -> tuple[int, ...]:
        return tuple(self.rng.choice([1, *self.sizes, *self.sizes]) for _ in range(self.rng.randint(1, 3)))

    def _views(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        size = prod(shape)
        found = [(size,), (1, *shape), tuple(n for n in shape if n != 1)]
        found += [(*shape[:d], n // k, k, *shape[d + 1 :]) for d, n in enumerate(shape) for k in (2, 3, 4) if n % k == 0 and n > k]
        found += [(*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]) for d in range(len(shape) - 1)]
        found += [(k, size // k) for k in (2, 3, 4, 6) if size % k == 0]
        return found

    def _step(self) -> None:
        b, rng = self.b, self.rng
        x = rng.choice(self.pool[-4:] if rng.random() < 0.7 else self.pool)
        if rng.random() < 0.25:
            x = b.reshape(x, rng.choice(self._views(b.shape(x))))
        shape = b.shape(x)
        kind = rng.choice(["map", "map", "map", "binary", "binary", "binary", "reduce", "layout", "layout", "heavy", "gather", "constant"])
        axis = rng.randrange(len(shape)) if shape else -1
        if kind == "map" or axis < 0:
            y = b.op(rng.choice(["Relu", "Exp", "Neg", "Tanh"]), x)
        elif kind == "binary":
            y = self._binary(x)
        elif kind == "reduce":
            axes = tuple(sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape)))))
            y = b.op(rng.choice(["ReduceSum", "ReduceMax"]), x, axes=axes)
            if rng.random() < 0.6:
                y = b.op("Sub", x, y)
        elif kind == "layout":
            y = self._layout(x, axis)
        elif kind == "heavy":
            y = self._heavy(x, axis)
        elif kind == "gather":
            index = b.constant(np.zeros(rng.choice([(2,), (3, 2), (5,)]), np.int64))
            y = b.op("Gather", x, index, axis=axis)
        else:
            c = b.constant(np.ones(rng.choice([(), shape, (*shape[:-1], 1), shape[-1:]]), f32))
            y = b.op("Mul", x, c)
        self.pool.append(y)

    def _binary(self, x: str) -> str:
        b, rng = self.b, self.rng
        shape = b.shape(x)
        fits = []
        for other in self.pool:
            if prod(b.shape(other)) == prod(shape):
                fits.append(b.reshape(other, shape))
            for view in (b.shape(other), (*b.shape(other), 1)):
                try:
                    np.broadcast_shapes(view, shape)
                except ValueError:
                    continue
                fits.append(b.reshape(other, view))
        return b.op(rng.choice(["Add", "Mul", "Sub"]), x, rng.choice(fits or [x]))

    def _layout(self, x: str, axis: int) -> str:
        b, rng = self.b, self.rng
        shape = b.shape(x)
        which = rng.randrange(5)
        if which == 0:
            return b.op("Transpose", x, perm=tuple(rng.sample(range(len(shape)), len(shape))))
        if which == 1:
            sizes = [n if d != axis else max(1, n // 2) for d, n in enumerate(shape)]
            starts = tuple(rng.choice([0, shape[d] - n]) for d, n in enumerate(sizes))
            return b.op("Slice", x, starts=starts, steps=(1,) * len(shape), sizes=tuple(sizes))
        if which == 2:
            return b.op("Expand", x, shape=(rng.choice(self.sizes), *shape))
        if which == 3:
            pads = tuple(int(d == axis) for d in range(len(shape)))
            return b.op("Pad", x, before=pads, after=pads, value=0.0)
        return b.op("Concat", x, rng.choice([x, *(v for v in self.pool if b.shape(v) == shape)]), axis=axis)

    def _heavy(self, x: str, axis: int) -> str:
        b, rng = self.b, self.rng
        shape = b.shape(x)
        if len(shape) < 2 or rng.random() < 0.3:
            one, k = (1,) * len(shape), min(2, shape[axis])
            kernel = tuple(k if d == axis else 1 for d in range(len(shape)))
            return b.op("MaxPool", x, kernel=kernel, strides=kernel, dilations=one, before=(0,) * len(shape), after=(0,) * len(shape))
        fits = [v for v in self.pool if len(b.shape(v)) == 2 and b.shape(v)[0] == shape[-1]]
        w = rng.choice(fits) if fits else b.constant(np.ones((shape[-1], rng.choice(self.sizes)), f32))
        return b.op("MatMul", x, w)


def random_graph(seed: int) -> Graph:
    return _Random(seed).b.build()


# ---------------------------------------------------------------------- a sound plan, and how to change one thing of it


def softmax_model(rows: int = 64) -> Graph:
    """A prologue, a matmul, a softmax over rows and a side branch."""
    b = GraphBuilder("softmax")
    x = b.input("x", f32, (rows, 32))
    h = b.op("MatMul", b.op("Relu", x), b.constant(np.ones((32, 48), f32)))
    top = b.op("ReduceMax", h, axes=(1,))
    e = b.op("Exp", b.op("Sub", h, top))
    p = b.op("Div", e, b.op("ReduceSum", e, axes=(1,)))
    v = b.reshape(p, (8, rows // 8, 48))
    b.output("y", b.op("Tanh", v))
    b.output("z", b.op("Neg", h))
    return b.build()


SOFTMAX = "ReduceMax_2 Sub_3 Exp_4 ReduceSum_5 Div_6 Tanh_7"


def sound_plan() -> Plan:
    space = space_of(softmax_model())
    return plan_of(space, by_name(space, "Relu_0 MatMul_1", SOFTMAX), "optimal")


def at(plan: Plan, node: str) -> int:
    return next(k for k, group in enumerate(plan.groups) if node in group.nodes)


def edit(plan: Plan, node: str, **changes: Any) -> Plan:
    """Replace fields of the group that holds a node."""
    k = at(plan, node)
    groups = list(plan.groups)
    groups[k] = msgspec.structs.replace(groups[k], **changes)
    return replace(plan, groups=tuple(groups))


def loops_of(plan: Plan, node: str) -> list[tuple[int, int, OuterLoop]]:
    return [(t, k, loop) for t, tile in enumerate(plan.groups[at(plan, node)].schedule.tiles) for k, loop in enumerate(tile.loops)]


def edit_loop(plan: Plan, node: str, change: Callable[[OuterLoop], OuterLoop], which: int = 0) -> Plan:
    tiles = list(plan.groups[at(plan, node)].schedule.tiles)
    t, k, loop = loops_of(plan, node)[which]
    loops = tuple(change(loop) if j == k else other for j, other in enumerate(tiles[t].loops))
    tiles[t] = Tile(tiles[t].tile, loops)
    return edit(plan, node, schedule=Schedule(tuple(tiles)))


def carry(name: str, loop: int, step: int) -> Callable[[OuterLoop], OuterLoop]:
    return lambda outer: OuterLoop(outer.extent, {**outer.carried, name: (loop, step)})
