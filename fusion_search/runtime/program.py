"""A compiled plan for one set of shapes: buffers, argument tables and the step table."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np

from fusion_search.codegen.rt import driver, loader
from fusion_search.codegen.rt.conv import conv_address
from fusion_search.codegen.rt.gemm import gemm_address
from fusion_search.codegen.writer import HEADER
from fusion_search.errors import FeedError
from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.runtime.buffers import Lifetime, plan_buffers
from fusion_search.runtime.refit import RunGroup
from fusion_search.runtime.steps import CallStep, KernelStep, Step, make_steps

Array = np.ndarray[Any, Any]

#: Library functions that a table may name.
LIBRARY = {
    "gemm_f32": lambda: gemm_address("float32"),
    "gemm_f64": lambda: gemm_address("float64"),
    "conv_tile_f32": lambda: conv_address("conv_tile"),
    "pool_tile_f32": lambda: conv_address("pool_tile"),
}


def _references(buffers: list[Array], k: int) -> int:
    return sys.getrefcount(buffers[k])


#: References to a kept buffer when no result lives in it: counted, since interpreters differ in what a call holds.
UNHELD = _references([np.empty(1, np.uint8)], 0)
#: Buffers kept for each result.
KEPT_BUFFERS = 2


class BoundPlan:
    """A plan compiled for the shapes of one graph.

    Parameters
    ----------
    graph : Graph
    groups : sequence of RunGroup, or of sequence of str
        The groups in order; given by node names, each stores what groups that do not compute it need.
    generic : Graph, optional
        The model for generic extents, which gives the kernels their structure.

    Attributes
    ----------
    compilations : int
        Kernels that were compiled, not found in the cache.
    peak_bytes : int
        Planned buffers and scratch.
    """

    def __init__(self, graph: Graph, groups: Sequence[RunGroup] | Sequence[Sequence[str]], generic: Graph | None = None) -> None:
        self.graph = graph
        self.threads = int(numba.get_num_threads())
        self.steps = make_steps(graph, groups, self.threads, generic)
        before = loader.stats().compiled
        addresses = self._compile()
        self.compilations = loader.stats().compiled - before
        self._lock = threading.Lock()
        self._buffers: dict[str, list[Array]] = {}
        self._plan_memory()
        self._build_tables(addresses)

    # ------------------------------------------------------------------ building

    def _compile(self) -> dict[str, int]:
        addresses: dict[str, int] = {}
        for step in self.steps:
            if isinstance(step, KernelStep) and step.kernel.source not in addresses:
                addresses[step.kernel.source] = loader.load(HEADER + step.kernel.source, ["kernel"])["kernel"]
        return addresses

    def _plan_memory(self) -> None:
        graph = self.graph
        last: dict[str, int] = {}
        first: dict[str, int] = {}
        for k, step in enumerate(self.steps):
            for name in _touched(graph, step):
                first.setdefault(name, k)
                last[name] = k
        self.results = {graph.base(value.name) for value in graph.outputs}
        given = {value.name for value in graph.inputs} | set(graph.constants)
        dynamic = {name for name in first if graph.values[name].dtype == RUNTIME}
        lifetimes = [
            Lifetime(name, graph.values[name].nbytes, first[name], last[name])
            for name in first
            if name not in given and name not in self.results and name not in dynamic
        ]
        self.arena_plan = plan_buffers(lifetimes)
        self.arena = np.zeros(self.arena_plan.nbytes + 64, np.uint8)
        self._arena_base = -(-self.arena.ctypes.data // 64) * 64
        scratch = max((step.kernel.scratch_bytes for step in self.steps if isinstance(step, KernelStep)), default=0)
        self.scratch_stride = -(-(scratch + 256) // 4096) * 4096
        slots = driver.scratch_slots()
        self.scratch = np.zeros(self.scratch_stride * slots + 4096, np.uint8)
        self._scratch_base = -(-self.scratch.ctypes.data // 4096) * 4096
        self.flag = np.zeros(8, np.int64)
        self.constants = {name: np.ascontiguousarray(graph.constants[name]) for name in first if name in graph.constants}
        produced = sum(graph.values[name].nbytes for name in self.results if name not in given and name not in dynamic)
        self.peak_bytes = self.arena_plan.nbytes + self.scratch_stride * slots + produced

    def _build_tables(self, addresses: dict[str, int]) -> None:
        """Lay out all argument tables in one array; what moves from run to run is filled in by `bind`."""
        graph = self.graph
        moving = dict.fromkeys([*(value.name for value in graph.inputs), *sorted(self.results)])  # an output may be an input
        self.moving = {name: k for k, name in enumerate(moving)}
        slots: list[int] = []
        offsets: list[int] = []
        starts: list[int] = []
        for step in self.steps:
            starts.append(len(slots))
            if not isinstance(step, KernelStep):
                continue
            for slot in step.kernel.slots:
                if slot.value is None:
                    slots.append(-1)
                    offsets.append(slot.number)
                elif slot.value == "":
                    slots.append(-1)
                    offsets.append(self.flag.ctypes.data)
                elif slot.external:
                    slots.append(-1)
                    offsets.append(LIBRARY[slot.value]())
                elif slot.value in self.constants:
                    slots.append(-1)
                    offsets.append(self.constants[slot.value].ctypes.data + slot.number)
                elif slot.value in self.moving:
                    slots.append(self.moving[slot.value])
                    offsets.append(slot.number)
                else:
                    slots.append(-1)
                    offsets.append(self._arena_base + self.arena_plan.offsets[slot.value] + slot.number)
            slots += [-1] * (-len(slots) % 8)
            offsets += [0] * (-len(offsets) % 8)
        self._slots = np.array(slots, np.int64)
        self._offsets = np.array(offsets, np.int64)
        self._table = np.zeros(len(slots) + 8, np.int64)
        rows = []
        self.segments: list[tuple[int, int] | CallStep] = []
        for step, start in zip(self.steps, starts, strict=True):
            if isinstance(step, CallStep):
                self.segments.append(step)
                continue
            rows.append((addresses[step.kernel.source], self._table.ctypes.data + 8 * start, step.kernel.items, step.chunk))
            if self.segments and isinstance(self.segments[-1], tuple):
                self.segments[-1] = (self.segments[-1][0], len(rows))
            else:
                self.segments.append((len(rows) - 1, len(rows)))
        self._rows = np.array(rows, np.int64).reshape(-1, 4)

    # ------------------------------------------------------------------ running

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the plan on arrays of exactly the planned shapes; the results are new arrays."""
        with self._lock:
            memory = self.begin(feeds)
            for segment in self.segments:
                self.run_segment(segment, memory)
            return self._results(memory)

    def begin(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Prepare a run: check the inputs in, make room for the results, fill the argument tables."""
        graph = self.graph
        memory: dict[str, Any] = {
            # a sequence, an optional or a string tensor goes to its readers as it is
            value.name: feeds[value.name] if value.dtype == RUNTIME else np.ascontiguousarray(feeds[value.name]).reshape(value.shape)
            for value in graph.inputs
        }
        for name in self.results:
            value = graph.values[name]
            if name not in memory and name not in graph.constants and value.dtype != RUNTIME:
                memory[name] = self._fresh(name)
        self._bind(memory)
        return memory

    def _bind(self, memory: Mapping[str, Any]) -> None:
        bases = np.zeros(max(len(self.moving), 1), np.int64)
        for name, k in self.moving.items():
            if isinstance(memory.get(name), np.ndarray):
                bases[k] = memory[name].ctypes.data
        driver.bind(self._table[: self._slots.size], self._slots, self._offsets, bases)
        self.flag[0] = 0

    def _fresh(self, name: str) -> Array:
        """Return an array for a result: memory of an earlier one that nobody holds any more, or new memory.

        Touching new pages costs more than most kernels. Whoever holds an earlier result, or a view of it, holds its buffer.
        """
        value = self.graph.values[name]
        kept = self._buffers.setdefault(name, [])
        for k in range(len(kept)):
            if _references(kept, k) == UNHELD:
                buffer = kept[k]
                return buffer[: int(value.nbytes)].view(value.dtype).reshape(value.shape)
        made = np.empty(max(int(value.nbytes), 1), np.uint8)
        if len(kept) < KEPT_BUFFERS:
            kept.append(made)
        return made[: int(value.nbytes)].view(value.dtype).reshape(value.shape)

    def run_segment(self, segment: tuple[int, int] | CallStep, memory: dict[str, Any]) -> None:
        """Run consecutive kernels of the step table, or one call."""
        if isinstance(segment, tuple):
            start, stop = segment
            driver.run_plan(self._rows[start:stop], stop - start, self._scratch_base, self.scratch_stride, self.threads)
            if self.flag[0]:
                raise FeedError("an index is outside its tensor", hint="check the fed indices")
        else:
            self._call(segment, memory)

    def _call(self, step: CallStep, memory: dict[str, Any]) -> None:
        graph = self.graph
        arrays = [self._read(name, memory) if name else None for name in step.node.inputs]
        results = step.function(arrays)
        for name, result in zip(step.node.outputs, results, strict=True):
            value = graph.values[name]
            if value.dtype == RUNTIME:
                memory[name] = result
                continue
            target = memory[name] if name in self.results else self._view(name)
            if target.shape != np.shape(result):
                raise FeedError(f"node {step.node.name!r}: computed shape {list(np.shape(result))}, expected {list(target.shape)}")
            target[...] = result

    def _read(self, name: str, memory: Mapping[str, Any]) -> Any:
        graph = self.graph
        base = graph.base(name)
        if base in graph.constants:
            array: Any = graph.constants[base]
        elif base in memory:
            array = memory[base]
        else:
            array = self._view(base)
        value = graph.values[name]
        return array if value.dtype == RUNTIME else np.reshape(array, value.shape)

    def _view(self, name: str) -> Array:
        value = self.graph.values[name]
        start = self._arena_base - self.arena.ctypes.data + self.arena_plan.offsets[name]
        return self.arena[start : start + value.nbytes].view(value.dtype).reshape(value.shape)

    def _results(self, memory: Mapping[str, Any]) -> dict[str, Array]:
        graph = self.graph
        given = {value.name for value in graph.inputs} | set(graph.constants)
        found: dict[str, Array] = {}
        seen: set[str] = set()
        for value in graph.outputs:
            base = graph.base(value.name)
            array = self._read(value.name, memory)
            # a caller owns what it gets: never an input, a weight, or one array under two names
            found[value.name] = array.copy() if isinstance(array, np.ndarray) and (base in given or base in seen) else array
            seen.add(base)
        return found


def _touched(graph: Graph, step: Step) -> list[str]:
    if isinstance(step, KernelStep):
        return sorted({slot.value for slot in step.kernel.slots if slot.value and not slot.external})
    return sorted({graph.base(name) for name in (*step.node.inputs, *step.node.outputs) if name})
