"""Numbers and names as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable

from hardware_profiles.errors import one_line

__all__ = ["names", "seconds", "signed", "size"]

_SHOWN_NAMES = 4


def names(found: Iterable[str], limit: int = _SHOWN_NAMES) -> str:
    """Join names, the first few of them."""
    every = [one_line(name) for name in found]
    shown = ", ".join(every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"


def seconds(value: float) -> str:
    """Write a time with three digits and a unit."""
    if value == 0.0:
        return "0"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def signed(value: float) -> str:
    """Write a difference of times with its sign."""
    return seconds(0.0) if value == 0.0 else f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def size(value: int) -> str:
    """Write a number of bytes with three digits and a unit."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value} B"
