"""Why two nodes share a kernel or do not: the rule that forbids it, or the price of the plan in which it is otherwise.

Counterfactuals are searches of their own, not estimates: `must_fuse` for nodes that are apart, `never_fuse` for nodes that are
together. The cost that is predicted is that of the plan that was found, which is handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

from fusion_search.errors import FusionSearchError, PlanError, UsageError
from fusion_search.fusion.constraints import closed_sets, constrain, nodes_named
from fusion_search.fusion.demands import Constraint, MustFuse, NeverFuse, from_record
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.graph import Graph
from fusion_search.search.methods import METHODS, NoPlanError
from fusion_search.search.plan import ATTOSECOND, Plan
from fusion_search.search.wording import seconds, signed
from hardware_profiles import Profile

__all__ = ["Bounds", "Explanation", "Flip", "SpaceOf", "assert_fused", "constraints_of", "explain_pair"]

SpaceOf = Callable[[Graph, Profile], GroupSpace]
#: Rules that hold for every group that holds a group that breaks them.
_LASTING = ("opaque", "scatter", "nodes", "contractions", "user")
_NUMBERS = {"dram_bandwidth_bytes_per_s": "bytes/s", "launch_overhead_s": "s"}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where flips are looked for, and how closely.

    Attributes
    ----------
    factor : float
        Numbers of the profile from 1/factor to factor times their value.
    most_extent : int
        Symbolic dimensions from 1 to this extent.
    tolerance : float
        Relative error of a flip on a number of the profile; on an extent it is exact.
    """

    factor: float = 64.0
    most_extent: int = 256
    tolerance: float = 1e-3


@dataclass(frozen=True, slots=True)
class Flip:
    """A place where the best plan turns from one side to the other.

    Attributes
    ----------
    parameter : str
        A number of the profile, or a symbolic dimension.
    value : float
        Where the plan was made.
    at : float
        The first value, seen from there, at which the decision was found to be the other one.
    last : float
        The value nearest to `at`, seen from there, at which it was still found to be the same.
    fused : bool
        The decision from `at` on.
    """

    parameter: str
    value: float
    at: float
    last: float
    fused: bool

    def __str__(self) -> str:
        unit = f" {_NUMBERS[self.parameter]}" if self.parameter in _NUMBERS else ""
        side = "from" if self.at > self.value else "down from"
        return f"{'fused' if self.fused else 'apart'} {side} {self.parameter} {self.at:.4g}{unit} (it is {self.value:.4g}{unit})"


@dataclass(frozen=True)
class Explanation:
    """Why two nodes share a kernel or do not.

    Attributes
    ----------
    plan : Plan
    a, b : str
        Core nodes, or nodes of the model, which stand for all their core nodes.
    fused : bool
        Whether one group holds all of both.
    shared : tuple of int
        The groups that hold something of both.
    reasons : tuple of Reason
        The rules that forbid one kernel for both; empty when it is legal. That nothing legal holds both is proved by a search
        that closed.
    forced_plan : Plan or None
        The best plan in which it is otherwise: `must_fuse` when they are apart, `never_fuse` when they are fused. None when there
        is none.
    flips : mapping of str to (Flip or None)
        By number of the profile or symbolic dimension: the nearest place found where the best plan decides otherwise, by bisection
        between the plan's own value and the ends of `bounds`; None when the best plans at both ends decide alike.
    bounds : Bounds
    """

    plan: Plan
    a: str
    b: str
    fused: bool
    shared: tuple[int, ...]
    reasons: tuple[Reason, ...]
    forced_plan: Plan | None
    flips: Mapping[str, Flip | None] = field(default_factory=dict)
    bounds: Bounds = Bounds()

    @property
    def delta_cost_as(self) -> int | None:
        """J of the forced plan less J of the plan, in attoseconds."""
        return None if self.forced_plan is None else self.forced_plan.cost_as - self.plan.cost_as

    @property
    def delta_cost_s(self) -> float | None:
        """J of the forced plan less J of the plan, in seconds."""
        return None if self.delta_cost_as is None else self.delta_cost_as * ATTOSECOND

    @property
    def delta_terms(self) -> dict[str, float]:
        """The same for each unweighted term, in seconds; empty without a forced plan."""
        if self.forced_plan is None:
            return {}
        forced = self.forced_plan.terms
        return {name: forced[name] - value for name, value in self.plan.terms.items()}

    def __str__(self) -> str:
        state = "share one kernel" if self.fused else "share kernels in part only" if self.shared else "are in different kernels"
        held = f" (group {', '.join(map(str, self.shared))})" if self.shared else ""
        lines = [f"{self.a} and {self.b} {state}{held}."]
        lines += [f"{name} is no kernel: its producers write it in place." for name in (self.a, self.b) if self._free(name)]
        if self.reasons:
            lines.append("No legal plan has it otherwise:" if self.fused else "One kernel for both is illegal:")
            lines += [f"  {reason}" for reason in self.reasons]
        if self.forced_plan is not None:
            lines += self._forced(self.forced_plan)
        for name, flip in self.flips.items():
            lines.append(f"  {flip}" if flip else f"  no flip found along {name}, {self._tried(name)}")
        return "\n".join(lines)

    def _free(self, name: str) -> bool:
        homes = [group for group in self.plan.groups if name in group.nodes or name in group.origin]
        return bool(homes) and all(group.alias for group in homes)

    def _forced(self, forced: Plan) -> list[str]:
        delta = self.delta_cost_s or 0.0
        verb = "Kept apart" if self.fused else "Forced into one kernel"
        share = f", {delta / self.plan.cost_s:+.2%}" if self.plan.cost_as else ""
        proof = "" if forced.status == "optimal" else f" (the search did not close, gap {forced.gap:.2%})"
        first = f"{verb}, J is {seconds(forced.cost_s)} in place of {seconds(self.plan.cost_s)}: {signed(delta)}{share}{proof}."
        changes = [f"{name} {signed(value)}" for name, value in self.delta_terms.items() if value]
        if forced.launches != self.plan.launches:
            changes.append(f"{forced.launches - self.plan.launches:+d} launches")
        return [first, f"  {', '.join(changes)}"] if changes else [first]

    def _tried(self, name: str) -> str:
        if name not in _NUMBERS:
            return f"from 1 to {self.bounds.most_extent}"
        return f"from 1/{self.bounds.factor:g} to {self.bounds.factor:g} times its value"


def constraints_of(plan: Plan) -> tuple[Constraint, ...]:
    """Return the constraints that a plan was searched under."""
    return tuple(from_record(record) for record in plan.space.get("constraints", ()))


def explain_pair(
    plan: Plan,
    a: str,
    b: str,
    space_of: SpaceOf,
    *,
    time_limit_s: float = 60.0,
    bounds: Bounds | None = Bounds(),
    rebind: Callable[[str, int], Graph] | None = None,
) -> Explanation:
    """Say why two nodes share a kernel or do not.

    Parameters
    ----------
    plan : Plan
    a, b : str
    space_of : callable
        The space of groups of a graph on a profile, on the plan's cost model.
    time_limit_s : float
        Budget of each search.
    bounds : Bounds, optional
        Where to look for flips; None does not look for any.
    rebind : callable, optional
        The graph with one symbolic dimension bound otherwise.

    Raises
    ------
    UsageError
        When a name is unknown, or both names stand for one node.
    """
    space = space_of(plan.graph, plan.profile)
    one, other = nodes_named(space.program, a), nodes_named(space.program, b)
    if one & other:
        raise UsageError(f"{a!r} and {b!r} have nodes in common", hint="name two nodes that differ")
    groups = [space.program.mask(group.nodes) for group in plan.groups]
    shared = tuple(k for k, group in enumerate(groups) if group & one and group & other)
    fused = any(not (one | other) & ~group for group in groups)
    demands = constraints_of(plan)
    forced, reasons = _forced(space, demands, a, b, fused, one | other, time_limit_s)
    flips: dict[str, Flip | None] = {}
    if bounds is not None:
        finder = _Flips(plan, a, b, fused, space_of, demands, time_limit_s, bounds)
        if not reasons:  # no bandwidth and no launch overhead makes anything legal
            flips = finder.of_numbers()
        if rebind is not None and not any(reason.rule in _LASTING for reason in reasons):
            flips |= finder.of_dims(rebind)
    return Explanation(plan, a, b, fused, shared, reasons, forced, flips, bounds or Bounds())


def _forced(
    space: GroupSpace, demands: Sequence[Constraint], a: str, b: str, fused: bool, nodes: int, time_limit_s: float
) -> tuple[Plan | None, tuple[Reason, ...]]:
    """The best plan in which it is otherwise, or why there is none."""
    demand = NeverFuse((a, b)) if fused else MustFuse((a, b))
    if not fused:
        # What lies between, and waits, has to come along; a rule that lasts ends it without a search.
        for mask in closed_sets(space.preds, [nodes]):
            lasting = tuple(reason for reason in space.reasons(mask) if reason.rule in _LASTING)
            if lasting:
                return None, lasting
    try:
        return METHODS["exact"](constrain(space, [*demands, demand]), time_limit_s), ()
    except NoPlanError as error:
        return None, error.reasons
    except UsageError as error:
        return None, (Reason("user", (a, b), remedy=error.what),)


def assert_fused(plan: Plan, a: str, b: str, space_of: SpaceOf, *, time_limit_s: float = 60.0) -> None:
    """Raise PlanError with the reason unless one group of a plan holds both nodes."""
    found = explain_pair(plan, a, b, space_of, time_limit_s=time_limit_s, bounds=None)
    if not found.fused:
        why, *rest = str(found).splitlines()
        raise PlanError(why.rstrip("."), hint=" ".join(line.strip() for line in rest))


@dataclass(frozen=True, slots=True)
class _Flips:
    """Looks along one parameter at a time for the place where the best plan decides otherwise."""

    plan: Plan
    a: str
    b: str
    fused: bool
    space_of: SpaceOf
    demands: Sequence[Constraint]
    time_limit_s: float
    bounds: Bounds

    def of_numbers(self) -> dict[str, Flip | None]:
        """Flips along numbers of the profile, on a scale of ratios."""
        base = self.space_of(self.plan.graph, self.plan.profile)
        found: dict[str, Flip | None] = {}
        for name in _NUMBERS:
            value = getattr(self.plan.profile, name)

            def fused(at: float, name: str = name) -> bool | None:
                profile = replace(self.plan.profile, **{name: at})  # type: ignore[arg-type]  # the name is that of a number
                return self._decision(base.repriced(profile, base.model))

            if not value:  # no overhead has no multiples
                found[name] = None
                continue
            ends = (value / self.bounds.factor, value * self.bounds.factor)
            between = lambda low, high: exp((log(low) + log(high)) / 2) if abs(log(high / low)) > self.bounds.tolerance else None  # noqa: E731
            found[name] = self._search(name, value, ends, fused, between)
        return found

    def of_dims(self, rebind: Callable[[str, int], Graph]) -> dict[str, Flip | None]:
        """Flips along symbolic dimensions, in whole numbers."""
        found: dict[str, Flip | None] = {}
        for name, value in self.plan.dims.items():

            def fused(at: float, name: str = name) -> bool | None:
                try:
                    return self._decision(self.space_of(rebind(name, int(at)), self.plan.profile))
                except FusionSearchError:  # the model does not work at that extent, or has other nodes there
                    return None

            ends = (1, max(self.bounds.most_extent, value))
            between = lambda low, high: float((int(low) + int(high)) // 2) if abs(high - low) > 1 else None  # noqa: E731
            found[name] = self._search(name, value, ends, fused, between)
        return found

    def _decision(self, base: GroupSpace) -> bool | None:
        best = METHODS["exact"](constrain(base, self.demands), self.time_limit_s)
        program = base.program
        both = nodes_named(program, self.a) | nodes_named(program, self.b)
        return any(not both & ~program.mask(group.nodes) for group in best.groups)

    def _search(
        self,
        name: str,
        value: float,
        ends: tuple[float, float],
        fused: Callable[[float], bool | None],
        between: Callable[[float, float], float | None],
    ) -> Flip | None:
        here = fused(value)  # what the best plan does: the plan at hand need not be the best
        nearest: Flip | None = None
        for end in ends:
            there = fused(end) if end != value else here
            if there is None or there == here:
                continue
            same, differs = value, end
            while (middle := between(same, differs)) is not None:
                decided = fused(middle)
                if decided is None:
                    break
                if decided == here:
                    same = middle
                else:
                    differs = middle
            flip = Flip(name, value, differs, same, not here)
            if nearest is None or abs(log(flip.at / value)) < abs(log(nearest.at / value)):
                nearest = flip
        return nearest
