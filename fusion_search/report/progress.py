"""Progress on stderr: what is being done, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from fusion_search.search.wording import seconds
from hardware_profiles.errors import one_line


def say(text: str) -> None:
    """Print one line on stderr."""
    Console(stderr=True, highlight=False).print(Text(one_line(text)), soft_wrap=True)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what is being done, on a terminal while it is done, and afterwards how long it took."""
    start = time.perf_counter()
    with Console(stderr=True).status(Text(one_line(text))):  # draws nothing where stderr is no terminal
        yield
    say(f"{text}: {seconds(time.perf_counter() - start)}")
