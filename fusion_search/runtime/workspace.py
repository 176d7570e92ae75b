"""What runs in flight write to, apart from the results: a workspace each, kept from run to run."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from fusion_search.codegen.rt import driver
from fusion_search.codegen.writer import ARRIVALS
from fusion_search.ir.graph import Value
from fusion_search.runtime.ports import Ports, ports_of
from fusion_search.runtime.results import Array, ResultBuffers, aligned

#: The only threading layers that several threads may enter at once; Numba ends the process when others are.
SAFE_LAYERS = ("omp", "tbb", "safe", "threadsafe")
#: Bases of the argument tables that every workspace has: its arena and its flag; those of inputs and results follow.
ARENA, FLAG, FIRST_PORT = 0, 1, 2
#: An arena starts on a page, so that the same plan has the same places in every process.
PAGE = 4096
#: Workspaces kept for runs at the same time; asking for the number of processors takes longer than many a kernel.
WORKSPACES = os.cpu_count() or 1
one_at_a_time = threading.RLock()


def several_threads_may_run() -> bool:
    """Say whether Numba's threading layer can be entered by several threads at once."""
    return numba.config.THREADING_LAYER in SAFE_LAYERS


@dataclass(frozen=True, slots=True)
class Layout:
    """What the workspaces of one plan have in common.

    Attributes
    ----------
    arena_bytes : int
    slots, offsets : int64 array
        The argument tables of all steps: the base of each entry (-1 for none), and its offset, or the number that it is.
    rows : int64 array
        The step table, its argument tables and scratch counted from the start of the tables and of the arena.
    read, written : tuple of Value
        Inputs and results, the order of their bases.
    threads : int
    """

    arena_bytes: int
    slots: Array
    offsets: Array
    rows: Array
    read: tuple[Value, ...]
    written: tuple[Value, ...]
    threads: int


@dataclass(slots=True)
class Workspace:
    """The arena, scratch in it, argument tables and result buffers of one run in flight.

    A run takes one from the pool of its plan and puts it back, so runs in several threads never share one, and a thread that runs
    again and again touches the same pages.
    """

    arena: Array
    flag: Array
    bases: Array
    table: Array
    rows: Array
    moves: Array
    counters: Array
    ports: Ports
    results: ResultBuffers
    memory: dict[str, Any] = field(default_factory=dict)
    record: Array = field(init=False)
    #: Room for the objects that a run's arrays are.
    objects: Array = field(init=False)
    #: Address of the launch record.
    launch: int = field(init=False)
    #: What `ports.admit` takes.
    admission: tuple[int, int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        workers = len(self.counters) // driver.COUNTER
        moved = (self.moves, len(self.moves), self.table, self.bases)
        numbers = (self.rows, len(self.rows), workers, self.counters, *moved, self.flag)
        self.record = np.array([n if isinstance(n, int) else n.ctypes.data for n in numbers], np.int64)
        self.objects = np.zeros(len(self.bases), np.int64)
        self.launch = int(self.record.ctypes.data)
        places = int(self.bases.ctypes.data) + 8 * FIRST_PORT
        self.admission = self.ports.address, self.ports.count, int(self.objects.ctypes.data), places

    def bind(self) -> None:
        """Enter the addresses of inputs and results, as they stand in the bases, into the argument tables."""
        driver.bind(*self.record[4:8].tolist())
        self.flag[0] = 0


class Workspaces:
    """The workspaces of one plan: one for each run in flight, a few kept in between."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.idle: deque[Workspace] = deque(maxlen=WORKSPACES)  # adding and taking need no lock
        self._ports = ports_of(layout.read, layout.written)
        places = np.flatnonzero(layout.slots >= FIRST_PORT)
        self._moves = np.stack([places, layout.slots[places], layout.offsets[places]], 1).astype(np.int64)

    @contextmanager
    def lent(self) -> Iterator[Workspace]:
        """Lend a workspace for one run."""
        alone = not several_threads_may_run()
        if alone:
            one_at_a_time.acquire()
        try:
            space = self.take()
            try:
                yield space
            finally:
                space.memory = {}
                self.idle.append(space)
        finally:
            if alone:
                one_at_a_time.release()

    def take(self) -> Workspace:
        """Return a workspace that no other run has; it goes back into `idle`."""
        try:
            return self.idle.pop()
        except IndexError:
            return self._new()

    def _new(self) -> Workspace:
        """Make a workspace; the zeros are the system's, which gives their pages when they are first touched."""
        layout = self.layout
        arena = aligned(layout.arena_bytes, PAGE)
        flag = aligned(2 * ARRIVALS, ARRIVALS).view(np.int64)
        bases = np.zeros(FIRST_PORT + len(layout.read) + len(layout.written), np.int64)
        bases[ARENA], bases[FLAG] = arena.ctypes.data, flag.ctypes.data
        still = (layout.slots >= 0) & (layout.slots < FIRST_PORT)
        table = layout.offsets + np.where(still, bases[np.where(still, layout.slots, 0)], 0)
        rows = layout.rows.copy()
        rows[:, 1] += table.ctypes.data
        rows[:, 4] += arena.ctypes.data
        counters = np.zeros(layout.threads * driver.COUNTER, np.int64)
        return Workspace(arena, flag, bases, table, rows, self._moves, counters, self._ports, ResultBuffers(layout.written))
