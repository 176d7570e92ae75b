"""Takes damaged models through load, search, compile and run, and says in JSON lines what came of each.

Run as ``python -m tests.hostile.worker FOLDER FIRST STOP``. A hang or a crash ends the process.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import fusion_search as fs
from fusion_search.errors import FusionSearchError
from fusion_search.runtime.measure import example_feeds
from tests.hostile.mutations import damaged
from tests.hostile.seeds import MODELS

#: Processor time, all threads together, after which a model is taken to hang: other load is none of its own.
HANG_S = 60.0
#: Inputs larger than this are not fed.
FED_BYTES = 1 << 26


def attempt(path: Path) -> str:
    """Take one file as far as it goes."""
    graph = fs.load(path, dims=_dims(path))
    plan = fs.search(graph, fs.load_profile("local"), time_limit_s=5)
    run = fs.compile(plan)
    feeds: dict[str, Any]
    if any(value.dtype != object and value.nbytes > FED_BYTES for value in graph.inputs):
        run({value.name: np.zeros(1, value.dtype) for value in graph.inputs})
        return "ran on wrong shapes"
    feeds = example_feeds(graph)
    run(feeds)
    verified = fs.verify(plan, feeds)
    return "right" if verified.ok else f"wrong by {verified.max_abs} against {verified.reference}"


def _dims(path: Path) -> dict[str, int]:
    from fusion_search.frontends.onnx.binding import input_shapes
    from fusion_search.frontends.onnx.reader import read_model

    return {dim: 2 for shape in input_shapes(read_model(path)).values() for dim in shape if isinstance(dim, str)}


def _say(**record: Any) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def main(folder: Path, first: int, stop: int) -> None:
    """Try the models of these seeds."""
    np.seterr(all="ignore")
    faulthandler.register(signal.SIGPROF, chain=True)  # says where, then ends the process
    for make in MODELS:  # compiles the library's kernels, once for a machine
        whole = folder / "whole.onnx"
        whole.write_bytes(make().SerializeToString())
        assert attempt(whole) == "right", make.__name__
    for seed in range(first, stop):
        path = folder / f"{seed}.onnx"
        path.write_bytes(damaged(seed))
        _say(seed=seed, outcome="begun")
        signal.setitimer(signal.ITIMER_PROF, HANG_S)
        try:
            outcome = attempt(path)
        except FusionSearchError as error:
            outcome = f"refused: {error}"
        except BaseException:  # noqa: BLE001 - whatever it is, it is what the test looks for
            outcome = "traceback: " + traceback.format_exc()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(seed=seed, outcome=outcome, peak=_peak_bytes())


def _peak_bytes() -> int:
    """Most memory that this program has held; ``ru_maxrss`` begins with what its parent held when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
