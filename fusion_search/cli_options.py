"""The options that commands share, and what turns their words into values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = [
    "DEBUG",
    "debug_option",
    "dim_option",
    "json_option",
    "names_of",
    "pairs_option",
    "save_option",
    "search_options",
    "top_option",
    "type_file",
]

#: Whether to show a traceback, in the context that all commands share.
DEBUG = "fusion_search.debug"


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True  # the context of a command shares its meta with the group's


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


def _values(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        try:
            numbers = [float(part) if set(part) & set(".einEIN") else int(part) for part in text.split(",") if text]
        except ValueError:
            numbers, equals = [], ""
        if not (equals and name) or name in values:
            raise click.BadParameter(f"expected NAME=NUMBERS once a name, with commas between, such as axes=0,2; got {word!r}")
        values[name] = numbers
    return values


def names_of(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Split words such as ``conv1,relu1`` into names, two or more each."""
    found = tuple(tuple(name.strip() for name in word.split(",")) for word in words)
    for word, listed in zip(words, found, strict=True):
        if len(listed) < 2 or not all(listed):
            raise click.BadParameter(f"expected names of nodes with commas between, such as conv1,relu1; got {word!r}")
    return found


def _writable(_: click.Context, __: click.Parameter, path: str | None) -> str | None:
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(Path(path).parent)!r}")
    return path  # known before a long search, not after it


type_file = click.Path(exists=True, dir_okay=False)
debug_option = click.option("--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show a traceback when something fails.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
_dim_option = click.option("--dim", "dims", multiple=True, metavar="NAME=EXTENT", callback=_bindings, help="Bind a symbolic dimension.")
_value_option = click.option(
    "--value", "values", multiple=True, metavar="NAME=NUMBERS", callback=_values, help="Bind an input that decides shapes: axes, repeats."
)
top_option = click.option("--top", type=click.IntRange(0), default=0, metavar="N", help="Show only the N groups that cost most.")
pairs_option = click.option("--pairs", type=click.IntRange(1), default=5, show_default=True, help="Runs of fused and unfused, in turn.")
save_option = click.option("--save", type=click.Path(dir_okay=False), callback=_writable, help="Write the plan to this file.")


def dim_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what a model is bound to: extents and elements."""
    return _dim_option(_value_option(command))


def search_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a search."""
    for option in (
        save_option,
        click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds to search."),
        click.option("--min-gain", type=click.FloatRange(0), metavar="SECONDS", help="Leave out fusions that save less of J."),
        click.option("--peak-bytes", type=click.IntRange(0), metavar="N", help="Most live memory: stored values, and scratch."),
        click.option("--keep", multiple=True, metavar="VALUE", help="A value that has to reach memory."),
        click.option("--fusion-off", multiple=True, metavar="OP", help="An operator that fuses with no other."),
        click.option("--never-fuse", multiple=True, metavar="A,B", callback=names_of, help="Nodes of which no kernel computes two."),
        click.option("--must-fuse", multiple=True, metavar="A,B", callback=names_of, help="Nodes that one kernel computes."),
        click.option("--distribute", is_flag=True, help="Apply maps to the parts of concats first, wherever J then falls."),
        click.option("--method", default="exact", show_default=True, help="How to search: exact, or a baseline."),
        click.option("--profile", default="local", show_default=True, help="A profile's name, or the path of its TOML file."),
    ):
        command = option(command)
    return command
