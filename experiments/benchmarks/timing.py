"""Timing rivals against each other: in turn, each after the last one's threads have gone to sleep.

A library that keeps its threads spinning after a call takes a processor from whoever runs next. So before each turn the harness sleeps
until the process uses no processor time; then it runs the candidate a little, to wake its own threads, and only then takes the time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """How long to measure.

    Attributes
    ----------
    rounds : int
        Turns of each candidate.
    block_s : float
        Least time of one turn; at least one call.
    warm_s : float
        Time that a candidate runs untimed before each turn.
    quiet_s : float
        Longest wait for threads to go to sleep.
    """

    rounds: int = 11
    block_s: float = 0.008
    warm_s: float = 0.004
    quiet_s: float = 0.4


@dataclass(frozen=True)
class Ratio:
    """How often faster one candidate is than another: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float


def wait_until_quiet(limit_s: float, *, step_s: float = 0.004, busy: float = 0.1) -> None:
    """Sleep until this process uses less than a part `busy` of a processor, twice in a row."""
    ends = time.perf_counter() + limit_s
    calm = 0
    while calm < 2 and time.perf_counter() < ends:
        begun, used = time.perf_counter(), time.process_time()
        time.sleep(step_s)
        calm = calm + 1 if time.process_time() - used < busy * (time.perf_counter() - begun) else 0


def turn(call: Callable[[], object], schedule: Schedule) -> float:
    """Return the seconds of one call: warmed up, then the mean of a block."""
    ends = time.perf_counter() + schedule.warm_s
    calls, begun = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() < ends:
        call()
        calls += 1
    guess = (time.perf_counter() - begun) / calls
    count = max(1, int(schedule.block_s / max(guess, 1e-9)))
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count


def interleave(candidates: Mapping[str, Callable[[], object]], schedule: Schedule) -> dict[str, list[float]]:
    """Time all candidates in turn, the order moved on by one each round.

    Returns
    -------
    dict of str to list of float
        Seconds a call, one entry a round; entry k of all lists is of the same round.
    """
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    for k in range(schedule.rounds):
        at = k % max(len(names), 1)
        for name in names[at:] + names[:at]:
            wait_until_quiet(schedule.quiet_s)
            times[name].append(turn(candidates[name], schedule))
    return times


def ratio(slower: Sequence[float], faster: Sequence[float]) -> Ratio:
    """Compare two candidates round by round: above 1 when the second is faster."""
    each = np.asarray(slower, np.float64) / np.asarray(faster, np.float64)
    low, median, high = np.quantile(each, (0.25, 0.5, 0.75))
    return Ratio(float(median), float(low), float(high))


def median(times: Sequence[float]) -> float:
    """Return the median of some times."""
    return statistics.median(times)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; NaN of nothing."""
    return float(np.exp(np.mean(np.log(np.asarray(values, np.float64))))) if len(values) else float("nan")
