"""The plan: groups in the order they run, what each stores, how each is scheduled, and the certificate.

A plan is data. On disk it is versioned JSON without weights; :meth:`Plan.load` replays it on a graph and names every
mismatch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fusion_search.errors import PlanError
from fusion_search.ir.graph import Graph
from hardware_profiles import Profile

FORMAT = "fusion-search-plan/1"
ATTOSECOND = 1e-18


class OuterLoop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One loop of a group's L.

    Attributes
    ----------
    extent : int
    carried : dict of str to (int, int)
        For each node that carries it: the loop of the node's iteration domain, and the number of that loop's
        iterations for one step of this one (1 unless a reshape cuts the loop).
    """

    extent: int
    carried: dict[str, tuple[int, int]]


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outer loops that are blocked together: `tile` consecutive points of their row-major product are one block."""

    tile: int
    loops: tuple[OuterLoop, ...]


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a group runs: its outer loops with their tiles; what no tile names runs inside a block."""

    tiles: tuple[Tile, ...] = ()


class Tuned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a group runs since it was tuned: a legal schedule that measured faster, not the one of least J.

    Attributes
    ----------
    schedule : Schedule
    items_per_task : int
        Blocks that one thread takes at a time; all of them run on the calling thread.
    cost_as : int
        What the model charges for this schedule, in attoseconds; the group's J is the least over all schedules.
    before_s, after_s : float
        Medians on the machine that tuned it, in turn, of the kernel as it ran before and as it runs now.
    ratio, ratio_low, ratio_high : float
        Median and quartiles of after over before, pair by pair.
    trials : int
        Schedules that were measured.
    """

    schedule: Schedule
    items_per_task: int
    cost_as: int
    before_s: float
    after_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    trials: int

    @property
    def cost_s(self) -> float:
        """What the model charges for this schedule, in seconds."""
        return self.cost_as * ATTOSECOND


class PlanGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kernel.

    Attributes
    ----------
    nodes : tuple of str
        Core nodes, in canonical order.
    origin : tuple of str
        The model's own nodes that they come from.
    stores : tuple of str
        Values written to memory.
    schedule : Schedule
        The one of least J, which `terms` and `cost_as` belong to.
    terms : dict of str to float
        Unweighted terms, in seconds.
    cost_as : int
        The group's share of J, in attoseconds.
    bytes_read, bytes_written : int
        Distinct live-ins and live-outs in whole cache lines.
    tuned : Tuned or None
        Another schedule that the group runs by, and what it measured.
    """

    nodes: tuple[str, ...]
    origin: tuple[str, ...]
    stores: tuple[str, ...]
    schedule: Schedule
    terms: dict[str, float]
    cost_as: int
    bytes_read: int
    bytes_written: int
    tuned: Tuned | None = None

    @property
    def cost_s(self) -> float:
        """The group's share of J, in seconds."""
        return self.cost_as * ATTOSECOND


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plan on disk."""

    format: str
    model: str
    dims: dict[str, int]
    profile: dict[str, Any]
    cost_model: str
    weights: dict[str, float]
    method: str
    space: dict[str, Any]
    status: str
    cost_as: int
    lower_bound_as: int
    statistics: dict[str, Any]
    groups: tuple[PlanGroup, ...]


@dataclass(frozen=True)
class Plan:
    """A fusion plan with its certificate.

    Attributes
    ----------
    graph : Graph
    profile : Profile
    cost_model : str
    weights : mapping of str to float
    method : str
    groups : tuple of PlanGroup
        In an order in which they can run.
    status : str
        ``"optimal"``: the search closed, lower bound equal to cost. ``"feasible"``: it did not, or the method proves nothing.
    cost_as, lower_bound_as : int
        J and the proved lower bound, in attoseconds.
    space : mapping of str to object
        The space for which the status holds: name and version, limits, refusals by rule.
    statistics : mapping of str to object
        What was explored and pruned.
    """

    graph: Graph = field(repr=False)
    profile: Profile = field(repr=False)
    cost_model: str
    weights: Mapping[str, float]
    method: str
    groups: tuple[PlanGroup, ...] = field(repr=False)
    status: str
    cost_as: int
    lower_bound_as: int
    space: Mapping[str, Any] = field(repr=False)
    statistics: Mapping[str, Any] = field(repr=False)

    @property
    def dims(self) -> dict[str, int]:
        """The extents of the symbolic dimensions for which the plan was made, and its status proved."""
        return dict(self.graph.source.dims) if self.graph.source else {}

    @property
    def cost_s(self) -> float:
        """J in seconds."""
        return self.cost_as * ATTOSECOND

    @property
    def lower_bound_s(self) -> float:
        """No plan of the space costs less, in seconds."""
        return self.lower_bound_as * ATTOSECOND

    @property
    def gap(self) -> float:
        """(J - lower bound) / J; 0 when optimal."""
        return (self.cost_as - self.lower_bound_as) / self.cost_as if self.cost_as else 0.0

    @property
    def terms(self) -> dict[str, float]:
        """Unweighted terms summed over the groups, in seconds."""
        total: dict[str, float] = {}
        for group in self.groups:
            for name, value in group.terms.items():
                total[name] = total.get(name, 0.0) + value
        return total

    @property
    def bytes_moved(self) -> int:
        """Bytes of all live-ins and live-outs, in whole cache lines."""
        return sum(group.bytes_read + group.bytes_written for group in self.groups)

    @property
    def launches(self) -> int:
        """Number of kernels."""
        return len(self.groups)

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict a group, units in the keys."""
        return [
            {
                "model": self.graph.name,
                "profile": self.profile.name,
                "method": self.method,
                "group": k,
                "nodes": len(group.nodes),
                "origin": " ".join(group.origin),
                "cost_s": group.cost_s,
                **{f"{name}_s": value for name, value in group.terms.items()},
                "read_bytes": group.bytes_read,
                "written_bytes": group.bytes_written,
            }
            for k, group in enumerate(self.groups)
        ]

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON, aside and then renamed, so that no partial file is ever seen.

        Raises
        ------
        PlanError
            When the file cannot be written.
        """
        target = Path(path)
        record = _File(
            FORMAT,
            self.graph.name,
            self.dims,
            {**{k: getattr(self.profile, k) for k in type(self.profile).__dataclass_fields__}, "dtypes": sorted(self.profile.dtypes)},
            self.cost_model,
            dict(self.weights),
            self.method,
            dict(self.space),
            self.status,
            self.cost_as,
            self.lower_bound_as,
            dict(self.statistics),
            self.groups,
        )
        data = msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"
        try:
            handle, aside = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(aside, target)
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise PlanError(f"{target}: cannot be written: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Plan:
        """Read a plan and bind it to a graph.

        Raises
        ------
        PlanError
            When the file is missing or no plan, or when its nodes are not the graph's; every mismatch is named.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            record = msgspec.json.decode(data, type=_File)
        except msgspec.DecodeError as error:
            raise PlanError(f"{path}: is no plan: {error}", hint="write one with plan.save(path)") from None
        if record.format != FORMAT:
            raise PlanError(f"{path}: has format {record.format!r}, expected {FORMAT!r}")
        known = {node.name for node in graph.nodes}
        planned = [name for group in record.groups for name in group.nodes]
        strange = [name for name in planned if name not in known]
        missing = sorted(known.difference(planned))
        values = [name for group in record.groups for name in group.stores if name not in graph.values]
        problems = []
        if strange:
            problems.append(f"nodes that the graph does not have: {', '.join(strange[:8])}")
        if missing:
            problems.append(f"nodes that the plan does not have: {', '.join(missing[:8])}")
        if values:
            problems.append(f"values that the graph does not have: {', '.join(values[:8])}")
        if problems:
            raise PlanError(f"{path}: does not fit {graph.name}: {'; '.join(problems)}", hint="plan the changed model again")
        try:
            profile = msgspec.convert(record.profile, Profile)
        except msgspec.ValidationError as error:
            raise PlanError(f"{path}: its profile is damaged: {error}") from None
        return cls(
            graph,
            profile,
            record.cost_model,
            record.weights,
            record.method,
            record.groups,
            record.status,
            record.cost_as,
            record.lower_bound_as,
            record.space,
            record.statistics,
        )
