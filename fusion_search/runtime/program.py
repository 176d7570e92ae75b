"""A compiled plan for one set of shapes: kernels, planned memory and the step table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from fusion_search.codegen.packing import Packing
from fusion_search.codegen.rt import driver, loader
from fusion_search.codegen.rt.conv import conv_address
from fusion_search.codegen.rt.gemm import gemm_address
from fusion_search.codegen.writer import HEADER
from fusion_search.errors import FeedError
from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.orders import row_major
from fusion_search.runtime.aliases import Placement, place_parts
from fusion_search.runtime.express import Express, outside
from fusion_search.runtime.fitting import fitted
from fusion_search.runtime.memory import Scratch, plan_memory, stride_of
from fusion_search.runtime.outputs import checked_outputs
from fusion_search.runtime.packed import PackedConstants
from fusion_search.runtime.ports import READABLE
from fusion_search.runtime.refit import RunGroup
from fusion_search.runtime.results import aligned
from fusion_search.runtime.steps import AliasStep, CallStep, Choice, Choose, KernelStep, Made, make_steps
from fusion_search.runtime.waking import awake
from fusion_search.runtime.workspace import ARENA, FIRST_PORT, FLAG, PAGE, Layout, Workspace, Workspaces

Array = np.ndarray[Any, Any]

#: Library functions that a table may name.
LIBRARY = {
    "gemm_f32": lambda: gemm_address("float32"),
    "gemm_f64": lambda: gemm_address("float64"),
    "gemm_packed_f32": lambda: gemm_address("float32", "gemm_packed"),
    "gemm_packed_f64": lambda: gemm_address("float64", "gemm_packed"),
    "gemm_turned_f32": lambda: gemm_address("float32", "gemm_turned"),
    "gemm_turned_f64": lambda: gemm_address("float64", "gemm_turned"),
    "conv_tile_f32": lambda: conv_address("conv_tile"),
    "pool_tile_f32": lambda: conv_address("pool_tile"),
}


@dataclass(frozen=True, slots=True)
class LoneStep:
    """One step by itself, with its own argument table and scratch."""

    rows: Array
    table: Array
    scratch: Array
    threads: int

    def run(self) -> None:
        """Run the step as often as it was laid out for."""
        awake(self.threads, driver.run_plan)(self.rows, len(self.rows), self.threads)


class BoundPlan:
    """A plan compiled for the shapes of one graph; safe to call from several threads at once.

    Parameters
    ----------
    graph : Graph
    groups : sequence of RunGroup, or of sequence of str
        The groups in order; given by node names, each stores what groups that do not compute it need.
    generic : Graph, optional
        The model for generic extents, which gives the kernels their structure.
    choose : callable, optional
        Says how a kernel is to run in place of what the generator and the runtime choose.
    packed : PackedConstants, optional
        Where other bindings of the same plan have packed its constants.
    progress : callable, optional
        Told before each kernel is compiled or loaded which of how many it is.
    aliasing : bool
        Whether producers may write the parts of a concat where they belong (`fusion.aliases`).

    Attributes
    ----------
    compilations : int
        Kernels that were compiled, not found in the cache.
    memory : MemoryPlan
        Planned buffers, scratch and results of one run.
    """

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[RunGroup] | Sequence[Sequence[str]],
        generic: Graph | None = None,
        choose: Choose | None = None,
        *,
        packed: PackedConstants | None = None,
        progress: Callable[[str], None] | None = None,
        aliasing: bool = True,
    ) -> None:
        self.graph = graph
        self._store = packed if packed is not None else PackedConstants()
        self._packed: dict[tuple[str, Packing], Array] = {}
        self.threads = int(numba.get_num_threads())
        #: The kernels as the generator makes them, by nodes.
        self.kernels: dict[tuple[str, ...], Made] = {}
        self._chosen: set[tuple[str, ...]] = set()
        self.placement = place_parts(graph, [_nodes(group) for group in groups]) if aliasing else Placement()
        self.steps = make_steps(graph, groups, self.threads, generic, self._remembering(choose), self.placement.free)
        self.memory = plan_memory(graph, self.steps, self.threads, self.placement)
        self._fit()
        before = loader.stats().compiled
        addresses = self._compile(progress or (lambda text: None))
        self.compilations = loader.stats().compiled - before
        self._given = {value.name for value in graph.inputs} | set(graph.constants)
        self.spaces = Workspaces(self._layout(addresses))
        shared = any(isinstance(step, KernelStep) and step.tasks > 1 for step in self.steps)
        self._sharers = self.threads if shared else 1
        self._run_steps = awake(self._sharers, driver.run_plan)
        self.express = self._express()

    def _remembering(self, choose: Choose | None) -> Choose:
        def chosen(made: Made) -> Choice | None:
            self.kernels[made.nodes] = made
            choice = choose(made) if choose else None
            if choice is not None:
                self._chosen.add(made.nodes)
            return choice

        return chosen

    def _fit(self) -> None:
        """Cut blocks of what is chosen here, not of what was measured, where fusing would need more memory than it saves."""
        own = {nodes: made for nodes, made in self.kernels.items() if nodes not in self._chosen}
        fitting = fitted(self.graph, self.steps, self.memory, own, self.threads)
        if fitting != self.steps:
            self.steps = fitting
            self.memory = plan_memory(self.graph, fitting, self.threads, self.placement)

    @property
    def peak_bytes(self) -> int:
        """Planned buffers, scratch and results of one run."""
        return self.memory.peak_bytes

    # ------------------------------------------------------------------ building

    def _compile(self, progress: Callable[[str], None]) -> dict[str, int]:
        """Compile or load what is not loaded yet; return the address of each kernel by its text."""
        kernels = {step.kernel.source: step for step in self.steps if isinstance(step, KernelStep)}
        used = dict.fromkeys(slot.value or "" for step in kernels.values() for slot in step.kernel.slots if slot.external)
        for name in used:
            if name in LIBRARY:
                progress(f"library function {name}")
                LIBRARY[name]()
        addresses: dict[str, int] = {}
        for k, (source, step) in enumerate(kernels.items(), 1):
            progress(f"kernel {k} of {len(kernels)}")
            addresses[source] = _loaded(step, "kernel")
        return addresses

    def _layout(self, addresses: dict[str, int]) -> Layout:
        """Lay out all argument tables in one array; a workspace fills in the addresses."""
        graph = self.graph
        self.constants = {name: row_major(graph.constants[name]) for name in self.memory.touched if name in graph.constants}
        #: The results that a run makes room for, in the order in which the caller gets them.
        self._made = tuple(dict.fromkeys(base for value in graph.outputs if (base := graph.base(value.name)) in self.memory.results))
        self._moving = {name: k for k, name in enumerate([*(value.name for value in graph.inputs), *self._made], FIRST_PORT)}
        slots: list[int] = []
        offsets: list[int] = []
        starts: list[int] = []
        for k, step in enumerate(self.steps):
            starts.append(len(slots))
            if isinstance(step, KernelStep):
                for place, offset in self._entries(step, ARENA, self.memory.shared.get(k, 0)):
                    slots.append(place)
                    offsets.append(offset)
                slots += [-1] * (-len(slots) % 8)
                offsets += [0] * (-len(offsets) % 8)
        rows = []
        self.segments: list[tuple[int, int] | CallStep] = []
        nowhere = Scratch(0, 0)
        for k, (step, start) in enumerate(zip(self.steps, starts, strict=True)):
            if isinstance(step, AliasStep):
                continue
            if isinstance(step, CallStep):
                self.segments.append(step)
                continue
            scratch = self.memory.scratch.get(k, nowhere)
            rows.append((addresses[step.kernel.source], 8 * start, step.kernel.items, step.chunk, scratch.offset, scratch.stride))
            if self.segments and isinstance(self.segments[-1], tuple):
                self.segments[-1] = (self.segments[-1][0], len(rows))
            else:
                self.segments.append((len(rows) - 1, len(rows)))
        return Layout(
            self.memory.arena_bytes,
            np.array(slots, np.int64),
            np.array(offsets, np.int64),
            np.array(rows, np.int64).reshape(-1, len(driver.STEP_FIELDS)),
            tuple(graph.inputs),
            tuple(graph.values[name] for name in self._made) if self._shared() else tuple(graph.outputs),
            self.threads,
        )

    def _shared(self) -> bool:
        """Whether an output is no array of its own: an input, a constant, a called node's object, or one value under two names."""
        return tuple(self.graph.base(value.name) for value in self.graph.outputs) != self._made

    def _express(self) -> Express | None:
        """The short way, for a plan that is kernels alone, on plain arrays, all of whose outputs are arrays of their own."""
        graph = self.graph
        plain = all(value.dtype != RUNTIME for value in graph.inputs)
        if not READABLE or not plain or self._shared() or not all(isinstance(segment, tuple) for segment in self.segments):
            return None
        return Express(self.spaces, [value.name for value in graph.inputs], [value.name for value in graph.outputs], self._sharers)

    def _entries(self, step: KernelStep, base: int, shared: int) -> Iterator[tuple[int, int]]:
        """Yield the base (-1 for none) and the number of each slot of a kernel's argument table; given where its items' memory is."""
        for slot in step.kernel.slots:
            if slot.shared:
                yield base, shared + slot.number
            elif slot.value is None:
                yield -1, slot.number
            elif slot.value == "":
                yield FLAG, slot.number
            elif slot.external:
                yield -1, LIBRARY[slot.value]() if slot.value in LIBRARY else _loaded(step, slot.value)
            elif slot.packing is not None:
                key = slot.value, slot.packing
                if key not in self._packed:
                    self._packed[key] = self._store.of(self.graph.constants[slot.value], slot.packing)
                yield -1, self._packed[key].ctypes.data + slot.number
            elif slot.value in self.constants:
                yield -1, self.constants[slot.value].ctypes.data + slot.number
            elif slot.value in self._moving:
                yield self._moving[slot.value], slot.number
            elif slot.value in self.memory.inside:
                place = self.memory.inside[slot.value]
                yield self._moving[place.block], place.offset + slot.number
            else:
                yield ARENA, self.memory.offsets[slot.value] + slot.number

    def lone_step(self, step: KernelStep, space: Workspace, times: int) -> LoneStep:
        """Lay out a variant of one of the plan's steps, to run again and again in a workspace that was begun.

        Parameters
        ----------
        step : KernelStep
            A step of this plan, its kernel cut otherwise or its tasks of other sizes.
        space : Workspace
        times : int
            How often one run runs it.
        """
        address = _loaded(step, "kernel")
        own = stride_of(step) * self.threads
        scratch = aligned(own + step.kernel.shared_bytes, PAGE)
        found = self._entries(step, -1, scratch.ctypes.data + own)
        entries = np.array([offset + (space.bases[base] if base >= 0 else 0) for base, offset in found], np.int64)
        row = (address, entries.ctypes.data, step.kernel.items, step.chunk, scratch.ctypes.data, stride_of(step))
        return LoneStep(np.array([row] * times, np.int64), entries, scratch, self.threads)

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """Lend a workspace for one run."""
        with self.spaces.lent() as space:
            yield space

    # ------------------------------------------------------------------ running

    def __call__(self, feeds: Mapping[str, Array], out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Run the plan on arrays of exactly the planned shapes; results that `out` has no array for are new arrays."""
        found = self.express(feeds, out) if self.express is not None else None
        if found is not None:
            return found
        given = checked_outputs(self.graph, out, feeds) if out is not None else {}
        with self.workspace() as space:
            self.begin(feeds, space, given)
            for segment in self.segments:
                self.run_segment(segment, space)
            return self._returned(space, given)

    def begin(self, feeds: Mapping[str, Array], space: Workspace, out: Mapping[str, Array] | None = None) -> None:
        """Prepare a run: inputs in, room for the results, argument tables filled."""
        graph, memory = self.graph, space.memory
        for value in graph.inputs:
            # a sequence, an optional or a string tensor goes to its readers as it is
            fed = feeds[value.name]
            memory[value.name] = fed if value.dtype == RUNTIME else _laid_out(fed, value.shape)
        for name, array in (out or {}).items():
            base = graph.base(name)
            if base in self.memory.results and base not in memory:
                memory[base] = _laid_out(array, graph.values[base].shape)
        for k, name in enumerate(self._made):
            if name not in memory:
                memory[name] = space.results.intact(k)
        for name, k in self._moving.items():
            if isinstance(memory[name], np.ndarray):
                space.bases[k] = memory[name].ctypes.data
        space.bind()

    def run_until(self, stop: int, space: Workspace) -> None:
        """Run the steps before a step, by their place in `steps`."""
        kernels = sum(isinstance(step, KernelStep) for step in self.steps[:stop])
        calls = sum(isinstance(step, CallStep) for step in self.steps[:stop])
        for segment in self.segments:
            if isinstance(segment, tuple) and segment[0] < kernels:
                self.run_segment((segment[0], min(segment[1], kernels)), space)
            elif isinstance(segment, CallStep) and calls:
                calls -= 1
                self.run_segment(segment, space)

    def run_segment(self, segment: tuple[int, int] | CallStep, space: Workspace) -> None:
        """Run consecutive kernels of the step table, or one call."""
        if isinstance(segment, tuple):
            start, stop = segment
            self._run_steps(space.rows[start:stop], stop - start, self.threads)
            if space.flag[0]:
                raise outside()
        else:
            self._call(segment, space)

    def _call(self, step: CallStep, space: Workspace) -> None:
        graph, memory = self.graph, space.memory
        arrays = [self._read(name, space) if name else None for name in step.node.inputs]
        results = step.function(arrays)
        for name, result in zip(step.node.outputs, results, strict=True):
            value = graph.values[name]
            if value.dtype == RUNTIME:
                memory[name] = result
                continue
            target = memory[name] if name in self.memory.results else self._view(name, space)
            if target.shape != np.shape(result):
                raise FeedError(f"node {step.node.name!r}: computed shape {list(np.shape(result))}, expected {list(target.shape)}")
            target[...] = result

    def _read(self, name: str, space: Workspace) -> Any:
        graph = self.graph
        base = graph.base(name)
        if base in graph.constants:
            array: Any = graph.constants[base]
        elif base in space.memory:
            array = space.memory[base]
        else:
            array = self._view(base, space)
        value = graph.values[name]
        return array if value.dtype == RUNTIME or np.shape(array) == value.shape else np.reshape(array, value.shape)

    def _view(self, name: str, space: Workspace) -> Array:
        value = self.graph.values[name]
        block: Array
        if name in self.memory.inside:
            place = self.memory.inside[name]
            start, block = place.offset, space.memory[place.block].reshape(-1).view(np.uint8)
        else:
            start, block = self.memory.offsets[name], space.arena
        return block[start : start + value.nbytes].view(value.dtype).reshape(value.shape)

    def _returned(self, space: Workspace, out: Mapping[str, Array]) -> dict[str, Array]:
        """Collect the results: a caller owns what it gets, which is never an input, a weight, or one array under two names."""
        graph = self.graph
        found: dict[str, Array] = {}
        owner = {graph.base(name): name for name in reversed(list(out))}
        for value in graph.outputs:
            base = graph.base(value.name)
            array = self._read(value.name, space)
            mine = owner.setdefault(base, value.name) == value.name and base not in self._given
            if value.name in out:
                found[value.name] = out[value.name]
                if not mine:
                    np.copyto(out[value.name], array)
            else:
                found[value.name] = array if mine or not isinstance(array, np.ndarray) else array.copy()
        return found


def _loaded(step: KernelStep, name: str) -> int:
    """Address of a kernel, or of a piece of it."""
    return loader.load(HEADER + step.kernel.source, [name])[name]


def _nodes(group: RunGroup | Sequence[str]) -> Sequence[str]:
    return group.nodes if isinstance(group, RunGroup) else group


def _laid_out(array: Array, shape: tuple[int, ...]) -> Array:
    """An array as kernels read it: itself when it lies so, which is cheap to see and most often true."""
    flags = array.flags
    fit = array if flags.c_contiguous and flags.aligned else np.require(array, requirements=("C", "A"))
    return fit if fit.shape == shape else fit.reshape(shape)
