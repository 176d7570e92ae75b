"""The commands that measure and compare: tune and sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusion_search.cli import FAILURE, UNSOUND, checked, feeds_from, plan_for, print_json
from fusion_search.cli_options import debug_option, dim_option, json_option, search_options, type_file

if TYPE_CHECKING:
    from fusion_search.search.plan import PlanGroup


@click.command()
@click.argument("model", type=type_file)
@search_options
@dim_option
@click.option("--plan", "plan_file", type=type_file, help="Tune this saved plan instead of searching one.")
@click.option("--feeds", type=type_file, help="Inputs from an .npz file, by name; seeded random ones by default.")
@click.option("--trials", type=click.IntRange(1), default=32, show_default=True, help="Most schedules measured for a group.")
@click.option("--groups", type=click.IntRange(1), default=8, show_default=True, help="Most kinds of equal groups that are tuned.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the sampler and of random inputs.")
@click.option("--tune-limit", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds to measure.")
@json_option
@debug_option
def tune(
    model: str,
    dims: dict[str, int],
    plan_file: str | None,
    feeds: str | None,
    trials: int,
    groups: int,
    seed: int,
    tune_limit: float,
    as_json: bool,
    save: str | None,
    **search: Any,
) -> int:
    """Find schedules that run MODEL's plan faster here.

    Measures block sizes, and from where on a kernel runs on several threads, for the groups that take longest, in turn with what runs
    now. Prints what was gained; --save keeps the plan with its schedules.
    """
    import fusion_search as fs
    from fusion_search.report.progress import say, step

    arrays = feeds_from(feeds) if feeds else None
    if plan_file is None:
        planned = plan_for(model, dims, baselines=False, save=None, **search)
        found, violations = planned.plan, planned.facts["violations"]
    else:
        with step(f"read {Path(model).name}"):
            graph = fs.load(model, dims=dims)
            found = fs.Plan.load(plan_file, graph)
        violations = checked(found.graph, found)
    if violations:
        click.echo("\n".join(violations))
        return UNSOUND
    with step("compile"):
        fs.compile(found)
    with step("tune"):
        tuned = fs.tune(found, arrays, trials=trials, groups=groups, seed=seed, time_limit_s=tune_limit, progress=say)
    violations = checked(tuned.graph, tuned)
    with step("verify against the reference"):
        verified = fs.verify(tuned, arrays)
    if save:
        tuned.save(save)
        say(f"wrote {save}")
    said = tuned.statistics["tuning"]
    rows = [_tuned_row(k, group) for k, group in enumerate(tuned.groups) if group.tuned is not None]
    if as_json:
        facts = {"model": Path(model).stem, "dims": tuned.dims, "profile": tuned.profile.name, "cost_s": tuned.cost_s, "tuning": said}
        verdict = {key: getattr(verified, key) for key in ("ok", "max_abs", "max_rel", "reference")}
        print_json(facts | {"groups": rows, "verify": verdict, "violations": violations})
    else:
        _show_tuned(rows, said)
    if violations:
        return UNSOUND
    return 0 if verified.ok else FAILURE


def _tuned_row(index: int, group: PlanGroup) -> dict[str, Any]:
    tuned = group.tuned
    assert tuned is not None
    blocks = " ".join(f"{tile.tile}/{'*'.join(str(loop.extent) for loop in tile.loops)}" for tile in tuned.schedule.tiles)
    row = {"group": index, "origin": " ".join(group.origin), "blocks": blocks, "items_per_task": tuned.items_per_task}
    costs = {"cost_s": group.cost_s, "tuned_cost_s": tuned.cost_s}
    measured = ("before_s", "after_s", "ratio", "ratio_low", "ratio_high", "trials")
    return row | costs | {key: getattr(tuned, key) for key in measured}


def _show_tuned(rows: Sequence[dict[str, Any]], said: Mapping[str, Any]) -> None:
    from fusion_search.report.text import console, show_records
    from fusion_search.search.wording import seconds

    if rows:
        show_records(
            console(), rows, ["group", "origin", "blocks", "items_per_task", "before_s", "after_s", "ratio", "ratio_low", "ratio_high"]
        )
    spread = f"{said['ratio_low']:.3f} to {said['ratio_high']:.3f}"
    gained = f"{said['ratio']:.3f} of the time ({spread}, {said['pairs']} pairs)" if said["kept"] else "no schedule is faster"
    click.echo(f"whole plan: {seconds(said['before_s'])} before, {seconds(said['after_s'])} after: {gained}")


def _listed(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> list[str]:
    return [name.strip() for word in words for name in word.split(",") if name.strip()]


def _choices(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        extents = text.split(",")
        if not (equals and name and all(e.isascii() and e.isdigit() and len(e) < 19 and int(e) for e in extents)):
            raise click.BadParameter(f"expected NAME=EXTENT,EXTENT with whole numbers from 1, such as batch=1,8; got {word!r}")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        found[name] = [int(extent) for extent in extents]
    return found


def _weights(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> list[dict[str, float]]:
    found = []
    for word in words:
        pairs = [part.rpartition("=") for part in word.split(",")]
        try:
            found.append({name.strip(): float(number) for name, _, number in pairs if name})
        except ValueError:
            found.append({})
        if len(found[-1]) != len(pairs):
            raise click.BadParameter(f"expected TERM=WEIGHT,TERM=WEIGHT, such as launch=2,spill=0; got {word!r}")
    return found


@click.command()
@click.argument("model", type=type_file)
@click.option("--profiles", multiple=True, default=("local",), show_default=True, metavar="A,B", callback=_listed, help="Machines.")
@click.option("--dims", multiple=True, metavar="NAME=1,8", callback=_choices, help="Extents of a symbolic dimension.")
@click.option("--methods", multiple=True, default=("exact",), show_default=True, metavar="A,B", callback=_listed, help="Ways to plan.")
@click.option("--weights", multiple=True, metavar="TERM=W,...", callback=_weights, help="Weights of the terms; once for each choice.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds for each search.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes.")
@json_option
@debug_option
def sweep(
    model: str,
    profiles: list[str],
    dims: dict[str, list[int]],
    methods: list[str],
    weights: list[dict[str, float]],
    time_limit: float,
    jobs: int,
    as_json: bool,
) -> None:
    """Plan MODEL for every combination of machines, extents, methods and weights.

    One record for each, always in the same order.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from contextlib import nullcontext

    import fusion_search as fs
    from fusion_search.report.progress import step

    # forked processes would inherit threads that hold locks
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) if jobs > 1 else nullcontext()
    with step(f"sweep {Path(model).name}"), pool as executor:
        rows = fs.sweep(model, profiles, dims=dims, methods=methods, weights=weights or None, time_limit_s=time_limit, executor=executor)
    if as_json:
        print_json({"records": rows})
        return
    from fusion_search.report.text import console, show_records

    weighted = [key for key in rows[0] if key.startswith("weight_")] if weights else []
    bound = [key for key in rows[0] if key.startswith("dim_")]
    show_records(console(), rows, [*bound, "profile", "method", *weighted, "status", "cost_s", "gap", "launches", "moved_bytes"])
