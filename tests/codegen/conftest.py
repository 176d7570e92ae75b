"""How many random graphs to run."""

from __future__ import annotations

import pytest

from fusion_search.codegen import blocks
from fusion_search.runtime import steps


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, default=0, metavar="N", help="also compare N random graphs with the reference")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fuzz_seed" in metafunc.fixturenames:
        metafunc.parametrize("fuzz_seed", range(10_000, 10_000 + metafunc.config.getoption("--fuzz", 0)))


@pytest.fixture
def eager_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even the smallest kernel run as several tasks."""
    monkeypatch.setattr(steps, "SERIAL_NS", 0.0)
    monkeypatch.setattr(steps, "TASK_NS", 200.0)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch, eager_threads: None) -> None:
    """Blocks so small that small tensors have several, with a ragged last one."""
    monkeypatch.setattr(blocks, "ITEM_ELEMENTS", 96)
    monkeypatch.setattr(blocks, "TURN", 20)
    monkeypatch.setattr(blocks, "TURN_LONG", 36)
    monkeypatch.setattr(blocks, "PANEL_ROWS", 8)
    monkeypatch.setattr(blocks, "PANEL_COLUMNS", 24)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(blocks, "PLANE_ELEMENTS", 90)
