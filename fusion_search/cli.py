"""The command line: arguments in, calls of the public interface, tables or JSON out.

Data goes to stdout, progress to stderr. Exit status: 0 fine, 1 failure, 2 usage, 3 a plan that fails its check. Whatever is slow to
import is imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import re
import statistics
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fusion_search.cli_options import (
    DEBUG,
    debug_option,
    dim_option,
    json_option,
    names_of,
    pairs_option,
    save_option,
    search_options,
    top_option,
    type_file,
)  # fmt: skip
from hardware_profiles.errors import one_line

if TYPE_CHECKING:
    import numpy as np

    import fusion_search as fs

FAILURE, USAGE, UNSOUND = 1, 2, 3


#: Commands with a module of their own, which is imported when one of them is asked for.
ELSEWHERE = {"sweep": "fusion_search.cli_tuning", "tune": "fusion_search.cli_tuning"}


class _Commands(click.Group):
    """Turns what a command raises into one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in ELSEWHERE:
            found: click.Command = getattr(importlib.import_module(ELSEWHERE[cmd_name]), cmd_name)
            return found
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # the border of the program: whatever goes wrong becomes one line
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click ends quietly when the reader of a pipe has gone
            if ctx.meta.get(DEBUG):
                traceback.print_exc()
            _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    from fusion_search.errors import FusionSearchError, UsageError

    if isinstance(error, UsageError):
        raise click.UsageError(_as_option(str(error))) from error
    if isinstance(error, FusionSearchError):
        raise click.ClickException(str(error)) from error
    if isinstance(error, OSError) and error.strerror:
        raise click.ClickException(f"{error.filename}: {error.strerror}" if error.filename else error.strerror) from error
    raise click.ClickException(f"{type(error).__name__}: {error} (not expected; --debug shows where)") from error


def _as_option(text: str) -> str:
    """Spell a remedy of the Python interface, ``dims={'batch': 1}``, as the option that does the same."""

    def options(found: re.Match[str]) -> str:
        return " ".join(f"--dim {name}={extent}" for name, extent in re.findall(r"'([^']*)': (\d+)", found[0]))

    return re.sub(r"\bdims=\{[^}]*\}", options, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments
        The words after the program's name; by default those of this process.

    Returns
    -------
    int
        0 fine, 1 failure, 2 usage, 3 a plan that fails its check.
    """
    try:
        status = cli.main(args=arguments, prog_name="fusion-search", standalone_mode=False)
    except click.UsageError as error:
        remedy = f" (try '{error.ctx.command_path} --help')" if error.ctx else ""
        click.echo(f"error: {one_line(error.format_message())}{remedy}", err=True)
        return USAGE
    except click.ClickException as error:
        click.echo(f"error: {one_line(error.format_message())}", err=True)
        return FAILURE
    except click.Abort:
        click.echo("error: interrupted", err=True)
        return FAILURE
    return status if isinstance(status, int) else 0


# ---------------------------------------------------------------- commands


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="fusion-search")
@debug_option
def cli() -> None:
    """Find the operator-fusion plan of a model that provably minimises a hardware cost model, and run it."""


@cli.command()
@click.option("--model", default="squeezenet", show_default=True, help="A light network of the onnx package.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the model's weights.")
@search_options
@pairs_option
@top_option
@json_option
@debug_option
def demo(model: str, seed: int, as_json: bool, pairs: int, top: int, **search: Any) -> int:
    """Run a network that ships with onnx.

    Does all that `run` does on a light network of the onnx package, which gets seeded weights.
    """
    import onnx

    from fusion_search.frontends.light import light_names, seeded_light

    if model not in light_names():
        raise click.BadParameter(f"{model!r} is not one of {', '.join(light_names())}", param_hint="--model")
    with tempfile.TemporaryDirectory(prefix="fusion-search-") as folder:
        path = Path(folder) / f"{model}.onnx"
        onnx.save(seeded_light(model, seed=seed), path)
        return _run(str(path), {}, None, as_json=as_json, pairs=pairs, top=top, **search)


@cli.command()
@click.argument("model", type=type_file)
@search_options
@dim_option
@click.option("--assert-fused", multiple=True, metavar="A,B", callback=names_of, help="Fail, with the reason, unless one kernel has both.")
@top_option
@json_option
@debug_option
def plan(model: str, dims: dict[str, int], as_json: bool, top: int, assert_fused: tuple[tuple[str, ...], ...], **search: Any) -> int:
    """Search the best fusion plan of MODEL.

    Prints what each group costs, the certificate (status, J, lower bound, gap, space) and what the baselines cost. Names are those of
    the model's nodes, or of core nodes.
    """
    import fusion_search as fs

    planned = plan_for(model, dims, **search)
    if as_json:
        print_json(planned.facts)
    else:
        _show_plan(planned, top)
    if planned.facts["violations"]:
        return UNSOUND
    for first, *others in assert_fused:
        for other in others:
            fs.assert_fused(planned.plan, first, other)
    return 0


@cli.command()
@click.argument("model", type=type_file)
@click.argument("nodes", nargs=-1, metavar="[A B]")
@search_options
@dim_option
@click.option("--flips/--no-flips", default=True, help="Look for where the decision flips.")
@json_option
@debug_option
def explain(model: str, nodes: tuple[str, ...], dims: dict[str, int], flips: bool, as_json: bool, **search: Any) -> int:
    """Say why nodes A and B of MODEL share a kernel or do not.

    Which rule forbids it, or what J is when it is otherwise, and where the decision flips. Without nodes, prints the fusions worth
    most, the groups that cost most, and the edges whose cut costs most.
    """
    import fusion_search as fs
    from fusion_search.report.explained import facts
    from fusion_search.report.progress import step

    if len(nodes) not in (0, 2):
        raise click.UsageError(f"expected two nodes or none, got {len(nodes)}")
    planned = plan_for(model, dims, baselines=False, **search)
    with step("explain"):
        found = fs.explain(planned.plan, *nodes, flips=flips, time_limit_s=search["time_limit"])
    if as_json:
        print_json({key: planned.facts[key] for key in ("model", "dims", "profile", "method", "status", "cost_s")} | facts(found))
    else:
        for line in str(found).splitlines():
            click.echo(line[: len(line) - len(line.lstrip())] + one_line(line))
    return UNSOUND if planned.facts["violations"] else 0


@cli.command()
@click.argument("model", type=type_file)
@search_options
@dim_option
@click.option("--feeds", type=type_file, help="Inputs from an .npz file, by name; seeded random ones by default.")
@pairs_option
@top_option
@json_option
@debug_option
def run(model: str, dims: dict[str, int], feeds: str | None, as_json: bool, pairs: int, top: int, **search: Any) -> int:
    """Plan, compile, verify and measure MODEL.

    Does what `plan` does, compiles the plan for this machine, compares its results with an independent reference, and measures
    it against the plan that fuses nothing.
    """
    return _run(model, dims, feeds, as_json=as_json, pairs=pairs, top=top, **search)


@cli.command()
@click.argument("model", type=type_file)
@click.argument("plan_file", metavar="PLAN", type=type_file)
@dim_option
@json_option
@debug_option
def check(model: str, plan_file: str, dims: dict[str, int], values: dict[str, list[float]], as_json: bool) -> int:
    """Check a saved PLAN against its MODEL.

    The checker shares no code with the search. Exits with 3 when the plan is not sound.
    """
    import fusion_search as fs
    from fusion_search.report.progress import step
    from fusion_search.search.wording import seconds

    with step(f"read {model}"):
        graph = fs.load(model, dims=dims, values=values)
        found = fs.Plan.load(plan_file, graph)
    violations = checked(found.graph, found)
    if as_json:
        print_json({"model": model, "plan": plan_file, "sound": not violations, "violations": violations})
    else:
        click.echo("\n".join(violations) if violations else f"{plan_file}: sound, {found.launches} launches, J {seconds(found.cost_s)}")
    return UNSOUND if violations else 0


@cli.command()
@click.argument("model", type=type_file)
@click.argument("plan_file", metavar="PLAN", type=type_file)
@dim_option
@save_option
@json_option
@debug_option
def replay(model: str, plan_file: str, dims: dict[str, int], values: dict[str, list[float]], save: str | None, as_json: bool) -> int:
    """Carry a saved PLAN over to a changed MODEL.

    Keeps every group that is still legal, plans the rest anew, and names every mismatch: nodes that are gone, new, renamed or changed,
    groups that are no longer legal and why.
    """
    import fusion_search as fs
    from fusion_search.report.explained import replayed

    graph = fs.load(model, dims=dims, values=values)
    found = fs.replay(plan_file, graph)
    violations = checked(found.plan.graph, found.plan)
    if save:
        found.plan.save(save)
    if as_json:
        print_json({"model": model, "plan": plan_file} | replayed(found) | {"violations": violations})
    else:
        click.echo("\n".join([*(one_line(line) for line in str(found).splitlines()), *violations]))
    return UNSOUND if violations else 0


@cli.command()
@click.argument("name", required=False)
@json_option
@debug_option
def profiles(name: str | None, as_json: bool) -> None:
    """List the hardware profiles, or one in full.

    With NAME, which may be the path of a TOML file, prints every figure of that profile with its source.
    """
    import fusion_search as fs

    if name is None:
        rows = [_profile_row(fs.load_profile(known)) for known in fs.list_profiles()]
        columns = ["name", "kind", "runs_here", "dram_bandwidth_bytes_per_s", "launch_overhead_s", "parallel_units", "description"]
    else:
        import hardware_profiles

        fs.load_profile(name)  # refuses what is wrong in the words of the public interface
        rows = hardware_profiles.records(name)
        columns = ["field", "value", "kind", "source", "note"]
    if as_json:
        print_json({"profiles" if name is None else "figures": rows})
        return
    from fusion_search.report.text import console, show_records

    show_records(console(), rows, columns)


def _profile_row(profile: fs.Profile) -> dict[str, object]:
    import msgspec

    row: dict[str, object] = msgspec.to_builtins(profile, order="deterministic")
    return row


# ---------------------------------------------------------------- the work of plan and run


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, the baselines on the same cost, and what JSON says of them."""

    plan: fs.Plan
    baselines: dict[str, fs.Plan]
    facts: dict[str, Any]


def _constraints(
    must_fuse: Sequence[Sequence[str]],
    never_fuse: Sequence[Sequence[str]],
    fusion_off: Sequence[str],
    keep: Sequence[str],
    peak_bytes: int | None,
    min_gain: float | None,
) -> list[Any]:
    import fusion_search as fs

    found: list[Any] = [fs.must_fuse(*names) for names in must_fuse]
    found += [fs.never_fuse(*names) for names in never_fuse]
    found += [fs.fusion_off(op=op) for op in fusion_off]
    found += [fs.keep(*keep)] if keep else []
    found += [] if peak_bytes is None else [fs.peak_bytes(peak_bytes)]
    return found if min_gain is None else [*found, fs.min_gain_s(min_gain)]


def plan_for(
    model: str,
    dims: dict[str, int],
    *,
    profile: str,
    method: str,
    time_limit: float,
    save: str | None,
    values: Mapping[str, Any] | None = None,
    baselines: bool = True,
    distribute: bool = False,
    **demands: Any,
) -> _Planned:
    import fusion_search as fs
    from fusion_search.errors import UsageError
    from fusion_search.report.progress import say, step

    if method not in fs.methods():
        raise click.BadParameter(f"{method!r} is not one of {', '.join(fs.methods())}", param_hint="--method")
    target = fs.load_profile(profile)
    demanded = _constraints(**demands)
    with step(f"read {Path(model).name}"):
        graph = fs.load(model, dims=dims, values=values)
    for name in sorted(graph.source.asked) if graph.source is not None else ():
        say(f"input {name!r} decides shapes or places; what reads it is not planned unless --value {name}=... binds it")
    tried: list[fs.TriedSite] = []
    if distribute:
        with step("distribute maps over concats") as tell:

            def told(site: fs.TriedSite) -> None:
                tried.append(site)
                tell(str(site))

            graph = fs.distribute(graph, target, time_limit_s=time_limit, constraints=demanded, progress=told)
    with step(f"search {method}"):
        found = fs.search(graph, target, method=method, time_limit_s=time_limit, constraints=demanded)
    others: dict[str, fs.Plan] = {}
    for other in [name for name in fs.methods() if baselines and name not in ("exact", method)]:
        try:
            others[other] = fs.search(graph, target, method=other, constraints=demanded)
        except UsageError as error:  # the method cannot do what is demanded
            say(f"{other}: {error}")
    violations = checked(graph, found)
    if save:
        found.save(save)
        say(f"wrote {save}")
    facts: dict[str, Any] = {"model": Path(model).stem, "dims": dims, "profile": profile, "method": method}
    facts |= {key: getattr(found, key) for key in ("status", "cost_s", "lower_bound_s", "gap", "terms", "bytes_moved", "launches", "space")}
    costs = ("cost_s", "bytes_moved", "launches")
    facts["baselines"] = {name: {key: getattr(other, key) for key in costs} for name, other in others.items()}
    facts |= {"violations": violations, "groups": found.records()}
    if distribute:
        facts["distributed"] = [asdict(site) for site in tried]
    return _Planned(found, others, facts)


def checked(graph: fs.Graph, found: fs.Plan) -> list[str]:
    import fusion_search as fs
    from fusion_search.report.progress import step

    with step("check"):
        return [one_line(str(violation)) for violation in fs.check(graph, found)]


def _run(model: str, dims: dict[str, int], feeds: str | None, *, as_json: bool, pairs: int, top: int, **search: Any) -> int:
    import fusion_search as fs
    from fusion_search.report.progress import step

    arrays = feeds_from(feeds) if feeds else None
    planned = plan_for(model, dims, **search)
    facts = planned.facts
    if facts["violations"]:
        print_json(facts) if as_json else _show_plan(planned, top)
        return UNSOUND
    with step("compile") as tell:
        fs.compile(planned.plan, progress=tell)
    with step("verify against the reference"):
        verified = fs.verify(planned.plan, arrays)
    facts["verify"] = {key: getattr(verified, key) for key in ("ok", "max_abs", "max_rel", "reference")}
    with step("measure fused against unfused"):
        facts["measure"] = _measured(planned.plan, planned.baselines.get("unfused", planned.plan), arrays, pairs)
    print_json(facts) if as_json else _show_plan(planned, top)
    if not verified.ok:
        click.echo(f"error: results differ from the reference: {verified.max_abs:.3g} absolute, {verified.max_rel:.3g} relative", err=True)
    return 0 if verified.ok else FAILURE


def feeds_from(path: str) -> dict[str, np.ndarray[Any, Any]]:
    import zipfile

    import numpy as np

    from fusion_search.errors import FeedError

    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, AttributeError, zipfile.BadZipFile):
        raise FeedError("holds no arrays by name", where=path, hint="write it with numpy.savez(path, x=...)") from None


def _measured(found: fs.Plan, unfused: fs.Plan, feeds: Mapping[str, Any] | None, pairs: int) -> dict[str, Any]:
    """Measure two plans in turn, so that both see the same noise."""
    import fusion_search as fs

    both = [(fs.measure(found, feeds), fs.measure(unfused, feeds)) for _ in range(pairs)]
    ratios = [slow.median_s / fast.median_s for fast, slow in both]
    return {
        "pairs": pairs,
        "fused_s": statistics.median(fast.median_s for fast, _ in both),
        "unfused_s": statistics.median(slow.median_s for _, slow in both),
        "speedup": statistics.median(ratios),
        "speedup_range": [min(ratios), max(ratios)],
        "fused_launches": found.launches,
        "unfused_launches": unfused.launches,
        "fused_peak_bytes": both[-1][0].peak_bytes,
        "unfused_peak_bytes": both[-1][1].peak_bytes,
        "fused_groups_s": [statistics.median(column) for column in zip(*(fast.groups for fast, _ in both), strict=True)],
    }


def print_json(value: Mapping[str, Any]) -> None:
    import msgspec

    text = msgspec.json.encode(value, enc_hook=lambda other: other.item() if hasattr(other, "item") else str(other))
    click.echo(msgspec.json.format(text, indent=2))


def _show_plan(planned: _Planned, top: int) -> None:
    from fusion_search.report.text import console, show_distributed, show_plan, show_run

    facts = planned.facts
    bound = "".join(f", {name}={extent}" for name, extent in facts["dims"].items())
    title = f"{facts['model']}{bound} on {facts['profile']}, {facts['method']}"
    if "distributed" in facts:
        show_distributed(console(), facts["distributed"])
    show_plan(console(), planned.plan, title=title, baselines=planned.baselines, violations=facts["violations"], top=top)
    if "verify" in facts:
        show_run(console(), facts["verify"], facts["measure"])


if __name__ == "__main__":
    sys.exit(main())
