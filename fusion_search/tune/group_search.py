"""Searching the schedules of one group: small spaces whole, large ones by a seeded sampler that knows good points first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusion_search.errors import UnsupportedError
from fusion_search.tune.candidates import Candidates, Point


@dataclass(frozen=True, slots=True)
class Tried:
    """A schedule that was measured: its time over that of the schedule that ran at the start."""

    point: Point
    ratio: float


def search_group(
    candidates: Candidates,
    measure: Callable[[Point], float],
    excess_bytes: Callable[[Point], float],
    *,
    trials: int,
    seed: int,
    deadline: float = math.inf,
) -> list[Tried]:
    """Measure schedules of one group, the present one and the cost model's first.

    Parameters
    ----------
    candidates : Candidates
    measure : callable
        A point's time over that of the start.
    excess_bytes : callable
        By how much a point's scratch exceeds what the machine has; such a point is not measured.
    trials : int
        Most points to measure. A space of no more is enumerated: sampling would visit points twice and miss others.
    seed : int
        Of the sampler.
    deadline : float
        Time of `time.perf_counter` after which nothing more is measured.

    Returns
    -------
    list of Tried
        Distinct points, the fastest first; of equals the one tried first.
    """
    known: dict[tuple[int, ...], Tried] = {}

    def attempt(point: Point) -> float:
        key = tuple(point[name] for name in candidates.axes)
        if key not in known:
            known[key] = Tried(point, 1.0 if point == candidates.start else measure(point))
        return known[key].ratio

    model = candidates.model_point()
    first = [candidates.start, *([model] if model is not None and excess_bytes(model) <= 0 else [])]
    if candidates.count <= trials:
        for point in [*first, *candidates.points()]:
            if time.perf_counter() > deadline:
                break
            if excess_bytes(point) <= 0:
                attempt(point)
    else:
        _sample(candidates, first, attempt, excess_bytes, trials, seed, deadline)
    return sorted(known.values(), key=lambda tried: tried.ratio)


def _sample(
    candidates: Candidates,
    first: Sequence[Point],
    attempt: Callable[[Point], float],
    excess_bytes: Callable[[Point], float],
    trials: int,
    seed: int,
    deadline: float,
) -> None:
    try:
        import optuna
    except ImportError:
        raise UnsupportedError("tuning a large space needs optuna 5", hint="pip install 'optuna>=5'") from None

    def objective(trial: optuna.Trial) -> float:
        point = {name: values[trial.suggest_int(name, 0, len(values) - 1)] for name, values in candidates.axes.items()}
        excess = excess_bytes(point)
        trial.set_constraint("scratch", excess)
        # what does not fit is not measured; how far it is off tells the sampler where to go
        return attempt(point) if excess <= 0 else math.inf

    shown = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        for point in first:
            study.enqueue_trial({name: values.index(point[name]) for name, values in candidates.axes.items()})
        left = max(0.0, deadline - time.perf_counter())
        study.optimize(objective, n_trials=trials, timeout=left if math.isfinite(left) else None)
    finally:
        optuna.logging.set_verbosity(shown)
