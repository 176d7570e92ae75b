"""What a user demands of a plan: nodes that must or must not share a kernel, kinds of fusion switched off, values kept.

Most demands are rules on one group, and refuse it with a `Reason` of the rule ``user``. `must_fuse` is not: a group that holds
one of its nodes must hold all of them, and with them every node on a path between two of them, and whatever would otherwise
wait for them and they for it. All these are one node of the space that is searched (`ConstrainedSpace.joined`). That set alone
need not be legal although a larger one is, and a search wants single nodes to be legal: then it is priced at
`ConstrainedSpace.penalty`, more than any real plan costs, and a plan that still holds it breaks the demand.

A limit on live memory is a rule on plans, and on the order in which they run: `search.peak` keeps to it. Here it only refuses groups
that break it alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from difflib import get_close_matches

from costmodels import attoseconds
from fusion_search.errors import UsageError
from fusion_search.fusion.analysis import live_outs
from fusion_search.fusion.demands import CONSTRAINTS, Constraint, FusionOff, Keep, MinGain, MustFuse, NeverFuse, PeakBytes
from fusion_search.fusion.horizontal import Families
from fusion_search.fusion.memory import LiveMemory
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace, Priced

__all__ = ["ConstrainedSpace", "closed_sets", "constrain", "nodes_named"]

# ---------------------------------------------------------------------- names


def nodes_named(program: Program, name: str) -> int:
    """Return the core nodes that a name stands for: those of a node of the model, or one core node.

    Raises
    ------
    UsageError
        When nothing has that name.
    """
    found = sum(1 << p for p, member in enumerate(program.members) if member.node.origin == name)
    if not found and name in program.position:
        found = program.mask([name])
    if not found:
        known = dict.fromkeys((*program.position, *(member.node.origin for member in program.members)))
        close = get_close_matches(str(name), known, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "graph.nodes lists them; the passes take some away"
        raise UsageError(f"the graph has no node {name!r}", hint=hint)
    return found


def _value_named(program: Program, name: str) -> int | None:
    """Return the number of the value that owns a name's memory; None for one that no node touches."""
    graph = program.graph
    if name not in graph.values:
        close = get_close_matches(str(name), graph.values, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "graph.values lists them; the passes take some away"
        raise UsageError(f"the graph has no value {name!r}", hint=hint)
    return program.value_number.get(graph.base(name))


def closed_sets(preds: Sequence[int], demanded: Iterable[int]) -> list[int]:
    """Return the sets that one group must hold whole when each demanded set is in one group of an acyclic plan.

    Contract the demanded sets, those that overlap as one; every strongly connected set of nodes then has to be in one group,
    because its image in the plan's quotient graph is a closed walk. Sets of one node are left out. O(sets * (nodes + edges)).
    """
    found = [mask for mask in demanded if mask & (mask - 1)]
    n = len(preds)
    succs = [0] * n
    for v, before in enumerate(preds):
        for u in bits(before):
            succs[u] |= 1 << v
    changed = True
    while changed:
        changed = False
        merged: list[int] = []
        for mask in found:
            for other in [other for other in merged if other & mask]:
                merged.remove(other)
                mask |= other
            merged.append(mask)
        found = merged
        for i, mask in enumerate(found):
            wider = _reached(succs, mask, found) & _reached(preds, mask, found) | mask
            if wider != mask:
                found[i], changed = wider, True
    return sorted(found, key=lambda mask: mask & -mask)


def _reached(following: Sequence[int], start: int, sets: Sequence[int]) -> int:
    """Nodes behind a set along one direction, where entering a set is entering all of it."""
    seen, fresh = 0, start
    while fresh:
        near = 0
        for v in bits(fresh):
            near |= following[v]
        for other in sets:
            if other & near:
                near |= other
        fresh = near & ~seen
        seen |= near
    return seen


# ---------------------------------------------------------------------- the space


class ConstrainedSpace(GroupSpace):
    """A group space with a user's demands on top. It shares the prices of the space beneath.

    Attributes
    ----------
    constraints : tuple of Constraint
    joined : list of int
        Sets that a group holds whole or not at all.
    touched : int
        Nodes for which the argument that chains rest on (`fusion.coarse`) does not hold.
    penalty : int
        Price of a joined set that is not legal alone, in attoseconds.
    refused_by_user : int
        Groups that a demand refused.
    limit_bytes : int or None
        The limit on live memory.
    least_gain : int
        What a group of several nodes has to save, in attoseconds.

    Parameters
    ----------
    base : GroupSpace
    constraints : sequence of Constraint
    penalty : int, optional
    held : sequence of int
        Groups that are settled: held whole, and joined by nothing.
    """

    __slots__ = (
        "_whole", "apart", "base", "base_cost", "constraints", "held", "kept_from", "least_gain", "limit_bytes", "memory", "off", "penalty",
        "refused_by_user", "within",
    )  # fmt: skip

    def __init__(
        self, base: GroupSpace, constraints: Sequence[Constraint], *, penalty: int | None = None, held: Sequence[int] = ()
    ) -> None:
        if any(isinstance(c, PeakBytes) or (isinstance(c, FusionOff) and c.rule == "alias") for c in constraints):
            # Memory that parts share is not what `LiveMemory` counts.
            base = base.without_aliases
        for cls in type(base).__mro__:
            for name in getattr(cls, "__slots__", ()):
                setattr(self, name, getattr(base, name))
        self.base, self.constraints = base, tuple(constraints)
        self.base_cost = sum(base.cost(1 << p) or 0 for p in range(base.n)) + 1
        self.penalty = 8 * self.base_cost if penalty is None else penalty
        self._costs = {}
        self.refused_by_user = 0
        #: (constraint, set, set): no group meets both.
        self.apart: list[tuple[Constraint, int, int]] = []
        #: (constraint, node, readers): no group holds the node and all readers.
        self.kept_from: list[tuple[Constraint, int, int]] = []
        #: (constraint, set): a group that meets the set is inside it.
        self.within: list[tuple[Constraint, int]] = []
        self.off: dict[str, Constraint] = {}
        #: Sets that demands other than `must_fuse` need whole.
        self._whole: list[int] = []
        self.limit_bytes: int | None = None
        self.memory: LiveMemory | None = None
        self.least_gain = 0
        self.held = tuple(held)
        demanded = []
        for constraint in constraints:
            if isinstance(constraint, MustFuse):
                demanded.append(self._union(constraint.nodes))
            elif isinstance(constraint, NeverFuse):
                self._separate(constraint)
            elif isinstance(constraint, Keep):
                self._keep(constraint)
            elif isinstance(constraint, PeakBytes):
                self.limit_bytes = constraint.limit_bytes if self.limit_bytes is None else min(self.limit_bytes, constraint.limit_bytes)
            elif isinstance(constraint, MinGain):
                self.least_gain = max(self.least_gain, attoseconds(constraint.least_s))
                # What leaves a group may leave it with too little gain, so no node may be moved from one to another.
                self.touched = (1 << self.n) - 1
            else:
                self._switch_off(constraint)
        if self.limit_bytes is not None:
            self.memory = LiveMemory(base)
        for mask in self.held:
            demanded.append(mask)
            self.within.append((MustFuse(self.program.names(mask)), mask))
            self.solo |= mask
            self.touched |= mask
        self.joined = closed_sets(self.preds, [*demanded, *self._whole])
        for mask in self.joined:
            self.touched |= mask
        self._contradictions()

    # ------------------------------------------------------------------ what each demand means

    def _union(self, names: Sequence[str]) -> int:
        found = 0
        for name in names:
            found |= nodes_named(self.program, name)
        return found

    def _separate(self, constraint: NeverFuse) -> None:
        sets = [nodes_named(self.program, name) for name in constraint.nodes]
        for i, mask in enumerate(sets):
            for other in sets[:i]:
                if mask & other:
                    shared = ", ".join(self.program.names(mask & other)[:3])
                    raise UsageError(f"{constraint} keeps {shared} from itself", hint="name nodes that differ")
                self.apart.append((constraint, mask, other))
            self.touched |= mask

    def _keep(self, constraint: Keep) -> None:
        program = self.program
        owner = {value: p for p, member in enumerate(program.members) for value in member.outputs}  # of copies any
        for name in constraint.values:
            value = _value_named(program, name)
            if value is None or value in program.kept or value not in owner or not program.readers[value]:
                continue  # in memory anyway
            copies = program.copies.get(owner[value], 0)
            if copies:
                self._whole.append(copies)  # computed once, then, and stored
            self.kept_from.append((constraint, owner[value], program.readers[value]))
            self.touched |= 1 << owner[value] | program.readers[value] | copies

    def _switch_off(self, constraint: FusionOff) -> None:
        members = self.program.members
        if constraint.everything:
            self._alone((1 << self.n) - 1, constraint)
        if constraint.rule in ("contraction", "reduction"):
            kinds = ("contract", "window") if constraint.rule == "contraction" else ("reduce",)
            self._alone(sum(1 << p for p, member in enumerate(members) if member.spec.kind in kinds), constraint)
        elif constraint.rule is not None and constraint.rule != "alias":
            self.off[constraint.rule] = constraint
        if constraint.rule == "cross-block":
            self.max_heavy = 1
        if constraint.rule == "horizontal":
            self.families = Families(self.program, self._shares, self.max_heavy, self.max_heavy)
        if constraint.rule == "recomputation":
            self._whole += dict.fromkeys(self.program.copies.values())
            self.touched |= self.copied
        if constraint.rule == "siblings":
            self.neighbours = [p | s for p, s in zip(self.preds, self.succs, strict=True)]
            for p, copies in self.program.copies.items():
                self.neighbours[p] |= copies & ~(1 << p)
            # A chain of a node with several readers leaves them joined by what they read, which is off now.
            for member in members:
                for value in member.outputs:
                    if self.program.readers[value] & (self.program.readers[value] - 1):
                        self.touched |= 1 << self.program.position[member.node.name]
        if constraint.op is not None:
            self._operator_off(constraint)

    def _operator_off(self, constraint: FusionOff) -> None:
        origins: dict[str, int] = {}
        core = 0
        for p, member in enumerate(self.program.members):
            if member.node.origin and member.node.origin_op == constraint.op:
                origins[member.node.origin] = origins.get(member.node.origin, 0) | 1 << p
            elif member.node.op == constraint.op:
                core |= 1 << p
        if not origins and not core:
            known = dict.fromkeys(op for member in self.program.members for op in (member.node.origin_op, member.node.op) if op)
            close = get_close_matches(str(constraint.op), known, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"{constraint}: the graph has no such operator", hint=f"{meant}it has {', '.join(sorted(known)[:24])}")
        self._alone(core, constraint)
        for mask in origins.values():
            self.within.append((constraint, mask))
            self.touched |= mask

    def _alone(self, nodes: int, constraint: Constraint) -> None:
        copies = self.program.copies
        for p in bits(nodes):
            self.within.append((constraint, copies.get(p, 1 << p)))
        self.solo |= nodes & ~self.copied  # copies of one node are alone together, too
        self.touched |= nodes

    def _contradictions(self) -> None:
        for mask in self.joined:
            refused = self._demand(mask, whole=False)
            if refused is not None:
                against, _ = refused
                said = " and ".join(map(str, self.demanding(mask)))
                held = ", ".join(self.program.names(mask)[:6])
                raise UsageError(f"{said} contradicts {against}", hint=f"together they need one kernel for {held}")

    # ------------------------------------------------------------------ what the search asks

    def blocked(self, u: int, v: int) -> bool:
        """True when no legal group holds both ends of the edge from u to v."""
        pair = 1 << u | 1 << v
        if self.base.blocked(u, v) or pair & self.solo:
            return True
        if "cross-block" in self.off and ((pair & self.heavy) == pair or self._slides(u, v)):
            return True
        if any(pair & one and pair & other for _, one, other in self.apart):
            return True
        return any(pair & mask and pair & ~mask for _, mask in self.within)

    def cost(self, group: int) -> int | None:
        """Return the cost of a group in attoseconds, or None when it is illegal."""
        if group not in self._costs:
            found = self.priced(group)
            price = found.cost if isinstance(found, Priced) else None
            self._costs[group] = self.penalty if price is None and group in self.joined else price
        return self._costs[group]

    def priced(self, group: int) -> Priced | Reason:
        """Return the price of a connected and convex group, or the first rule that refuses it."""
        refused = self._demand(group)
        if refused is None:
            # A joined set is one node to the search, whether anything holds it together or not.
            apart = self._connected(group) if any(group & mask for mask in self.joined) else None
            return apart or self._worth(group, self.base.priced(group))
        self.refused_by_user += 1
        constraint, nodes = refused
        return Reason("user", self.program.names(nodes), remedy=f"drop {constraint}")

    def _worth(self, group: int, found: Priced | Reason) -> Priced | Reason:
        """Refuse a legal group that saves too little, or that breaks the limit on live memory alone."""
        if isinstance(found, Reason) or not group & (group - 1):
            return found  # a node has to run somewhere
        names = self.program.names(group)
        if self.memory is not None and self.limit_bytes is not None:
            needs = self.memory.footprint(group)
            if needs > self.limit_bytes:
                self.refused_by_user += 1
                tensors = self.memory.tensors(group)
                return Reason("memory", names, tensors, remedy=f"a limit of {needs} bytes or more, it is {self.limit_bytes}")
        if self.least_gain:
            saved = self.saved(group, found.cost)
            if saved is not None and saved < self.least_gain:
                self.refused_by_user += 1
                limits = " and ".join(str(c) for c in self.constraints if isinstance(c, MinGain))
                return Reason("user", names, remedy=f"drop {limits}: it saves {saved * 1e-18:.3g} s")
        return found

    def saved(self, group: int, cost: int) -> int | None:
        """Return what a group costs less than its nodes, each alone; None for a group that is demanded.

        What the user joins counts as one node, at its own price. Where that is not legal alone there is nothing to compare with.
        """
        if group in self.joined:
            return None
        alone, rest = 0, group
        for mask in self.joined:
            if mask & group:
                whole = self.base.priced(mask)
                if isinstance(whole, Reason):
                    return None
                alone += whole.cost
                for p in bits(mask):
                    rest &= ~(1 << p | self.program.copies.get(p, 0))
        # copies of a node in one group are one computation
        return alone + sum(self.base.cost(1 << p) or 0 for p in self.program.distinct(rest)) - cost

    def reasons(self, group: int) -> list[Reason]:
        """Return every structural rule and every demand that a set of nodes breaks."""
        found = [reason for reason in super().reasons(group) if reason.rule != "user" or reason.remedy.startswith("drop min_gain_s")]
        refused = self._demand(group)
        if refused is not None:
            constraint, nodes = refused
            found.append(Reason("user", self.program.names(nodes), remedy=f"drop {constraint}"))
        return found

    def key(self, group: int) -> Hashable:
        """Return a structural key; user demands are not in it, so it promises equal prices only."""
        return self.base.key(group)

    @property
    def most_penalty(self) -> int:
        """A price so high that only plans that nobody would run cost more: a million million times the plan that fuses nothing."""
        return self.base_cost << 40

    def demanding(self, mask: int) -> list[Constraint]:
        """Return the constraints that a joined set comes from."""
        settled = [MustFuse(self.program.names(held)) for held in self.held if held & mask]
        named: list[Constraint] = [c for c in (*self.constraints, *settled) if isinstance(c, MustFuse) and self._union(c.nodes) & mask]
        return named or list(self.constraints)

    def breaks(self, groups: Sequence[int]) -> int:
        """Return the first joined set that a plan holds though it is not legal alone, or 0."""
        return next((group for group in groups if group in self.joined and isinstance(self.priced(group), Reason)), 0)

    def _demand(self, group: int, *, whole: bool = True) -> tuple[Constraint, int] | None:
        """The demand that a group breaks, and the nodes that break it."""
        if not group & self.touched and not self.off:
            return None
        if whole:
            for mask in self.joined:
                if group & mask and mask & ~group:
                    return self.demanding(mask)[0], mask
        for constraint, mask in self.within:
            if group & mask and group & ~mask:
                return constraint, group
        for constraint, one, other in self.apart:
            if group & one and group & other:
                return constraint, group & (one | other)
        for constraint, node, readers in self.kept_from:
            if group >> node & 1 and not readers & ~group:
                return constraint, 1 << node | readers
        if "cross-block" in self.off and self._crosses(group):
            return self.off["cross-block"], group & self.heavy
        if "horizontal" in self.off and (group & self.heavy).bit_count() > self.max_heavy:
            return self.off["horizontal"], group & self.heavy
        if whole and "multi-output" in self.off and group & (group - 1) and self._stored(group) > 1:
            return self.off["multi-output"], group
        return None

    def _crosses(self, group: int) -> bool:
        """Whether a group holds several contractions, or a window over a value of its own."""
        heavy = group & self.heavy
        if heavy & (heavy - 1):
            return True
        v = heavy.bit_length() - 1
        return bool(heavy) and any(self._slides(u, v) for u in bits(self.preds[v] & group))

    def _stored(self, group: int) -> int:
        program = self.program
        return len(live_outs(program, program.distinct(group), group))


def constrain(base: GroupSpace, constraints: Sequence[object]) -> GroupSpace:
    """Return a space with demands on top; the space itself when there are none.

    Raises
    ------
    UsageError
        For a thing that is no constraint, a name that the graph does not have, or demands that contradict each other.
    """
    checked: list[Constraint] = []
    for constraint in constraints:
        if not isinstance(constraint, MustFuse | NeverFuse | FusionOff | Keep | PeakBytes | MinGain):
            raise UsageError(f"unknown constraint {constraint!r}", hint=f"make one with {', '.join(CONSTRAINTS)}")
        checked.append(constraint)
    if not checked:
        return base
    if any(isinstance(constraint, PeakBytes) for constraint in checked):
        base = base.plain  # what is alive is then a function of what has run
    return ConstrainedSpace(base, checked)
