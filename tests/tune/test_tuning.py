"""Tuned plans: the same J, schedules of their own that are checked, kept in files, and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import costmodels
import fusion_search as fs
from fusion_search.errors import FeedError, UsageError
from fusion_search.fusion.analysis import analyse, features_under
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.steps import KernelStep
from fusion_search.search.plan import Schedule, Tile
from fusion_search.tune import timing, tuning
from fusion_search.tune.candidates import Candidates, Point
from fusion_search.tune.timing import Comparison, summary
from tests.frontends.modeling import random
from tests.runtime.plans import classifier, classify, planned
from tests.runtime.test_memory import attention


def layers() -> Graph:
    """Four equal layers with a reduction between two products."""
    b = GraphBuilder("layers")
    x = b.input("x", np.float32, (96, 64))
    for k in range(4):
        h = b.op("MatMul", x, b.constant(random((64, 64), k) / 8))
        m = b.op("ReduceMean", h, axes=(1,))
        x = b.op("Tanh", b.op("Sub", h, m))
    b.output("y", x)
    return b.build()


def of(ratio: float) -> Comparison:
    return Comparison(1e-3, 1e-3 * ratio, ratio, ratio - 0.01, ratio + 0.01, 15)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Candidates, Point], float], float], None]:
    """Let schedules take what a function says, and the whole plan what a number says."""

    def install(each: Callable[[Candidates, Point], float], whole: float = 0.5) -> None:
        monkeypatch.setattr(tuning._Bench, "against", lambda bench, point, pairs, deadline=0.0: of(each(bench.candidates, point)))
        monkeypatch.setattr(tuning, "compare", lambda *args, **options: of(whole))

    return install


Pretend = Callable[..., None]


def smallest(candidates: Candidates, point: Point) -> float:
    """Small blocks on one thread are pretended to be best."""
    steps = sum(values.index(point[name]) for name, values in candidates.axes.items())
    start = sum(values.index(candidates.start[name]) for name, values in candidates.axes.items())
    return 1.0 + 0.05 * (steps - start)


def test_a_tuned_plan_has_the_same_j_and_passes_the_check(pretend: Pretend, tmp_path: Path) -> None:
    plan = planned(layers())
    pretend(smallest)
    told: list[str] = []
    tuned = fs.tune(plan, trials=4000, time_limit_s=600, progress=told.append)
    assert told
    changed = [group.tuned for group in tuned.groups if group.tuned is not None]
    assert changed
    assert [replace_tuned(group) for group in tuned.groups] == list(plan.groups)
    assert (tuned.cost_as, tuned.status, tuned.lower_bound_as) == (plan.cost_as, plan.status, plan.lower_bound_as)
    assert fs.check(plan.graph, tuned) == []
    assert all(record.cost_as >= group.cost_as for group in tuned.groups if (record := group.tuned))
    assert any(record.schedule != group.schedule for group in tuned.groups if (record := group.tuned))
    assert all(record.trials > 1 for record in changed)
    said = tuned.statistics["tuning"]
    assert said["kept"]
    assert said["ratio"] == 0.5
    path = tmp_path / "tuned.json"
    tuned.save(path)
    again = fs.Plan.load(path, plan.graph)
    assert again.groups == tuned.groups
    assert again.statistics["tuning"] == said
    assert fs.check(plan.graph, again) == []


def replace_tuned(group: object) -> object:
    return msgspec.structs.replace(group, tuned=None)  # type: ignore[type-var]


def test_equal_groups_are_tuned_together(pretend: Pretend) -> None:
    plan = planned(layers(), "unfused")
    pretend(smallest)
    tuned = fs.tune(plan, trials=4000, groups=1, time_limit_s=600)
    (kind,) = tuned.statistics["tuning"]["kinds"]
    changed = [k for k, group in enumerate(tuned.groups) if group.tuned is not None]
    assert changed == sorted(kind["groups"])
    assert len(changed) >= 3  # the last layer's result goes elsewhere
    assert len({tuple(tile.tile for tile in tuned.groups[k].tuned.schedule.tiles) for k in changed}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["exact", "unfused"])
def test_the_compiled_plan_runs_by_the_tuned_schedules(pretend: Pretend, method: str) -> None:
    plan = planned(attention(96, 64), method)
    pretend(smallest)
    tuned = fs.tune(plan, trials=4000, time_limit_s=600)
    run, own = CompiledPlan(tuned), CompiledPlan(plan)
    steps = {step.nodes: step for step in run.planned.steps if isinstance(step, KernelStep)}
    seen = 0
    for group in tuned.groups:
        if group.tuned is not None:
            seen += 1
            step = steps[group.nodes]
            sizes = {tuple(sorted([block.tile, block.extent])) for block in step.kernel.blocks if block.extent != 1}
            wanted = {tuple(sorted([t.tile, int(np.prod([loop.extent for loop in t.loops]))])) for t in group.tuned.schedule.tiles}
            assert sizes == wanted
            assert step.chunk == group.tuned.items_per_task
    assert seen
    x = random((96, 64))
    np.testing.assert_allclose(run({"x": x})["y"], own({"x": x})["y"], rtol=1e-4, atol=1e-5)
    assert fs.verify(tuned).ok


def test_tuning_again_starts_from_what_runs_now(pretend: Pretend) -> None:
    plan = planned(layers())
    pretend(smallest)
    once = fs.tune(plan, trials=4000, time_limit_s=600)
    again = fs.tune(once, trials=4000, time_limit_s=600)
    assert [group.tuned and group.tuned.schedule for group in again.groups] == [
        group.tuned and group.tuned.schedule for group in once.groups
    ]


def test_schedules_that_lose_are_not_taken(pretend: Pretend) -> None:
    plan = planned(layers())
    pretend(lambda candidates, point: 0.99)  # within noise
    same = fs.tune(plan, trials=8, time_limit_s=600)
    assert same.groups == plan.groups
    pretend(smallest, whole=1.01)
    same = fs.tune(plan, trials=4000, time_limit_s=600)
    assert same.groups == plan.groups
    said = same.statistics["tuning"]
    assert not said["kept"]
    assert (said["ratio"], said["tried_ratio"]) == (1.0, 1.01)


def test_a_real_measurement_is_never_slower_by_its_own_count() -> None:
    plan = planned(layers())
    tuned = fs.tune(plan, trials=6, groups=2, time_limit_s=3)
    said = tuned.statistics["tuning"]
    assert said["ratio"] <= 1.0
    assert said["before_s"] > 0
    assert all(0 < g.tuned.ratio_low <= g.tuned.ratio <= g.tuned.ratio_high < 1 for g in tuned.groups if g.tuned)
    assert fs.check(plan.graph, tuned) == []
    assert fs.verify(tuned).ok


def test_other_extents_run_by_the_generator_s_own_blocks(pretend: Pretend) -> None:
    plan = planned(fs.load(classifier(), dims={"batch": 64}))  # type: ignore[arg-type]
    pretend(smallest)
    tuned = fs.tune(plan, trials=4000, time_limit_s=600)
    assert any(group.tuned for group in tuned.groups)
    run, own = CompiledPlan(tuned), CompiledPlan(plan)
    for batch in (64, 5, 100):
        x = random((batch, 24), batch)
        np.testing.assert_allclose(run({"x": x})["y"], classify(x), rtol=1e-5)
        bound, other = run.for_feeds({"x": x}), own.for_feeds({"x": x})
        tiles = [[step.kernel.blocks for step in plan.steps if isinstance(step, KernelStep)] for plan in (bound, other)]
        assert (tiles[0] == tiles[1]) == (batch != 64)
    assert run.compilations == 0


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_be_tuned_is_refused() -> None:
    graph = fs.load(classifier(), dims={"batch": 8})  # type: ignore[arg-type]
    other = fs.search(graph, fs.load_profile("nvidia-h100-sxm"))
    with pytest.raises(UsageError, match="the plan is for nvidia-h100-sxm, which is another machine"):
        fs.tune(other)
    plan = planned(graph)
    for option in ("trials", "groups", "time_limit_s"):
        with pytest.raises(UsageError, match=f"{option}: expected a number > 0, got 0"):
            fs.tune(plan, **{option: 0})  # type: ignore[arg-type]
    with pytest.raises(FeedError, match="tuning measures the extents that the plan was made for"):
        fs.tune(plan, {"x": random((9, 24))})
    with pytest.raises(FeedError, match="missing x"):
        fs.tune(plan, {})


def test_a_schedule_that_is_not_the_cheapest_is_sound_only_as_a_tuned_one(pretend: Pretend) -> None:
    plan = planned(attention(256, 256))
    pretend(smallest)
    tuned = fs.tune(plan, trials=4000, time_limit_s=600)
    program = Program(plan.graph)
    model = costmodels.model(plan.cost_model, plan.weights)
    seen = 0
    for k, group in enumerate(plan.groups):
        mask = program.mask(group.nodes)
        analysis = analyse(program, mask, plan.profile.line_bytes)
        named = [atom for knob in analysis.knobs for atom in knob]
        loops = [*analysis.knobs, *((atom,) for atom in analysis.outer if atom not in named)]
        for at, tile in enumerate(group.schedule.tiles):
            if tile.tile == 1:
                continue
            tiles = (*group.schedule.tiles[:at], Tile(tile.tile // 2, tile.loops), *group.schedule.tiles[at + 1 :])
            blocks = [(atoms, t.tile) for atoms, t in zip(loops, tiles, strict=True)]
            terms = model.terms(features_under(program, mask, analysis, blocks, plan.profile.line_bytes), plan.profile)
            cost = costmodels.attoseconds(model.cost_s(terms, plan.profile))
            if cost <= group.cost_as:
                continue
            seen += 1
            worse = msgspec.structs.replace(group, schedule=Schedule(tiles), terms=terms, cost_as=cost)
            total = plan.cost_as - group.cost_as + cost
            groups = (*plan.groups[:k], worse, *plan.groups[k + 1 :])
            found = fs.check(plan.graph, replace(plan, groups=groups, cost_as=total, status="feasible"))
            assert [violation.rule for violation in found] == ["schedule"]
            assert "less than" in str(found[0])
    assert seen
    k, record = next((k, group.tuned) for k, group in enumerate(tuned.groups) if group.tuned)
    assert record is not None
    for wrong, rule in (
        (msgspec.structs.replace(record, cost_as=record.cost_as + 1), "cost"),
        (msgspec.structs.replace(record, items_per_task=0), "schedule"),
        (msgspec.structs.replace(record, schedule=Schedule((Tile(10**6, record.schedule.tiles[0].loops),))), "schedule"),
        (msgspec.structs.replace(record, schedule=Schedule(record.schedule.tiles * 2)), "schedule"),
    ):
        groups = (*tuned.groups[:k], msgspec.structs.replace(tuned.groups[k], tuned=wrong), *tuned.groups[k + 1 :])
        found = fs.check(plan.graph, replace(tuned, groups=groups))
        assert found
        assert {violation.rule for violation in found} == {rule}


# ---------------------------------------------------------------------- timing


def test_pairs_are_timed_in_turn_and_each_runs_unseen_first() -> None:
    calls: list[str] = []
    found = timing.compare(lambda: calls.append("a"), lambda: calls.append("b"), pairs=4)
    assert "".join(calls) == "aabbbbaaaabbbbaa"
    assert found.pairs == 4
    assert timing.compare(lambda: None, lambda: None, pairs=50, deadline=0.0).pairs == 3


def test_a_summary_stays_within_what_was_measured() -> None:
    found = summary([(1.0, 0.5), (2.0, 1.2), (1.0, 0.9)])
    assert (found.low, found.ratio, found.high) == (0.5, 0.6, 0.9)
    assert (found.before_s, found.after_s) == (1.0, 0.9)
    one = summary([(2.0, 1.0)])
    assert (one.low, one.ratio, one.high) == (0.5, 0.5, 0.5)
