"""How the best plan depends on the weights and on the machine: exact breakpoints, not a grid.

A fixed plan at fixed schedules has a cost that is linear in each weight, in the launch overhead, and in the reciprocal of each
bandwidth and peak rate. The optimum is the lower envelope of those lines, which is concave. Start with the best plans at the ends; search
where their lines cross; a better plan there splits the interval, and no better plan proves that the crossing is a breakpoint and that
nothing else wins between (Eisner and Severance 1976). Each search adds a line of the envelope or closes an interval, so k pieces take
at most 2k + 1 searches.

Prices are whole attoseconds, a rounding of the lines by at most one half for each group: "better" means better by more than that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from costmodels import model
from fusion_search.errors import UsageError
from fusion_search.fusion.constraints import constrain
from fusion_search.fusion.demands import Constraint, check_fixed
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.search.assemble import masks_of
from fusion_search.search.methods import METHODS
from fusion_search.search.plan import ATTOSECOND, Plan
from hardware_profiles import Profile

__all__ = ["RECIPROCAL", "Axis", "Margin", "Piece", "Sensitivity", "axis_of", "envelope", "margin_of", "margins", "parameters"]

#: Numbers of a profile in whose reciprocal every term is linear.
RECIPROCAL = (
    "dram_bandwidth_bytes_per_s",
    "cache_bandwidth_bytes_per_s",
    "l1_bandwidth_bytes_per_s",
    "peak_flops_per_s",
    "peak_contract_flops_per_s",
    "peak_special_flops_per_s",
)
_DIRECT = ("launch_overhead_s",)
#: The roofline takes the larger of traffic and compute: it is linear only in what stands outside the maximum.
_ROOFLINE = ("launch", "spill", "recompute", "launch_overhead_s", "l1_bandwidth_bytes_per_s")


@dataclass(frozen=True)
class Axis:
    """One parameter, and the coordinate in which costs are linear.

    Attributes
    ----------
    name : str
    value : float
        Where the profile or the weights are.
    low, high : float
        The range that is looked at.
    reciprocal : bool
        True when costs are linear in 1 / parameter.
    space_at : callable
        The space of groups at a value of the parameter.
    """

    name: str
    value: float
    low: float
    high: float
    reciprocal: bool
    space_at: Callable[[float], GroupSpace]

    def coordinate(self, value: float) -> float:
        """Return the coordinate of a value."""
        return 1.0 / value if self.reciprocal else value

    def parameter(self, coordinate: float) -> float:
        """Return the value at a coordinate, inside the range."""
        value = 1.0 / coordinate if self.reciprocal else coordinate
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, slots=True)
class _Line:
    """A plan at fixed schedules: its cost in attoseconds at both ends of the axis, in coordinates."""

    plan: Plan
    left: float
    right: float
    groups: frozenset[int]

    def at(self, share: float) -> float:
        return self.left + (self.right - self.left) * share


@dataclass(frozen=True)
class Piece:
    """A stretch of the envelope on which one plan, at one schedule of each group, is best.

    Attributes
    ----------
    low, high : float
        Values of the parameter.
    cost_low_s, cost_high_s : float
        J there; linear between, in the parameter or in its reciprocal.
    plan : Plan
        Found by a search on this piece; its own J is J where it was found.
    """

    low: float
    high: float
    cost_low_s: float
    cost_high_s: float
    plan: Plan


@dataclass(frozen=True)
class Sensitivity:
    """The least J along one parameter.

    Attributes
    ----------
    parameter : str
    value : float
        Where the profile or the weights are.
    low, high : float
        The range that was looked at.
    reciprocal : bool
        True when J is linear in 1 / parameter on each piece, False when it is linear in the parameter.
    pieces : tuple of Piece
        In ascending order; together they cover the range.
    exact : bool
        False when a search did not close: a better plan may then be missing.
    searches : int
    """

    parameter: str
    value: float
    low: float
    high: float
    reciprocal: bool
    pieces: tuple[Piece, ...]
    exact: bool
    searches: int

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Where the groups of the best plan change, ascending; a change of schedules alone is none."""
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return tuple(a.high for a, b in pairs if _partition(a.plan) != _partition(b.plan))

    def cost_s(self, value: float) -> float:
        """Return the least J at a value of the parameter."""
        if not self.low <= value <= self.high:
            raise UsageError(f"{self.parameter}: expected a number from {self.low:g} to {self.high:g}, got {value:g}")
        k = min(bisect_left([piece.high for piece in self.pieces], value), len(self.pieces) - 1)
        piece = self.pieces[k]
        ends = (piece.low, piece.high, value)
        low, high, here = (1.0 / end for end in ends) if self.reciprocal else ends
        share = (here - low) / (high - low) if high != low else 0.0
        return piece.cost_low_s + (piece.cost_high_s - piece.cost_low_s) * share

    def __str__(self) -> str:
        lines = [f"{self.parameter} from {self.low:g} to {self.high:g} (it is {self.value:g}): {len(self.breakpoints)} breakpoints"]
        lines += [f"  {at:.6g}" for at in self.breakpoints]
        return "\n".join(lines if self.exact else [*lines, "  a search did not close: more may be missing"])


@dataclass(frozen=True, slots=True)
class Margin:
    """How far one parameter may move before another plan wins.

    Attributes
    ----------
    parameter : str
    value : float
    low, high : float
        The plan is best from `low` to `high`. An end of the range that was looked at says nothing about what lies beyond.
    below, above : Plan or None
        What wins beyond; None at an end of the range that was looked at.
    exact : bool
        False when a search did not close.
    """

    parameter: str
    value: float
    low: float
    high: float
    below: Plan | None
    above: Plan | None
    exact: bool


def _partition(plan: Plan) -> frozenset[tuple[str, ...]]:
    return frozenset(group.nodes for group in plan.groups)


# ---------------------------------------------------------------------- axes


def parameters(space: GroupSpace) -> tuple[str, ...]:
    """Return the weights and the numbers of the profile along which J of a fixed plan is linear."""
    weights = tuple(space.model.weights)
    if type(space.model).name == "weighted":
        return (*weights, *_DIRECT, *RECIPROCAL)
    return tuple(name for name in (*weights, *_DIRECT, *RECIPROCAL) if name in _ROOFLINE)


def axis_of(space: GroupSpace, name: str, low: float | None = None, high: float | None = None) -> Axis:
    """Return the axis of one parameter.

    Parameters
    ----------
    space : GroupSpace
    name : str
        A weight, such as ``"launch"``, or a number of the profile.
    low, high : float, optional
        The range; from 0 to 16 times a weight or the launch overhead (to 16 when it is 0), from 1/16 to 16 times anything else.

    Raises
    ------
    UsageError
        When J is not linear along it, or the range is none.
    """
    if name not in parameters(space):
        hint = f"linear on {type(space.model).name}: {', '.join(parameters(space))}"
        if hasattr(space.profile, name) or name in space.model.weights:
            raise UsageError(f"J of a fixed plan is not linear in {name}, so its breakpoints cannot be found exactly", hint=hint)
        raise UsageError(f"unknown parameter {name!r}", hint=hint)
    weights = space.model.weights
    value = float(weights[name]) if name in weights else float(getattr(space.profile, name))
    reciprocal = name in RECIPROCAL
    low = (value / 16 if reciprocal else 0.0) if low is None else float(low)
    high = (16 * value or 16.0) if high is None else float(high)
    if not (0 < low < high if reciprocal else 0 <= low < high):
        raise UsageError(f"{name}: expected a range of numbers {'> 0' if reciprocal else '>= 0'}, got {low:g} to {high:g}")

    def at(x: float) -> GroupSpace:
        if name in weights:
            return space.repriced(space.profile, model(type(space.model).name, {**weights, name: x}))
        return space.repriced(_with(space.profile, name, x), space.model)

    return Axis(name, value, low, high, reciprocal, at)


def _with(profile: Profile, name: str, value: float) -> Profile:
    return replace(profile, **{name: value})  # type: ignore[arg-type]  # the name is that of a number


# ---------------------------------------------------------------------- the envelope


class _Solver:
    """Searches at points of one axis, and the lines of what is found."""

    def __init__(self, axis: Axis, demands: Sequence[Constraint], time_limit_s: float) -> None:
        check_fixed(demands, axis.name)
        self.axis, self.demands, self.time_limit_s = axis, demands, time_limit_s
        self.ends = axis.coordinate(axis.low), axis.coordinate(axis.high)
        self.spaces = axis.space_at(axis.low), axis.space_at(axis.high)
        self.searches = 0
        self.exact = True

    def share(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1, in the coordinate."""
        left, right = self.ends
        return (self.axis.coordinate(value) - left) / (right - left)

    def value(self, share: float) -> float:
        left, right = self.ends
        if share <= 0.0 or share >= 1.0:
            return self.axis.low if share <= 0.0 else self.axis.high
        return self.axis.parameter(left + (right - left) * share)

    def best(self, share: float) -> tuple[_Line, int]:
        """The best plan at a point as a line, and its cost there."""
        space = self.axis.space_at(self.value(share))
        plan = METHODS["exact"](constrain(space, self.demands), self.time_limit_s)
        self.searches += 1
        self.exact &= plan.status == "optimal"
        return self.line(plan, space), plan.cost_as

    def line(self, plan: Plan, space: GroupSpace) -> _Line:
        """The line of a plan at the schedules that are best in a space."""
        masks = masks_of(space, plan)
        ends = [0.0, 0.0]
        for mask in masks:
            priced = space.priced(mask)
            assert isinstance(priced, Priced), f"a plan holds an illegal group: {priced}"
            features = space.features(mask)
            for k, other in enumerate(self.spaces):
                prices = other.model.prices(features, other.profile)
                ends[k] += float(prices[priced.tiling if prices.size > 1 else 0])
        return _Line(plan, ends[0], ends[1], frozenset(masks))


def _slack(*lines: _Line) -> float:
    """What rounding may make of one cost: half an attosecond a group, at three places, and floats."""
    groups = max(len(line.groups) for line in lines)
    return 2.0 * groups + 1e-12 * max(line.left + line.right for line in lines)


def _crossing(a: _Line, b: _Line) -> float | None:
    """Where two lines cross, as a share of the axis."""
    left, right = a.left - b.left, a.right - b.right
    return left / (left - right) if left * right < 0 else None


def envelope(axis: Axis, demands: Sequence[Constraint] = (), *, time_limit_s: float = 60.0) -> Sensitivity:
    """Find the least J along an axis, with every breakpoint.

    Parameters
    ----------
    axis : Axis
    demands : sequence of Constraint
    time_limit_s : float
        Budget of each search.

    Returns
    -------
    Sensitivity
        Exact, up to the rounding of prices to attoseconds, when `exact`.
    """
    solver = _Solver(axis, demands, time_limit_s)
    first, last = solver.best(0.0)[0], solver.best(1.0)[0]
    lines = [first]
    work = [(first, last)]
    while work:
        a, b = work.pop()
        at = _crossing(a, b)
        if at is None or abs(a.left - b.left) + abs(a.right - b.right) <= _slack(a, b):
            if lines[-1] is not b:
                lines.append(b)
            continue
        found, cost = solver.best(at)
        if cost >= a.at(at) - _slack(a, b):
            lines.append(b)
        else:
            work += [(found, b), (a, found)]
    return _pieces(axis, solver, lines)


def _pieces(axis: Axis, solver: _Solver, lines: Sequence[_Line]) -> Sensitivity:
    """Lines of falling slope in order along the axis, as pieces between their crossings."""
    pieces: list[Piece] = []
    start = 0.0
    for k, line in enumerate(lines):
        at = _crossing(line, lines[k + 1]) if k + 1 < len(lines) else 1.0
        stop = min(max(start, at), 1.0) if at is not None else start
        if stop > start or (k + 1 == len(lines) and not pieces):
            costs = line.at(start) * ATTOSECOND, line.at(stop) * ATTOSECOND
            pieces.append(Piece(solver.value(start), solver.value(stop), *costs, line.plan))
            start = stop
    return Sensitivity(axis.name, axis.value, axis.low, axis.high, axis.reciprocal, tuple(pieces), solver.exact, solver.searches)


# ---------------------------------------------------------------------- how far a plan stays best


def margin_of(axis: Axis, plan: Plan, demands: Sequence[Constraint] = (), *, time_limit_s: float = 60.0) -> Margin:
    """Say how far a parameter may move before another plan wins.

    Parameters
    ----------
    axis : Axis
    plan : Plan
        The best plan where the axis has its value.
    demands : sequence of Constraint
    time_limit_s : float
        Budget of each search.

    Notes
    -----
    From an end of the range inwards: search, cross the line found with the plan's own, search there, until nothing beats the plan. When
    what wins has the same groups at other schedules, its line takes the place of the plan's and the way outwards begins again.
    """
    solver = _Solver(axis, demands, time_limit_s)
    if not axis.low <= axis.value <= axis.high:
        raise UsageError(f"{axis.name}: {axis.value:g}, where the plan was made, is not between {axis.low:g} and {axis.high:g}")
    here = solver.share(axis.value)
    own = solver.line(plan, axis.space_at(axis.value))
    ends: dict[float, tuple[float, Plan | None]] = {}
    for end in (0.0, 1.0):
        line, at = own, here
        while True:
            reached, winner = _reach(solver, line, at, end)
            if winner is None or winner.groups != own.groups:
                ends[end] = reached, None if winner is None else winner.plan
                break
            line, at = winner, reached
    (low, below), (high, above) = ends[0.0], ends[1.0]
    return Margin(axis.name, axis.value, solver.value(low), solver.value(high), below, above, solver.exact)


def _reach(solver: _Solver, line: _Line, here: float, end: float) -> tuple[float, _Line | None]:
    """How far towards an end a line is the lowest, and the line that is lower beyond."""
    if here == end:
        return end, None
    at, winner = end, None
    while True:
        found, cost = solver.best(at)
        if cost >= line.at(at) - _slack(line, found):
            return at, winner
        crossing = _crossing(line, found)
        if crossing is None or (crossing - here) * (end - here) <= 0:
            return here, found
        at, winner = crossing, found


def margins(
    space: GroupSpace, plan: Plan, demands: Sequence[Constraint] = (), *, names: Sequence[str] | None = None, time_limit_s: float = 60.0
) -> Mapping[str, Margin]:
    """Return how far each weight and each number of the profile may move, one at a time, before another plan wins."""
    return {
        name: margin_of(axis_of(space, name), plan, demands, time_limit_s=time_limit_s)
        for name in (parameters(space) if names is None else names)
    }
