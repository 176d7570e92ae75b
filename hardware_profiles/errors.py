"""The errors of this package, and the base that keeps every message of the project on one line."""

from __future__ import annotations

__all__ = ["HintedError", "ProfileError", "one_line"]


def one_line(text: str) -> str:
    """Return `text` on one line, with control characters escaped.

    Messages quote names and values from files that others wrote, so a line break or a terminal escape may arrive from anywhere.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        The same text; line breaks are single spaces, other unprintable characters their Python escapes.
    """
    joined = " ".join(part.strip() for part in text.splitlines() if part.strip())
    if joined.isprintable():
        return joined
    return "".join(c if c.isprintable() else " " if c == "\t" else c.encode("unicode_escape").decode("ascii") for c in joined)


class HintedError(Exception):
    """What is wrong, where, and what would work, always printed as one line.

    It lives in the lowest package of the import order so that every tree of errors above can share the form; catch the trees, not this.

    Parameters
    ----------
    what : str
        What is wrong: ``expected a number > 0, got -1``.
    where : str, optional
        The file, node or option it concerns; printed first, as compilers do.
    hint : str, optional
        What would work; printed last, in brackets.

    Attributes
    ----------
    what, where, hint : str
        The three parts, as given.
    """

    what: str
    where: str
    hint: str

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        located = f"{self.where}: {self.what}" if self.where else self.what
        return one_line(f"{located} ({self.hint})" if self.hint else located)


class ProfileError(HintedError, ValueError):
    """A hardware profile that is unknown, unreadable or wrong."""
