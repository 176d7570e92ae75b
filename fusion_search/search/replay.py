"""A plan carried over to a changed model: every group that is still legal stays, and every mismatch is named.

Nodes are matched by name, then by structure (`matching`). A group whose nodes are all there and legal together is kept as it is; one
that lost nodes is kept without them, one that new nodes have come into is kept with them, where that is legal. What is left, new
nodes and those of groups that are no longer legal, is planned by the exact search, in groups of its own: no kept group changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusion_search.errors import UsageError
from fusion_search.fusion.constraints import ConstrainedSpace, constrain
from fusion_search.fusion.copies import apart, place
from fusion_search.fusion.demands import Constraint, PeakBytes, from_record
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.search.assemble import assemble, masks_of
from fusion_search.search.improve import repair
from fusion_search.search.matching import match_nodes
from fusion_search.search.methods import METHODS
from fusion_search.search.peak import fitting_order
from fusion_search.search.plan import ATTOSECOND, Plan, describe_change
from fusion_search.search.plan_file import NodeRecord, PlanFile, node_records
from fusion_search.search.quotient import execution_order
from fusion_search.search.wording import names, seconds, signed
from hardware_profiles import Profile

__all__ = ["MISMATCHES", "Mismatch", "Replay", "replay_plan"]

#: Kind of mismatch -> what it means.
MISMATCHES: dict[str, str] = {
    "dims": "a symbolic dimension is bound to another extent",
    "gone": "a node of the plan is not in the graph",
    "new": "a node of the graph is not in the plan",
    "renamed": "a node has another name",
    "changed": "a node computes something else: other types, shapes or attributes",
    "rewired": "a node reads other nodes",
    "shrunk": "a group is kept without the nodes that are gone",
    "grown": "a group is kept with new nodes that stand between its own",
    "illegal": "a group is no longer legal; its nodes are planned again",
    "demand": "a constraint of the plan does not fit the graph and is dropped",
    "price": "nothing changed, but the plan's groups cost something else now",
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing in which a graph differs from the one that a plan was made for.

    Attributes
    ----------
    kind : str
        A key of :data:`MISMATCHES`.
    message : str
        What it is, on one line.
    nodes : tuple of str
        The core nodes concerned: as the plan names them where it knows them.
    reasons : tuple of Reason
        For ``"illegal"``: the rules that the group breaks now.
    """

    kind: str
    message: str
    nodes: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Replay:
    """A plan carried over to another graph.

    Attributes
    ----------
    plan : Plan
        Sound on the graph. Its own certificate when nothing differs, else ``"feasible"`` without a bound.
    mismatches : tuple of Mismatch
        Everything in which graph and plan differ; empty when the plan fits as it is.
    cost_then_as : int
        J of the plan on the graph it was made for, in attoseconds.
    kept : int
        Groups of the plan that are groups of this one, node for node.
    planned : int
        Groups of the plan that was replayed.
    """

    plan: Plan
    mismatches: tuple[Mismatch, ...]
    cost_then_as: int
    kept: int
    planned: int

    @property
    def cost_then_s(self) -> float:
        """J of the plan on the graph it was made for, in seconds."""
        return self.cost_then_as * ATTOSECOND

    @property
    def delta_cost_s(self) -> float:
        """J now less J then, in seconds."""
        return (self.plan.cost_as - self.cost_then_as) * ATTOSECOND

    def __str__(self) -> str:
        now, then = self.plan.cost_s, self.cost_then_s
        moved = f"J was {seconds(then)} and is {seconds(now)} ({signed(self.delta_cost_s)})" if now != then else f"J is {seconds(now)}"
        lines = [f"{self.kept} of {self.planned} groups kept, {self.plan.launches} launches; {moved}"]
        return "\n".join([*lines, *(f"  {mismatch}" for mismatch in self.mismatches)])


def replay_plan(
    record: PlanFile, profile: Profile, graph: Graph, space_of: Callable[[Graph, Profile], GroupSpace], *, time_limit_s: float = 60.0
) -> Replay:
    """Carry a plan over to a graph.

    Parameters
    ----------
    record : PlanFile
    profile : Profile
        The plan's own.
    graph : Graph
    space_of : callable
        The space of groups of a graph on a profile, on the plan's cost model.
    time_limit_s : float
        Budget for planning what is new.

    Returns
    -------
    Replay
    """
    now = node_records(graph)
    found = _Carried(record, now, space_of(graph, profile))
    here = dict(graph.source.dims) if graph.source else {}
    for name in sorted(record.dims.keys() | here.keys()):
        if record.dims.get(name) != here.get(name):
            extents = [str(dims.get(name, "not there")) for dims in (record.dims, here)]
            found.say("dims", f"{name} was {extents[0]}, is {extents[1]}")
    found.compare_nodes()
    space = found.demanded()
    kept = found.carry()
    free = (1 << space.n) - 1
    for mask in kept:
        free &= ~mask
    try:
        groups = _completed(space, found.demands, kept, free, time_limit_s)
    except UsageError as error:  # not with these groups: the demands go, not the groups
        found.say("demand", f"{' and '.join(map(str, found.demands))}: {error.what}")
        space, found.demands = found.space, []
        groups = _completed(space, [], kept, free, time_limit_s)
    plan = assemble(space, groups, method="replay")
    if not found.mismatches:
        if plan.cost_as == record.cost_as:
            plan = replace(Plan.bound(record, graph, profile), graph=graph)
        else:
            found.say("price", f"J was {seconds(record.cost_as * ATTOSECOND)}, this version says {seconds(plan.cost_s)}")
    return Replay(plan, tuple(found.mismatches), record.cost_as, found.whole, len(record.groups))


@dataclass(slots=True)
class _Carried:
    """What of a plan fits a graph."""

    record: PlanFile
    now: Sequence[NodeRecord]
    space: GroupSpace
    mismatches: list[Mismatch] = field(default_factory=list)
    demands: list[Constraint] = field(default_factory=list)
    image: dict[str, str] = field(init=False)
    whole: int = 0

    def __post_init__(self) -> None:
        then = self.record.nodes
        self.image = {then[u].name: self.now[v].name for u, v in match_nodes(then, self.now).items()}

    @property
    def program(self) -> Program:
        return self.space.program

    def say(self, kind: str, message: str, nodes: Sequence[str] = (), reasons: Sequence[Reason] = ()) -> None:
        self.mismatches.append(Mismatch(kind, message, tuple(nodes), tuple(reasons)))

    # ------------------------------------------------------------------ nodes

    def compare_nodes(self) -> None:
        """Name what is gone, what is new and what is different."""
        then, now = {node.name: node for node in self.record.nodes}, {node.name: node for node in self.now}
        makers = [{value: node.name for node in side.values() for value, _ in node.writes} for side in (then, now)]
        for name, node in then.items():
            if name not in self.image:
                self.say("gone", f"{name} ({node.op})", [name])
        known = set(self.image.values())
        for name, node in now.items():
            if name not in known:
                self.say("new", f"{name} ({node.op})", [name])
        for name, other in self.image.items():
            before, after = then[name], now[other]
            if name != other:
                self.say("renamed", f"{name} is {other}", [name])
            if (before.attrs, _types(before)) != (after.attrs, _types(after)):
                self.say("changed", f"{name}: {describe_change(before, after)}", [name])
            sources = [makers[0].get(value, "") for value, _ in before.reads], [makers[1].get(value, "") for value, _ in after.reads]
            if [self.image.get(source, source) for source in sources[0]] != sources[1]:
                differ = [f"{b or 'an input'}, not {a or 'an input'}" for a, b in zip(*sources, strict=False) if self.image.get(a, a) != b]
                self.say("rewired", f"{name} reads {'; '.join(differ) or 'more or fewer values'}", [name])

    # ------------------------------------------------------------------ demands

    def demanded(self) -> GroupSpace:
        """Return the space under those demands of the plan that fit the graph, in its names."""
        origins = {before.origin: after.origin for before, after in self._pairs() if before.origin}
        values = {a: b for before, after in self._pairs() for (a, _), (b, _) in zip(before.writes, after.writes, strict=False)}
        for entry in self.record.space.get("constraints", ()):
            renamed: dict[str, Any] = dict(entry)
            for key, names_now in (("nodes", {**origins, **self.image}), ("values", values)):
                if key in renamed:
                    renamed[key] = [names_now.get(name, name) for name in renamed[key]]
            constraint = from_record(renamed)
            try:
                constrain(self.space, [*self.demands, constraint])
            except UsageError as error:
                self.say("demand", f"{constraint}: {error.what}")
            else:
                self.demands.append(constraint)
        if any(isinstance(constraint, PeakBytes) for constraint in self.demands):
            self.space = self.space.plain  # as `constrain` does, and what is kept has to fit when that demand goes
        return constrain(self.space, self.demands)

    def _pairs(self) -> list[tuple[NodeRecord, NodeRecord]]:
        now = {node.name: node for node in self.now}
        return [(node, now[self.image[node.name]]) for node in self.record.nodes if node.name in self.image]

    # ------------------------------------------------------------------ groups

    def carry(self) -> list[int]:
        """Return the groups of the plan that are legal in the graph, none of which waits for another and itself for it."""
        space, program = constrain(self.space, self.demands), self.program
        fresh = set(program.position) - set(self.image.values())
        unknown = program.mask(fresh)
        kept: dict[int, tuple[str, ...]] = {}
        taken = 0
        named = [[self.image[name] for name in group.nodes if name in self.image] for group in self.record.groups]
        for group, names_now, mask in zip(self.record.groups, named, self._placed(named), strict=True):
            if not mask:
                continue
            reasons = space.reasons(mask)
            if mask & taken:
                reasons = [Reason("cover", program.names(mask & taken), remedy="another group of the plan holds them")]
            grown = mask | _between(program, mask)
            if reasons and grown != mask and not grown & ~mask & ~unknown and not space.reasons(grown):
                self.say("grown", f"{_named(group.nodes)} takes in {_named(program.names(grown & ~mask))}", group.nodes)
                mask, reasons = grown, []
            if reasons:
                self.say("illegal", f"{_named(group.nodes)}: {'; '.join(map(str, reasons[:2]))}", group.nodes, reasons)
                continue
            if len(names_now) < len(group.nodes):
                gone = [name for name in group.nodes if name not in self.image]
                self.say("shrunk", f"{_named(group.nodes)} is without {_named(gone)}", group.nodes)
            kept[mask] = group.nodes
            taken |= mask
        masks = self._unknotted(space, kept)
        self.whole = sum(len(kept[mask]) == len(program.names(mask)) for mask in masks)
        return masks

    def _placed(self, named: list[list[str]]) -> list[int]:
        """The groups as sets of positions; what may not be computed again any more stays where it was computed first."""
        stores: list[list[str]] = [[] for _ in named]
        for node in self.record.nodes:
            if node.name in self.image:
                written = {value for value, _ in node.writes}
                outputs = self.program.graph.nodes[self.program.graph.index[self.image[node.name]]].outputs
                for k, group in enumerate(self.record.groups):
                    if node.name in group.nodes and written.intersection(group.stores):
                        stores[k] += outputs
        masks = place(self.program, named, stores)
        if isinstance(masks, frozenset):
            seen: set[str] = set()
            for names in named:
                names[:] = [name for name in names if name not in masks or name not in seen]
                seen.update(names)
            self.say("illegal", f"{_named(sorted(masks))} may not be computed by several groups", tuple(sorted(masks)))
            masks = place(self.program, named, stores)
            assert not isinstance(masks, frozenset), "no other node is in several groups"
        return masks

    def _unknotted(self, space: GroupSpace, kept: Mapping[int, tuple[str, ...]]) -> list[int]:
        """Give up groups that wait for each other, those that save least, until none does."""
        taken = sum(kept)
        single = apart(self.program, (1 << space.n) - 1 & ~taken)
        left = set(repair(space, [*kept, *single]))
        for mask, nodes in kept.items():
            if mask not in left:
                reason = Reason("order", self.program.names(mask), remedy="it waits for a group that waits for it")
                self.say("illegal", f"{_named(nodes)}: {reason}", nodes, [reason])
        return [mask for mask in kept if mask in left]


def _completed(space: GroupSpace, demands: Sequence[Constraint], kept: Sequence[int], free: int, time_limit_s: float) -> list[int]:
    """Add the best groups of the nodes that are in none, in an order in which all can run.

    Raises
    ------
    UsageError
        When that breaks a demand.
    """
    base = space.base if isinstance(space, ConstrainedSpace) else space
    rest = apart(space.program, free)
    if len(rest) > 1:
        plan = METHODS["exact"](ConstrainedSpace(base, demands, held=kept), time_limit_s)
        return masks_of(space, plan)
    order = execution_order(space.preds, [*kept, *rest])
    assert order is not None, "kept groups do not wait for each other"
    if isinstance(space, ConstrainedSpace) and space.limit_bytes is not None and space.memory is not None:
        order, _ = fitting_order(space.memory, space.preds, order, space.limit_bytes)
        if order is None:
            raise UsageError("the groups have no order that keeps within the memory")
    return order


def _between(program: Program, mask: int) -> int:
    below = above = 0
    for p in bits(mask):
        below |= program.descendants[p]
        above |= program.ancestors[p]
    return below & above & ~mask


def _types(node: NodeRecord) -> list[str]:
    return [kind for _, kind in (*node.reads, *node.writes)]


def _named(found: Sequence[str]) -> str:
    return f"the group of {names(found)}" if len(found) > 1 else f"{names(found)}"
