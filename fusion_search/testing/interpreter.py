"""The loop-nest interpreter: generated kernels run in plain Python, every access checked.

The very text that would be compiled is executed with pointers that know their buffers, and with NumPy in the place of the run-time
library. It is the checked build: an access outside its buffer, a read of what no one wrote, two items of a kernel that touch the
same element, or a tensor used with another dtype is an error that names the buffer, the element and the kernel's line. Tasks of
one item or a few run in random order, so a result that depends on their order shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from fusion_search.codegen.kernel import scratch_apart
from fusion_search.codegen.writer import ARRIVALS
from fusion_search.errors import FeedError
from fusion_search.ir.graph import Graph
from fusion_search.runtime.refit import RunGroup
from fusion_search.runtime.steps import CallStep, Choose, KernelStep, make_steps
from fusion_search.testing.checked import AccessError, Array, Buffer, Memory
from fusion_search.testing.standins import library, namespace

if TYPE_CHECKING:
    from fusion_search.codegen.kernel import Kernel

_FILE = "<kernel>"
#: How likely an item begins a task.
SINGLE = 0.7


class KernelError(AssertionError):
    """A kernel did what it must not.

    Parameters
    ----------
    what : str
    kernel : Kernel
    line : int
        Of the kernel's text, from 1.
    """

    def __init__(self, what: str, kernel: Kernel, line: int) -> None:
        lines = kernel.source.splitlines()
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        super().__init__(f"{what}; line {line}: {text}")
        self.kernel, self.line = kernel, line


class _Scratch:
    """The scratch of one worker: every place in it is a buffer of its own, so that one cannot run into the next."""

    def __init__(self, memory: Memory, kernel: Kernel) -> None:
        starts = sorted({_number(kernel, int(slot)) for slot in re.findall(r"\bS \+ n(\d+)", kernel.source)})
        ends = [*starts[1:], kernel.scratch_bytes][: len(starts)]
        self.parts = {a: memory.add(Buffer(f"scratch {a}", b - a)) for a, b in zip(starts, ends, strict=True)}

    def __add__(self, offset: int) -> int:
        return self.parts[offset]


def _number(kernel: Kernel, slot: int) -> int:
    return kernel.slots[slot].number


@lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    return compile(source, _FILE, "exec")


class Interpreter:
    """Runs plans of one graph.

    Parameters
    ----------
    graph : Graph
    groups : sequence of RunGroup, or of sequence of str
        The groups, or their node names, in an order in which they can run.
    generic : Graph, optional
        The model for generic extents, which gives the kernels their structure.
    choose : callable, optional
        Says how a kernel is to run in place of what the generator chooses.
    """

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[RunGroup] | Sequence[Sequence[str]],
        generic: Graph | None = None,
        choose: Choose | None = None,
    ) -> None:
        self.graph = graph
        self.steps = make_steps(graph, groups, 2, generic, choose)

    @property
    def kernels(self) -> int:
        """How many steps are generated kernels."""
        return sum(isinstance(step, KernelStep) for step in self.steps)

    def __call__(self, feeds: Mapping[str, Array], seed: int = 0) -> dict[str, Array]:
        """Run the plan; return every value that a kernel or a call computed, besides the outputs.

        Raises
        ------
        KernelError
            When a kernel's access is not allowed.
        FeedError
            When an index is outside its tensor.
        """
        run = _Run(self.graph, feeds, np.random.default_rng([seed, 5]))
        with np.errstate(all="ignore"):
            for step in self.steps:
                if isinstance(step, CallStep):
                    run.call(step)
                elif isinstance(step, KernelStep):
                    run.kernel(scratch_apart(step.kernel))
        return run.values

    def outputs(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Pick a graph's outputs from all values."""
        return {v.name: np.reshape(values[self.graph.base(v.name)], v.shape) for v in self.graph.outputs}


class _Run:
    """One run of a plan: its memory and its values so far."""

    def __init__(self, graph: Graph, feeds: Mapping[str, Array], rng: np.random.Generator) -> None:
        self.graph, self.rng, self.memory = graph, rng, Memory()
        self.values: dict[str, Array] = {}
        self.addresses: dict[str, int] = {}
        self.names = namespace(self.memory)
        self.flag = [0] * 16
        self.arrived = 0
        self.flag_address = self.memory.add(self.flag)
        self.fixed: dict[str, int] = {}
        self.functions: dict[int, Callable[..., None]] = {}
        for name, function in library(self.memory).items():
            self.fixed[name] = self.memory.add([])
            self.functions[self.fixed[name]] = function
        self.names["arrive"] = self._arrive
        self.names["call_address"] = lambda address, arguments: self.functions[address](*arguments)
        for name, array in (*graph.constants.items(), *feeds.items()):
            self._add(name, np.ascontiguousarray(array), given=True)

    def _add(self, name: str, array: Array, *, given: bool) -> None:
        self.values[name] = array
        flat = array.reshape(-1)
        if flat.dtype == object:
            return
        if flat.dtype.kind not in "iuf" or (flat.dtype.kind == "f" and flat.dtype.itemsize < 4):  # bools and short floats are bits
            flat = flat.view(f"u{flat.dtype.itemsize}")
        self.addresses[name] = self.memory.add(Buffer(name, array.nbytes, flat, given=given))

    def _address(self, name: str) -> int:
        if name not in self.addresses:
            value = self.graph.values[name]
            self._add(name, np.zeros(value.shape, value.dtype), given=False)
        return self.addresses[name]

    def call(self, step: CallStep) -> None:
        """Evaluate a node as a whole."""
        graph = self.graph
        arrays = [np.reshape(self.values[graph.base(name)], graph.values[name].shape) if name else None for name in step.node.inputs]
        for name, result in zip(step.node.outputs, step.function(arrays), strict=True):
            self._add(name, np.ascontiguousarray(result).reshape(np.shape(result)), given=True)

    def kernel(self, kernel: Kernel) -> None:
        """Run all items of a kernel, in tasks in random order."""
        table = []
        pieces: dict[str, int] = {}
        shared = self._shared(kernel)
        for slot in kernel.slots:
            if slot.shared:
                table.append(shared[slot.number])
            elif slot.value is None:
                table.append(slot.number)
            elif slot.external:
                if slot.value not in self.fixed:
                    pieces[slot.value] = self.memory.add([])
                table.append(pieces[slot.value] if slot.value in pieces else self.fixed[slot.value])
            elif slot.value == "":
                table.append(self.flag_address + slot.number)
            elif slot.packing is not None:
                name = f"{slot.value} packed"
                packed = slot.packing.pack(self.graph.constants[slot.value])
                table.append(self.memory.add(Buffer(name, packed.nbytes, packed, given=True)) + slot.number)
            else:
                table.append(self._address(slot.value) + slot.number)
        memory = self.memory
        code = _compiled(kernel.source)
        names = dict(self.names)
        self._complete(names, code)
        exec(code, names)
        self.functions |= {address: names[piece] for piece, address in pieces.items()}
        arguments, scratch = memory.add(table), _Scratch(memory, kernel)
        memory.now += 1
        memory.first = memory.now
        for lo, hi in self._tasks(kernel.items):
            try:
                names["kernel"](arguments, scratch, lo, hi)
            except Exception as error:
                raise KernelError(f"{type(error).__name__}: {error}", kernel, _line(error)) from error
            memory.now += 1
        if self.flag[0]:
            raise FeedError("an index is outside its tensor", hint="check the fed indices")

    def _tasks(self, items: int) -> list[tuple[int, int]]:
        """Cut a kernel's items into tasks, most of them of one item, and shuffle them."""
        cuts = [0, *(k for k in range(1, items) if self.rng.random() < SINGLE), items]
        tasks = [(lo, hi) for lo, hi in pairwise(cuts) if lo < hi]
        return [tasks[k] for k in self.rng.permutation(len(tasks))]

    def _shared(self, kernel: Kernel) -> dict[int, int]:
        """Make what all items share, each part a buffer of its own; return their addresses by offset."""
        starts = sorted({slot.number for slot in kernel.slots if slot.shared})
        ends = [*starts[1:], kernel.shared_bytes][: len(starts)]
        return {a: self.memory.add(Buffer(f"shared {a}", b - a, shared=True)) for a, b in zip(starts, ends, strict=True)}

    def _arrive(self, address: int, count: int) -> bool:
        """Count an item as done; True for the last one."""
        if self.memory.table(address) != self.flag[ARRIVALS // 8 :]:
            raise AccessError("items are counted elsewhere than in the count of items")
        self.arrived = (self.arrived + 1) % count
        return self.arrived == 0

    def _complete(self, names: dict[str, Any], code: CodeType) -> None:
        """Let the run-time library itself, compiled, stand in for what has no stand-in."""
        used = dict.fromkeys(name for c in code.co_consts if isinstance(c, CodeType) for name in c.co_names)
        missing = [name for name in used if name not in names and name not in ("range", "min", "max", "abs")]
        if missing:
            from fusion_search.codegen.rt import kernel

            names |= {name: getattr(kernel, name) for name in missing if hasattr(kernel, name)}


def _line(error: BaseException) -> int:
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def interpret(
    graph: Graph, groups: Sequence[RunGroup] | Sequence[Sequence[str]], feeds: Mapping[str, Array], seed: int = 0
) -> dict[str, Array]:
    """Run a plan in the interpreter; return the graph's outputs.

    Parameters
    ----------
    graph : Graph
    groups : sequence of sequence of str
        Node names of each group, in an order in which they can run.
    feeds : mapping of str to numpy.ndarray
    seed : int
        Decides the order of items.
    """
    interpreter = Interpreter(graph, groups)
    return interpreter.outputs(interpreter(feeds, seed))


__all__ = ["AccessError", "Interpreter", "KernelError", "interpret"]
