"""The figure: how often faster than the best peer, case by case, losses included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.benchmarks.run import Row


def draw(path: Path, rows: Sequence[Row], column: str = "preallocated") -> None:
    """Draw a bar a case from 1, on a logarithmic axis, with the quartiles over the rounds.

    Parameters
    ----------
    path : Path
        Where to; its ending says which format.
    rows : sequence of Row
    column : str
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    shown = [(row, speed) for row in rows if (speed := row.speedup(column)) is not None]
    shown.sort(key=lambda pair: pair[1].median)
    figure, axis = pyplot.subplots(figsize=(8, 1 + 0.22 * len(shown)), layout="constrained")
    for k, (_, speed) in enumerate(shown):
        axis.barh(k, speed.median - 1, left=1, color="tab:blue" if speed.median >= 1 else "tab:red", height=0.7)
        axis.plot([speed.low, speed.high], [k, k], color="black", linewidth=1)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xscale("log")
    ticks = [0.25, 0.5, 0.8, 1, 1.25, 2, 4, 8]
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.set_yticks(range(len(shown)), [f"{row.name} ({row.best(column)})" for row, _ in shown], fontsize=7)
    axis.set_ylim(-0.7, len(shown) - 0.3)
    axis.set_xlabel("time of the best peer / ours; lines span the quartiles")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
