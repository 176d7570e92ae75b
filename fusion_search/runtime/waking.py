"""Waking the other threads where they can run at once.

Threads that wait for work sleep after a moment, and the system wakes them on a processor of its choice. In a virtual machine Linux
often takes the caller's own, where they wait until the caller has done their work too: of two processors half of the calls after a
pause used one. So while a run after a pause lasts, the threads that it wakes are kept off the caller's processor; between runs they
are as free as they were.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, TypeVar

import numpy as np

from fusion_search.codegen.rt import driver

#: Threads that were at work so short a time ago are still looking out for more (see `codegen.rt.driver`): nobody need wake them.
AWAKE_NS = 30_000
#: With more threads one of them matters less, since the others do its work, and asking for all of them takes longer.
MOST_THREADS = 8


def _system() -> ctypes.CDLL | None:
    """Return the C library where threads have numbers and can be told where to run; None elsewhere."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gettid") and hasattr(library, "sched_getcpu") else None


_SYSTEM = _system()
_R = TypeVar("_R")


class _Crew:
    """Those who work for one calling thread.

    Attributes
    ----------
    asked : tuple of int
        The process, and how many threads, the caller among them, `numbers` are those of.
    numbers : tuple of int
        The system's numbers of all but the caller.
    kept_off : list of int
        Of those that may not run everywhere just now.
    free : set of int
        The processors that they could run on before.
    left_ns : int
        When the last run ended.
    """

    __slots__ = ("asked", "free", "kept_off", "left_ns", "numbers")

    def __init__(self) -> None:
        self.asked = (0, 0)
        self.numbers: tuple[int, ...] = ()
        self.kept_off: list[int] = []
        self.free: set[int] = set()
        self.left_ns = 0


class _Here(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.crew = _Crew()


_here = _Here()


def awake(threads: int, call: Callable[..., _R]) -> Callable[..., _R]:
    """Return a call in which the calling thread and those that work for it, `threads` in all, share work.

    Threads that were at work a moment ago, that somebody else has told where to run, that are more than there are processors, or more
    than `MOST_THREADS`, are left alone. Takes some microseconds more after a pause, a part of one without.
    """
    system = _SYSTEM
    if not 1 < threads <= MOST_THREADS or system is None:
        return call

    def shared(*arguments: Any) -> _R:
        crew = _here.crew
        if monotonic_ns() - crew.left_ns >= AWAKE_NS:
            _wake(system, crew, threads)
        try:
            return call(*arguments)
        finally:
            if crew.kept_off:
                _release(crew)
            crew.left_ns = monotonic_ns()

    return shared


def _wake(system: ctypes.CDLL, crew: _Crew, threads: int) -> None:
    """Keep the threads that work for the caller off its processor."""
    crew.free = os.sched_getaffinity(0)
    if threads > len(crew.free):
        return
    try:
        asked = os.getpid(), threads
        if crew.asked != asked:
            crew.numbers, crew.asked = _numbers(system, threads), asked
        elsewhere = crew.free - {system.sched_getcpu()}
        for number in crew.numbers:
            if os.sched_getaffinity(number) == crew.free:
                os.sched_setaffinity(number, elsewhere)
                crew.kept_off.append(number)
    except ProcessLookupError:  # one has ended: ask anew next time
        crew.asked = 0, 0
    except OSError:  # not allowed here
        crew.numbers = ()


def _release(crew: _Crew) -> None:
    """Let them run everywhere again."""
    while crew.kept_off:
        try:
            os.sched_setaffinity(crew.kept_off.pop(), crew.free)
        except OSError:
            crew.asked = 0, 0


def _numbers(system: ctypes.CDLL, threads: int) -> tuple[int, ...]:
    """Ask those that work for this thread for their numbers."""
    answers = np.zeros(threads, np.int64)
    driver.ask(ctypes.cast(system.gettid, ctypes.c_void_p).value or 0, threads, answers.ctypes.data)
    return tuple(sorted({int(number) for number in answers} - {threading.get_native_id()}))
