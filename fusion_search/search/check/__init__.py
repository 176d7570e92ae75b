"""The checker: does a plan say the truth about its graph?

Written against the definitions only: it imports the graph, the plan record, the cost models and the profiles, and none of
the code that finds plans. Values and nodes go by name; loops are digits of mixed-radix numbers; order is networkx's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

import networkx as nx

import costmodels
from fusion_search.ir.graph import Graph
from fusion_search.search.plan import Plan, PlanGroup, Tile, Tuned

from .aliases import alias_errors, aliasing, written_in_place
from .counts import Counts
from .demands import broken
from .digits import Digits
from .facts import Facts, Step, Violation, shown
from .legality import illegal, live_ins
from .recomputation import unfit_for_recomputation
from .schedules import ScheduleCheck

__all__ = ["Violation", "check"]


def check(graph: Graph, plan: Plan) -> list[Violation]:
    """Check a plan against a graph, sharing no code with the search.

    Derives from the graph again that the groups cover it, can run in this order and are legal, that each outer loop is
    one loop in all nodes that carry it, what each group reads, writes and costs, and that the plan keeps to the demands it names.

    Parameters
    ----------
    graph : Graph
        The program.
    plan : Plan
        What is claimed about it. A schedule that one step along one tile makes cheaper is refused; that no other tiling is better is
        the search's claim. A tuned schedule need only be legal, and priced as what it is.

    Returns
    -------
    list of Violation
        Empty when the plan is sound.

    Notes
    -----
    Linear in nodes and edges times rank, times the number of reshapes in a group.
    """
    facts = Facts(graph)
    found = [*_cover(facts, plan), *_order(facts, plan)]
    try:
        model = costmodels.model(plan.cost_model, plan.weights)
    except costmodels.CostModelError as error:
        found.append(Violation("cost", "plan", f"cannot be priced: {error}"))
        model = None
    memory = _Memory(facts, plan)
    free = written_in_place(facts) if aliasing(plan) else set()
    for k, group in enumerate(plan.groups):
        if group.nodes and len(set(group.nodes)) == len(group.nodes) and facts.steps.keys() >= set(group.nodes):
            found += _group(facts, memory, plan, group, model, free, f"group {k} ({shown(group.nodes)})")
    return [*found, *broken(facts, plan, free), *_certificate(plan)]


def _cover(facts: Facts, plan: Plan) -> Iterator[Violation]:
    """Every node in a group, in several only where that is allowed."""
    count = Counter(name for group in plan.groups for name in group.nodes)
    for name in count:
        if name not in facts.steps:
            yield Violation("cover", name, "the graph has no such node")
        elif count[name] > 1:
            for group in plan.groups:
                if group.nodes.count(name) > 1:
                    yield Violation("cover", name, "is twice in one group")
            yield from unfit_for_recomputation(facts, name, count[name])
    for name in facts.steps:
        if name not in count:
            yield Violation("cover", name, "is in no group")
    for k, group in enumerate(plan.groups):
        if not group.nodes:
            yield Violation("cover", f"group {k}", "has no nodes")


def _order(facts: Facts, plan: Plan) -> Iterator[Violation]:
    """What a group reads is in memory when it runs; no groups wait for each other."""
    stored: set[str] = set()
    storing: dict[str, list[int]] = {}
    for k, group in enumerate(plan.groups):
        for value in group.stores:
            storing.setdefault(value, []).append(k)
    waits: nx.DiGraph[int] = nx.DiGraph()
    for k, group in enumerate(plan.groups):
        for value in sorted(live_ins([facts.steps[name] for name in group.nodes if name in facts.steps])):
            maker = facts.maker.get(value)
            if maker is not None and value not in stored:
                yield Violation("order", f"group {k} ({shown(group.nodes)})", f"reads {value}, which no earlier group stores")
            if maker is not None:
                # the first that stores it serves those after it
                waits.add_edges_from((home, k) for home in storing.get(value, ())[:1] if home != k)
        stored.update(group.stores)
    for knot in nx.strongly_connected_components(waits):
        if len(knot) > 1:
            yield Violation("order", "plan", f"groups {shown([str(k) for k in sorted(knot)])} wait for each other")


def _group(
    facts: Facts, memory: _Memory, plan: Plan, group: PlanGroup, model: costmodels.CostModel | None, free: set[str], where: str
) -> Iterator[Violation]:
    steps = [facts.steps[name] for name in sorted(group.nodes, key=facts.place.__getitem__)]
    if tuple(step.name for step in steps) != group.nodes:
        yield Violation("order", where, "its nodes are not in canonical order")
    yield from _stores(facts, memory, group, where)
    origins = {step.node.origin for step in steps}
    if not origins - {""} <= set(group.origin) <= origins | {step.name for step in steps}:
        yield Violation("origin", where, "its nodes come from other nodes of the model than it says")
    yield from alias_errors(group, free, where)
    if group.alias:
        yield from _nothing(plan, group, model, where)
        return
    unfit = list(illegal(facts, steps, group.stores, group.schedule.tiles, plan.profile, where))
    yield from unfit
    digits = Digits(steps, plan.profile.line_bytes)
    wrong = list(ScheduleCheck(steps, group.stores, group.schedule.tiles, digits, where).violations())
    yield from wrong
    if not wrong and model is not None:
        yield from _price(facts, plan, group, steps, digits, model, where)
    if group.tuned is not None:
        yield from _tuned(facts, plan, group, group.tuned, steps, digits, model, where)


class _Memory:
    """Who stores each value of a plan, and how many get it from memory."""

    def __init__(self, facts: Facts, plan: Plan) -> None:
        self.facts = facts
        self.stored = Counter(value for group in plan.groups for value in set(group.stores))
        self.homes: dict[str, set[int]] = {}
        for k, group in enumerate(plan.groups):
            for name in group.nodes:
                self.homes.setdefault(name, set()).add(k)

    def needed(self, value: str) -> int:
        """Groups that read a value and do not compute it, and the caller who gets it."""
        facts = self.facts
        readers = {k for name in facts.readers.get(value, ()) for k in self.homes.get(name, ())}
        return (value in facts.returned) + len(readers - self.homes.get(facts.maker[value], set()))


def _stores(facts: Facts, memory: _Memory, group: PlanGroup, where: str) -> Iterator[Violation]:
    """What groups that do not compute it read, or the caller gets, is stored, by a group once, and nothing else."""
    made = [value for name in group.nodes for value in facts.steps[name].node.outputs]
    for value in made:
        if value not in memory.stored and memory.needed(value):
            yield Violation("stores", where, f"{value} is needed outside but not stored")
    for value, times in Counter(group.stores).items():
        if value not in made:
            yield Violation("stores", where, f"{value} is stored but not computed here")
        elif memory.needed(value) < memory.stored[value]:
            yield Violation("stores", where, f"{value} is stored but nobody outside needs it")
        elif times > 1:
            yield Violation("stores", where, f"{value} is stored {times} times")


def _price(
    facts: Facts, plan: Plan, group: PlanGroup, steps: Sequence[Step], digits: Digits, model: costmodels.CostModel, where: str
) -> Iterator[Violation]:
    """Count again, price again; every bit has to be the same."""
    counts = Counts(facts, steps, group.stores, group.schedule.tiles, digits, plan.profile.line_bytes)
    features = counts.features()
    yield from _bytes(group, features, where)
    if features.scratch_bytes > plan.profile.fast_memory_bytes:
        needs = f"one block needs {features.scratch_bytes:.0f} bytes of scratch"
        yield Violation("capacity", where, f"{needs}, {plan.profile.name} has {plan.profile.fast_memory_bytes}")
    yield from _terms(plan, group, features, model, where)
    yield from _least(plan, group, counts, model, where)


def _nothing(plan: Plan, group: PlanGroup, model: costmodels.CostModel | None, where: str) -> Iterator[Violation]:
    """What is no kernel moves nothing, launches nothing and computes nothing."""
    none = costmodels.RecomputedFlops(0, 0, 0)
    features = costmodels.GroupFeatures(1, 0, 0, (), 0, 1, 0, 0, 1, 0, costmodels.Flops(0, 0, 0), none)
    yield from _bytes(group, features, where)
    if model is not None:
        yield from _terms(plan, group, features, model, where)


def _bytes(group: PlanGroup, features: costmodels.GroupFeatures, where: str) -> Iterator[Violation]:
    for what, said, counted in (
        ("bytes_read", group.bytes_read, features.bytes_read),
        ("bytes_written", group.bytes_written, features.bytes_written),
    ):
        if said != counted:
            yield Violation("bytes", where, f"{what} is {said}, counted {counted}")


def _terms(
    plan: Plan, group: PlanGroup, features: costmodels.GroupFeatures, model: costmodels.CostModel, where: str
) -> Iterator[Violation]:
    terms = model.terms(features, plan.profile)
    if group.terms != terms:
        differ = [f"{name} {group.terms.get(name)} (counted {terms.get(name)})" for name in {**terms, **group.terms}]
        wrong = [text for text, name in zip(differ, {**terms, **group.terms}, strict=True) if group.terms.get(name) != terms.get(name)]
        yield Violation("terms", where, "; ".join(wrong))
    cost = costmodels.attoseconds(model.cost_s(terms, plan.profile))
    if group.cost_as != cost:
        yield Violation("cost", where, f"cost_as is {group.cost_as}, priced {cost}")


def _least(plan: Plan, group: PlanGroup, counts: Counts, model: costmodels.CostModel, where: str) -> Iterator[Violation]:
    """J is the least over all schedules: no tile of half or twice the size may be cheaper."""
    for k, tile in enumerate(group.schedule.tiles):
        points = prod(loop.extent for loop in tile.loops)
        for size in {min(2 * tile.tile, points), _half(tile.tile, points)} - {tile.tile, 0}:
            tiles = (*group.schedule.tiles[:k], Tile(size, tile.loops), *group.schedule.tiles[k + 1 :])
            features = counts.features(tiles)
            cost = costmodels.attoseconds(model.cost_s(model.terms(features, plan.profile), plan.profile))
            if features.scratch_bytes <= plan.profile.fast_memory_bytes and cost < group.cost_as:
                yield Violation("schedule", where, f"a tile of {size} in place of {tile.tile} costs {cost}, less than {group.cost_as}")


def _half(tile: int, points: int) -> int:
    """The next smaller size of 1, 2, 4, ... and all points."""
    return 1 << ((tile - 1).bit_length() - 1) if tile == points and tile > 1 else tile // 2


def _tuned(
    facts: Facts,
    plan: Plan,
    group: PlanGroup,
    tuned: Tuned,
    steps: Sequence[Step],
    digits: Digits,
    model: costmodels.CostModel | None,
    where: str,
) -> Iterator[Violation]:
    """A tuned schedule is legal, fits, and costs what it says; it may cost more than the least."""
    where = f"{where}, tuned"
    wrong = list(ScheduleCheck(steps, group.stores, tuned.schedule.tiles, digits, where).violations())
    yield from wrong
    if tuned.items_per_task < 1:
        yield Violation("schedule", where, f"{tuned.items_per_task} items a task")
    if wrong or model is None:
        return
    features = Counts(facts, steps, group.stores, tuned.schedule.tiles, digits, plan.profile.line_bytes).features()
    if features.scratch_bytes > plan.profile.fast_memory_bytes:
        needs = f"one block needs {features.scratch_bytes:.0f} bytes of scratch"
        yield Violation("capacity", where, f"{needs}, {plan.profile.name} has {plan.profile.fast_memory_bytes}")
    cost = costmodels.attoseconds(model.cost_s(model.terms(features, plan.profile), plan.profile))
    if tuned.cost_as != cost:
        yield Violation("cost", where, f"cost_as is {tuned.cost_as}, priced {cost}")


def _certificate(plan: Plan) -> Iterator[Violation]:
    """The sum is the sum, and the bound means what the status says."""
    total = sum(group.cost_as for group in plan.groups)
    if plan.cost_as != total:
        yield Violation("cost", "plan", f"cost_as is {plan.cost_as}, its groups cost {total}")
    if plan.lower_bound_as > plan.cost_as:
        yield Violation("certificate", "plan", f"the lower bound {plan.lower_bound_as} is above the cost {plan.cost_as}")
    if plan.status not in ("optimal", "feasible"):
        yield Violation("certificate", "plan", f"unknown status {plan.status!r}")
    if plan.status == "optimal" and plan.lower_bound_as != plan.cost_as:
        yield Violation("certificate", "plan", f"optimal, but the lower bound {plan.lower_bound_as} is not the cost {plan.cost_as}")
