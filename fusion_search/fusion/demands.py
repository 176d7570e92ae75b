"""What a user may demand of a plan, as plain data; `fusion.constraints` says what it means for groups."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fusion_search.errors import UsageError

__all__ = [
    "CONSTRAINTS", "RULES_TO_SWITCH", "Constraint", "FusionOff", "Keep", "MinGain", "MustFuse", "NeverFuse", "PeakBytes", "as_record",
    "check_fixed", "from_record", "fusion_off", "keep", "min_gain_s", "must_fuse", "never_fuse", "peak_bytes",
]  # fmt: skip

#: Kinds of fusion that `FusionOff(rule=...)` switches off.
RULES_TO_SWITCH: dict[str, str] = {
    "siblings": "groups that only a shared input holds together",
    "multi-output": "groups of several nodes that store more than one value",
    "contraction": "contractions and windows in one group with anything else",
    "reduction": "reductions in one group with anything else",
    "recomputation": "values that more than one group computes",
    "cross-block": "several contractions or windows in one group, and windows over values that the group computes",
    "horizontal": "more than two contractions of one input in one group",
    "alias": "concats that cost nothing because their producers write them in place",
}


@dataclass(frozen=True, slots=True)
class MustFuse:
    """Nodes that one kernel computes.

    Attributes
    ----------
    nodes : tuple of str
        Core nodes, or nodes of the model, which stand for all their core nodes.
    """

    kind: ClassVar[str] = "must_fuse"
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"must_fuse({', '.join(map(repr, self.nodes))})"


@dataclass(frozen=True, slots=True)
class NeverFuse:
    """Nodes of which no kernel computes two; of a node of the model, no core node shares a kernel with one of another.

    Attributes
    ----------
    nodes : tuple of str
        Core nodes, or nodes of the model.
    """

    kind: ClassVar[str] = "never_fuse"
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"never_fuse({', '.join(map(repr, self.nodes))})"


@dataclass(frozen=True, slots=True)
class FusionOff:
    """Fusion switched off by rule, by operator, or altogether.

    Attributes
    ----------
    rule : str, optional
        A key of :data:`RULES_TO_SWITCH`.
    op : str, optional
        An operator of the model, whose core nodes then share kernels with each other only; or a core operator, whose nodes
        are then alone.
    everything : bool
        Every core node is alone.
    """

    kind: ClassVar[str] = "fusion_off"
    rule: str | None = None
    op: str | None = None
    everything: bool = False

    def __str__(self) -> str:
        said = [f"{name}={value!r}" for name, value in (("rule", self.rule), ("op", self.op), ("everything", self.everything)) if value]
        return f"fusion_off({', '.join(said)})"


@dataclass(frozen=True, slots=True)
class Keep:
    """Values that reach memory, so that they can be looked at.

    A group that computes one of them leaves at least one of its readers to another group, which makes it a value that the
    group stores; one that the graph returns is stored anyway. Nothing is stored that no kernel reads, so J keeps its meaning.

    Attributes
    ----------
    values : tuple of str
        Names of values.
    """

    kind: ClassVar[str] = "keep"
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"keep({', '.join(map(repr, self.values))})"


@dataclass(frozen=True, slots=True)
class PeakBytes:
    """A limit on live memory, at every moment of a run.

    While a group runs, alive are: the values that earlier groups stored and that it, a later group or the caller still needs; the
    values that it stores; and the scratch of its blocks that run at once, one for each parallel unit at most. Inputs of the graph and
    weights do not count. Groups run one after the other in the order of the plan, each under the schedule of its least J; what a
    group reads is free after it has run, not before.

    Attributes
    ----------
    limit_bytes : int
    """

    kind: ClassVar[str] = "peak_bytes"
    limit_bytes: int

    def __str__(self) -> str:
        return f"peak_bytes({self.limit_bytes})"


@dataclass(frozen=True, slots=True)
class MinGain:
    """Groups of several nodes are formed only where they save something worth having.

    A group is left out when its nodes, each alone, cost less than `least_s` more than the group: J of single nodes less J of the
    group, in seconds of J. What `must_fuse` demands counts as one node, so that it is exempt, and what joins it has to save as much.

    Attributes
    ----------
    least_s : float
    """

    kind: ClassVar[str] = "min_gain_s"
    least_s: float

    def __str__(self) -> str:
        return f"min_gain_s({self.least_s:g})"


Constraint = MustFuse | NeverFuse | FusionOff | Keep | PeakBytes | MinGain
CONSTRAINTS: dict[str, type[Constraint]] = {made.kind: made for made in (MustFuse, NeverFuse, FusionOff, Keep, PeakBytes, MinGain)}


def check_fixed(constraints: Iterable[Constraint], what: str) -> None:
    """Refuse demands under which the plans to choose from depend on their prices: what moves prices would move them too.

    Raises
    ------
    UsageError
        For `PeakBytes` (scratch is that of the cheapest schedule) and `MinGain`.
    """
    for constraint in constraints:
        if isinstance(constraint, PeakBytes | MinGain):
            why = f"{what}: under {constraint} prices decide which plans there are, so it cannot be followed exactly"
            raise UsageError(why, hint="leave it out, or search at the values of interest")


def as_record(constraint: Constraint) -> dict[str, Any]:
    """Return a constraint as plain data, for plan files."""
    fields = {name: getattr(constraint, name) for name in constraint.__dataclass_fields__}
    return {"kind": constraint.kind, **{k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}}


def from_record(record: dict[str, Any]) -> Constraint:
    """Return the constraint that `as_record` wrote.

    Raises
    ------
    UsageError
        When it wrote no such thing.
    """
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items() if k != "kind"}
    try:
        return CONSTRAINTS[record["kind"]](**fields)
    except (KeyError, TypeError):
        raise UsageError(f"unknown constraint {record!r}", hint=f"known kinds: {', '.join(CONSTRAINTS)}") from None


# ---------------------------------------------------------------------- how to say it


def must_fuse(*nodes: str) -> MustFuse:
    """Demand that one kernel computes some nodes.

    Parameters
    ----------
    *nodes : str
        Core nodes, or nodes of the model, which stand for all their core nodes. What lies between them comes along.
    """
    return MustFuse(_names(nodes, "must_fuse", least=1))


def never_fuse(*nodes: str) -> NeverFuse:
    """Demand that no kernel computes two of some nodes.

    Parameters
    ----------
    *nodes : str
        Two or more core nodes, or nodes of the model: then none of one's core nodes shares a kernel with one of another's.
    """
    return NeverFuse(_names(nodes, "never_fuse", least=2))


def fusion_off(*, rule: str | None = None, op: str | None = None, everything: bool = False) -> FusionOff:
    """Switch fusion off, by rule, by operator, or altogether.

    Parameters
    ----------
    rule : str, optional
        ``"siblings"`` (groups that only a shared input holds together), ``"multi-output"`` (groups of several nodes that store
        more than one value), ``"contraction"`` or ``"reduction"`` (these then run alone).
    op : str, optional
        An operator of the model, whose core nodes then share kernels with each other only; or a core operator, whose nodes then run
        alone.
    everything : bool
        Every core node runs alone.
    """
    if (rule is not None) + (op is not None) + bool(everything) != 1:
        raise UsageError("fusion_off: expected one of rule, op and everything", hint='such as fusion_off(op="Softmax")')
    if rule is not None and rule not in RULES_TO_SWITCH:
        known = "; ".join(f"{name}: {meaning}" for name, meaning in RULES_TO_SWITCH.items())
        raise UsageError(f"fusion_off: unknown rule {rule!r}", hint=known)
    return FusionOff(rule, op, bool(everything))


def keep(*values: str) -> Keep:
    """Demand that values reach memory, so that they can be looked at: some reader of each is in another kernel.

    Parameters
    ----------
    *values : str
        Names of values, as in ``graph.values``. What is in memory anyway, such as an input or an output, is no demand.
    """
    return Keep(_names(values, "keep", least=1))


def peak_bytes(limit_bytes: int) -> PeakBytes:
    """Limit live memory: stored values that are still needed, and scratch, at every moment of a run.

    Parameters
    ----------
    limit_bytes : int
        Inputs of the graph and weights do not count, outputs do; `PeakBytes` has the definition.
    """
    if not _is_number(limit_bytes, int | np.integer):
        raise UsageError(f"peak_bytes: expected a whole number of bytes from 0, got {limit_bytes!r}")
    return PeakBytes(int(limit_bytes))


def min_gain_s(least_s: float) -> MinGain:
    """Leave out fusions that save less than some time, as not worth their complexity.

    Parameters
    ----------
    least_s : float
        What a group of several nodes has to cost less than its nodes, each alone, in seconds of J.
    """
    if not _is_number(least_s, int | float | np.number):
        raise UsageError(f"min_gain_s: expected seconds, a number from 0, got {least_s!r}", hint="such as min_gain_s(1e-6)")
    return MinGain(float(least_s))


def _is_number(value: Any, kind: Any) -> bool:
    """Whether a value is a finite number of a kind, from 0."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(0 <= value < math.inf)


def _names(names: tuple[object, ...], what: str, *, least: int) -> tuple[str, ...]:
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{what}: expected names, got {name!r}")
    found = tuple(dict.fromkeys(str(name) for name in names))
    if len(found) < least:
        raise UsageError(f"{what}: expected {least} names or more, got {len(found)}", hint=f'such as {what}("a", "b")')
    return found
