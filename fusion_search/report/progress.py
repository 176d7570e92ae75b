"""Progress on stderr: what is being done, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from fusion_search.search.wording import seconds
from hardware_profiles.errors import one_line


def say(text: str) -> None:
    """Print one line on stderr."""
    Console(stderr=True, highlight=False).print(Text(one_line(text)), soft_wrap=True)


#: Seconds between lines about one step where stderr is no terminal.
QUIET_S = 5.0


@contextmanager
def step(text: str) -> Iterator[Callable[[str], None]]:
    """Say what is being done, on a terminal while it is done, and afterwards how long it took.

    What it yields takes news of the step: on a terminal the latest is shown, elsewhere a line every few seconds.
    """
    start = told = time.perf_counter()
    console = Console(stderr=True)
    with console.status(Text(one_line(text))) as status:  # draws nothing where stderr is no terminal

        def tell(news: str) -> None:
            nonlocal told
            if console.is_terminal:
                status.update(Text(one_line(f"{text}: {news}")))
            elif time.perf_counter() - told >= QUIET_S:
                told = time.perf_counter()
                say(f"{text}: {news}")

        yield tell
    say(f"{text}: {seconds(time.perf_counter() - start)}")
