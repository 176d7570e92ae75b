"""Public fault cases A40 and A41: depth, width and repetition cost time in proportion, and never the stack."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import onnx
import pytest

import fusion_search as fs
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.runtime.steps import KernelStep
from tests.cases import scale
from tests.cases.harness import assert_bits, load, profile

F = np.float32
#: Groups judged for each node at most: what keeps planning linear, on any machine.
JUDGED = 40
#: No search here needs to be stopped.
NEVER_S = 1e9


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the groups that are judged, by whichever method asks."""
    found: list[int] = []
    judge = GroupSpace._judge

    def counted(self: GroupSpace, group: int, key: Hashable) -> Priced | Reason:
        found.append(group.bit_count())
        return judge(self, group, key)

    monkeypatch.setattr(GroupSpace, "_judge", counted)
    return found


def planned(proto: onnx.ModelProto, judged: list[int], *, most_gap: float = 0.0) -> tuple[fs.Plan, dict[str, Any], dict[str, Any]]:
    """Plan and run a model, judging no more groups than are allowed; return the plan, feeds and results."""
    graph = load(proto)
    judged.clear()
    plan = fs.search(graph, profile(), time_limit_s=NEVER_S)
    assert len(judged) <= JUDGED * len(graph.nodes)
    assert plan.gap <= most_gap
    assert max(len(group.nodes) for group in plan.groups) <= 256
    run = fs.compile(plan)
    kernels = [step.kernel.source for step in run.planned.steps if isinstance(step, KernelStep)]
    assert sum(map(len, kernels)) < 400 * len(graph.nodes) + 4000, "source is linear in the graph"
    rng = np.random.default_rng(0)
    feeds = {v.name: (rng.standard_normal(v.shape) * 0.01).astype(v.dtype) for v in graph.inputs}
    return plan, feeds, run(feeds)


@pytest.mark.parametrize(("n", "width"), [(1000, 1), (1000, 64), (1000, 4096), (10_000, 64)])
def test_a40_chains(n: int, width: int, judged: list[int]) -> None:
    plan, feeds, got = planned(scale.chain(n, width), judged)
    assert plan.status == "optimal"
    assert plan.launches == -(-n // 256)
    assert_bits(got[f"v{n}"], feeds["v0"])
    if n == 1000:
        assert fs.check(plan.graph, plan) == []


@pytest.mark.parametrize("n", [1000, 10_000])
def test_a40_mixed_chains(n: int, judged: list[int]) -> None:
    plan, feeds, got = planned(scale.mixed(n), judged)
    assert plan.status == "optimal"
    v, w = feeds["v0"], feeds["w"]
    steps: dict[str, Callable[[Any], Any]] = {"Relu": lambda a: np.maximum(a, F(0)), "Abs": np.abs, "Neg": np.negative, "Sqrt": np.sqrt}
    with np.errstate(invalid="ignore"):
        for i in range(n):
            v = steps[scale.UNARY[i % 4]](v) if i % 5 else (v + w if i // 5 % 2 else v * w)
    assert_bits(got[f"v{n}"], v)


def test_a40_one_value_with_5000_consumers(judged: list[int]) -> None:
    plan, feeds, got = planned(scale.consumers(5000), judged, most_gap=1e-9)
    limit = profile().operand_limit
    assert plan.launches == -(-5000 // (limit - 1))
    for i in (0, 1, 4999):
        assert_bits(got[f"y{i}"], feeds["x"] * F(i))


@pytest.mark.parametrize("make", [scale.variadic, scale.additions])
@pytest.mark.parametrize("n", [31, 32, 64, 400, 1000])
def test_a40_many_inputs(make: Callable[[int], onnx.ModelProto], n: int, judged: list[int]) -> None:
    plan, feeds, got = planned(make(n), judged)
    assert plan.status == "optimal"
    total = feeds["x0"]
    for i in range(1, n):
        total = total + feeds[f"x{i}"]
    (result,) = got.values()
    assert_bits(result, total)


def test_a40_many_choices(judged: list[int]) -> None:
    plan, feeds, got = planned(scale.choices(200), judged)
    assert plan.launches == 2
    v, w = feeds["v0"], feeds["w"]
    for i in range(200):
        v = np.clip(v, F(-1), F(1)) if i % 2 else np.where(v > F(-1), v, w)
    assert_bits(got["v200"], v)


@pytest.mark.parametrize(("k", "parallel"), [(10, 1), (20, 1), (40, 1), (40, 8)])
def test_a41_no_expression_is_written_at_each_use(k: int, parallel: int, judged: list[int]) -> None:
    plan, feeds, got = planned(scale.doublings(k, parallel), judged)
    assert plan.status == "optimal"
    assert plan.launches == parallel
    for q in range(parallel):
        v = feeds[f"v{q}_0"]
        for _ in range(k):
            v = v * v + v
        assert_bits(got[f"v{q}_{k}"], v)


def test_a41_text_grows_linearly() -> None:
    sizes = {}
    for k in (10, 20, 40):
        run = fs.compile(fs.search(load(scale.doublings(k)), profile(), time_limit_s=NEVER_S))
        sizes[k] = sum(len(step.kernel.source) for step in run.planned.steps if isinstance(step, KernelStep))
    assert sizes[40] - sizes[20] < 2.5 * (sizes[20] - sizes[10])


@pytest.mark.parametrize("method", ["unfused", "per-operator", "fuse-all"])
@pytest.mark.parametrize("make", [scale.mixed, scale.consumers, scale.variadic])
def test_a40_baselines(method: str, make: Callable[[int], onnx.ModelProto], judged: list[int]) -> None:
    graph = load(make(1000))
    judged.clear()
    plan = fs.search(graph, profile(), method=method, time_limit_s=NEVER_S)
    assert len(judged) <= JUDGED * len(graph.nodes)
    assert plan.cost_s >= fs.search(graph, profile(), time_limit_s=NEVER_S).lower_bound_s


@pytest.mark.parametrize("name", fs.list_profiles())
def test_a40_every_profile(name: str, judged: list[int]) -> None:
    graph = load(scale.mixed(1000, 4096))
    judged.clear()
    plan = fs.search(graph, fs.load_profile(name), time_limit_s=NEVER_S)
    assert len(judged) <= JUDGED * len(graph.nodes)
    assert plan.gap < 1e-9
