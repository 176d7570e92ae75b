"""The command line: arguments in, calls of the public interface, tables or JSON out.

Data goes to stdout, progress to stderr. Exit status: 0 fine, 1 failure, 2 usage, 3 a plan that fails its check. Whatever is slow to
import is imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hardware_profiles.errors import one_line

if TYPE_CHECKING:
    from rich.table import Table

    import fusion_search as fs

FAILURE, USAGE, UNSOUND = 1, 2, 3

_DEBUG = "fusion_search.debug"
_SHOWN_NAMES = 4  # names of nodes in one cell of a table


class _Commands(click.Group):
    """Turns what a command raises into one line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # the border of the program: whatever goes wrong becomes one line
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # click ends quietly when the reader of a pipe has gone
            if ctx.meta.get(_DEBUG):
                traceback.print_exc()
            _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    from fusion_search.errors import FusionSearchError, UsageError

    if isinstance(error, UsageError):
        raise click.UsageError(str(error)) from error
    if isinstance(error, FusionSearchError):
        raise click.ClickException(str(error)) from error
    if isinstance(error, OSError) and error.strerror:
        raise click.ClickException(f"{error.filename}: {error.strerror}" if error.filename else error.strerror) from error
    raise click.ClickException(f"{type(error).__name__}: {error} (not expected; --debug shows where)") from error


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


# ---------------------------------------------------------------- options


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True  # the context of a command shares its meta with the group's


def _bindings(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        extent = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
        if not (equals and name and extent):
            raise click.BadParameter(f"expected NAME=EXTENT with a whole number from 1, such as batch=8; got {word!r}")
        if dims.setdefault(name, extent) != extent:
            raise click.BadParameter(f"{name!r} is bound twice, to {dims[name]} and to {extent}")
    return dims


type_file = click.Path(exists=True, dir_okay=False)
debug_option = click.option("--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show a traceback when something fails.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
dim_option = click.option("--dim", "dims", multiple=True, metavar="NAME=EXTENT", callback=_bindings, help="Bind a symbolic dimension.")
pairs_option = click.option("--pairs", type=click.IntRange(1), default=5, show_default=True, help="Runs of fused and unfused, in turn.")


def _search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--save", type=click.Path(dir_okay=False), help="Write the plan to this file."),
        click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds to search."),
        click.option("--method", default="exact", show_default=True, help="How to search: exact, or a baseline."),
        click.option("--profile", default="local", show_default=True, help="A profile's name, or the path of its TOML file."),
    ):
        command = option(command)
    return command


# ---------------------------------------------------------------- commands


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="fusion-search")
@debug_option
def cli() -> None:
    """Find the operator-fusion plan of a model that provably minimises a hardware cost model, and run it."""


@cli.command()
@click.option("--model", default="squeezenet", show_default=True, help="A light network of the onnx package.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the model's weights.")
@_search_options
@pairs_option
@json_option
@debug_option
def demo(model: str, seed: int, pairs: int, as_json: bool, **search: Any) -> int:
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
        return _run(str(path), {}, pairs=pairs, as_json=as_json, **search)


@cli.command()
@click.argument("model", type=type_file)
@_search_options
@dim_option
@json_option
@debug_option
def plan(model: str, dims: dict[str, int], as_json: bool, **search: Any) -> int:
    """Search the best fusion plan of MODEL.

    Prints the plan with its certificate: status, cost, lower bound and gap, and what each kernel costs.
    """
    planned = _plan(model, dims, **search)
    if as_json:
        _print_json(planned.facts)
    else:
        _print_plan(planned)
    return UNSOUND if planned.facts["violations"] else 0


@cli.command()
@click.argument("model", type=type_file)
@_search_options
@dim_option
@pairs_option
@json_option
@debug_option
def run(model: str, dims: dict[str, int], pairs: int, as_json: bool, **search: Any) -> int:
    """Plan, compile, verify and measure MODEL.

    Does what `plan` does, compiles the plan for this machine, compares its results with an independent reference, and measures
    it against the plan that fuses nothing.
    """
    return _run(model, dims, pairs=pairs, as_json=as_json, **search)


@cli.command()
@click.argument("model", type=type_file)
@click.argument("plan_file", metavar="PLAN", type=type_file)
@dim_option
@json_option
@debug_option
def check(model: str, plan_file: str, dims: dict[str, int], as_json: bool) -> int:
    """Check a saved PLAN against its MODEL.

    The checker shares no code with the search. Exits with 3 when the plan is not sound.
    """
    import fusion_search as fs

    with _step(f"read {model}"):
        graph = fs.load(model, dims=dims)
        found = fs.Plan.load(plan_file, graph)
    violations = _checked(graph, found)
    if as_json:
        _print_json({"model": model, "plan": plan_file, "sound": not violations, "violations": violations})
    else:
        click.echo("\n".join(violations) if violations else f"{plan_file}: sound, {found.launches} launches, J = {_seconds(found.cost_s)}")
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
        _print_json({"profiles" if name is None else "figures": rows})
        return
    table = _table(*columns)
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    _print(table)


def _profile_row(profile: fs.Profile) -> dict[str, object]:
    import msgspec

    row: dict[str, object] = msgspec.to_builtins(profile, order="deterministic")
    return row


# ---------------------------------------------------------------- the work of plan and run


@dataclass(frozen=True, slots=True)
class _Planned:
    """A plan, what it was made from, and what JSON says of it."""

    graph: fs.Graph
    profile: fs.Profile
    plan: fs.Plan
    facts: dict[str, Any]


def _plan(model: str, dims: dict[str, int], *, profile: str, method: str, time_limit: float, save: str | None) -> _Planned:
    import fusion_search as fs

    if method not in fs.methods():
        raise click.BadParameter(f"{method!r} is not one of {', '.join(fs.methods())}", param_hint="--method")
    target = fs.load_profile(profile)
    with _step(f"read {model}"):
        graph = fs.load(model, dims=dims)
    with _step(f"search {method}"):
        found = fs.search(graph, target, method=method, time_limit_s=time_limit)
    violations = _checked(graph, found)
    if save:
        found.save(save)
        _say(f"wrote {save}")
    facts: dict[str, Any] = {"model": Path(model).stem, "dims": dims, "profile": profile, "method": method}
    facts |= {key: getattr(found, key) for key in ("status", "cost_s", "lower_bound_s", "gap", "terms", "bytes_moved", "launches", "space")}
    facts |= {"violations": violations, "groups": found.records()}
    return _Planned(graph, target, found, facts)


def _checked(graph: fs.Graph, found: fs.Plan) -> list[str]:
    import fusion_search as fs

    with _step("check"):
        return [one_line(str(violation)) for violation in fs.check(graph, found)]


def _run(model: str, dims: dict[str, int], *, pairs: int, as_json: bool, **search: Any) -> int:
    import fusion_search as fs

    planned = _plan(model, dims, **search)
    facts = planned.facts
    if not as_json:
        _print_plan(planned)
    status = UNSOUND if facts["violations"] else 0
    if status == 0:
        with _step("compile"):
            fs.compile(planned.plan)
        with _step("verify against the reference"):
            verified = fs.verify(planned.plan)
        facts["verify"] = {"ok": verified.ok, "max_abs": verified.max_abs, "max_rel": verified.max_rel}
        unfused = fs.search(planned.graph, planned.profile, method="unfused")
        with _step("measure fused against unfused"):
            facts["measure"] = _measured(planned.plan, unfused, pairs)
        if not as_json:
            _print_measured(facts)
        status = 0 if verified.ok else FAILURE
    if as_json:
        _print_json(facts)
    if status == FAILURE:
        worst = facts["verify"]
        click.echo(f"error: results differ from the reference: {worst['max_abs']:.3g} absolute, {worst['max_rel']:.3g} relative", err=True)
    return status


def _measured(found: fs.Plan, unfused: fs.Plan, pairs: int) -> dict[str, Any]:
    """Measure two plans in turn, so that both see the same noise."""
    import fusion_search as fs

    both = [(fs.measure(found), fs.measure(unfused)) for _ in range(pairs)]
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
    }


# ---------------------------------------------------------------- printing


def _say(text: str) -> None:
    click.echo(one_line(text), err=True)


@contextmanager
def _step(text: str) -> Iterator[None]:
    """Say on stderr what is being done, and afterwards how long it took."""
    from rich.console import Console
    from rich.markup import escape

    start = time.perf_counter()
    with Console(stderr=True).status(escape(one_line(text))):  # draws nothing where stderr is no terminal
        yield
    _say(f"{text}: {_seconds(time.perf_counter() - start)}")


def _print_json(value: Mapping[str, Any]) -> None:
    import msgspec

    text = msgspec.json.encode(value, enc_hook=lambda other: other.item() if hasattr(other, "item") else str(other))
    click.echo(msgspec.json.format(text, indent=2))


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = 160
    console.print(table)


def _table(*columns: str, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        column.overflow = "fold"
    return table


def _print_plan(planned: _Planned) -> None:
    from rich.text import Text

    found, facts = planned.plan, planned.facts
    costs = list(found.terms)
    table = _table("kernel", "nodes", "origin", "cost", *costs, title=f"{facts['model']} on {facts['profile']}, {facts['method']}")
    for number, group in enumerate(found.groups):
        cells = [str(number), _names(group.nodes), _names(group.origin), _seconds(group.cost_s)]
        table.add_row(*map(Text, cells), *(_seconds(group.terms.get(cost, 0.0)) for cost in costs))
    _print(table)
    click.echo(f"status        {found.status}")
    click.echo(f"J             {_seconds(found.cost_s)}")
    click.echo(f"lower bound   {_seconds(found.lower_bound_s)}")
    click.echo(f"gap           {found.gap:.2%}")
    click.echo(f"terms         {', '.join(f'{cost} {_seconds(seconds)}' for cost, seconds in found.terms.items())}")
    click.echo(f"moved         {found.bytes_moved:,} bytes in {found.launches} launches")
    for violation in facts["violations"]:
        click.echo(f"violation     {violation}")


def _print_measured(facts: Mapping[str, Any]) -> None:
    verified, measured = facts["verify"], facts["measure"]
    low, high = measured["speedup_range"]
    outcome = "agrees with the reference" if verified["ok"] else "DIFFERS from the reference"
    click.echo(f"numbers       {outcome}: {verified['max_abs']:.3g} absolute, {verified['max_rel']:.3g} relative at most")
    for kind in ("fused", "unfused"):
        peak = f"{measured[f'{kind}_peak_bytes']:,} bytes at peak"
        click.echo(f"{kind:13s} {_seconds(measured[f'{kind}_s'])} in {measured[f'{kind}_launches']} launches, {peak}")
    click.echo(f"speed-up      {measured['speedup']:.2f} times (from {low:.2f} to {high:.2f} over {measured['pairs']} pairs)")


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name) for name in names[:_SHOWN_NAMES])
    return shown if len(names) <= _SHOWN_NAMES else f"{shown} and {len(names) - _SHOWN_NAMES} more"


def _cell(value: object) -> Any:
    from rich.text import Text

    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple, frozenset)):
        return Text(", ".join(sorted(map(str, value))))
    return Text(f"{value:g}" if isinstance(value, float) else one_line(str(value)))


def _seconds(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


if __name__ == "__main__":
    sys.exit(main())
