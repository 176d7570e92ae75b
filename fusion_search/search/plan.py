"""The plan: groups in the order they run, what each stores, how each is scheduled, and the certificate.

A plan is data: `plan_file` says how it looks on disk. :meth:`Plan.load` binds a file to the graph it was made for and refuses any
other, by name; `replay` carries its groups over to a graph that has changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fusion_search.errors import PlanError
from fusion_search.ir.graph import Graph
from fusion_search.passes import distributed_again
from fusion_search.search.plan_file import (
    ATTOSECOND,
    FORMAT,
    NodeRecord,
    OuterLoop,
    PlanFile,
    PlanGroup,
    Schedule,
    Tile,
    Tuned,
    node_records,
    read_plan,
    write_plan,
)  # fmt: skip
from hardware_profiles import Profile

__all__ = ["ATTOSECOND", "FORMAT", "OuterLoop", "Plan", "PlanGroup", "Schedule", "Tile", "Tuned"]


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
        return sum(not group.alias for group in self.groups)

    def records(self) -> list[dict[str, Any]]:
        """Return one flat dict a group, units in the keys."""
        return [
            {
                "model": self.graph.name,
                "profile": self.profile.name,
                "method": self.method,
                "group": k,
                "alias": group.alias,
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

    def record(self) -> PlanFile:
        """Return the plan as it is written: without the graph's weights, and without the time that the search took."""
        fields = {k: getattr(self.profile, k) for k in type(self.profile).__dataclass_fields__}
        return PlanFile(
            FORMAT,
            self.graph.name,
            self.dims,
            msgspec.to_builtins({**fields, "dtypes": sorted(self.profile.dtypes)}),
            self.cost_model,
            dict(self.weights),
            self.method,
            dict(self.space),
            self.status,
            self.cost_as,
            self.lower_bound_as,
            {name: value for name, value in self.statistics.items() if name != "seconds"},
            self.groups,
            node_records(self.graph),
            tuple(each.node for each in self.graph.source.distributed) if self.graph.source else (),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as JSON that a line-by-line diff can compare, aside and then renamed.

        Raises
        ------
        PlanError
            When the file cannot be written.
        """
        write_plan(path, self.record())

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Plan:
        """Read a plan and bind it to the graph that it was made for.

        A plan of a graph that `fusion_search.distribute` gave also binds to that graph as it was loaded: the same maps are distributed.

        Raises
        ------
        PlanError
            When the file is missing or no plan, or when the graph is another one: other dims, other nodes, other types; every
            mismatch is named. `replay` takes such a graph.
        """
        record = read_plan(path)
        graph = distributed_again(graph, record.distributed)
        problems = _dims(record, graph) + _names(record, graph)
        problems = problems or _types(record.nodes, node_records(graph))
        if problems:
            hint = "fs.replay(path, graph) keeps the groups that still fit"
            raise PlanError(f"{path}: does not fit {graph.name}: {'; '.join(problems)}", hint=hint)
        return cls.bound(record, graph, profile_of(record, path))

    @classmethod
    def bound(cls, record: PlanFile, graph: Graph, profile: Profile) -> Plan:
        """Bind a record to a graph that it is known to fit."""
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


def profile_of(record: PlanFile, path: str | os.PathLike[str]) -> Profile:
    """Return the profile that a plan file holds.

    Raises
    ------
    PlanError
        When it is damaged.
    """
    try:
        return msgspec.convert(record.profile, Profile)
    except msgspec.ValidationError as error:
        raise PlanError(f"{path}: its profile is damaged: {error}") from None


_SHOWN = 8


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _dims(record: PlanFile, graph: Graph) -> list[str]:
    """Say which symbolic dimensions are bound otherwise."""
    here = dict(graph.source.dims) if graph.source else {}
    if record.dims == here:
        return []
    said = [", ".join(f"{name}={n}" for name, n in dims.items()) or "no symbolic dimensions" for dims in (record.dims, here)]
    return [f"it was made for {said[0]}, the graph has {said[1]}"]


def _names(record: PlanFile, graph: Graph) -> list[str]:
    """Say which nodes and values one has and the other has not."""
    known = {node.name for node in graph.nodes}
    planned = [name for group in record.groups for name in group.nodes]
    problems = []
    for what, missing in (
        ("nodes that the graph does not have", [name for name in planned if name not in known]),
        ("nodes that the plan does not have", sorted(known.difference(planned))),
        ("values that the graph does not have", [name for group in record.groups for name in group.stores if name not in graph.values]),
    ):
        if missing:
            problems.append(f"{what}: {_shown(missing)}")
    return problems


def _types(planned: tuple[NodeRecord, ...], here: tuple[NodeRecord, ...]) -> list[str]:
    """Say which nodes of the same name compute something else."""
    found = {node.name: node for node in here}
    other = [
        f"{node.name} ({describe_change(node, found[node.name])})" for node in planned if node.name in found and node != found[node.name]
    ]
    return [f"nodes that differ: {_shown(other)}"] if other else []


def describe_change(then: NodeRecord, now: NodeRecord) -> str:
    """Say in what one node differs from another: its operator, attributes, types, or what it reads."""
    said = []
    if then.op != now.op:
        said.append(f"{then.op} is {now.op}")
    elif then.attrs != now.attrs:
        said.append(f"{then.attrs or 'no attributes'} is {now.attrs or 'no attributes'}")
    for word, before, after in (("reads", then.reads, now.reads), ("gives", then.writes, now.writes)):
        types = [[kind for _, kind in entries] for entries in (before, after)]
        if types[0] != types[1]:
            differ = [f"{a} is {b}" for a, b in zip(*types, strict=False) if a != b]
            said.append(f"{word} {'; '.join(differ) if len(types[0]) == len(types[1]) else f'{len(types[1])} values, not {len(types[0])}'}")
    if not said and [name for name, _ in then.reads] != [name for name, _ in now.reads]:
        differ = [f"{b}, not {a}" for (a, _), (b, _) in zip(then.reads, now.reads, strict=True) if a != b]
        said.append(f"reads {'; '.join(differ)}")
    return ", ".join(said) or "its origin or its values have other names"
