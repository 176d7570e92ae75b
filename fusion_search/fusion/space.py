"""The space of groups that the search explores: which node sets are legal, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from costmodels import CostModel, Flops, GroupFeatures, RecomputedFlops, attoseconds
from fusion_search.fusion.analysis import Analysis, analyse, slides
from fusion_search.fusion.counting import Counting, Counts
from fusion_search.fusion.horizontal import MAX_SIBLINGS, Families
from fusion_search.fusion.lasting import refused_for_good
from fusion_search.fusion.likeness import describe_nodes
from fusion_search.fusion.loops import MAX_CONTRACTIONS, matched_operands
from fusion_search.fusion.pieces import Pieces
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.reasons import Reason
from hardware_profiles import Profile

#: Name and version of the space, so that "optimal" always means optimal in a stated space.
SPACE = "vertical+siblings+cross-block+horizontal/3"
MAX_NODES = 256

#: What is counted of a concat that its producers write: nothing.
NO_KERNEL = GroupFeatures(1, 0, 0, (), 0, 1, 0, 0, 1, 0, Flops(0, 0, 0), RecomputedFlops(0.0, 0.0, 0.0))

Emit = Callable[[Program, Analysis], Reason | None]


@dataclass(frozen=True, slots=True)
class Plainly:
    """What nodes and edges alone say about which groups can be emitted.

    Attributes
    ----------
    nodes : int
        A group of these nodes is emitted when it holds none of the edges, no node with one of its cutters, and no member carries a
        loop twice.
    edges : dict of (int, int) to Reason
        Producers and readers that no emitted group holds together, and why.
    cutters : dict of int to tuple of (int, int, int)
        Nodes whose loops may not be cut, and what can cut them (`fusion.pieces`).
    """

    nodes: int
    edges: dict[tuple[int, int], Reason]
    cutters: dict[int, tuple[tuple[int, int, int], ...]]

    def says(self, group: int, one_loop: Callable[[int, int, int], bool]) -> bool:
        """Whether nodes and edges alone decide about a group in which no member carries a loop twice."""
        if group & ~self.nodes:
            return False
        return not any(
            group >> q & 1 and one_loop(group, theirs, own)
            for p, cutters in self.cutters.items()
            if group >> p & 1
            for q, theirs, own in cutters
        )


@dataclass(frozen=True, slots=True)
class Priced:
    """A legal group: its cost in attoseconds, the chosen tiling and the unweighted terms in seconds."""

    cost: int
    tiling: int
    terms: dict[str, float]


@dataclass(slots=True)
class GroupSpace:
    """Legal groups of one program on one profile under one cost model.

    Sets of nodes are bit masks of positions in the program's canonical order.

    Parameters
    ----------
    program : Program
    profile : Profile
    model : CostModel
    can_emit : callable, optional
        Refuses groups that the generator cannot emit; given for profiles that run here.
    plainly_emitted : callable, optional
        What `can_emit` says of groups for their nodes and edges alone, given the pieces of every loop; spares most analyses.
    aliasing : bool
        Whether concats that their producers can write are free (`fusion.aliases`).

    Attributes
    ----------
    joined : list of int
        Sets that a group holds whole or not at all; none here (see `fusion.constraints`).
    touched : int
        Nodes that no chain may take in; none here.
    families : Families
        Contractions of which a group may hold more than `max_heavy`.
    aliases : int
        Nodes that cost nothing alone.
    """

    program: Program
    profile: Profile
    model: CostModel
    can_emit: Emit | None = None
    plainly_emitted: Callable[[Program, Pieces], Plainly] | None = None
    aliasing: bool = True
    n: int = field(init=False)
    preds: list[int] = field(init=False)
    succs: list[int] = field(init=False)
    neighbours: list[int] = field(init=False)
    heavy: int = field(init=False)
    solo: int = field(init=False)
    max_nodes: int = field(init=False, default=MAX_NODES)
    max_heavy: int = field(init=False, default=MAX_CONTRACTIONS)
    joined: list[int] = field(init=False, default_factory=list)
    touched: int = field(init=False, default=0)
    families: Families = field(init=False)
    aliases: int = field(init=False)
    refusals: dict[str, int] = field(init=False, default_factory=dict)
    _emits: dict[Hashable, Reason | None] = field(init=False, default_factory=dict)
    _memo: dict[Hashable, Priced | Reason] = field(init=False, default_factory=dict)
    _hopeless: dict[Hashable, bool] = field(init=False, default_factory=dict)
    _costs: dict[int, int | None] = field(init=False, default_factory=dict)
    _counting: Counting = field(init=False)
    _plain: Plainly | None = field(init=False, default=None)
    _without_copies: GroupSpace | None = field(init=False, default=None)
    _strange: int = field(init=False)
    _forbidden: list[tuple[str, list[int]]] = field(init=False)

    def __post_init__(self) -> None:
        program, line = self.program, self.profile.line_bytes
        counting = program.counting.get(line)
        self._counting = program.counting[line] = Counting(program, line) if counting is None else counting
        self.n = len(program.members)
        self.preds, self.succs = program.preds, program.succs
        self.heavy = self._mask({"contract", "window"})
        self.solo = self._mask({"opaque", "scatter"})
        self.aliases = program.mask(program.aliases.nodes) if self.aliasing else 0
        # Nodes of types that the machine does not have, and for each forbidden combination the nodes of each of its operators.
        self._strange = sum(1 << p for p, member in enumerate(program.members) if not set(member.dtypes) <= self.profile.dtypes)
        self._forbidden = [(rule.reason, [self._named(op) for op in rule.nodes]) for rule in self.profile.forbidden]
        self.neighbours = [p | s for p, s in zip(program.preds, program.succs, strict=True)]
        for value, readers in enumerate(program.readers):
            if readers & (readers - 1) and self._shares(value):
                for p in bits(readers):
                    self.neighbours[p] |= readers & ~(1 << p)
        for p, copies in program.copies.items():
            self.neighbours[p] |= copies & ~(1 << p)
        self.families = Families(program, self._shares, MAX_CONTRACTIONS)

    def _mask(self, kinds: set[str]) -> int:
        return sum(1 << p for p, member in enumerate(self.program.members) if member.spec.kind in kinds)

    def _named(self, op: str) -> int:
        return sum(1 << p for p, member in enumerate(self.program.members) if op in (member.node.op, member.node.origin_op))

    def _shares(self, value: int) -> bool:
        graph, name = self.program.graph, self.program.value_name[value]
        size = graph.values[name]
        return size.nbytes > self.profile.line_bytes and not (name in graph.constants and size.size == 1)

    # ------------------------------------------------------------------ what the search asks

    def key(self, group: int) -> Hashable:
        """Return a structural key: groups with equal keys have equal legality and cost."""
        program = self.program
        positions = program.distinct(group)
        local = {p: i for i, p in enumerate(positions)}
        if program.copies:
            local = {q: i for p, i in local.items() for q in bits(program.copies.get(p, 1 << p) & group)}
        outside: dict[int, int] = {}
        parts: list[Hashable] = []
        for p in positions:
            member = program.members[p]
            parts.append(member.signature)
            for operand in member.operands:
                inside = local.get(operand.producer, -1) if operand.producer >= 0 else -1
                if inside >= 0:
                    parts.append(inside)
                else:
                    parts.append(-1 - outside.setdefault(operand.base, len(outside)))
            copies = bits(program.copies[p] & group) if p in program.copies else (p,)
            parts += [any(program.leaves(q, value, group) for q in copies) for value in member.outputs]
        return tuple(parts)

    def cost(self, group: int) -> int | None:
        """Return the cost of a group in attoseconds, or None when it is illegal."""
        if group not in self._costs:
            found = self.priced(group)
            self._costs[group] = found.cost if isinstance(found, Priced) else None
        return self._costs[group]

    @property
    def copied(self) -> int:
        """Mask of the positions that are copies."""
        return sum(1 << p for p in self.program.copies)

    @property
    def plain(self) -> GroupSpace:
        """The same space without recomputation: every node has one position."""
        if not self.program.copies:
            return self
        if self._without_copies is None:
            program = Program(self.program.graph)
            self._without_copies = GroupSpace(program, self.profile, self.model, self.can_emit, self.plainly_emitted, self.aliasing)
        return self._without_copies

    @property
    def without_aliases(self) -> GroupSpace:
        """The same space with a kernel for every concat."""
        if not self.aliasing:
            return self
        return GroupSpace(self.program, self.profile, self.model, self.can_emit, self.plainly_emitted, aliasing=False)

    @property
    def name(self) -> str:
        """Name and version of the space."""
        return f"{SPACE}+alias" if self.aliasing else SPACE

    def free(self, group: int) -> bool:
        """Whether a group is no kernel: a concat alone, whose parts are written where they belong."""
        return bool(group) and not group & ~self.aliases and len(self.program.distinct(group)) == 1

    def computed(self, group: int) -> int:
        """How many nodes a group's kernel computes; 0 when it is no kernel."""
        return 0 if self.free(group) else len(self.program.distinct(group))

    def hopeless(self, group: int) -> bool:
        """True when neither a group nor any that holds it is legal; False says nothing."""
        found = self.priced(group)
        if not isinstance(found, Reason) or found.rule not in ("shared-outer-loop", "capacity"):
            return False
        key = self._shape(group)
        if key not in self._hopeless:
            lasting = self._counting.lasting(group, self.profile.fast_memory_bytes)
            self._hopeless[key] = refused_for_good(self.program, group, self.profile.fast_memory_bytes) if lasting is None else lasting
        return self._hopeless[key]

    def crowded(self, group: int, added: int | None = None) -> bool:
        """True when a group holds more contractions and windows than it may; `added` when it holds too many already without these."""
        heads = group & self.heavy
        if heads.bit_count() <= self.max_heavy:
            return False
        return self.max_heavy == 1 or not self.families.kin(heads) or bool(self.families.strange(group, heads, added))

    def room(self, group: int, candidates: int) -> int:
        """Return those of some nodes with each of which a group that is not crowded would not be crowded either."""
        heads = group & self.heavy
        count = heads.bit_count()
        if count < self.max_heavy:
            return candidates
        if count == self.max_heavy:  # what is no contraction may join
            near = candidates & self.heavy
            kin = near & self.families.kin(heads) if near else 0
            candidates ^= near ^ kin
            near = kin
        else:
            near = candidates
        for v in bits(near):
            if self.crowded(group | 1 << v, 1 << v if count > self.max_heavy else None):
                candidates ^= 1 << v
        return candidates

    def blocked(self, u: int, v: int) -> bool:
        """True when no legal group holds both ends of the edge from u to v."""
        pair = 1 << u | 1 << v
        if pair & self.solo or (u, v) in self.plain_facts.edges:
            return True
        # Whatever else the group holds, the loops that this edge refuses stay refused.
        needs_loop = (pair & self.heavy) == pair or self._slides(u, v)
        return needs_loop and not self._lasting_loops(u, v)

    def _slides(self, u: int, v: int) -> bool:
        """Whether v reads u through a window."""
        member = self.program.members[v]
        return member.spec.kind == "window" and any(
            operand.producer == u and slides(member, k) for k, operand in enumerate(member.operands)
        )

    def _lasting_loops(self, u: int, v: int) -> bool:
        """Whether, after v has read u, any loop of u can still be an outer loop of both."""
        member = self.program.members[v]
        return all(
            any(loop < member.domain.rank for _, loops in match.pairs for loop in loops)
            for operand, match in zip(member.operands, matched_operands(self.program, v), strict=True)
            if operand.producer == u
        )

    def descriptions(self, reach: int) -> list[int] | None:
        """For each node a number that says what it is and how it stands to the nodes around it (`fusion.likeness`)."""
        return describe_nodes(self.program, [1 << p for p in range(self.n)], reach, self.touched | self.copied)

    # ------------------------------------------------------------------ judging one group

    def _shape(self, group: int) -> Hashable:
        """Return what groups of equal keys share; shorter than the key where that can be."""
        found = self._counting.shape(group)
        return (None, self.key(group)) if found is None else found

    def priced(self, group: int) -> Priced | Reason:
        """Return the price of a connected and convex group, or the first rule that refuses it."""
        # No structure shows it: to the key the copy outside is a live-in like any other.
        foreign = self._own_copies(group)
        if foreign is not None:
            return foreign
        key = self._shape(group)
        found = self._memo.get(key)
        if found is None:
            found = self._judge(group, key)
            if isinstance(found, Reason):
                self.refusals[found.rule] = self.refusals.get(found.rule, 0) + 1
            self._memo[key] = found
        return found

    def analysis(self, group: int) -> Analysis:
        """Return the analysis of a group."""
        return analyse(self.program, group, self.profile.line_bytes)

    def features(self, group: int) -> GroupFeatures:
        """Return what the cost model counts of a group."""
        if self.free(group):
            return NO_KERNEL
        found = self._counting.counted.get(self._shape(group))
        return self.analysis(group).features if found is None else found[0]

    def repriced(self, profile: Profile, model: CostModel) -> GroupSpace:
        """Return the same groups under other prices; what the generator can emit is not asked again."""
        other = GroupSpace(self.program, profile, model, self.can_emit, self.plainly_emitted, self.aliasing)
        if profile.line_bytes == self.profile.line_bytes:
            other._emits = self._emits
        return other

    def reasons(self, group: int) -> list[Reason]:
        """Return every structural rule that a set of nodes breaks, or the first one that its schedule breaks."""
        found = [
            reason
            for reason in (
                rule(group)
                for rule in (
                    self._convex,
                    self._lonely,
                    self._size,
                    self._contractions,
                    self._horizontal,
                    self._own_copies,
                    self._connected,
                )
            )
            if reason
        ]
        if not found:
            priced = self.priced(group)
            if isinstance(priced, Reason):
                found.append(Reason(priced.rule, self.program.names(group), priced.tensors, priced.remedy))
        return found

    def _judge(self, group: int, key: Hashable) -> Priced | Reason:
        for rule in (self._lonely, self._size, self._contractions, self._horizontal):
            reason = rule(group)
            if reason:
                return reason
        if self.free(group):
            terms = self.model.terms(NO_KERNEL, self.profile)
            return Priced(attoseconds(self.model.cost_s(terms, self.profile)), 0, terms)
        program = self.program
        single = not group & (group - 1) or (bool(program.copies) and len(program.distinct(group)) == 1)
        found = self._counting.counted.get(key)
        analysis = None
        asks = self.can_emit is not None and not single and key not in self._emits
        if found is None:
            found = self._counting.count(group)
        if asks and found is not None and found.once and self.plain_facts.says(group, self._counting.one_loop):
            self._emits[key] = next((why for edge, why in self.plain_facts.edges.items() if group >> edge[0] & group >> edge[1] & 1), None)
            asks = False
        if found is None or asks:
            analysis = self.analysis(group)
            found = Counts(analysis.features, len(analysis.live_ins) + len(analysis.live_outs), analysis.apart, False)
        self._counting.counted[key] = found
        features, touched, apart, _ = found
        if apart:
            names = program.names(group)
            lone = tuple(names[i] for i in apart)
            return Reason("shared-outer-loop", lone, remedy="materialise their result, or an operand")
        if not single:
            reason = self._hardware(group, touched)
            if reason:
                return reason
        best = self.model.best(features, self.profile)
        if best is None:
            limit = self.profile.fast_memory_bytes
            return Reason("capacity", program.names(group), remedy=f"one block needs more scratch than {limit} bytes")
        if self.can_emit is not None and not single:
            if analysis is not None and key not in self._emits:
                self._emits[key] = self.can_emit(self.program, analysis)
            refused = self._emits[key]
            if refused:
                return refused
        tiling, cost, terms = best
        return Priced(cost, tiling, terms)

    @property
    def plain_facts(self) -> Plainly:
        """What nodes and edges alone say of the generator; nothing without one that says it."""
        if self._plain is None:
            ask = self.plainly_emitted
            self._plain = Plainly(0, {}, {}) if ask is None else ask(self.program, self._counting.starts.pieces)
        return self._plain

    def _convex(self, group: int) -> Reason | None:
        below, above = 0, 0
        for p in bits(group):
            below |= self.program.descendants[p]
            above |= self.program.ancestors[p]
        between = below & above & ~group
        if not between:
            return None
        return Reason("convex", self.program.names(group), remedy=f"take in {', '.join(self.program.names(between)[:4])}")

    def _lonely(self, group: int) -> Reason | None:
        if group & self.solo and group & (group - 1):
            scatters = group & self._mask({"scatter"})
            rule, alone = ("scatter", scatters) if scatters else ("opaque", group & self.solo)
            return Reason(rule, self.program.names(alone), remedy="leave these nodes alone")
        return None

    def _size(self, group: int) -> Reason | None:
        if group.bit_count() > self.max_nodes:
            return Reason("nodes", self.program.names(group), remedy=f"at most {self.max_nodes} nodes")
        return None

    def _contractions(self, group: int) -> Reason | None:
        heads = group & self.heavy
        if heads.bit_count() <= self.max_heavy or (self.max_heavy > 1 and self.families.kin(heads)):
            return None
        remedy = f"at most {self.max_heavy} contractions and windows"
        if self.max_heavy > 1:
            remedy += f", or more that read one value through the same map, if at most {MAX_SIBLINGS} do"
        return Reason("contractions", self.program.names(heads), remedy=remedy)

    def _horizontal(self, group: int) -> Reason | None:
        """Behind each contraction of a horizontal group stands a chain of maps, and nothing else."""
        heads = group & self.heavy
        if heads.bit_count() <= self.max_heavy or self.max_heavy == 1 or not self.families.kin(heads):
            return None
        strange = self.families.strange(group, heads)
        if not strange:
            return None
        remedy = f"leave them out, or keep {self.max_heavy} of {', '.join(self.program.names(heads))}"
        return Reason("horizontal", self.program.names(strange), remedy=remedy)

    def _own_copies(self, group: int) -> Reason | None:
        """A member reads its own copy of a value, or that value from memory; not from memory what the group computes."""
        copies = self.program.copies
        for p in bits(group) if copies else ():
            others = copies.get(p, 0) & ~group
            for q in bits(others):
                if self.succs[q] & group:
                    names = self.program.names(1 << p | self.succs[q] & group)
                    return Reason("own-copy", names, remedy="compute it here for all of its readers in the group")
        return None

    def _connected(self, group: int) -> Reason | None:
        reached = group & -group
        while True:
            grown = reached
            for p in bits(reached):
                grown |= self.neighbours[p] & group
            if grown == reached:
                break
            reached = grown
        if reached == group:
            return None
        return Reason(
            "shared-loops",
            self.program.names(group),
            remedy=f"nothing joins {', '.join(self.program.names(group & ~reached)[:4])} to the rest",
        )

    def _hardware(self, group: int, touched: int) -> Reason | None:
        profile, names = self.profile, self.program.names
        if touched > profile.operand_limit:
            return Reason("operands", names(group), remedy=f"{touched} tensors, {profile.name} allows {profile.operand_limit}")
        strange = group & self._strange
        if strange:
            member = self.program.members[(strange & -strange).bit_length() - 1]
            dtype = next(dtype for dtype in member.dtypes if dtype not in profile.dtypes)
            return Reason("dtype", (member.node.name,), remedy=f"{profile.name} does not support {dtype}")
        for remedy, present in self._forbidden:
            if all(group & nodes for nodes in present):
                return Reason("forbidden", names(group), remedy=remedy)
        return None
