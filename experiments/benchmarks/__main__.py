"""Run the benchmark: ``python -m experiments.benchmarks [--quick] [--only NAMES]``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m experiments.benchmarks", description=__doc__)
    made.add_argument("--quick", action="store_true", help="fewer rounds, two small models; exits 1 when a line fails")
    made.add_argument("--only", default="", metavar="NAMES", help="workloads and models, separated by commas; none of the others")
    made.add_argument("--models", type=Path, metavar="DIR", help="a folder of ONNX models, in place of the generated and light ones")
    made.add_argument("--batch", default="1,8", help="batch sizes of whole models (default: 1,8)")
    made.add_argument("--peers", default="", metavar="NAMES", help="all by default")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of everybody (default: all processors)")
    made.add_argument("--rounds", type=int, help="turns of each candidate (default: 11; 5 with --quick)")
    made.add_argument("--profile", default="local", help="hardware profile that plans are made for")
    made.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="of each search")
    made.add_argument("--usual-priority", action="store_true", help="do not run before other processes, even where the system allows it")
    made.add_argument("--no-starts", action="store_true", help="leave out cold and warm starts")
    made.add_argument("--output", type=Path, metavar="DIR", help="folder for results.json, results.csv, results.md and speedup.png")
    return made


def hold_threads(threads: int) -> None:
    """Give every library the same threads, and NumPy the kernels of this processor; to be called before any of them is imported."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA"):
        os.environ[f"{name}_NUM_THREADS"] = str(threads)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # kernels of another processor would slow a rival
        os.environ.pop(name, None)


def take_precedence() -> None:
    """Run before other processes, in real time at its lowest priority, where the system allows it; inherited by all threads.

    Then every thread that wakes has a processor at once. The usual scheduler may leave it on the one of the thread that woke it: in a
    virtual machine all but the libraries that place their threads themselves then often work on one processor.
    """
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line asks for; return the exit status."""
    given = parser().parse_args(arguments)
    hold_threads(given.threads)
    if not given.usual_priority:
        take_precedence()
    from experiments.benchmarks.session import Request, run

    request = Request(
        only=tuple(filter(None, given.only.split(","))), models=given.models, batches=tuple(map(int, given.batch.split(","))),
        peers=tuple(filter(None, given.peers.split(","))), threads=given.threads, rounds=given.rounds, quick=given.quick,
        profile=given.profile, time_limit_s=given.time_limit, starts=not given.no_starts, output=given.output,
    )  # fmt: skip
    lines = run(request)
    return 1 if given.quick and not all(line.holds for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
