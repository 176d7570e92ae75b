"""J of every planning method over J of the optimum, for models and profiles, as a Markdown table.

J is modelled, so the figures are the same on every machine. Run from the repository's root:

    python -m experiments.policies squeezenet resnet50 --profile local --profile nvidia-h100-sxm
    python -m experiments.policies model.onnx --dim batch=1
    python -m experiments.policies --data experiments/policies.csv --summary

The last line plans every light network of the ``onnx`` package on every profile, writes the data beside this file, and prints the
table of the README.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx

import fusion_search as fs
from fusion_search.frontends.light import light_names, seeded_light

Row = dict[str, str | float]


def read(model: str, *, dims: Mapping[str, int] | None = None, seed: int = 0) -> fs.Graph:
    """Read a model file, or a light network of the ``onnx`` package by its name.

    Parameters
    ----------
    model : str
        One of `light_names()`, or a path.
    dims : mapping of str to int, optional
        Extents of the symbolic dimensions of a model file.
    seed : int
        Of a light network's weights, which J does not depend on.
    """
    if model not in light_names():
        return fs.load(model, dims=dims)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model}.onnx"
        onnx.save(seeded_light(model, seed=seed), path)
        return fs.load(path)


def ratios(
    graph: fs.Graph, profile: fs.Profile, *, name: str = "", methods: Sequence[str] | None = None, time_limit_s: float = 60.0
) -> Row:
    """Plan one graph by every method.

    Returns
    -------
    dict
        `model`, `profile`, `status` of the exact plan, and for each other method its J over the exact plan's.

    Raises
    ------
    ValueError
        When a plan fails its check, or costs less than an optimum.
    """
    best = fs.search(graph, profile, time_limit_s=time_limit_s)
    row: Row = {"model": name or graph.name, "profile": profile.name, "status": best.status}
    for method in methods or [method for method in fs.methods() if method != "exact"]:
        plan = fs.search(graph, profile, method=method)
        if fs.check(graph, plan) or plan.cost_s < best.lower_bound_s:
            raise ValueError(f"{row['model']} on {profile.name}: the plan of {method} is not sound")
        row[method] = plan.cost_s / best.cost_s if best.cost_s else 1.0
    return row


def markdown(rows: Iterable[Row]) -> str:
    """Render rows as a table, a model's name on its first line only; an unproved optimum is marked with a tilde."""
    rows = list(rows)
    columns = [key for key in rows[0] if key not in ("model", "profile", "status")]
    lines = [f"| network | profile | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    before = ""
    for row in rows:
        unproved = "" if row["status"] == "optimal" else "~"
        cells = " | ".join(unproved + _short(float(row[method])) for method in columns)
        lines.append(f"| {row['model'] if row['model'] != before else ''} | `{row['profile']}` | {cells} |")
        before = str(row["model"])
    return "\n".join(lines)


def summary(rows: Iterable[Row]) -> str:
    """Render rows as one line a profile: geometric mean over the models, and the worst of them in brackets."""
    by_profile: dict[str, list[Row]] = {}
    for row in rows:
        by_profile.setdefault(str(row["profile"]), []).append(row)
    methods = [key for key in next(iter(by_profile.values()))[0] if key not in ("model", "profile", "status")]
    lines = [f"| profile | {' | '.join(methods)} |", "|---" * (1 + len(methods)) + "|"]
    for profile, group in by_profile.items():
        columns = [[float(row[method]) for row in group] for method in methods]
        cells = [f"{_short(statistics.geometric_mean(column))} ({_short(max(column))})" for column in columns]
        unproved = "" if all(row["status"] == "optimal" for row in group) else " ~"
        lines.append(f"| `{profile}`{unproved} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_data(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as CSV, ratios with six digits behind the point."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows({key: f"{value:.6f}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)


def read_data(path: str | Path) -> list[Row]:
    """Read what `write_data` wrote."""
    text = ("model", "profile", "status")
    with open(path, newline="", encoding="utf-8") as file:
        return [{key: value if key in text else float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _short(ratio: float) -> str:
    return "1" if ratio == 1.0 else f"{ratio:.1f}" if ratio >= 1.095 else f"{ratio:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table that the command line asks for."""
    parser = argparse.ArgumentParser(description="J of every method over J of the optimum")
    parser.add_argument("models", nargs="*", help="names of light networks, or model files; all light networks by default")
    parser.add_argument("--profile", action="append", default=[], help="may be given again; all by default")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=EXTENT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", metavar="FILE", help="write the rows to this CSV file")
    parser.add_argument("--summary", action="store_true", help="one line a profile: geometric mean, and worst in brackets")
    given = parser.parse_args(arguments)
    dims = {name: int(extent) for name, _, extent in (dim.partition("=") for dim in given.dim)}
    profiles = [fs.load_profile(name) for name in given.profile or fs.list_profiles()]
    rows = []
    for model in given.models or light_names():
        graph = read(model, dims=dims, seed=given.seed)
        rows += [ratios(graph, profile, name=Path(model).stem) for profile in profiles]
        if given.data:
            write_data(rows, given.data)
    print(summary(rows) if given.summary else markdown(rows))


if __name__ == "__main__":
    main()
