"""How long a start takes: compile() in a process of its own, from an empty kernel cache and from the one that it left.

    python -m experiments.benchmarks.startup MODEL.onnx PROFILE

prints one line of JSON for one start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import onnx

from experiments.benchmarks.case import Case


@dataclass(frozen=True)
class Start:
    """compile() of one model, in seconds, and the core nodes that it had."""

    name: str
    nodes: int
    cold_s: float
    warm_s: float

    @property
    def warm_s_per_1000_nodes(self) -> float:
        """Seconds of a warm start for each thousand core nodes; a smaller model counts as one of a thousand."""
        return self.warm_s / max(1.0, self.nodes / 1000)


def measure_start(case: Case, profile: str) -> Start:
    """Start a model twice, in new processes, on a kernel cache that is empty at first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(case.model, path)
        environment = {**os.environ, "XDG_CACHE_HOME": str(Path(folder) / "cache"), "NUMBA_CACHE_DIR": str(Path(folder) / "numba")}
        command = [sys.executable, "-m", "experiments.benchmarks.startup", str(path), profile]
        found = []
        for _ in range(2):
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    return Start(case.name, found[0]["nodes"], found[0]["compile_s"], found[1]["compile_s"])


def main(path: str, profile: str) -> None:
    """Plan, compile, and print what that took."""
    import fusion_search as fs

    graph = fs.load(path)
    plan = fs.search(graph, fs.load_profile(profile))
    begun = time.perf_counter()
    fs.compile(plan)
    print(json.dumps({"nodes": len(graph.nodes), "compile_s": time.perf_counter() - begun}))


if __name__ == "__main__":
    main(*sys.argv[1:])
