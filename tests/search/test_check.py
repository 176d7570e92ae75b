"""The checker: silent on sound plans of random graphs, and loud, by the right rule, on every kind of broken one."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec.structs
import numpy as np
import pytest

import costmodels
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Value
from fusion_search.ir.opaque import OpaqueCall
from fusion_search.ir.verify import verify_graph
from fusion_search.search.check import Violation, check, counts, digits
from fusion_search.search.check.facts import Facts
from fusion_search.search.plan import OuterLoop, Plan, PlanGroup, Schedule, Tile
from fusion_search.search.quotient import execution_order
from hardware_profiles import Forbidden, Profile, load

f32 = np.float32


# ---------------------------------------------------------------------- from groups to plans


def group_of(space: GroupSpace, mask: int, priced: Priced | None = None) -> PlanGroup:
    """Convert what the space says of one group to the plan's record."""
    program = space.program
    found = priced or space.priced(mask)
    assert isinstance(found, Priced), found
    analysis = space.analysis(mask)
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
        schedule=Schedule(tuple(tiles)),
        terms=found.terms,
        cost_as=found.cost,
        bytes_read=analysis.features.bytes_read,
        bytes_written=analysis.features.bytes_written,
    )


def plan_of(space: GroupSpace, masks: Sequence[int], status: str = "feasible") -> Plan:
    order = execution_order(space.preds, masks)
    assert order is not None
    groups = tuple(group_of(space, mask) for mask in order)
    cost = sum(group.cost_as for group in groups)
    model = space.model
    bound = cost if status == "optimal" else 0
    return Plan(space.program.graph, space.profile, model.name, dict(model.weights), "test", groups, status, cost, bound, {}, {})


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


SMALL = {"fast_memory_bytes": 1 << 20, "registers": 5, "line_bytes": 16, "parallel_units": 3, "operand_limit": 9}


@pytest.mark.parametrize("seed", range(150))
def test_sound_plans_of_random_graphs_have_no_violations(seed: int) -> None:
    graph = random_graph(seed)
    rng = random.Random(seed)
    profile = load("nvidia-h100-sxm")
    if seed % 2:
        profile = replace(profile, **SMALL)
    space = space_of(graph, profile, ("weighted", "roofline")[seed % 3 == 0])
    for _ in range(3):
        assert [str(v) for v in check(graph, plan_of(space, merged(space, rng), rng.choice(["optimal", "feasible"])))] == []


@pytest.mark.parametrize("seed", range(40))
def test_every_group_of_one_node_is_sound(seed: int) -> None:
    graph = random_graph(1000 + seed)
    space = space_of(graph)
    assert check(graph, plan_of(space, [1 << p for p in range(space.n)])) == []


# ---------------------------------------------------------------------- the checker's own arithmetic, against enumeration


def _points(extents: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.indices(extents).reshape(len(extents), -1)


@pytest.mark.parametrize("seed", range(60))
def test_digits_and_boxes_agree_with_enumeration(seed: int) -> None:
    facts = Facts(random_graph(seed))
    for step in facts.steps.values():
        if not step.extents or prod(step.extents) > 20_000:
            continue
        points = _points(step.extents)
        for operand in step.operands:
            if any(dim.indirect for dim in operand.access.dims):
                continue
            zero = np.zeros(points.shape[1], int)
            index = [dim.offset + sum((c * points[loop] for loop, c in dim.terms), zero) for dim in operand.access.dims]
            inside = np.ones(points.shape[1], bool)
            for at, n in zip(index, operand.shape, strict=True):
                inside &= (at >= 0) & (at < n)
            box = tuple((int(at[inside].min()), int(at[inside].max())) for at in index)
            assert box == counts.touched(step, operand)
            flat = zero
            for at, n in zip(index, operand.shape, strict=True):
                flat = flat * n + at
            form = digits.flat_form(operand, step.extents)
            for loop, n in enumerate(step.extents):
                for pace in (s for s in (1, 2, 3) if n % s == 0):
                    for extent in (e for e in (2, 3, 4, n) if e > 1 and n // pace % e == 0):
                        mine = points[loop] // pace % extent
                        for stride in (1, 2, 3, 4, 8, 12, 16):
                            true = bool(np.all(flat // stride % extent == mine))
                            digit = digits.Digit(step.name, loop, pace, extent)
                            said = digits.same_digit(form, step.extents, stride, digit)
                            if form.free or not inside.all():  # nothing is read outside, where the form may say anything
                                assert not said or bool(np.all((flat // stride % extent == mine)[inside]))
                            else:
                                assert said == true


def _restated(graph: Graph, *groups: str, read: int | None = None, written: int | None = None) -> Plan:
    """A plan whose bytes are worked out by hand, and priced."""
    space = space_of(graph)
    plan = plan_of(space, by_name(space, *groups))
    out = []
    for group in plan.groups:
        features = space.analysis(space.program.mask(list(group.nodes))).features
        features = replace(features, bytes_read=features.bytes_read if read is None else read)
        features = replace(features, bytes_written=features.bytes_written if written is None else written)
        terms = space.model.terms(features, space.profile)
        cost = costmodels.attoseconds(space.model.cost_s(terms, space.profile))
        out.append(
            msgspec.structs.replace(group, bytes_read=features.bytes_read, bytes_written=features.bytes_written, terms=terms, cost_as=cost)
        )
    return replace(plan, groups=tuple(out), cost_as=sum(group.cost_as for group in out))


def _one(op: str, shape: tuple[int, ...], **attrs: Any) -> Graph:
    b = GraphBuilder("one")
    b.output("y", b.op(op, b.input("x", f32, shape), **attrs))
    return b.build()


def _opaque(outputs: Sequence[Value], shape: tuple[int, ...]) -> Graph:
    b = GraphBuilder("opaque")
    b.opaque(OpaqueCall("Strange", "d", lambda arrays: arrays), [b.input("x", f32, shape)], outputs)
    b.output("y", outputs[0].name)
    return b.build()


def test_bytes_by_hand() -> None:
    """Lines of 64 bytes: 16 numbers of float32."""
    scalar, long, short = Value("s", np.dtype(f32), ()), Value("l", np.dtype(f32), (1000,)), Value("t", np.dtype(f32), (2,))
    one = (1, 1)
    cases = [
        # an opaque operand is read as a whole, and only the result that is needed is written
        (_opaque([scalar], (1000,)), 4032, 64),
        (_opaque([long, short], (16,)), 64, 4032),
        # windows at -1, 3 and 7, two rows each: rows 0 to 8 of 10
        (_one("MaxPool", (10, 16), kernel=(2, 1), strides=(4, 1), dilations=one, before=(1, 0), after=(0, 0)), 9 * 64, 3 * 64),
        # the last row is cut off
        (_one("Pad", (10, 16), before=(2, 0), after=(-1, 0), value=0.0), 9 * 64, 11 * 64),
        (_one("Slice", (10, 16), starts=(0, 0), steps=(3, 1), sizes=(0, 16)), 0, 0),
        (_one("Slice", (10, 16), starts=(1, 4), steps=(2, 1), sizes=(3, 4)), 5 * 64, 64),
        (_one("ReduceSum", (10, 16), axes=(1,)), 640, 64),
    ]
    for graph, read, written in cases:
        assert [str(v) for v in check(graph, _restated(graph, read=read, written=written))] == []


def test_one_region_read_twice_counts_once() -> None:
    b = GraphBuilder("flip")
    x = b.input("x", f32, (10, 16))
    ahead = b.op("Slice", x, starts=(0, 0), steps=(1, 1), sizes=(3, 16))
    back = b.op("Slice", x, starts=(2, 0), steps=(-1, 1), sizes=(3, 16))
    b.output("y", b.op("Add", ahead, back))
    graph = b.build()
    assert check(graph, _restated(graph, "Slice_0 Slice_1 Add_2", read=3 * 64)) == []


def _transposed_sum() -> Graph:
    b = GraphBuilder("square")
    y = b.op("Relu", b.input("x", f32, (300, 300)))
    b.output("z", b.op("Add", y, b.op("Transpose", y, perm=(1, 0))))
    return b.build()


def test_a_value_read_at_two_points_of_one_nest_is_a_buffer() -> None:
    graph = _transposed_sum()
    found = _counts(graph, ("Relu_0", "Transpose_1", "Add_2"))
    assert found.buffers == {"Relu_0", "Transpose_1"}
    assert found.features().scratch_bytes == 2 * 300 * 300 * 4


def _counts(graph: Graph, names: Sequence[str], tiles: Sequence[Tile] = ()) -> counts.Counts:
    facts = Facts(graph)
    steps = [facts.steps[name] for name in names]
    return counts.Counts(facts, steps, {graph.base(value.name) for value in graph.outputs}, tiles, digits.Digits(steps, 64), 64)


def test_no_buffer_where_a_live_in_is_read_twice() -> None:
    b = GraphBuilder("symmetric")
    x = b.input("x", f32, (300, 300))
    b.output("z", b.op("Add", x, b.op("Transpose", x, perm=(1, 0))))
    assert _counts(b.build(), ("Transpose_0", "Add_1")).buffers == set()


def test_an_outer_product_has_another_nest_than_its_factor() -> None:
    b = GraphBuilder("outer")
    w = b.input("w", f32, (300,))
    b.output("z", b.op("Mul", b.op("Exp", w), b.reshape(w, (300, 1))))
    assert _counts(b.build(), ("Exp_0", "Mul_1")).buffers == {"Exp_0"}


# ---------------------------------------------------------------------- broken plans


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


@pytest.fixture(name="sound")
def _sound() -> Plan:
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


def test_the_sound_plan_is_sound_and_tiled(sound: Plan) -> None:
    assert check(sound.graph, sound) == []
    assert [loop.extent for _, _, loop in loops_of(sound, "Div_6")] == [8, 8]  # the reshape of the result cuts the rows
    assert loops_of(sound, "Div_6")[0][2].carried["Div_6"] == (0, 8)


def test_cover(sound: Plan) -> None:
    graph, k = sound.graph, at(sound, "Neg_8")
    without = replace(sound, groups=sound.groups[:k] + sound.groups[k + 1 :])
    assert "cover" in rules(check(graph, without))
    double = replace(sound, groups=(*sound.groups, sound.groups[k]))
    assert "stores" in rules(check(graph, double))
    strange = edit(sound, "Neg_8", nodes=("Neg_8", "Nothing"))
    assert {"cover"} <= rules(check(graph, strange))
    empty = replace(sound, groups=(*sound.groups, msgspec.structs.replace(sound.groups[k], nodes=())))
    assert "cover" in rules(check(graph, empty))
    dropped = edit(sound, "Tanh_7", nodes=sound.groups[at(sound, "Tanh_7")].nodes[:-1])
    found = check(graph, dropped)
    assert "cover" in rules(found)
    assert "Tanh_7" in {v.where for v in found}


def test_order(sound: Plan) -> None:
    assert rules(check(sound.graph, replace(sound, groups=sound.groups[::-1]))) == {"order"}
    nodes = sound.groups[at(sound, "Div_6")].nodes
    assert rules(check(sound.graph, edit(sound, "Div_6", nodes=(nodes[1], nodes[0], *nodes[2:])))) == {"order"}


def test_groups_that_wait_for_each_other() -> None:
    b = GraphBuilder("crossed")
    x, y = b.input("x", f32, (64,)), b.input("y", f32, (64,))
    a1, b2 = b.op("Relu", x), b.op("Neg", y)
    b1, a2 = b.op("Add", a1, b2), b.op("Mul", a1, b2)
    b.output("p", b1)
    b.output("q", a2)
    graph = b.build()
    space = space_of(graph)
    single = plan_of(space, [1 << p for p in range(4)])
    pairs = tuple(group_of(space, space.program.mask(names)) for names in (["Relu_0", "Mul_3"], ["Neg_1", "Add_2"]))
    crossed = replace(single, groups=pairs, cost_as=sum(group.cost_as for group in pairs))
    found = check(graph, crossed)
    assert rules(found) == {"order"}
    assert any("wait for each other" in v.message for v in found)


def test_stores(sound: Plan) -> None:
    graph, group = sound.graph, sound.groups[at(sound, "MatMul_1")]
    assert rules(check(graph, edit(sound, "MatMul_1", stores=()))) >= {"stores", "order"}
    relu = next(node for node in graph.nodes if node.name == "Relu_0").output
    assert "stores" in rules(check(graph, edit(sound, "MatMul_1", stores=(*group.stores, relu))))
    assert "stores" in rules(check(graph, edit(sound, "MatMul_1", stores=(*group.stores, "x"))))
    assert "stores" in rules(check(graph, edit(sound, "MatMul_1", stores=group.stores * 2)))
    tanh = sound.groups[at(sound, "Tanh_7")]
    assert graph.outputs[0].name not in tanh.stores  # an output is a view; what is stored is its base
    assert "stores" in rules(check(graph, edit(sound, "Tanh_7", stores=("y",))))


def test_figures(sound: Plan) -> None:
    graph, group = sound.graph, sound.groups[at(sound, "Div_6")]
    assert rules(check(graph, edit(sound, "Div_6", bytes_read=group.bytes_read + 64))) == {"bytes"}
    assert rules(check(graph, edit(sound, "Div_6", bytes_written=0))) == {"bytes"}
    traffic = float(np.nextafter(group.terms["traffic"], 1))
    assert rules(check(graph, edit(sound, "Div_6", terms={**group.terms, "traffic": traffic}))) == {"terms"}
    assert rules(check(graph, edit(sound, "Div_6", terms={**group.terms, "luck": 0.0}))) == {"terms"}
    assert rules(check(graph, edit(sound, "Div_6", cost_as=group.cost_as + 1))) == {"cost"}
    assert rules(check(graph, replace(sound, cost_as=sound.cost_as + 1))) == {"cost", "certificate"}
    assert rules(check(graph, replace(sound, weights={"launch": 2.0}))) == {"cost"}
    assert rules(check(graph, replace(sound, weights={"luck": 2.0}))) == {"cost"}
    assert rules(check(graph, edit(sound, "Div_6", origin=("elsewhere",)))) == {"origin"}


def test_certificate(sound: Plan) -> None:
    graph, cost = sound.graph, sound.cost_as
    assert rules(check(graph, replace(sound, lower_bound_as=cost - 1))) == {"certificate"}
    assert rules(check(graph, replace(sound, lower_bound_as=cost + 1, status="feasible"))) == {"certificate"}
    assert rules(check(graph, replace(sound, status="hopeful"))) == {"certificate"}
    assert check(graph, replace(sound, lower_bound_as=1, status="feasible")) == []


def _tiled() -> Plan:
    """Rows of a matmul whose weights every block reads again: a tile that changes counts."""
    space = space_of(softmax_model(4096))
    return plan_of(space, by_name(space, "Relu_0 MatMul_1"))


def test_tiles() -> None:
    plan = _tiled()
    tiles = plan.groups[at(plan, "MatMul_1")].schedule.tiles
    assert 1 < tiles[0].tile <= tiles[0].loops[0].extent // 2
    for factor, rule in ((2, "terms"), (0, "schedule"), (-1, "schedule"), (1 << 40, "schedule")):
        changed = (Tile(tiles[0].tile * factor, tiles[0].loops), *tiles[1:])
        assert rule in rules(check(plan.graph, edit(plan, "MatMul_1", schedule=Schedule(changed))))
    assert rules(check(plan.graph, edit(plan, "MatMul_1", schedule=Schedule(())))) & {"terms", "capacity"}


def test_capacity() -> None:
    plan = _tiled()
    assert rules(check(plan.graph, replace(plan, profile=replace(plan.profile, fast_memory_bytes=64)))) == {"capacity"}


def test_schedules(sound: Plan) -> None:
    graph = sound.graph

    def after(change: Callable[[OuterLoop], OuterLoop], which: int = 0) -> set[str]:
        return rules(check(graph, edit_loop(sound, "Div_6", change, which)))

    assert after(lambda loop: loop) == set()
    assert after(carry("Div_6", 1, 1)) == {"schedule"}  # 48 columns, not rows
    assert after(carry("Div_6", 0, 1)) == {"schedule"}  # the inner rows instead of the outer ones
    assert after(carry("ReduceSum_5", 2, 1)) == {"schedule"}  # a reduction
    assert after(carry("Exp_4", 0, 0)) == {"schedule"}
    assert after(carry("Exp_4", 7, 1)) == {"schedule"}
    assert after(carry("Neg_8", 0, 8)) == {"schedule"}  # no member
    assert after(lambda loop: OuterLoop(4, loop.carried)) == {"schedule"}  # no reshape cuts there
    assert after(lambda loop: OuterLoop(1, loop.carried)) == {"schedule"}
    assert after(lambda loop: OuterLoop(loop.extent, {})) == {"schedule"}
    for name in SOFTMAX.split():
        assert after(lambda loop, name=name: OuterLoop(loop.extent, {k: v for k, v in loop.carried.items() if k != name})) == {"schedule"}
    first, second = (loop for _, _, loop in loops_of(sound, "Div_6"))
    assert after(lambda loop: second) == {"schedule"}  # the same loop twice
    assert after(lambda loop: first, 1) == {"schedule"}


def test_the_columns_of_a_softmax_are_no_outer_loop(sound: Plan) -> None:
    columns = OuterLoop(48, dict.fromkeys(("Sub_3", "Exp_4", "Div_6"), (1, 1)) | {"Tanh_7": (2, 1)})
    tiles = (*sound.groups[at(sound, "Div_6")].schedule.tiles, Tile(1, (columns,)))
    found = check(sound.graph, edit(sound, "Div_6", schedule=Schedule(tiles)))
    assert rules(found) == {"schedule"}
    assert any("ReduceSum_5" in v.message for v in found)


@pytest.mark.parametrize("kind", ["slice", "pad", "concat", "gather", "flip", "transpose"])
def test_no_outer_loop_where_a_computed_value_is_read_elsewhere(kind: str) -> None:
    b = GraphBuilder(kind)
    y = b.op("Relu", b.input("x", f32, (64, 64)))
    if kind == "slice":
        z = b.op("Slice", y, starts=(0, 0), steps=(1, 1), sizes=(64, 64))
    elif kind == "flip":
        z = b.op("Slice", y, starts=(63, 0), steps=(-1, 1), sizes=(64, 64))
    elif kind == "pad":
        z = b.op("Pad", y, before=(1, 0), after=(-1, 0), value=0.0)
    elif kind == "concat":
        z = b.op("Concat", y, y, axis=0)
    elif kind == "gather":
        z = b.op("Gather", y, b.constant(np.arange(64)), axis=0)
    else:
        z = b.op("Transpose", y, perm=(1, 0))
    b.output("z", z)
    graph = b.build()
    space = space_of(graph)
    names = [node.name for node in graph.nodes]
    plan = plan_of(space, by_name(space, " ".join(names)))
    assert check(graph, plan) == []
    rows = Tile(1, (OuterLoop(64, dict.fromkeys(names, (0, 1))),))
    right = kind == "slice"  # all of it, in order
    assert ("schedule" in rules(check(graph, edit(plan, "Relu_0", schedule=Schedule((rows,)))))) == (not right)
    assert "schedule" in rules(check(graph, edit(plan, "Relu_0", schedule=Schedule((rows, rows)))))


@pytest.mark.parametrize("seed", range(40))
def test_a_carried_loop_is_never_another_one(seed: int) -> None:
    graph, rng = random_graph(seed), random.Random(seed)
    space = space_of(graph)
    plan = plan_of(space, merged(space, rng))
    loops = [(group.nodes[0], k) for group in plan.groups for k in range(sum(len(tile.loops) for tile in group.schedule.tiles))]
    for node, k in rng.sample(loops, min(6, len(loops))):
        loop = loops_of(plan, node)[k][2]
        name = rng.choice(sorted(loop.carried))
        other = (rng.randrange(-1, 5), rng.choice([-1, 0, 1, 2, 3, 4, 6, 1 << 40]))
        if other != loop.carried[name]:
            assert "schedule" in rules(check(graph, edit_loop(plan, node, carry(name, *other), k)))


def test_empty_values() -> None:
    b = GraphBuilder("empty")
    x = b.input("x", f32, (0, 4, 6))
    y = b.op("Exp", b.reshape(b.op("Relu", x), (0, 24)))
    b.output("y", b.op("ReduceSum", b.op("Concat", y, y, axis=1), axes=(1,)))
    graph = b.build()
    space = space_of(graph)
    assert [str(v) for v in check(graph, plan_of(space, [1 << p for p in range(space.n)]))] == []
    assert [str(v) for v in check(graph, plan_of(space, [(1 << space.n) - 1]))] == []


# ---------------------------------------------------------------------- illegal groups


def forced(graph: Graph, profile: Profile, *names: str) -> set[str]:
    """Rules that a group breaks when a plan has it all the same."""
    space = space_of(graph, profile)
    masks = by_name(space, " ".join(names))
    groups = []
    for mask in masks:
        features = space.analysis(mask).features
        best = space.model.best(features, profile)
        assert best is not None
        priced = Priced(best[1], best[0], best[2])
        groups.append(group_of(space, mask, priced))
    groups.sort(key=lambda group: max(graph.index[name] for name in group.nodes))
    cost = sum(group.cost_as for group in groups)
    return rules(check(graph, Plan(graph, profile, "weighted", {}, "forced", tuple(groups), "feasible", cost, 0, {}, {})))


def test_illegal_groups() -> None:
    profile = load("nvidia-h100-sxm")
    b = GraphBuilder("many")
    x, y = b.input("x", f32, (64, 64)), b.input("y", f32, (64, 64))
    u, v = b.op("Relu", x), b.op("Relu", y)
    m = b.op("MatMul", u, v)
    n = b.op("MatMul", m, v)
    one = (1, 1)
    p = b.op("MaxPool", n, kernel=(3, 3), strides=one, dilations=one, before=one, after=one)
    b.opaque(OpaqueCall("Strange", "d", lambda arrays: arrays), [p], [Value("o", np.dtype(f32), (64, 64))])
    h = b.op("Cast", b.op("Neg", "o"), to="bfloat16")
    b.output("h", h)
    for name in (u, v, m, n, p):
        b.output(f"out.{name}", name)
    graph = b.build()
    assert forced(graph, profile, "Relu_0") == set()
    assert forced(graph, profile, "Relu_0", "Relu_1") == {"shared-loops"}
    assert forced(graph, profile, "MatMul_2", "MatMul_3") == set()
    assert forced(graph, profile, "MatMul_3", "MaxPool_4") == {"shared-outer-loop"}
    assert "opaque" in forced(graph, profile, "Strange_5", "Neg_6")
    assert forced(graph, replace(profile, operand_limit=1), "Neg_6", "Cast_7") == {"operands"}
    assert forced(graph, replace(profile, dtypes=frozenset({"float32"})), "Neg_6", "Cast_7") == {"dtype"}
    assert forced(graph, replace(profile, dtypes=frozenset({"bfloat16"}), operand_limit=1), "Neg_6") == set()  # nodes alone may do anything
    forbidden = (Forbidden(("Neg", "Cast"), "no such instruction", "a test"),)
    assert forced(graph, replace(profile, forbidden=forbidden), "Neg_6", "Cast_7") == {"forbidden"}
    assert str(np.dtype(ml_dtypes.bfloat16)) == "bfloat16"


def test_too_many_nodes() -> None:
    b = GraphBuilder("long")
    x = b.input("x", f32, (64,))
    for _ in range(257):
        x = b.op("Relu", x)
    b.output("y", x)
    graph = b.build()
    names = [node.name for node in graph.nodes]
    assert forced(graph, load("nvidia-h100-sxm"), *names[1:]) == set()
    assert forced(graph, load("nvidia-h100-sxm"), *names) == {"nodes"}


def test_a_constant_of_one_element_joins_nothing() -> None:
    b = GraphBuilder("parameter")
    c = b.constant(np.ones((), np.float64))
    for name in "xy":
        b.output(f"{name}2", b.op("Mul", b.input(name, np.float64, (64,)), c))
    assert forced(b.build(), replace(load("nvidia-h100-sxm"), line_bytes=4), "Mul_0", "Mul_1") == {"shared-loops"}


# ---------------------------------------------------------------------- the whole


def test_a_violation_is_one_line(sound: Plan) -> None:
    (found,) = check(sound.graph, edit(sound, "Neg_8", bytes_read=1))
    assert str(found) == f"bytes: group {at(sound, 'Neg_8')} (Neg_8): bytes_read is 1, counted 12288"


def test_the_checker_imports_nothing_of_the_search() -> None:
    allowed = ("fusion_search.ir", "fusion_search.search.plan", "costmodels", "hardware_profiles", "networkx")
    for file in Path(str(counts.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2
                names = [node.module or ""] if node.level == 0 else []
            for name in names:
                assert name.startswith(allowed) or not name.startswith("fusion_search"), f"{file.name} imports {name}"


def _deep(layers: int) -> tuple[Graph, Plan]:
    b = GraphBuilder("deep")
    x = b.input("x", f32, (128, 64))
    for _ in range(layers):
        e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
        p = b.op("Div", e, b.op("ReduceSum", e, axes=(1,)))
        t = b.op("Tanh", b.reshape(p, (8, 16, 64)))
        x = b.op("MatMul", b.op("Add", b.reshape(t, (128, 64)), x), b.constant(np.ones((64, 64), f32)))
        x = b.op("Relu", x)
    b.output("y", x)
    graph = b.build()
    space = space_of(graph)
    size = 9
    plan = plan_of(
        space,
        [sum(1 << p for p in range(k, min(k + size - 2, space.n))) for k in range(0, space.n, size)]
        + [sum(1 << p for p in range(k + size - 2, min(k + size, space.n))) for k in range(0, space.n, size)],
    )
    return graph, plan


def test_the_work_grows_with_the_nodes() -> None:
    """Counted in calls, which do not depend on the machine: four times the nodes, four times the work."""
    counts = []
    for layers in (28, 112):
        graph, plan = _deep(layers)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            found = check(graph, plan)
        finally:
            sys.setprofile(before)
        assert found == []
        counts.append(calls)
    assert len(graph.nodes) == 1008
    assert counts[1] < 4.5 * counts[0]


def test_a_node_without_points_reads_nothing() -> None:
    b = GraphBuilder("none")
    b.output("y", b.op("Expand", b.input("x", f32, (1, 16, 1)), shape=(0, 2, 16, 8)))
    graph = b.build()
    space = space_of(graph)
    assert check(graph, plan_of(space, [1])) == []


@pytest.mark.parametrize("shape", [(0, 16), (3, 0, 4), (4, 0)])
def test_plans_of_tensors_without_elements(shape: tuple[int, ...]) -> None:
    b = GraphBuilder("empty")
    x = b.op("Exp", b.input("x", np.float32, shape))
    y = b.op("Transpose", x, perm=tuple(reversed(range(len(shape)))))
    b.output("y", b.op("Tanh", y))
    b.output("z", b.op("Tanh", b.op("ReduceSum", x, axes=(1,))))
    graph = b.build()
    space = space_of(graph, load("local"))
    for plan in (plan_of(space, [1 << k for k in range(space.n)]), plan_of(space, [(1 << space.n) - 1])):
        assert [str(v) for v in check(graph, plan)] == []


@pytest.mark.parametrize("extents", [((4, 1), (4, 0)), ((1,), (0, 3)), ((0, 1), (1, 5))])
def test_nothing_is_read_for_a_result_without_elements(extents: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    from fusion_search import api

    b = GraphBuilder("empty")
    x, y = (b.input(name, f32, shape) for name, shape in zip("xy", extents, strict=True))
    b.output("z", b.op("Add", x, y))
    graph = b.build()
    assert api.check(graph, api.search(graph, api.load_profile("local"))) == []


def test_a_scatter_of_no_updates_still_copies() -> None:
    from fusion_search import api

    b = GraphBuilder("copy")
    x, u = b.input("x", f32, (3, 6, 40)), b.input("u", f32, (3, 0, 40))
    b.output("y", b.op("Scatter", x, b.constant(np.zeros((3, 0, 1), np.int64)), u, reduction="none"))
    graph = b.build()
    plan = api.search(graph, api.load_profile("local"))
    assert api.check(graph, plan) == []
    assert plan.bytes_moved >= 2 * 4 * 3 * 6 * 40
