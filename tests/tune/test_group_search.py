"""The search among one group's schedules, on spaces without a machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fusion_search.tune.candidates import Candidates, Point
from fusion_search.tune.group_search import Tried, search_group


@dataclass(frozen=True)
class Space(Candidates):
    """Points without a kernel."""

    model: tuple[tuple[str, int], ...] = ()

    def model_point(self) -> Point | None:
        return dict(self.model) or None


def space(*sizes: int, model: Point | None = None) -> Space:
    axes = {f"tile{k}": tuple(1 << e for e in range(size)) for k, size in enumerate(sizes)}
    start = {name: values[len(values) // 2] for name, values in axes.items()}
    return Space(None, None, None, axes, start, tuple((model or {}).items()))  # type: ignore[arg-type]


def bowl(point: Point) -> float:
    """Least where every tile is 8."""
    return 0.2 + sum((math.log2(size) - 3) ** 2 for size in point.values()) / 10


def run(found: Space, trials: int, *, seed: int = 0, fits: Callable[[Point], float] = lambda p: 0.0) -> tuple[list[Tried], list[Point]]:
    measured: list[Point] = []

    def measure(point: Point) -> float:
        measured.append(point)
        return bowl(point)

    return search_group(found, measure, fits, trials=trials, seed=seed), measured


def test_a_small_space_is_measured_whole_and_once() -> None:
    found = space(4, 5)
    tried, measured = run(found, 20)
    assert len(tried) == found.count == 20
    assert len(measured) == 19  # the start is what it is compared with
    assert len({tuple(p.items()) for p in measured}) == 19
    assert tried[0].point == {"tile0": 8, "tile1": 8}
    assert [t.ratio for t in tried] == sorted(t.ratio for t in tried)
    assert next(t.ratio for t in tried if t.point == found.start) == 1.0


def test_a_small_space_needs_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert len(run(space(4), 4)[0]) == 4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_large_space_is_sampled_from_known_good_points(seed: int) -> None:
    model = {"tile0": 64, "tile1": 2, "tile2": 1, "tile3": 8}
    found = space(8, 8, 8, 8, model=model)
    assert found.count == 4096
    tried, measured = run(found, 60, seed=seed)
    assert measured[0] == model
    assert len(tried) <= 60
    assert len({tuple(t.point.items()) for t in tried}) == len(tried)
    assert any(t.point == found.start for t in tried)
    assert tried[0].ratio < bowl(found.start)
    assert run(found, 60, seed=seed)[1] == measured


def test_seeds_differ() -> None:
    found = space(8, 8, 8, 8)
    assert run(found, 20, seed=0)[1] != run(found, 20, seed=1)[1]


@pytest.mark.parametrize("sizes", [(4, 5), (8, 8, 8, 8)])
def test_what_does_not_fit_is_never_measured(sizes: tuple[int, ...]) -> None:
    def excess(point: Point) -> float:
        return math.prod(point.values()) - 40.0

    found = space(*sizes)
    small = dict.fromkeys(found.axes, 1)
    found = Space(None, None, None, found.axes, small, tuple({**small, "tile0": 128, "tile1": 16}.items()))  # type: ignore[arg-type]
    tried, measured = run(found, 50, fits=excess)
    assert measured
    assert all(excess(point) <= 0 for point in measured)
    assert all(excess(t.point) <= 0 for t in tried)


@pytest.mark.parametrize("sizes", [(4, 5), (8, 8, 8, 8)])
def test_nothing_is_measured_after_the_deadline(sizes: tuple[int, ...]) -> None:
    measured: list[Point] = []
    tried = search_group(space(*sizes), lambda p: measured.append(p) or 1.0, lambda p: 0.0, trials=50, seed=0, deadline=-1.0)  # type: ignore[func-returns-value]
    assert not measured
    assert len(tried) <= 1
