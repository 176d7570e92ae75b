"""Threads that sleep are woken off the caller's processor, and are as free afterwards as before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime import steps, waking
from fusion_search.runtime.program import BoundPlan

EVERYWHERE = {0, 1, 2, 5}
CALLER, WORKERS = 40, (41, 42)


class System:
    """Threads and where they may run; the caller is on processor 2."""

    def __init__(self) -> None:
        self.may_run = {number: set(EVERYWHERE) for number in (0, *WORKERS)}  # 0 is who asks
        self.refused: type[OSError] | None = None
        self.asked = 0
        self.process = 7

    def sched_getaffinity(self, number: int) -> set[int]:
        if number not in self.may_run:
            raise ProcessLookupError
        return set(self.may_run[number])

    def sched_setaffinity(self, number: int, processors: set[int]) -> None:
        if self.refused is not None:
            raise self.refused
        assert number in WORKERS
        self.may_run[number] = set(processors)

    def getpid(self) -> int:
        return self.process

    def sched_getcpu(self) -> int:
        return 2

    def numbers(self, library: object, threads: int) -> tuple[int, ...]:
        self.asked += 1
        return tuple(number for number in WORKERS if number in self.may_run)

    def seen(self) -> list[set[int]]:
        return [self.may_run[number] for number in WORKERS if number in self.may_run]


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    made = System()
    monkeypatch.setattr(waking, "_SYSTEM", made)
    monkeypatch.setattr(
        waking,
        "os",
        SimpleNamespace(sched_getaffinity=made.sched_getaffinity, sched_setaffinity=made.sched_setaffinity, getpid=made.getpid),
    )
    monkeypatch.setattr(waking, "_numbers", made.numbers)
    monkeypatch.setattr(waking, "_here", waking._Here())
    yield made
    assert made.sched_getaffinity(0) == EVERYWHERE  # the caller is left alone


def test_sleepers_are_kept_off_the_caller_s_processor_while_the_call_lasts(system: System) -> None:
    assert waking.awake(3, system.seen)() == [{0, 1, 5}] * 2
    assert system.seen() == [EVERYWHERE] * 2


def test_they_are_free_again_after_an_error(system: System) -> None:
    with pytest.raises(KeyError):
        waking.awake(3, {}.__getitem__)("nothing")
    assert system.seen() == [EVERYWHERE] * 2


def test_who_was_at_work_a_moment_ago_is_awake(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10**9]
    monkeypatch.setattr(waking, "monotonic_ns", lambda: now[0])
    call = waking.awake(3, system.seen)
    assert call() == [{0, 1, 5}] * 2
    now[0] += waking.AWAKE_NS - 1
    assert call() == [EVERYWHERE] * 2
    now[0] += waking.AWAKE_NS
    assert call() == [{0, 1, 5}] * 2
    assert system.asked == 1


def test_who_was_told_where_to_run_stays_there(system: System) -> None:
    system.may_run[41] = {2}
    assert waking.awake(3, system.seen)() == [{2}, {0, 1, 5}]
    assert system.seen() == [{2}, EVERYWHERE]


@pytest.mark.parametrize("threads", [1, 5, waking.MOST_THREADS + 1])
def test_nothing_is_done_for_one_thread_for_many_or_for_more_than_there_are_processors(system: System, threads: int) -> None:
    system.may_run[0] = EVERYWHERE if threads <= len(EVERYWHERE) + 1 else set(range(2 * threads))
    assert waking.awake(threads, system.seen)() == [EVERYWHERE] * 2
    assert system.asked == 0
    system.may_run[0] = EVERYWHERE


def test_threads_that_have_ended_are_asked_for_anew(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "AWAKE_NS", 0)
    call = waking.awake(3, system.seen)
    call()
    del system.may_run[41]
    call()
    assert call() == [{0, 1, 5}]
    assert system.asked == 2


def test_a_process_made_from_another_asks_for_its_own_threads(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "AWAKE_NS", 0)
    call = waking.awake(3, system.seen)
    call()
    system.process = 8
    call()
    assert system.asked == 2


def test_a_system_that_forbids_it_is_left_alone(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "AWAKE_NS", 0)
    system.refused = PermissionError
    call = waking.awake(3, system.seen)
    assert call() == call() == [EVERYWHERE] * 2


def test_a_system_that_knows_no_processors_takes_the_call_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "_SYSTEM", None)
    assert waking.awake(3, len) is len
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert waking._system() is None


@pytest.mark.skipif(waking._SYSTEM is None, reason="the system does not tell where threads run")
@pytest.mark.skipif(not 1 < numba.get_num_threads() <= waking.MOST_THREADS, reason="one thread works for nobody, many are left alone")
def test_the_numbers_are_those_of_this_process_s_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "_here", waking._Here())
    monkeypatch.setattr(steps, "SERIAL_NS", 0.0)
    monkeypatch.setattr(steps, "TASK_NS", 200.0)
    b = GraphBuilder("g")
    b.output("y", b.op("Exp", b.input("x", np.float32, (64, 512))))
    graph = b.build()
    plan = BoundPlan(graph, [[node.name for node in graph.nodes]])
    assert any(step.tasks > 1 for step in plan.steps)  # type: ignore[union-attr]  # kernels alone
    plan({"x": np.zeros((64, 512), np.float32)})
    mine = {int(folder.name) for folder in Path("/proc/self/task").iterdir()}
    assert len(waking._here.crew.numbers) == plan.threads - 1
    assert mine > set(waking._here.crew.numbers)
    assert os.getpid() not in waking._here.crew.numbers
    assert all(os.sched_getaffinity(number) == os.sched_getaffinity(0) for number in waking._here.crew.numbers)
