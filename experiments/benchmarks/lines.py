"""The lines that the kernels are held to, each with what was reached and where it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from experiments.benchmarks.run import FUSED, UNFUSED, Row
from experiments.benchmarks.startup import Start
from experiments.benchmarks.timing import geometric_mean

#: The column that the lines mean.
COLUMN = "preallocated"


@dataclass(frozen=True)
class Line:
    """One demand.

    Attributes
    ----------
    what : str
    wanted : str
    reached : str
        What was measured.
    holds : bool
    missed : tuple of str
        The cases below the line, each with its number.
    """

    what: str
    wanted: str
    reached: str
    holds: bool
    missed: tuple[str, ...] = ()


def check_lines(rows: Sequence[Row], starts: Sequence[Start]) -> list[Line]:
    """Hold the results against every line that they say something about."""
    single = [row for row in rows if not row.whole_model]
    whole = [row for row in rows if row.whole_model]
    lines: list[Line | None] = [_agreement(rows)]
    lines += [
        _each("workload against the best peer", [r for r in single if r.family != "convolution"], _speedup, 0.9),
        _each("dense convolution against the best peer", [r for r in single if r.family == "convolution"], _speedup, 0.8),
        _mean("workloads against the best peer", single, _speedup, 1.3),
        _each("memory-bound workload against triad at its size", [r for r in single if r.bound == "memory"], _triad, 0.8),
        _mean("transformer and pointwise models", [r for r in whole if r.family != "convolutional"], _speedup, 1.0),
        _mean("convolutional models", [r for r in whole if r.family == "convolutional"], _speedup, 0.7),
        _each("fused against unfused: chains of 8 and more", [r for r in single if _long_chain(r)], _fusion, 3.0),
        _each("fused against unfused: softmax and layer norm", [r for r in single if r.family in ("softmax", "norm")], _fusion, 2.0),
        _memory(rows),
        _starts("warm start, compile() in s for 1,000 nodes", starts, lambda s: s.warm_s_per_1000_nodes, 1.0),
        _starts("cold start, compile() in s", starts, lambda s: s.cold_s, 60.0),
    ]
    return [line for line in lines if line is not None]


def _long_chain(row: Row) -> bool:
    return row.family == "chain" and int(row.name.removeprefix("chain").split("_")[0]) >= 8


def _speedup(row: Row) -> float | None:
    found = row.speedup(COLUMN)
    return found.median if found else None


def _triad(row: Row) -> float | None:
    found = row.of_triad(COLUMN)
    return found.median if found else None


def _fusion(row: Row) -> float | None:
    found = row.fusion(COLUMN)
    return found.median if found else None


def _agreement(rows: Iterable[Row]) -> Line | None:
    wrong = [f"{row.name} {name}" for row in rows for name in (FUSED, UNFUSED) if name in row.entries and row.entries[name].status != "ok"]
    return Line("our outputs agree with the peers'", "all", f"{len(wrong)} do not", not wrong, tuple(wrong))


def _numbers(rows: Iterable[Row], of: Callable[[Row], float | None]) -> dict[str, float]:
    return {row.name: value for row in rows if (value := of(row)) is not None}


def _each(what: str, rows: Sequence[Row], of: Callable[[Row], float | None], least: float) -> Line | None:
    found = _numbers(rows, of)
    if not found:
        return None
    low = sorted((value, name) for name, value in found.items() if value < least)
    worst = min(found.values())
    return Line(f"each {what}", f"at least {least:g}", f"worst {worst:.2f}", not low, tuple(f"{name} {value:.2f}" for value, name in low))


def _mean(what: str, rows: Sequence[Row], of: Callable[[Row], float | None], least: float) -> Line | None:
    found = _numbers(rows, of)
    if not found:
        return None
    mean = geometric_mean(list(found.values()))
    return Line(f"geometric mean, {what}", f"at least {least:g}", f"{mean:.2f}", mean >= least)


def _memory(rows: Iterable[Row]) -> Line | None:
    parts = {
        row.name: row.peak_bytes[FUSED] / row.peak_bytes[UNFUSED]
        for row in rows
        if row.peak_bytes.get(UNFUSED) and row.peak_bytes[UNFUSED] > 0
    }
    if not parts:
        return None
    mean = geometric_mean([max(part, 1e-9) for part in parts.values()])
    above = tuple(f"{name} {part:.3f}" for name, part in parts.items() if part > 1)
    holds = mean <= 0.9 and not above
    return Line("planned peak memory over the unfused plan's", "mean at most 0.9, none above 1", f"mean {mean:.2f}", holds, above)


def _starts(what: str, starts: Sequence[Start], of: Callable[[Start], float], most: float) -> Line | None:
    if not starts:
        return None
    over = tuple(f"{start.name} {of(start):.2f}" for start in starts if of(start) >= most)
    return Line(what, f"under {most:g}", f"worst {max(map(of, starts)):.2f}", not over, over)
