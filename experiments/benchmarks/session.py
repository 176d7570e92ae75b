"""One run of the benchmark, from the request to the files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import fusion_search as fs
from experiments.benchmarks import report
from experiments.benchmarks.case import Case
from experiments.benchmarks.figure import draw
from experiments.benchmarks.lines import Line, check_lines
from experiments.benchmarks.machine import describe
from experiments.benchmarks.models import model_cases, model_names
from experiments.benchmarks.peers import PEERS, load_peers
from experiments.benchmarks.run import Row, measure_case
from experiments.benchmarks.startup import Start, measure_start
from experiments.benchmarks.timing import Schedule
from experiments.benchmarks.workloads import WORKLOADS, cases
from fusion_search.errors import FusionSearchError

#: Whole models of the short form.
QUICK_MODELS = ("encoder", "squeezenet")


@dataclass(frozen=True)
class Request:
    """What to measure; the fields are the options of the command line."""

    only: tuple[str, ...] = ()
    models: Path | None = None
    batches: tuple[int, ...] = (1, 8)
    peers: tuple[str, ...] = ()
    threads: int = 1
    rounds: int | None = None
    quick: bool = False
    profile: str = "local"
    time_limit_s: float = 60.0
    starts: bool = True
    output: Path | None = None

    def schedule(self) -> Schedule:
        """How long to measure."""
        schedule = Schedule(rounds=5, block_s=0.004, warm_s=0.002) if self.quick else Schedule()
        return Schedule(self.rounds, schedule.block_s, schedule.warm_s) if self.rounds else schedule

    def names(self) -> tuple[list[str], list[str] | None]:
        """Workloads and whole models; None for all of the latter.

        Raises
        ------
        SystemExit
            For a name that is neither.
        """
        if not self.only:
            return list(WORKLOADS), list(QUICK_MODELS) if self.quick and not self.models else None
        known = model_names(self.models)
        strange = [name for name in self.only if name not in WORKLOADS and name not in known]
        if strange:
            raise SystemExit(f"unknown {', '.join(strange)}; workloads: {', '.join(WORKLOADS)}; models: {', '.join(known)}")
        return [n for n in self.only if n in WORKLOADS], [n for n in self.only if n not in WORKLOADS]


def run(request: Request) -> list[Line]:
    """Measure, print the tables, write the files; return the lines."""
    workloads, models = request.names()
    wanted = list(request.peers or PEERS)
    if strange := [name for name in wanted if name not in PEERS]:
        raise SystemExit(f"unknown peer {', '.join(strange)}; there are {', '.join(PEERS)}")
    peers, absent = load_peers(wanted, request.threads)
    versions = {name: peer.version for name, peer in peers.items()} | {gone.name: f"absent: {gone.reason}" for gone in absent}
    machine = describe(request.threads)
    _say("peers: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    profile = fs.load_profile(request.profile)
    rows: list[Row] = []
    starts: list[Start] = []

    def measured(given: Iterator[Case]) -> Iterator[Case]:
        for case in given:
            try:
                rows.append(measure_case(case, peers, profile, request.schedule(), time_limit_s=request.time_limit_s))
            except (FusionSearchError, ValueError) as error:
                _say(f"{case.name}: {error}")
                continue
            _say(report.table(rows[-1:]).splitlines()[-1])
            yield case

    for _ in measured(cases(workloads)):
        pass
    for case in measured(model_cases(models, request.models, request.batches)):
        if request.starts and case.name.endswith(f"_b{request.batches[0]}"):
            starts.append(measure_start(case, request.profile))
    lines = check_lines(rows, starts)
    text = _text(machine, versions, rows, starts, lines)
    print(text)
    if request.output is not None:
        request.output.mkdir(parents=True, exist_ok=True)
        report.write_json(request.output / "results.json", machine, versions, rows, starts, lines)
        report.write_csv(request.output / "results.csv", rows)
        (request.output / "results.md").write_text(text + "\n", encoding="utf-8")
        draw(request.output / "speedup.png", rows)
    return lines


def _text(machine: dict[str, str | int], versions: dict[str, str], rows: list[Row], starts: list[Start], lines: list[Line]) -> str:
    parts = ["; ".join(f"{key} {value}" for key, value in machine.items()), "; ".join(f"{k} {v}" for k, v in versions.items())]
    for column in ("preallocated", "fresh"):
        parts += [f"## Outputs {column}", report.table(rows, column)]
    parts += ["## Everybody, ms", report.peers_table(rows)]
    if any(row.triad_bytes_per_s for row in rows):
        parts += ["## Memory, GB/s", report.limits_table(rows)]
    parts += ["## Lines", report.lines_table(lines)]
    if starts:
        parts += ["## Starts", report.starts_table(starts)]
    return "\n\n".join(parts)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
