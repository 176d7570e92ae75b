"""The machine and the software, in words that hold no path and no name of a host."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "onnx")


def describe(threads: int) -> dict[str, str | int]:
    """Return processor, memory, threads, their scheduling, interpreter and versions."""
    found: dict[str, str | int] = {
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "flags": _flags(),
        "processors": os.cpu_count() or 1,
        "threads": threads,
        "scheduling": _scheduling(),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def _scheduling() -> str:
    real_time = hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return "real time" if real_time else "usual"


def _first(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")


def _flags() -> str:
    present = set(_first("/proc/cpuinfo", "flags").split())
    return " ".join(flag for flag in ("sse4_2", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile") if flag in present)


class Foreign:
    """How much of the machine others used since the last look: the part of all processors' time that was theirs."""

    def __init__(self) -> None:
        self._before = self._now()

    def _now(self) -> tuple[float, float, float]:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        try:
            fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
        except OSError:
            return time.monotonic(), own, own
        tick = os.sysconf("SC_CLK_TCK")
        busy = sum(int(fields[k]) for k in (0, 1, 2, 5, 6)) / tick
        return time.monotonic(), own, busy

    def part(self) -> float:
        """Return the part since the last call, between 0 and 1."""
        then, self._before = self._before, self._now()
        wall, own, busy = (now - before for now, before in zip(self._before, then, strict=True))
        return min(1.0, max(0.0, (busy - own) / max(wall * (os.cpu_count() or 1), 1e-9)))
