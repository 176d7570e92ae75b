"""Results as data and as tables: JSON with every time of every round, CSV with one row a candidate, Markdown for people."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from experiments.benchmarks.lines import Line
from experiments.benchmarks.run import COLUMNS, FUSED, UNFUSED, Row
from experiments.benchmarks.startup import Start
from experiments.benchmarks.timing import Ratio, median


def write_json(
    path: Path, machine: Mapping[str, Any], versions: Mapping[str, str], rows: Sequence[Row], starts: Sequence[Start], lines: Sequence[Line]
) -> None:
    """Write all there is."""
    whole = {
        "machine": dict(machine), "peers": dict(versions), "rows": [asdict(row) for row in rows],
        "starts": [asdict(start) for start in starts], "lines": [asdict(line) for line in lines],
    }  # fmt: skip
    with _aside(path) as stream:
        json.dump(whole, stream, indent=1)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write one row for each case, candidate and column, with its median, least time and status."""
    with _aside(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["case", "family", "candidate", "column", "median_s", "least_s", "rounds", "error", "status"])
        for row in rows:
            for name, entry in row.entries.items():
                for column in COLUMNS:
                    times = entry.times.get(column, [])
                    shown = [f"{median(times):.9f}", f"{min(times):.9f}"] if times else ["", ""]
                    writer.writerow([row.name, row.family, name, column, *shown, len(times), f"{entry.error:.2e}", entry.status])


@contextmanager
def _aside(path: Path) -> Iterator[IO[str]]:
    """Write beside the target, then rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            yield stream
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def table(rows: Iterable[Row], column: str = "preallocated") -> str:
    """Render one line a case: our time, the best peer's, the ratio with its quartiles, and what limits say."""
    lines = [
        "| case | ours, ms | best peer | its ms | peer / ours | quartiles | unfused / fused | of triad |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        best, ours = row.best(column), row.entries.get(FUSED)
        mine = _ms(median(ours.times[column])) if ours and ours.status == "ok" else (ours.status if ours else "")
        theirs = _ms(median(row.entries[best].times[column])) if best else ""
        speed = row.speedup(column)
        quartiles = f"{speed.low:.2f} to {speed.high:.2f}" if speed else ""
        lines.append(
            f"| {row.name} | {mine} | {best or ''} | {theirs} | {_times(speed)} | {quartiles} | "
            f"{_times(row.fusion(column))} | {_times(row.of_triad(column))} |"
        )
    return "\n".join(lines)


def peers_table(rows: Iterable[Row], column: str = "preallocated") -> str:
    """Render one line a case with everybody's median in ms; a dash where it does not apply or does not agree."""
    rows = list(rows)
    names = [*dict.fromkeys(n for row in rows for n in row.entries if n not in (FUSED, UNFUSED)), UNFUSED, FUSED]
    lines = [f"| case | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = []
        for name in names:
            entry = row.entries.get(name)
            cells.append(_ms(median(entry.times[column])) if entry and entry.times else "-")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def limits_table(rows: Iterable[Row]) -> str:
    """Render the machine's limits at the size of each memory-bound case, and our rate, in GB/s as each counts its bytes."""
    lines = ["| case | ours | triad | copy | fill | past the caches | by one thread |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        ours = row.entries.get(FUSED)
        if row.triad_bytes_per_s and ours is not None and ours.status == "ok":
            rates = (
                [row.nbytes / t for t in ours.times["preallocated"]],
                row.triad_bytes_per_s,
                row.copy_bytes_per_s,
                row.fill_bytes_per_s,
                row.past_bytes_per_s,
                row.past_alone_bytes_per_s,
            )
            lines.append(f"| {row.name} | {' | '.join(f'{median(rate) / 1e9:.1f}' for rate in rates)} |")
    return "\n".join(lines)


def lines_table(lines: Iterable[Line]) -> str:
    """Render the lines, those that fail with where."""
    shown = ["| line | wanted | reached | holds | below |", "|---|---|---|---|---|"]
    shown += [f"| {x.what} | {x.wanted} | {x.reached} | {'yes' if x.holds else 'no'} | {', '.join(x.missed)} |" for x in lines]
    return "\n".join(shown)


def starts_table(starts: Iterable[Start]) -> str:
    """Render the starts."""
    shown = ["| model | core nodes | cold compile(), s | warm compile(), s |", "|---|---|---|---|"]
    return "\n".join([*shown, *(f"| {s.name} | {s.nodes} | {s.cold_s:.2f} | {s.warm_s:.3f} |" for s in starts)])


def _ms(seconds: float) -> str:
    ms = 1e3 * seconds
    return f"{ms:.3f}" if ms < 1 else f"{ms:.2f}" if ms < 10 else f"{ms:.1f}"


def _times(found: Ratio | None) -> str:
    return f"{found.median:.2f}" if found else ""
