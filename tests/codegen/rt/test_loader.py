"""Kernel files: cached, private, repaired, safe to load from threads."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fusion_search.codegen.rt import loader
from tests.codegen.rt.helpers import HEADER, elementwise, run_kernel

SOURCE = HEADER + elementwise("k_twice", "x + x", ["x"], "f4") + elementwise("k_square", "x * x", ["x"], "f4")
NAMES = ["k_twice", "k_square"]
ROOT = Path(__file__).resolve().parents[3]

CHILD = """
import sys
from fusion_search.codegen.rt import loader
loader.load(sys.stdin.read(), ["k_twice", "k_square"], sys.argv[1])
s = loader.stats()
sys.stdout.write(f"{s.compiled} {s.cached} {s.rewritten}")
"""


def load_elsewhere(directory):
    """Load `SOURCE` in a new process; return (compiled, cached, rewritten)."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CHILD, str(directory)], input=SOURCE, capture_output=True, text=True, env=env, check=True)
    return tuple(int(v) for v in done.stdout.split())


def test_second_process_compiles_nothing(tmp_path):
    directory = tmp_path / "kernels"
    assert load_elsewhere(directory) == (2, 0, 0)
    assert load_elsewhere(directory) == (0, 2, 0)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [p.suffix for p in directory.iterdir() if p.is_file()] == [".py"]


@pytest.mark.parametrize("damage", ["source", "index", "code"])
def test_damaged_files_are_replaced(tmp_path, damage):
    load_elsewhere(tmp_path)
    pattern = {"source": "*.py", "index": "__pycache__/*.nbi", "code": "__pycache__/*.nbc"}[damage]
    for path in tmp_path.glob(pattern):
        path.write_bytes(b"garbage" if damage != "source" else b"raise SystemExit\n")
    compiled, _, rewritten = load_elsewhere(tmp_path)
    assert compiled == 2
    assert rewritten == (1 if damage == "source" else 0)
    assert load_elsewhere(tmp_path) == (0, 2, 0)


def test_results_and_reuse_within_a_process(tmp_path):
    before = loader.stats()
    first = loader.load(SOURCE, NAMES, tmp_path)
    assert loader.load(SOURCE, NAMES, tmp_path) == first
    assert loader.stats().files == before.files + 1
    x = np.arange(100, dtype=np.float32)
    out = np.empty_like(x)
    run_kernel(first["k_square"], [x, out], x.size)
    np.testing.assert_array_equal(out, x * x)


def test_threads_share_one_module(tmp_path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(loader.load(SOURCE, NAMES, tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(r == results[0] for r in results)


def test_errors(tmp_path):
    with pytest.raises(KeyError):
        loader.load(SOURCE, ["k_missing"], tmp_path)
    with pytest.raises(ZeroDivisionError):
        loader.load("1 / 0\n", [], tmp_path)


def test_directory_of_another_user(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(PermissionError):
        loader.load(HEADER, [], tmp_path)


def test_open_directory_is_closed(tmp_path):
    tmp_path.chmod(0o777)
    loader.load(HEADER + "\n", [], tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_default_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert loader.default_directory() == tmp_path / "fusion_search" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert loader.default_directory() == Path.home() / ".cache" / "fusion_search" / "kernels"
