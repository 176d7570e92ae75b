"""What the caches of the machine at hand hold, and which kernels stream more than that."""

from __future__ import annotations

import os
from collections.abc import Set
from functools import cache
from math import prod
from pathlib import Path

from fusion_search.codegen.access import GroupAccess
from fusion_search.codegen.extents import Extent, actual

#: What the last level is taken for where the system does not say.
DEFAULT_BYTES = 32 << 20
#: Results that are less than this part of what a kernel moves may outlast it in a cache.
LEAST_PART = 8
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SYSTEM = Path("/sys/devices/system/cpu")


@cache
def last_level_bytes() -> int:
    """Return the bytes that the last-level caches of the processors at hand hold together.

    Source: `sysfs <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu>`_, where there is one.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return _read(_SYSTEM, processors) or DEFAULT_BYTES


def _read(system: Path, processors: list[int]) -> int:
    """Sum the highest level's caches, one for each set of processors that share it; 0 when nothing is to be read."""
    found: dict[tuple[int, str], int] = {}
    for processor in processors:
        for folder in (system / f"cpu{processor}" / "cache").glob("index*"):
            try:
                level, sharers, size = ((folder / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
                found[int(level), sharers] = int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
            except (OSError, ValueError, IndexError):
                continue
    last = max((level for level, _ in found), default=0)
    return sum(size for (level, _), size in found.items() if level == last)


def moved_bytes(group: GroupAccess, live_out: Set[int]) -> int:
    """Count what a kernel reads and writes, each byte once; of a table what is gathered."""
    read: dict[int, int] = {}
    for i, member in enumerate(group.members):
        for k, operand in enumerate(member.operands):
            if (i, k) not in group.producers and not operand.parameter:
                shape = member.shape if member.spec.kind == "gather" else operand.shape
                read[operand.base] = max(read.get(operand.base, 0), prod(shape) * operand.itemsize)
    return sum(read.values()) + _written_bytes(group, live_out)


def _written_bytes(group: GroupAccess, live_out: Set[int]) -> int:
    return sum(prod(group.members[i].shape) * group.members[i].itemsize for i in live_out)


def streamed_bytes(group: GroupAccess, live_out: Set[int]) -> int:
    """Count what passes while a kernel makes its results: what it moves.

    0 where the results are a small part of it, which a cache may still hold when they are read; so is the run's value by itself.
    """
    moved, written = moved_bytes(group, live_out), _written_bytes(group, live_out)
    if written * LEAST_PART < moved:
        return 0
    return Extent(int(moved), 0) if actual(written) * LEAST_PART < actual(moved) else moved


def exceeds_caches(streamed: int) -> bool:
    """Whether the beginning of what a run streams is no longer in any cache at its end."""
    return actual(streamed) > last_level_bytes()


def may_exceed_caches(streamed: int) -> bool:
    """Whether a kernel needs a form for runs that exceed the caches: where extents are those of a run, a number decides."""
    return isinstance(streamed, Extent) or streamed > last_level_bytes()
