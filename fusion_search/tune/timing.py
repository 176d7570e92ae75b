"""Timing two things in turn, so that both see the same noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: A sample should last this long: far more than reading the clock, far less than a turn of the scheduler.
SAMPLE_S = 2e-4
MOST_REPEATS = 256


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two things timed in turn.

    Attributes
    ----------
    before_s, after_s : float
        Medians.
    ratio, low, high : float
        Median and quartiles of after over before, pair by pair.
    pairs : int
    """

    before_s: float
    after_s: float
    ratio: float
    low: float
    high: float
    pairs: int


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def repeats_for(seconds: float) -> int:
    """How often to run something so that a sample lasts long enough."""
    return max(1, min(MOST_REPEATS, round(SAMPLE_S / max(seconds, 1e-9))))


def compare(
    before: Callable[[], object], after: Callable[[], object], *, pairs: int, deadline: float = float("inf"), each: int = 1
) -> Comparison:
    """Time two things in turn, each as often first as second.

    Each runs once unseen before it is timed: threads that the other one left asleep would be woken at its expense, and its data
    would come from further away than in a run of its own.

    Parameters
    ----------
    before, after : callable
    pairs : int
    deadline : float
        Time of `time.perf_counter` after which no pair follows the third.
    each : int
        How often a call runs what is compared.
    """
    samples: list[tuple[float, float]] = []
    while len(samples) < pairs and (len(samples) < 3 or time.perf_counter() < deadline):
        taken = {}
        for name, run in (("before", before), ("after", after))[:: -1 if len(samples) % 2 else 1]:
            run()
            taken[name] = timed(run) / each
        samples.append((taken["before"], taken["after"]))
    return summary(samples)


def summary(samples: Sequence[tuple[float, float]]) -> Comparison:
    """Summarise pairs of before and after."""
    ratios = sorted(after / before for before, after in samples)
    low, high = (statistics.quantiles(ratios, n=4)[k] for k in (0, 2)) if len(ratios) > 1 else (ratios[0], ratios[0])
    return Comparison(
        statistics.median(before for before, _ in samples),
        statistics.median(after for _, after in samples),
        statistics.median(ratios),
        max(low, ratios[0]),  # quantiles extrapolate beyond few samples
        min(high, ratios[-1]),
        len(samples),
    )
