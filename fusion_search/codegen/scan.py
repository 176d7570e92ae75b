"""Running totals: one pass along the axis for each row, or for a whole row of totals where the axis is not the innermost loop."""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.generic import combined, neutral
from fusion_search.codegen.nest import Nest, open_loops
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, load, store


def emit_scan(e: Emitter, stage: Stage, i: int) -> None:
    """Write the stage of a running total: its axis is a serial loop, so that a block has all of it."""
    member = e.group.members[i]
    axis = [atom for loop in member.domain.uncut for atom in e.original[i][loop]]
    scan = _Scan(e, stage, i, axis[0] if axis else None)
    lead = [a for a in stage.order[:-1] if a != scan.axis]
    with ExitStack() as stack:
        variables = open_loops(e, stack, lead)
        inner = stage.order[-1] if stage.order else None
        if inner is None or inner == scan.axis:
            scan.numbers(variables)
        else:
            scan.rows(variables, inner)


class _Scan:
    """One running total while it is written.

    Parameters
    ----------
    e : Emitter
    stage : Stage
    i : int
        The member.
    axis : int or None
        The serial loop; None when it has one step.
    """

    def __init__(self, e: Emitter, stage: Stage, i: int, axis: int | None) -> None:
        self.e, self.stage, self.i, self.axis = e, stage, i, axis
        member, self.place = e.group.members[i], e.places[i]
        self.code, self.combiner = COMPUTE[self.place.code], member.spec.combiner
        self.exclusive = bool(member.node.attr("exclusive"))
        self.source, self.linear, self.key = e.memory_of(i, 0)
        self.target = Linear(dict(self.place.strides))
        # -0.0 is the neutral element of a sum of floats; what an exclusive total begins with is +0.0
        self.first = neutral(self.combiner, self.code)
        self.start = f"T_{self.code}(-0.0)" if self.combiner == "sum" and self.code[0] == "f" else self.first
        bound = e.bound(axis) if axis is not None else "1"
        self.head, self.steps = f"range(min({bound}, 1))", f"range({bound} - 1)" if self.exclusive else f"range({bound})"

    def _element(self, nest: Nest, key: str, pointer: str, linear: Linear, at: str = "j") -> str:
        stride = linear.strides.get(nest.inner, 0) if nest.inner is not None else 0
        if not stride:
            return f"{pointer}[0]"
        return f"{pointer}[{at}]" if stride == 1 else f"{pointer}[{at} * {self.e.step(key, nest.inner or 0, stride)}]"

    def numbers(self, variables: dict[int, str]) -> None:
        """The axis is the innermost loop: the total is a number."""
        w = self.e.w
        nest = Nest(self.e, self.stage, self.axis, variables)
        x, y = nest.pointer(self.key, self.source, self.linear), nest.pointer(f"w{self.i}", self.place, self.target)
        total = w.name("t")
        w.put(f"{total} = {self.start}")
        if self.exclusive:
            with w.block(f"for j in {self.head}:"):
                w.put(f"{self._element(nest, f'w{self.i}', y, self.target)} = {store(self.place.code, self.first)}")
        with w.block(f"for j in {self.steps}:"):
            term = load(self.source.code, self._element(nest, self.key, x, self.linear))
            w.put(f"{total} = {combined(self.combiner, self.code, total, term)}")
            at = self._element(nest, f"w{self.i}", y, self.target, "(j + 1)" if self.exclusive else "j")
            w.put(f"{at} = {store(self.place.code, total)}")

    def rows(self, variables: dict[int, str], inner: int) -> None:
        """Another loop is the innermost: a row of totals goes along the axis."""
        e, w = self.e, self.e.w
        count = e.tiles.get(inner, e.group.extents[inner])
        row = w.name("u")
        w.put(f"{row} = p_{self.code}(S + {e.reserve(('row', self.i), 8 * count)}, 0)")
        with w.block(f"for j in range({e.bound(inner)}):"):
            w.put(f"{row}[j] = {self.start}")
        if self.exclusive:
            k = w.name("i")
            with w.block(f"for {k} in {self.head}:"):
                nest = self._nest(variables, inner, k)
                y = nest.pointer(f"w{self.i}", self.place, self.target)
                with w.block(f"for j in range({e.bound(inner)}):"):
                    w.put(f"{self._element(nest, f'w{self.i}', y, self.target)} = {store(self.place.code, self.first)}")
        k = w.name("i")
        with w.block(f"for {k} in {self.steps}:"):
            nest = self._nest(variables, inner, k)
            x = nest.pointer(self.key, self.source, self.linear)
            nest = self._nest(variables, inner, f"({k} + 1)" if self.exclusive else k)
            y = nest.pointer(f"w{self.i}", self.place, self.target)
            with w.block(f"for j in range({e.bound(inner)}):"):
                term = load(self.source.code, self._element(nest, self.key, x, self.linear))
                w.put(f"{row}[j] = {combined(self.combiner, self.code, f'{row}[j]', term)}")
                w.put(f"{self._element(nest, f'w{self.i}', y, self.target)} = {store(self.place.code, f'{row}[j]')}")

    def _nest(self, variables: dict[int, str], inner: int, step: str) -> Nest:
        return Nest(self.e, self.stage, inner, variables | ({self.axis: step} if self.axis is not None else {}))
