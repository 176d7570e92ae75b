"""Tuning a plan: the groups that take longest, one after the other, each measured in its place in the plan."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fusion_search.errors import FeedError, UsageError
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.measure import example_feeds, group_times
from fusion_search.runtime.program import BoundPlan, LoneStep
from fusion_search.runtime.steps import Choice, KernelStep
from fusion_search.runtime.workspace import Workspace
from fusion_search.search.plan import Plan, PlanGroup, Tuned
from fusion_search.tune.candidates import Candidates, Point, Pricing, candidates_of
from fusion_search.tune.group_search import search_group
from fusion_search.tune.timing import Comparison, compare, repeats_for

#: Pairs for a first look, for the decision on a group, and for the decision on the plan.
LOOK, DECIDE, WHOLE = 3, 15, 15
#: A schedule has to be so much faster: less is noise.
GAIN = 0.97
#: Schedules of a group that are measured again before one is chosen.
FINALISTS = 3
#: Share of the time that is kept for measuring the whole plan.
FINAL_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal groups, of which one is measured for all.

    Attributes
    ----------
    seconds : float
        What all of them take.
    places : tuple of (int, int)
        Index of the group and of its step, that of the group that is measured first.
    """

    seconds: float
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found for one kind of group: for each of them the schedule, or nothing."""

    kind: Kind
    tuned: Mapping[int, Tuned]
    tried: int
    points: int


def tune_plan(
    plan: Plan,
    feeds: Mapping[str, Any] | None = None,
    *,
    trials: int = 32,
    groups: int = 8,
    seed: int = 0,
    time_limit_s: float = 60.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Find schedules that this machine runs faster than a plan's present ones; see :func:`fusion_search.tune`."""
    if not plan.profile.runs_here:
        raise UsageError(
            f"the plan is for {plan.profile.name}, which is another machine", hint="plan for a profile that runs here, such as local"
        )
    for name, number in (("trials", trials), ("groups", groups), ("time_limit_s", time_limit_s)):
        if not number > 0:
            raise UsageError(f"{name}: expected a number > 0, got {number}")
    begun = time.perf_counter()
    run = CompiledPlan(plan)
    arrays = run.checked(feeds if feeds is not None else example_feeds(plan.graph, seed))
    bound = run.for_feeds(arrays)
    if bound is not run.planned:
        raise FeedError("tuning measures the extents that the plan was made for", hint="feed arrays of the planned shapes")
    end = begun + time_limit_s * (1 - FINAL_SHARE)
    kinds = _dearest(run, bound, arrays)[:groups]
    outcomes: list[Outcome] = []
    pricing = Pricing(plan)
    for done, kind in enumerate(kinds):
        now = time.perf_counter()
        if now >= end:
            break
        deadline = now + (end - now) / (len(kinds) - done)
        all_of_them = [_candidates(run, index, k) for index, k in kind.places]
        with _ready(bound, arrays, kind.places[0][1]) as space:
            bench = _Bench(bound, space, all_of_them[0])
            outcomes.append(_tune_kind(bench, kind, all_of_them, pricing, trials=trials, seed=seed + done, deadline=deadline))
        first = plan.groups[kind.places[0][0]]
        progress(f"{len(kind.places)} x ({', '.join(first.origin[:3])}): {_said(outcomes[-1])}")
    return _decide(run, arrays, outcomes, trials=trials, seed=seed, deadline=begun + time_limit_s)


def _said(outcome: Outcome) -> str:
    measured = f"{outcome.tried} of {outcome.points} schedules measured"
    found = next(iter(outcome.tuned.values()), None)
    return f"{measured}, {found.ratio:.2f} of the time" if found else f"{measured}, none faster"


# ---------------------------------------------------------------------- which groups


def _dearest(run: CompiledPlan, bound: BoundPlan, arrays: Mapping[str, Any]) -> list[Kind]:
    """Return the kinds of groups that can be tuned, what takes longest first."""
    times = [statistics.median(column) for column in zip(*(group_times(bound, arrays) for _ in range(3)), strict=True)]
    place = {group.nodes: index for index, group in enumerate(run.plan.groups)}
    kinds: dict[Hashable, list[tuple[int, int]]] = {}
    for k, step in enumerate(bound.steps):
        if isinstance(step, KernelStep) and step.nodes in bound.kernels and step.nodes in place and step.kernel.items > 0:
            numbers = tuple(slot.number for slot in step.kernel.slots if slot.value is None)
            kinds.setdefault((step.kernel.source, numbers, step.chunk), []).append((place[step.nodes], k))
    found = [Kind(sum(times[k] for _, k in places), tuple(places)) for places in kinds.values()]
    return sorted(found, key=lambda kind: (-kind.seconds, kind.places))


def _candidates(run: CompiledPlan, index: int, k: int) -> Candidates:
    group, bound = run.plan.groups[index], run.planned
    step = bound.steps[k]
    assert isinstance(step, KernelStep)
    return candidates_of(bound.kernels[group.nodes], group, step, bound.threads)


@contextmanager
def _ready(bound: BoundPlan, arrays: Mapping[str, Any], k: int) -> Iterator[Workspace]:
    """Run a plan up to a step, so that the step finds the values it will find in a run."""
    with bound.workspace() as space:
        bound.begin(arrays, space)
        bound.run_until(k, space)
        yield space


# ---------------------------------------------------------------------- one group


class _Bench:
    """Times variants of one step against the step as it runs at the start, with its inputs in place."""

    def __init__(self, bound: BoundPlan, space: Workspace, candidates: Candidates) -> None:
        self.bound, self.space, self.candidates = bound, space, candidates
        once = bound.lone_step(candidates.step, space, 1)
        once.run()
        begun = time.perf_counter()
        once.run()
        self.each = repeats_for(time.perf_counter() - begun)
        self.start = bound.lone_step(candidates.step, space, self.each)

    def variant(self, choice: Choice) -> LoneStep:
        """Lay out the step as it runs by a choice."""
        made = self.candidates.made
        return self.bound.lone_step(made.step(self.bound.threads, choice), self.space, self.each)

    def against(self, point: Point, pairs: int, deadline: float = math.inf) -> Comparison:
        """Time a point and the start in turn."""
        variant = self.variant(self.candidates.choice(point))
        variant.run()  # its scratch is new memory
        return compare(self.start.run, variant.run, pairs=pairs, deadline=deadline, each=self.each)


def _tune_kind(
    bench: _Bench, kind: Kind, equal: Sequence[Candidates], pricing: Pricing, *, trials: int, seed: int, deadline: float
) -> Outcome:
    first = equal[0]
    limit = pricing.plan.profile.fast_memory_bytes

    def excess(point: Point) -> float:
        priced = pricing.of(first.group.nodes, first.schedule(point))
        return math.inf if priced is None else priced[1] - limit

    if excess(first.start) == math.inf:  # the kernel cuts what the plan's words have no name for
        return Outcome(kind, {}, 0, first.count)
    tried = search_group(first, lambda point: bench.against(point, LOOK).ratio, excess, trials=trials, seed=seed, deadline=deadline)
    best: tuple[Comparison, Point] | None = None
    for entry in tried[:FINALISTS]:
        if entry.point == first.start or entry.ratio > 1.0:
            continue
        compared = bench.against(entry.point, DECIDE, deadline)
        if compared.ratio <= GAIN and compared.high < 1.0 and (best is None or compared.ratio < best[0].ratio):
            best = compared, entry.point
    tuned: dict[int, Tuned] = {}
    for (index, _), candidates in zip(kind.places, equal, strict=True):
        made = _tuned(candidates, best[1], best[0], pricing, len(tried)) if best is not None else None
        if made is not None:
            tuned[index] = made
    return Outcome(kind, tuned, len(tried), first.count)


def _tuned(candidates: Candidates, point: Point, compared: Comparison, pricing: Pricing, tried: int) -> Tuned | None:
    """Write down a point as the schedule of one group; None where the plan's words have no name for its loops."""
    schedule = candidates.schedule(point)
    priced = pricing.of(candidates.group.nodes, schedule)
    if priced is None:
        return None
    chunk = candidates.choice(point).chunk
    return Tuned(schedule, chunk, priced[0], compared.before_s, compared.after_s, compared.ratio, compared.low, compared.high, tried)


# ---------------------------------------------------------------------- the plan


def _decide(run: CompiledPlan, arrays: Mapping[str, Any], outcomes: list[Outcome], *, trials: int, seed: int, deadline: float) -> Plan:
    """Take the tuned schedules if the whole plan is faster with them, and say what was measured."""
    plan = run.plan
    found = {index: tuned for outcome in outcomes for index, tuned in outcome.tuned.items()}
    after = plan
    if found:
        after = replace(plan, groups=tuple(_with(group, found.get(k)) for k, group in enumerate(plan.groups)))
        other = CompiledPlan(after)
        run(arrays)
        other(arrays)
        whole = compare(lambda: run(arrays), lambda: other(arrays), pairs=WHOLE, deadline=deadline)
        if whole.ratio > 1.0:
            after = plan
    else:
        run(arrays)
        once = compare(lambda: run(arrays), lambda: None, pairs=LOOK).before_s
        whole = Comparison(once, once, 1.0, 1.0, 1.0, 0)
    kept = bool(found) and after is not plan
    said = {
        "seed": seed,
        "trials": trials,
        "threads": run.planned.threads,
        "kinds": [
            {"groups": [index for index, _ in o.kind.places], "measured": o.tried, "schedules": o.points, "faster": bool(o.tuned)}
            for o in outcomes
        ],
        "kept": kept,
        "tried_ratio": whole.ratio,
        "before_s": whole.before_s,
        "after_s": whole.after_s if kept else whole.before_s,
        "ratio": whole.ratio if kept else 1.0,
        "ratio_low": whole.low if kept else 1.0,
        "ratio_high": whole.high if kept else 1.0,
        "pairs": whole.pairs,
    }
    return replace(after, statistics={**plan.statistics, "tuning": said})


def _with(group: PlanGroup, tuned: Tuned | None) -> PlanGroup:
    return msgspec.structs.replace(group, tuned=tuned) if tuned is not None else group
