"""Progress: a long step shows life, on a terminal and in a log."""

from __future__ import annotations

import pytest

from fusion_search.report import progress


def test_a_log_gets_news_every_few_seconds_and_the_time_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    with progress.step("compile") as tell:
        for k in range(20):
            now[0] += 1.0
            tell(f"kernel {k + 1} of 20\n\x1b[31m")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" of")[0] for line in lines[:-1]] == [f"compile: kernel {k}" for k in (5, 10, 15, 20)]
    assert lines[-1].startswith("compile: 20")
    assert not any("\x1b" in line for line in lines)


def test_a_terminal_shows_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Terminal(progress.Console):
        def __init__(self, **options: object) -> None:
            super().__init__(force_terminal=True, quiet=True)

    monkeypatch.setattr(progress, "Console", Terminal)
    monkeypatch.setattr("rich.status.Status.update", lambda self, status: shown.append(str(status)))
    with progress.step("compile") as tell:
        tell("kernel 1 of 2")
        tell("kernel 2 of 2")
    assert shown == ["compile: kernel 1 of 2", "compile: kernel 2 of 2"]
