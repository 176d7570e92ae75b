"""Measuring one case: everybody made ready, compared, then timed in turn."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fusion_search as fs
from experiments.benchmarks import limits
from experiments.benchmarks.case import Array, Case
from experiments.benchmarks.machine import Foreign
from experiments.benchmarks.peers import Peer, Runner
from experiments.benchmarks.peers.ours import plan_of, read
from experiments.benchmarks.timing import Ratio, Schedule, interleave, median, ratio

#: Our two candidates.
FUSED, UNFUSED = "fused", "unfused"
#: The two ways to get outputs.
COLUMNS = ("preallocated", "fresh")


@dataclass(frozen=True)
class Entry:
    """What became of one candidate.

    Attributes
    ----------
    status : str
        ``ok``; or why it does not count: it does not apply, failed, or its outputs differ.
    error : float
        Largest difference, relative to the largest magnitude of the output.
    times : mapping of str to list of float
        Seconds a call in every round, for each column. Where a library cannot be given outputs both columns hold the same times.
    """

    status: str
    error: float = 0.0
    times: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """The result of one case.

    Attributes
    ----------
    name, family, bound : str
    nbytes, flops : int
    entries : mapping of str to Entry
        Peers, `FUSED` and `UNFUSED`.
    triad_bytes_per_s, copy_bytes_per_s, fill_bytes_per_s, past_bytes_per_s, past_alone_bytes_per_s, product_flops_per_s : list of float
        The machine's limits at this size, one entry a round; empty where they say nothing.
    peak_bytes : mapping of str to int
        Planned memory of `FUSED` and `UNFUSED`.
    kernels, plan_status : int, str
        Of the fused plan.
    foreign : float
        Part of the machine that others used meanwhile.
    """

    name: str
    family: str
    bound: str
    nbytes: int
    flops: int
    entries: Mapping[str, Entry]
    triad_bytes_per_s: list[float]
    copy_bytes_per_s: list[float]
    fill_bytes_per_s: list[float]
    past_bytes_per_s: list[float]
    past_alone_bytes_per_s: list[float]
    product_flops_per_s: list[float]
    peak_bytes: Mapping[str, int]
    kernels: int
    plan_status: str
    foreign: float
    whole_model: bool = False

    def best(self, column: str) -> str | None:
        """Name of the fastest peer whose outputs are right."""
        found = {n: e.times[column] for n, e in self.entries.items() if n not in (FUSED, UNFUSED) and e.status == "ok" and e.times}
        return min(found, key=lambda n: median(found[n])) if found else None

    def speedup(self, column: str) -> Ratio | None:
        """Best peer's time over ours."""
        best, ours = self.best(column), self.entries.get(FUSED)
        if best is None or ours is None or ours.status != "ok":
            return None
        return ratio(self.entries[best].times[column], ours.times[column])

    def fusion(self, column: str = "preallocated") -> Ratio | None:
        """Our unfused time over our fused one."""
        fused, unfused = self.entries.get(FUSED), self.entries.get(UNFUSED)
        if fused is None or unfused is None or fused.status != "ok" or unfused.status != "ok":
            return None
        return ratio(unfused.times[column], fused.times[column])

    def of_triad(self, column: str = "preallocated") -> Ratio | None:
        """Our rate of memory over triad's at this size."""
        ours = self.entries.get(FUSED)
        if not self.triad_bytes_per_s or ours is None or ours.status != "ok":
            return None
        return ratio([self.nbytes / t for t in ours.times[column]], self.triad_bytes_per_s)


def measure_case(
    case: Case,
    peers: Mapping[str, Peer],
    profile: fs.Profile,
    schedule: Schedule,
    *,
    unfused: bool = True,
    time_limit_s: float = 60.0,
) -> Row:
    """Prepare, compare and time everybody on one case."""
    graph = read(case.model)
    planned = {}
    for name, method in ((FUSED, "exact"), (UNFUSED, "unfused")):
        if name == FUSED or unfused:
            planned[name] = plan_of(graph, profile, case, method, time_limit_s=time_limit_s)
    ready: dict[str, Runner] = {}
    entries: dict[str, Entry] = {}
    for name, peer in peers.items():
        made = _prepared(peer, case)
        if isinstance(made, str):
            entries[name] = Entry(made)
        else:
            ready[name] = made
    ready |= {name: entry.runner for name, entry in planned.items()}
    right = _compare(case, ready, entries)

    calls: dict[str, Callable[[], object]] = {}
    for name in right:
        runner = ready[name]
        if runner.preallocated is not None:
            calls[f"{name}/preallocated"] = runner.preallocated
        calls[f"{name}/fresh"] = runner.fresh
    copy_bytes = triad_bytes = fill_bytes = past_bytes = flops = 0
    if case.bound == "memory":
        calls["copy/"], calls["triad/"], copy_bytes, triad_bytes = limits.stream(case.nbytes)
        calls["fill/"], fill_bytes = limits.fill(case.nbytes)
        calls["past alone/"], calls["past/"], past_bytes = limits.past(case.nbytes)
    elif case.flops:
        calls["product/"], flops = limits.product()
    foreign = Foreign()
    times = interleave(calls, schedule)
    used = foreign.part()

    for name, error in right.items():
        fresh = times[f"{name}/fresh"]
        entries[name] = Entry("ok", error, {"preallocated": times.get(f"{name}/preallocated", fresh), "fresh": fresh})
    first = planned[FUSED].plan
    row = Row(
        case.name, case.family, case.bound, case.nbytes, case.flops, entries,
        [triad_bytes / t for t in times.get("triad/", [])],
        [copy_bytes / t for t in times.get("copy/", [])],
        [fill_bytes / t for t in times.get("fill/", [])],
        [past_bytes / t for t in times.get("past/", [])],
        [past_bytes / t for t in times.get("past alone/", [])],
        [flops / t for t in times.get("product/", [])],
        {name: entry.peak_bytes for name, entry in planned.items()},
        len(first.groups), first.status, used, case.whole_model,
    )  # fmt: skip
    gc.collect()
    return row


def _prepared(peer: Peer, case: Case) -> Runner | str:
    try:
        made = peer.prepare(case)
        if isinstance(made, Runner):
            made.fresh()
        return made
    except Exception as error:  # noqa: BLE001  whatever a library raises is a result: it cannot run the case
        return f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"


def _compare(case: Case, ready: Mapping[str, Runner], entries: dict[str, Entry]) -> dict[str, float]:
    """Compare everybody with the first that runs; return the largest differences of those that agree, enter the others."""
    reference: Sequence[Array] | None = None
    right: dict[str, float] = {}
    for name, runner in ready.items():
        for call in (runner.fresh, runner.preallocated):
            if call is None:
                continue
            got = [np.asarray(array) for array in runner.arrays(call())]
            if reference is None:
                reference = [array.copy() for array in got]
            error, fine = difference(got, reference, case)
            right[name] = max(error, right.get(name, 0.0))
            if not fine:
                entries[name] = Entry(f"differs by {error:.1e}", error)
                right.pop(name)
                break
    return right


def difference(got: Sequence[Array], want: Sequence[Array], case: Case) -> tuple[float, bool]:
    """Return the largest difference, relative to each output's largest magnitude, and whether all elements are within tolerance."""
    if len(got) != len(want):
        return float("inf"), False
    worst, fine = 0.0, True
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return float("inf"), False
        scale = float(np.abs(b).max(initial=0.0)) or 1.0
        off: Any = np.abs(a - b)
        worst = max(worst, float(off.max(initial=0.0)) / scale)
        fine = fine and bool(np.all(off <= case.rtol * np.abs(b) + case.atol * scale))
    return worst, fine
