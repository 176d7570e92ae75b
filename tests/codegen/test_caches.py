"""What the system says of its caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusion_search.codegen import caches


def lay_out(root: Path, entries: list[tuple[int, int, int, str, str]]) -> Path:
    """Write processors' caches: processor, index, level, sharers, size."""
    for processor, index, level, sharers, size in entries:
        folder = root / f"cpu{processor}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", str(level)), ("shared_cpu_list", sharers), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    return root


def test_the_last_level_counts_once_for_all_that_share_it(tmp_path: Path) -> None:
    entries = [(p, 0, 1, str(p), "32K") for p in range(4)] + [(p, 3, 3, "0-1" if p < 2 else "2-3", "16M") for p in range(4)]
    system = lay_out(tmp_path, entries)
    assert caches._read(system, [0, 1, 2, 3]) == 32 << 20
    assert caches._read(system, [0, 1]) == 16 << 20
    assert caches._read(system, [3]) == 16 << 20


def test_without_a_third_level_the_second_is_the_last(tmp_path: Path) -> None:
    assert caches._read(lay_out(tmp_path, [(0, 0, 1, "0", "64K"), (0, 2, 2, "0", "1024K")]), [0]) == 1 << 20


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    assert caches._read(tmp_path / "nothing", [0, 1]) == 0
    system = lay_out(tmp_path, [(0, 0, 1, "0", "64K"), (0, 3, 3, "0", "lots"), (0, 4, 4, "0", "")])
    assert caches._read(system, [0]) == 64 << 10


def test_a_machine_that_says_nothing_has_a_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_SYSTEM", Path("/nothing/here"))
    caches.last_level_bytes.cache_clear()
    try:
        assert caches.last_level_bytes() == caches.DEFAULT_BYTES
    finally:
        caches.last_level_bytes.cache_clear()
