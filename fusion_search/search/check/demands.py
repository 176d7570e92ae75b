"""Whether a plan keeps to the demands that it says it was made under, from their own words; names only."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from math import prod

import costmodels
from fusion_search.search.plan import OuterLoop, Plan, PlanGroup, Tile

from .counts import Counts
from .digits import Digits
from .facts import Facts, Step, Violation, shown
from .schedules import ScheduleCheck
from .switched_off import fused_anyway


def broken(facts: Facts, plan: Plan, free: Collection[str] = ()) -> Iterator[Violation]:
    """Yield every demand that a plan breaks; the nodes in `free` cost nothing alone.

    `min_gain_s` compares a group with the least J of its nodes, each alone; any schedule of theirs bounds that from above, and a few
    are tried, so that what is reported is broken, and what hides behind a better schedule is the search's claim. Groups whose schedule
    is unsound are reported elsewhere and count no scratch here.
    """
    constraints = plan.space.get("constraints", ())
    for demand in constraints:
        kind = demand.get("kind")
        if kind == "must_fuse":
            yield from _together(facts, plan, demand["nodes"])
        elif kind == "never_fuse":
            yield from _apart(facts, plan, demand["nodes"])
        elif kind == "keep":
            yield from _kept(facts, plan, demand["values"])
        elif kind == "peak_bytes":
            yield from _memory(facts, plan, int(demand["limit_bytes"]))
        elif kind == "fusion_off":
            yield from fused_anyway(facts, plan, demand)
        elif kind == "min_gain_s":
            named = {name for other in constraints if other["kind"] == "must_fuse" for name in other["nodes"]}
            exempt = {core for name in named for core in _stands_for(facts, name)}
            yield from _little_gain(facts, plan, float(demand["least_s"]), exempt, free)


def _stands_for(facts: Facts, name: str) -> set[str]:
    """The core nodes of a node of the model, or the one core node of that name."""
    found = {step.name for step in facts.steps.values() if step.node.origin == name}
    return found or {name}


def _together(facts: Facts, plan: Plan, names: Sequence[str]) -> Iterator[Violation]:
    wanted = {core for name in names for core in _stands_for(facts, name)}
    if not any(wanted <= set(group.nodes) for group in plan.groups):
        yield Violation("demand", "plan", f"no group holds {shown(sorted(wanted))} together, which must_fuse demands")


def _apart(facts: Facts, plan: Plan, names: Sequence[str]) -> Iterator[Violation]:
    sets = [(name, _stands_for(facts, name)) for name in names]
    for k, group in enumerate(plan.groups):
        met = [name for name, nodes in sets if nodes & set(group.nodes)]
        if len(met) > 1:
            yield Violation("demand", f"group {k} ({shown(group.nodes)})", f"holds nodes of {shown(met)}, which never_fuse forbids")


def _kept(facts: Facts, plan: Plan, values: Sequence[str]) -> Iterator[Violation]:
    stored = {value for group in plan.groups for value in group.stores}
    for value in values:
        base = facts.graph.base(value) if value in facts.graph.values else value
        if base in facts.maker and facts.readers.get(base) and base not in stored:
            yield Violation("demand", "plan", f"{value} does not reach memory, which keep demands")


def _memory(facts: Facts, plan: Plan, limit: int) -> Iterator[Violation]:
    """Run the groups in their order and count what is alive: stored before and still needed, stored now, scratch."""
    left = {value: set(nodes) for value, nodes in facts.readers.items()}
    alive: dict[str, int] = {}
    for k, group in enumerate(plan.groups):
        alive |= {value: facts.stored_bytes(value) for value in group.stores if value in facts.maker}
        needs = sum(alive.values()) + _scratch_bytes(facts, plan, group)
        if needs > limit:
            yield Violation("memory", f"group {k} ({shown(group.nodes)})", f"needs {needs} live bytes while it runs, the limit is {limit}")
        for unread in left.values():
            unread.difference_update(group.nodes)
        alive = {value: size for value, size in alive.items() if value in facts.returned or left.get(value)}


def _little_gain(facts: Facts, plan: Plan, least_s: float, exempt: set[str], free: Collection[str]) -> Iterator[Violation]:
    """Groups that save less than they have to, whatever the schedules of their nodes; groups that were demanded are exempt."""
    try:
        model = costmodels.model(plan.cost_model, plan.weights)
    except costmodels.CostModelError:
        return  # reported elsewhere
    least = costmodels.attoseconds(least_s)
    for k, group in enumerate(plan.groups):
        if len(group.nodes) > 1 and not exempt & set(group.nodes):
            most = sum(_alone_at_most(facts, plan, step, model) for step in _steps(facts, group) if step.name not in free)
            if most - group.cost_as < least:
                saved = (most - group.cost_as) * 1e-18
                yield Violation("demand", f"group {k} ({shown(group.nodes)})", f"saves at most {saved:.3g} s, which min_gain_s forbids")


def _alone_at_most(facts: Facts, plan: Plan, step: Step, model: costmodels.CostModel) -> int:
    """The cost of one node that stores all it computes, at the best of a few legal schedules."""
    stores = set(step.node.outputs)
    digits = Digits([step], plan.profile.line_bytes)
    costs = []
    for tiles in _schedules(step):
        features = Counts(facts, [step], stores, tiles, digits, plan.profile.line_bytes).features()
        fits = features.scratch_bytes <= plan.profile.fast_memory_bytes
        if fits and not any(ScheduleCheck([step], stores, tiles, digits, "").violations()):
            costs.append(costmodels.attoseconds(model.cost_s(model.terms(features, plan.profile), plan.profile)))
    return min(costs, default=plan.cost_as)


def _schedules(step: Step) -> Iterator[tuple[Tile, ...]]:
    """No outer loop; every loop that may be one, apart in blocks of one; and all as one, in blocks of each power of two."""
    yield ()
    parallel = [(index, n) for index, n in enumerate(step.extents[: step.domain.rank]) if n > 1 and index not in step.domain.uncut]
    loops = tuple(OuterLoop(n, {step.name: (index, 1)}) for index, n in parallel)
    if loops and step.spec.kind != "opaque":
        yield tuple(Tile(1, (loop,)) for loop in loops)
        points = prod(n for _, n in parallel)
        yield from ((Tile(1 << k, loops),) for k in range(points.bit_length()))


def _scratch_bytes(facts: Facts, plan: Plan, group: PlanGroup) -> int:
    """Scratch of the blocks that run at once, one for each parallel unit at most."""
    steps = _steps(facts, group)
    digits = Digits(steps, plan.profile.line_bytes)
    if not steps or any(ScheduleCheck(steps, group.stores, group.schedule.tiles, digits, "").violations()):
        return 0
    counted = Counts(facts, steps, group.stores, group.schedule.tiles, digits, plan.profile.line_bytes).features()
    return math.ceil(float(counted.scratch_bytes) * min(max(float(counted.blocks), 1.0), plan.profile.parallel_units))


def _steps(facts: Facts, group: PlanGroup) -> list[Step]:
    names = [name for name in group.nodes if name in facts.steps]
    return [facts.steps[name] for name in sorted(set(names), key=facts.place.__getitem__)]
