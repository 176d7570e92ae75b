"""Which maps to distribute over the concats before them: those with which the exactly searched J is lower.

Behind a concat that its producers write, a map that is a kernel of its own costs a launch and two passes over memory; on the parts its
producers can apply it before they write. A map that the concat's reader takes in costs nothing as it is, and parts may cost more: they
round up to cache lines one by one, are operands one by one, and no longer stand behind the concat for other fusions.

Every adoption is decided by two searches; what comes before them only spares searches. A site is not tried where the best plan so far
gains nothing from it with its groups as they are, nor when one that looks like it was tried in vain. Those are heuristics: another plan
might have gained. A site that they pass over wrongly is a gain missed, never a loss.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from fusion_search.errors import UsageError
from fusion_search.fusion.constraints import constrain
from fusion_search.fusion.demands import Constraint
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Distributed, Graph, Node
from fusion_search.passes import Site, rewritten, sites
from fusion_search.search.methods import METHODS
from fusion_search.search.plan import ATTOSECOND, Plan
from fusion_search.search.wording import names, seconds

__all__ = ["TriedSite", "decide"]

#: Each search after the first gets one part in so many of the budget, or so many times what the first took, if that is more.
SHARE = 8


@dataclass(frozen=True, slots=True)
class TriedSite:
    """One place where maps could be distributed over a concat, and what became of it.

    Attributes
    ----------
    concat : str
        The concat's node.
    parts : int
    maps : tuple of str
        The maps behind it, in their order: of those that could be distributed the first few that promise most.
    promised_s : float
        How much less the best plan so far costs if its groups stay and the producers of the parts take the maps in; where no kernel
        with these maps costs more than what is left of it without, that difference. An estimate.
    before_s, after_s : float or None
        J of the best plans that were found without and with them; None where no search was made.
    adopted : bool
    why : str
        Why it was not tried or not adopted.
    """

    concat: str
    parts: int
    maps: tuple[str, ...]
    promised_s: float
    before_s: float | None
    after_s: float | None
    adopted: bool
    why: str

    def __str__(self) -> str:
        what = f"{names(self.maps)} on the {self.parts} parts of {self.concat}"
        searched = "" if self.before_s is None or self.after_s is None else f"J {seconds(self.before_s)} -> {seconds(self.after_s)}, "
        return f"{what}: {searched}{'adopted' if self.adopted else self.why}"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Maps of a site that would spare most; why they are not worth a search, or what is equal where sites look alike."""

    site: Site
    chain: tuple[Distributed, ...]
    promised: int
    why: str
    likeness: Hashable

    @property
    def maps(self) -> int:
        """How many maps there are instead."""
        return len(self.chain) * self.site.parts

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(each.node for each in self.chain)


def decide(
    graph: Graph,
    space_for: Callable[[Graph], GroupSpace],
    constraints: Sequence[Constraint],
    *,
    time_limit_s: float,
    progress: Callable[[TriedSite], None],
) -> Graph:
    """Distribute maps as long as the exactly searched J falls.

    Parameters
    ----------
    graph : Graph
    space_for : callable
        The space of groups of a graph.
    constraints : sequence of Constraint
    time_limit_s : float
        Budget of the first search, see `SHARE`.
    progress : callable
        Told of each site once.
    """
    found = sites(graph)
    if not found:
        return graph
    run = _Run(graph, space_for, constraints, time_limit_s, progress)
    while run.round(found):  # what was adopted may have brought the next concat to light
        found = sites(run.graph)
    for entry in run.passed.values():
        progress(entry)
    return run.graph


class _Run:
    """The graph so far, with its best plan, and what was tried."""

    def __init__(
        self,
        graph: Graph,
        space_for: Callable[[Graph], GroupSpace],
        constraints: Sequence[Constraint],
        time_limit_s: float,
        progress: Callable[[TriedSite], None],
    ) -> None:
        self.graph, self.space_for, self.constraints, self.progress = graph, space_for, constraints, progress
        started = time.monotonic()
        self.plan = self._plan(graph, time_limit_s)
        #: Of each further search: some do not close where the first closed at once, and there may be many.
        self.limit_s = min(time_limit_s, max(time_limit_s / SHARE, SHARE * (time.monotonic() - started)))
        #: Maps that a site may add at most: half of what was too much for a search to close.
        self.most_maps = sys.maxsize
        #: Sites without a search so far, by concat: they may be tried in a later round.
        self.passed: dict[str, TriedSite] = {}
        self._refused: set[Hashable] = set()
        self._tried: set[tuple[str, ...]] = set()

    def _plan(self, graph: Graph, limit_s: float) -> Plan:
        return METHODS["exact"](constrain(self.space_for(graph), self.constraints), limit_s)

    def round(self, found: Sequence[Site]) -> bool:
        """Try each site once; return whether one was adopted."""
        space = self.space_for(self.graph).plain
        candidates = [_candidate(space, self.plan, site) for site in found]
        # by promise, then by place, so that names and their order decide nothing
        candidates.sort(key=lambda each: (-each.promised, space.program.position[each.site.concat]))
        before = self.plan.cost_as
        done: set[str] = set()
        for first in candidates:
            if first.site.concat in done or first.key in self._tried:
                continue
            if first.why:
                self._pass([first], first.why)
                continue
            like = [each for each in candidates if each.likeness == first.likeness and each.key not in self._tried]
            done.update(each.site.concat for each in like)
            if first.promised <= self.plan.cost_as - self.plan.lower_bound_as:
                self._pass(like, "not tried: less is to be gained than the search without left open")
            elif first.maps > self.most_maps:
                self._pass(like, "not tried: a search with so many more maps did not close")
            elif first.likeness in self._refused:
                self._pass(like, "not tried: one like it was not adopted")
            else:
                self._class(like)
        return self.plan.cost_as < before

    def _pass(self, entries: Sequence[_Candidate], why: str) -> None:
        for each in entries:
            self.passed[each.site.concat] = self._record(each, None, None, False, why)

    def _class(self, like: Sequence[_Candidate]) -> None:
        """Try the first of sites that look alike; with it decide about the others, together where all of them gain the same."""
        start = self.plan.cost_as
        if not self._try(like[:1]):
            self._refused.add(like[0].likeness)
            self._pass(like[1:], f"not tried: like {like[0].site.concat}, which was not adopted")
            return
        each_gains = start - self.plan.cost_as
        if len(like) > 2 and self._try(like[1:], each_gains * (len(like) - 1)):
            return
        for k, one in enumerate(like[1:], 2):
            if not self._try([one]):
                self._refused.add(one.likeness)
                self._pass(like[k:], f"not tried: like {one.site.concat}, which was not adopted")
                return

    def _try(self, together: Sequence[_Candidate], gains: int | None = None) -> bool:
        """Search with some sites distributed, and adopt them if J falls, by so much where that is given."""
        why, plan = "", None
        trial = rewritten(self.graph, [each for entry in together for each in entry.chain])
        try:
            plan = self._plan(trial, self.limit_s)
        except UsageError as error:
            why = f"not adopted: {error}"
        before = self.plan
        # A lower bound, not a cost: what is adopted is better also where no search closes. A proof that was there is not given up.
        closes = plan is not None and (plan.status == "optimal" or before.status != "optimal")
        adopted = plan is not None and closes and plan.cost_as < before.lower_bound_as
        if gains is not None and (plan is None or not adopted or before.cost_as - plan.cost_as != gains):
            return False
        if plan is not None and not closes:
            why = "not adopted: the search did not close"
            self.most_maps = min(self.most_maps, sum(entry.maps for entry in together) // 2)
        elif plan is not None and not adopted:
            open_yet = plan.cost_as < before.cost_as
            why = "not adopted: not proved to be lower, since the search without did not close" if open_yet else "not adopted"
        for entry in together:
            self._tried.add(entry.key)
            self.passed.pop(entry.site.concat, None)
            self.progress(self._record(entry, before.cost_as, None if plan is None else plan.cost_as, adopted, why))
        if adopted and plan is not None:
            self.graph, self.plan = trial, plan
        return adopted

    def _record(self, entry: _Candidate, before: int | None, after: int | None, adopted: bool, why: str) -> TriedSite:
        before_s, after_s = (None if cost is None else cost * ATTOSECOND for cost in (before, after))
        return TriedSite(entry.site.concat, entry.site.parts, entry.key, entry.promised * ATTOSECOND, before_s, after_s, adopted, why)


def _candidate(space: GroupSpace, plan: Plan, site: Site) -> _Candidate:
    """Return the first maps of a site that spare most, the fewest of those, and what they promise."""
    spared = [_spared(space, plan, [site.concat, *(each.node for each in site.chain[:k])]) for k in range(1, len(site.chain) + 1)]
    most = max(spared)
    chain = site.chain[: spared.index(most) + 1]
    if most <= 0:
        return _Candidate(site, chain, most, "not tried: no kernel would be spared", None)
    moved = _moved(space, plan, site, chain)
    why = "" if moved > 0 else "not tried: the producers would pay more than is spared"
    return _Candidate(site, chain, moved, why, _likeness(plan.graph, site, chain, moved))


def _spared(space: GroupSpace, plan: Plan, nodes: Sequence[str]) -> int:
    """Return what a plan's groups with some nodes cost, less what the rest of them costs without."""
    gone = set(nodes)
    spared = 0
    for group in plan.groups:
        if gone.intersection(group.nodes):
            rest = [name for name in group.nodes if name not in gone]
            spared += group.cost_as - _alone(space, space.program.mask(rest))
    return spared


def _moved(space: GroupSpace, plan: Plan, site: Site, chain: Sequence[Distributed]) -> int:
    """Return how much less a plan costs when its groups stay, and the groups that compute the parts take the maps in, or do not."""
    graph, trial = plan.graph, rewritten(plan.graph, chain)
    space = GroupSpace(Program(trial), space.profile, space.model, space.can_emit, space.plainly_emitted, space.aliasing)
    parts = [graph.producer.get(graph.base(name)) for name in graph.nodes[graph.index[site.concat]].inputs]
    # where the last map had a second concat, either may give the new one its name
    joined = trial.nodes[trial.producer[graph.nodes[graph.index[chain[-1].node]].output]]
    made = _maps_by_part(trial, joined, graph)
    gone = {site.concat, *(each.node for each in chain)}
    gain = -_alone(space, space.program.mask([joined.name]))
    for group in plan.groups:
        mine = {graph.nodes[k].name for k in parts if k is not None}.intersection(group.nodes)
        if not mine and not gone.intersection(group.nodes):
            continue
        rest = space.program.mask([name for name in group.nodes if name not in gone])
        taken = [space.program.mask(maps) for k, maps in zip(parts, made, strict=True) if k is not None and graph.nodes[k].name in mine]
        whole = rest | sum(taken)
        apart = _alone(space, rest) + sum(_alone(space, maps) for maps in taken)
        gain += group.cost_as - min(apart, _alone(space, whole))
    return gain - sum(_alone(space, space.program.mask(maps)) for k, maps in zip(parts, made, strict=True) if k is None)


def _maps_by_part(trial: Graph, concat: Node, graph: Graph) -> list[list[str]]:
    """Return for each part of a concat the nodes before it that another form of the graph does not have."""
    found = []
    for name in concat.inputs:
        todo, maps = [name], []
        while todo:
            k = trial.producer.get(todo.pop())
            if k is not None and trial.nodes[k].name not in graph.index and trial.nodes[k].name not in maps:
                maps.append(trial.nodes[k].name)
                todo += trial.nodes[k].inputs
        found.append(maps)
    return found


def _alone(space: GroupSpace, group: int) -> int:
    """Return what some nodes cost, each connected piece as one group where that is legal, else node by node."""
    cost = 0
    while group:
        piece = group & -group
        while grown := _neighbours(space, piece) & group & ~piece:
            piece |= grown
        group &= ~piece
        alone = [piece] if not space.reasons(piece) else [1 << p for p in bits(piece)]
        cost += sum(space.cost(each) or 0 for each in alone)
    return cost


def _neighbours(space: GroupSpace, group: int) -> int:
    found = 0
    for p in bits(group):
        found |= space.neighbours[p]
    return found


def _likeness(graph: Graph, site: Site, chain: Sequence[Distributed], promised: int) -> Hashable:
    """Describe what decides about a site: its maps, and the parts with what computes them."""

    def described(node: Node) -> Hashable:
        return node.op, node.attrs, tuple((graph.values[name].dtype.name, graph.values[name].shape) for name in node.inputs if name)

    concat = graph.nodes[graph.index[site.concat]]
    producers = [graph.producer.get(graph.base(name)) for name in concat.inputs]
    computed = tuple(None if k is None else described(graph.nodes[k]) for k in producers)
    maps = tuple((described(graph.nodes[graph.index[each.node]]), each) for each in chain)
    return promised, described(concat), computed, tuple((node, each.axis, each.operands) for node, each in maps)
