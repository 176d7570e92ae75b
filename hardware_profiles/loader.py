"""Finds, reads and checks profile files."""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from importlib import resources

import msgspec

from .errors import ProfileError
from .profile import DTYPES, Forbidden, Profile
from .schema import FIGURES, Figure, File

__all__ = ["load", "names", "records"]

# A profile is a page of text; a limit keeps a wrong path, to a model say, from being read whole.
MAX_FILE_BYTES = 1 << 20

_DATA = resources.files(__package__) / "data"
_LABEL = "hardware_profiles/data"


def names() -> list[str]:
    """Return the names of the profiles that come with the package, sorted.

    Returns
    -------
    list of str
        Each is accepted by `load`.
    """
    return sorted(entry.name.removesuffix(".toml") for entry in _DATA.iterdir() if entry.name.endswith(".toml"))


def load(name_or_path: str | os.PathLike[str]) -> Profile:
    """Return the profile of that name, or of that file.

    Parameters
    ----------
    name_or_path : str or path
        One of `names()`, or the path of a TOML file: a string that ends in ``.toml`` or has a slash is a path.

    Returns
    -------
    Profile
        Checked numbers in SI units.

    Raises
    ------
    ProfileError
        For an unknown name, a file that cannot be read, or one that is not a valid profile; the message names file and key.
    """
    label, file = _read(name_or_path)
    values = {key: getattr(file, key).value for key in FIGURES} | {"dtypes": frozenset(file.dtypes.value)}
    forbidden = tuple(Forbidden(tuple(entry.nodes), entry.reason, entry.source) for entry in file.forbidden)
    for key in ("cache_bytes", "fast_memory_bytes"):
        if values[key] < values["line_bytes"]:
            raise ProfileError(f"expected at least one line of {values['line_bytes']} bytes, got {values[key]}", where=f"{label}: {key}")
    return Profile(
        name=file.name, description=file.description, kind=file.kind, runs_here=file.runs_here, forbidden=forbidden, **values
    )  # fmt: skip


def records(name_or_path: str | os.PathLike[str]) -> list[dict[str, object]]:
    """Return every figure of a profile with where it is from.

    Parameters
    ----------
    name_or_path : str or path
        As for `load`.

    Returns
    -------
    list of dict
        Keys ``profile``, ``field``, ``value``, ``kind``, ``source``, ``note``; one for each figure, in the order of `Profile`.

    Raises
    ------
    ProfileError
        As for `load`.
    """
    _, file = _read(name_or_path)
    rows: list[dict[str, object]] = []
    for key in FIGURES:
        figure = getattr(file, key)
        rows.append(
            {"profile": file.name, "field": key, "value": figure.value, "kind": figure.kind, "source": figure.source, "note": figure.note}
        )
    return rows


def _read(name_or_path: str | os.PathLike[str]) -> tuple[str, File]:
    label, text = _text(name_or_path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"not TOML: {error}", where=label) from None
    except (RecursionError, ValueError) as error:
        # tomllib recurses over nested arrays, and int() refuses a literal of thousands of digits.
        raise ProfileError(f"not TOML: {type(error).__name__}", where=label) from None
    try:
        file = msgspec.convert(raw, File)
    except msgspec.ValidationError as error:
        raise _refusal(label, raw, str(error)) from None
    _check_values(label, file)
    return label, file


def _text(name_or_path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return how messages call the file, and its text."""
    wanted = os.fspath(name_or_path)
    is_path = not isinstance(name_or_path, str) or wanted.endswith(".toml") or "/" in wanted or os.sep in wanted
    if not is_path:
        known = names()
        if wanted not in known:
            raise ProfileError(f"unknown hardware profile {wanted!r}", hint=_known(wanted, known, "profiles"))
        return f"{_LABEL}/{wanted}.toml", _decoded(f"{_LABEL}/{wanted}.toml", (_DATA / f"{wanted}.toml").read_bytes())
    return wanted, _decoded(wanted, _file_bytes(wanted))


def _file_bytes(path: str) -> bytes:
    try:
        status = os.stat(path)
        # Opening a pipe or a terminal would wait for ever.
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError("not a file", where=path)
        if status.st_size > MAX_FILE_BYTES:
            raise ProfileError(f"expected at most {MAX_FILE_BYTES} bytes, got {status.st_size}", where=path)
        with open(path, "rb") as stream:
            return stream.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        raise ProfileError("no such file", where=path, hint=f"known profiles: {', '.join(names())}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ProfileError):
            raise
        raise ProfileError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=path) from None


def _decoded(label: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProfileError(f"not UTF-8 text: byte {error.start}", where=label) from None


def _known(wanted: str, known: Iterable[str], what: str) -> str:
    known = list(known)
    close = difflib.get_close_matches(wanted, known, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}known {what}: {', '.join(known)}"


def _at(raw: object, path: list[str | int]) -> object:
    for step in path:
        raw = raw[step]  # type: ignore[index]
    return raw


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _place(label: str, path: list[str | int]) -> str:
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return f"{label}: {dotted}" if dotted else label


def _refusal(label: str, raw: dict[str, object], message: str) -> ProfileError:
    """Say what msgspec found in the words of the file: key, what was expected, what is there."""
    what, _, where = message.partition(" - at `$")
    path: list[str | int] = [int(index) if index else key for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", where)]
    if found := re.fullmatch(r"Object missing required field `(.+)`", what):
        return ProfileError("missing", where=_place(label, [*path, found[1]]), hint=_wanted([*path, found[1]]))
    if found := re.fullmatch(r"Object contains unknown field `(.+)`", what, re.DOTALL):
        return ProfileError("unknown key", where=_place(label, [*path, found[1]]), hint=_known(found[1], _keys(path), "keys"))
    figure = FIGURES.get(str(path[0])) if path else None
    if figure is not None and path[1:2] == ["value"]:
        return ProfileError(f"expected {figure.expected}, got {_shown(_at(raw, path[:2]))}", where=_place(label, path[:1]))
    expected = _wanted(path) or what[:1].lower() + what[1:].replace("`", "").partition(", got")[0]
    return ProfileError(f"{expected}, got {_shown(_at(raw, path))}", where=_place(label, path))


def _keys(path: list[str | int]) -> tuple[str, ...]:
    if not path:
        return File.__struct_fields__
    figure = FIGURES.get(str(path[0]))
    return figure.__struct_fields__ if figure is not None else ("nodes", "reason", "source")


def _wanted(path: list[str | int]) -> str:
    """Say what belongs at a path of the file, where that is not plain from its type."""
    last = path[-1] if path else ""
    if last in FIGURES:
        return f"expected a table with value ({FIGURES[str(last)].expected}), source and kind"
    if last == "kind":
        return "expected one of " + (", ".join(_KINDS) if len(path) > 1 else "gpu, cpu, npu")
    if last in ("name", "description", "source", "reason", "note"):
        return "expected text"
    if last == "runs_here":
        return "expected true or false"
    return ""


_KINDS = ("documented", "measured", "derived", "estimate")


def _check_values(label: str, file: File) -> None:
    """Check what types alone cannot say: ranges, NaN and infinity, names of dtypes."""
    for key, form in FIGURES.items():
        bounds = getattr(form, "bounds", None)
        if bounds is None:
            continue
        figure: Figure = getattr(file, key)
        value = figure.value  # type: ignore[attr-defined]
        if not math.isfinite(value):
            raise ProfileError(f"expected {form.expected}, got {value}", where=f"{label}: {key}")
        if not bounds[0] <= value <= bounds[1]:
            raise ProfileError(f"expected a number from {bounds[0]:g} to {bounds[1]:g}, got {_shown(value)}", where=f"{label}: {key}")
    for dtype in file.dtypes.value:
        if dtype not in DTYPES:
            raise ProfileError(f"unknown dtype {dtype!r}", where=f"{label}: dtypes", hint=_known(dtype, DTYPES, "dtypes"))
