"""Tiles and outer loops that a plan claims: their sizes, and which loops of the nodes they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.search.check import check
from fusion_search.search.plan import OuterLoop, Plan, Schedule, Tile
from tests.search.checked_plans import (
    SOFTMAX,
    at,
    by_name,
    carry,
    edit,
    edit_loop,
    f32,
    loops_of,
    plan_of,
    rules,
    softmax_model,
    sound_plan,
    space_of,
)


@pytest.fixture(name="sound")
def _sound() -> Plan:
    return sound_plan()


def test_the_sound_plan_is_sound_and_tiled(sound: Plan) -> None:
    assert check(sound.graph, sound) == []
    assert [loop.extent for _, _, loop in loops_of(sound, "Div_6")] == [8, 8]  # the reshape of the result cuts the rows
    assert loops_of(sound, "Div_6")[0][2].carried["Div_6"] == (0, 8)


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
        b.output("y", y)  # or it would be computed where the pad reads it
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
