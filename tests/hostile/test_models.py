"""Damaged models: a clear error or a right result each time, within memory and without a hang, from a process that survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST_BYTES = 2 << 30
COUNT, EACH = 300, 75


@pytest.mark.parametrize("first", range(0, COUNT, EACH))
def test_damaged_models(first: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.hostile.worker", str(tmp_path), str(first), str(first + EACH)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3600, cwd=tmp_path)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{records[-1:]} {done.stderr[-2000:]}"
    ended = [record for record in records if record["outcome"] != "begun"]
    assert len(ended) == EACH
    for record in ended:
        outcome = record["outcome"]
        assert outcome.startswith(("refused: ", "right", "ran on wrong shapes")), record
        assert "\n" not in outcome, record
        assert "Traceback" not in outcome, record
        assert record["peak"] < MOST_BYTES, record
    assert any(record["outcome"] == "right" for record in ended), "some damage is harmless"
