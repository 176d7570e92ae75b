"""The file of a plan: what is written, so that a diff shows what changed, and how it is read back.

One field of the plan a line, one group a few lines, one node of the program a line, all in an order that the plan alone
decides. Nothing in it depends on the run that found the plan. The program is there by signature (operator, attributes, types
and what is read), without weights: a changed model can be told from the planned one, node by node.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fusion_search.errors import PlanError
from fusion_search.ir.graph import Graph, Node
from fusion_search.ir.opaque import RUNTIME

__all__ = [
    "FORMAT",
    "NodeRecord",
    "OuterLoop",
    "PlanFile",
    "PlanGroup",
    "Schedule",
    "Tile",
    "Tuned",
    "node_records",
    "read_plan",
    "write_plan",
]

FORMAT = "fusion-search-plan/2"
ATTOSECOND = 1e-18
#: Attributes longer than this are known by their digest.
_LONG = 120


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
    """One kernel, or one concat that needs none.

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
    alias : bool
        It is no kernel: a concat whose parts are written where they belong by the groups that compute them.
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
    alias: bool = False

    @property
    def cost_s(self) -> float:
        """The group's share of J, in seconds."""
        return self.cost_as * ATTOSECOND


class NodeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One core node of the planned program, by signature.

    Attributes
    ----------
    name, op : str
    attrs : str
    origin : str
        The model's node that it comes from.
    reads : tuple of (str, str)
        For each operand the value whose memory is read, and the type in which it is seen.
    writes : tuple of (str, str)
        Values computed, and their types.
    """

    name: str
    op: str
    attrs: str
    origin: str
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plan on disk; `distributed` names the maps that the graph's passes distribute over concats, and is there if any are."""

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
    nodes: tuple[NodeRecord, ...]
    distributed: tuple[str, ...] = ()


# ---------------------------------------------------------------------- the program by signature


def node_records(graph: Graph) -> tuple[NodeRecord, ...]:
    """Return the nodes of a graph by signature, in the graph's order."""
    return tuple(
        NodeRecord(
            node.name,
            node.op,
            _attributes(node),
            node.origin,
            tuple((graph.base(name), _type(graph, name)) for name in node.inputs if name),
            tuple((name, _type(graph, name)) for name in node.outputs),
        )
        for node in graph.nodes
    )


def _type(graph: Graph, name: str) -> str:
    value = graph.values[name]
    return "unknown" if value.dtype == RUNTIME else f"{value.dtype.name}[{','.join(map(str, value.shape))}]"


def _attributes(node: Node) -> str:
    text = ", ".join(f"{name}={_plain(value)}" for name, value in node.attrs)
    return text if len(text) <= _LONG else f"{text[:_LONG]}... {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain, value))})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return str(getattr(value, "op_type", type(value).__name__))


# ---------------------------------------------------------------------- writing


def write_plan(path: str | os.PathLike[str], record: PlanFile) -> None:
    """Write a plan aside and rename it, so that no partial file is ever seen.

    Raises
    ------
    PlanError
        When the file cannot be written.
    """
    target = Path(path)
    try:
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_text(record).encode())
            os.replace(aside, target)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PlanError(f"{target}: cannot be written: {error.strerror}") from None


def _text(record: PlanFile) -> str:
    """One field a line; groups in a few lines each, and nodes in one."""
    lines = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name == "distributed" and not value:
            continue
        if name == "groups":
            lines.append(_listed(name, [_object(group, " ", ",\n   ") for group in value]))
        elif name == "nodes":
            lines.append(_listed(name, [f"  {_json(node)}" for node in value]))
        elif name in ("profile", "space", "statistics"):
            lines.append(_nested(name, value))
        else:
            lines.append(f' "{name}": {_json(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _object(group: PlanGroup, indent: str, between: str) -> str:
    """What the group is on lines of their own, what it costs on one, and how it was tuned on another."""
    said = [f'"{name}": {_json(getattr(group, name))}' for name in ("nodes", "origin", "stores", "schedule")]
    cost = ", ".join(f'"{name}": {_json(getattr(group, name))}' for name in ("terms", "cost_as", "bytes_read", "bytes_written"))
    tuned = [] if group.tuned is None else [f'"tuned": {_json(group.tuned)}']
    free = ['"alias": true'] if group.alias else []
    return f"{indent} {{" + between.join([*said, cost, *tuned, *free]) + "}"


def _listed(name: str, entries: Sequence[str]) -> str:
    return f' "{name}": []' if not entries else f' "{name}": [\n' + ",\n".join(entries) + "\n ]"


def _nested(name: str, value: Mapping[str, Any]) -> str:
    if not value:
        return f' "{name}": {{}}'
    return f' "{name}": {{\n' + ",\n".join(f"  {_json(key)}: {_json(entry)}" for key, entry in value.items()) + "\n }"


# ---------------------------------------------------------------------- reading


def read_plan(path: str | os.PathLike[str]) -> PlanFile:
    """Read a plan file.

    Raises
    ------
    PlanError
        When the file is missing or no plan, or of another version.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        head = msgspec.json.decode(data)
        said = head.get("format") if isinstance(head, dict) else None
        if isinstance(said, str) and said != FORMAT:
            raise PlanError(f"{path}: has format {said!r}, expected {FORMAT!r}", hint="plan the model again with this version")
        return msgspec.convert(head, PlanFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PlanError(f"{path}: is no plan: {error}", hint="write one with plan.save(path)") from None
