"""Contractions and windows of any dtype written out as loops: what no library kernel covers.

The result's last loop is innermost and clipped to what lies inside the operand; the reduced loops run outside it in the order of
the node's own dimensions, so the order of additions is fixed by the shape.
"""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear
from fusion_search.codegen.emit import NEUTRAL, Emitter, Place
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, load, rounded, store

#: How a combiner joins the total and one more term, by the type in which it computes; other types are integers.
_COMBINE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max f4": "np_maximum({0}, {1})",
    "max f8": "np_maximum64({0}, {1})",
    "max": "int_maximum({0}, {1})",
}


def neutral(combiner: str, code: str) -> str:
    """Return the text of a combiner's neutral element."""
    if combiner != "max":
        return f"T_{code}({'1' if combiner == 'prod' else '0'})"
    if code[0] == "f":
        return f"T_{code}({NEUTRAL[combiner]})"
    return f"T_{code}({-(1 << (8 * int(code[1]) - 1)) if code[0] == 'i' else 0})"


def combined(combiner: str, code: str, total: str, term: str) -> str:
    """Return the text of one step of a reduction, rounded to its type."""
    return rounded(code, _COMBINE.get(f"{combiner} {code}", _COMBINE[combiner]).format(total, term))


class _Loops:
    """One contraction or window while it is written.

    Parameters
    ----------
    e : Emitter
    stage : Stage
    i : int
        The member.
    """

    def __init__(self, e: Emitter, stage: Stage, i: int) -> None:
        self.e, self.i, self.member, self.place = e, i, e.group.members[i], e.places[i]
        self.code = COMPUTE[self.place.code]
        self.combiner = self.member.spec.combiner
        self.reduced = list(e.group.loops[i].reduced)
        self.order = [a for a in stage.order if a not in self.reduced]
        self.inner = self.order[-1] if self.order else None
        self.variables: dict[int, str] = {}
        self.target = Linear(dict(self.place.strides))

    # ------------------------------------------------------------------ addresses

    def offset(self, place: Place, linear: Linear, key: str) -> str:
        """Offset of an address without the innermost loop."""
        e = self.e
        parts = [e.base(key, place, linear)]
        parts += [
            f"{v} * {e.step(key, a, linear.strides[a])}" for a, v in self.variables.items() if a != self.inner and linear.strides.get(a)
        ]
        return " + ".join(p for p in parts if p != "0") or "0"

    def pointer(self, place: Place, linear: Linear, key: str) -> str:
        """Write a pointer to where the innermost loop starts."""
        name = self.e.w.name("x")
        self.e.w.put(f"{name} = p_{place.code}({place.address}, {self.offset(place, linear, key)})")
        return name

    def element(self, pointer: str, linear: Linear, key: str) -> str:
        """The element at the innermost loop's index."""
        stride = linear.strides.get(self.inner, 0) if self.inner is not None else 0
        if self.inner is None or not stride:
            return f"{pointer}[0]"
        return f"{pointer}[j]" if stride == 1 else f"{pointer}[j * {self.e.step(key, self.inner, stride)}]"

    def operand(self, k: int) -> tuple[str, str]:
        """Write the pointer of an operand; return what loads it in the innermost loop, and the type that gives."""
        how, place, linear, key = self.e.source_of(self.i, k)
        if how == "parameter" and isinstance(place, str):
            return place, ""
        place, linear, key = self.e.memory_of(self.i, k)
        return load(place.code, self.element(self.pointer(place, linear, key), linear, key)), place.code

    def absolute(self, atom: int) -> str:
        """A loop's index in the whole tensor."""
        e = self.e
        if atom in e.group.outer:
            return f"{e.index[atom]} + {self.variables[atom]}" if atom in e.tiles else e.index[atom]
        return self.variables[atom]

    def rows(self, stack: ExitStack) -> None:
        """Open the result's loops but the innermost."""
        for atom in self.order[:-1]:
            self.variables[atom] = self.e.w.name("i")
            stack.enter_context(self.e.w.block(f"for {self.variables[atom]} in range({self.e.bound(atom)}):"))

    def columns(self, stack: ExitStack, low: str = "0", high: str = "") -> None:
        """Open the innermost loop."""
        if self.inner is not None:
            stack.enter_context(self.e.w.block(f"for j in range({low}, {high or self.e.bound(self.inner)}):"))

    # ------------------------------------------------------------------ the parts

    def write(self) -> None:
        """Write the whole stage."""
        e, w = self.e, self.e.w
        with ExitStack() as stack:
            self.rows(stack)
            out = self.pointer(self.place, self.target, f"w{self.i}")
            at = self.element(out, self.target, f"w{self.i}")
            total = at
            if self.place.code != self.code:  # 16-bit floats add up in a row of float32
                extent = e.tiles.get(self.inner, e.group.extents[self.inner]) if self.inner is not None else 1
                row = w.name("u")
                w.put(f"{row} = p_{self.code}(S + {e.reserve(('row', self.i), 8 * extent)}, 0)")
                total = f"{row}[{'j' if self.inner is not None else '0'}]"
            with ExitStack() as first:
                start = neutral(self.combiner, self.code)
                if len(self.member.operands) > 2:
                    start, _ = self.operand(2)
                self.columns(first)
                w.put(f"{total} = {rounded(self.code, start)}")
            with ExitStack() as walk:
                low, high = self._reductions(walk)
                terms = [self.operand(k)[0] for k in range(min(len(self.member.operands), 2))]
                self.columns(walk, low, high)
                term = rounded(self.code, " * ".join(terms)) if len(terms) > 1 else terms[0]
                w.put(f"{total} = {combined(self.combiner, self.code, total, term)}")
            if total is not at:
                self.columns(stack)
                w.put(f"{at} = {store(self.place.code, total)}")

    def _reductions(self, stack: ExitStack) -> tuple[str, str]:
        """Open the reduced loops and test what they read; return the innermost loop's range."""
        e, w, member, i = self.e, self.e.w, self.member, self.i
        low, high = "0", ""
        access = member.domain.reads[0]
        guards = []
        for d, dim in enumerate(access.dims):
            windowed = len(dim.terms) > 1 or dim.offset or (access.guarded and any(c != 1 for _, c in dim.terms))
            if member.spec.kind == "window" and (windowed or (access.guarded and d in _guarded(e, i))):
                guards.append(d)
        for atom in self.reduced:
            self.variables[atom] = w.name("k")
            stack.enter_context(w.block(f"for {self.variables[atom]} in range({e.bound(atom)}):"))
        for d in guards:
            parts = [w.number(("pad", i, d), access.dims[d].offset)]
            swept: int | None = None
            for loop, coefficient in access.dims[d].terms:
                (atom,) = e.original[i][loop]
                factor = w.number(("window", i, d, loop), coefficient)
                if atom == self.inner:
                    swept, step = atom, factor
                    continue
                parts.append(f"({self.absolute(atom)}) * {factor}")
            at, size = w.name("y"), w.number(("size", i, d), member.operands[0].shape[d])
            w.put(f"{at} = {' + '.join(parts)}")
            if swept is None:
                stack.enter_context(w.block(f"if 0 <= {at} < {size}:"))
                continue
            origin = e.index[swept] if swept in e.tiles else "0"
            low, high = w.name("l"), w.name("l")
            # positions j with 0 <= (origin + j) * step + at < size
            w.put(f"{low} = max(-(({at}) // {step}) - {origin}, 0)")
            w.put(f"{high} = min(({size} - 1 - {at}) // {step} + 1 - {origin}, {e.bound(swept)})")
        return low, high


def _guarded(e: Emitter, i: int) -> set[int]:
    """Dimensions of a window's operand along which it may read outside: those with a loop of the window or of a result that is padded."""
    member = e.group.members[i]
    found = set()
    for d, dim in enumerate(member.domain.reads[0].dims):
        reach = dim.offset + sum(c * (member.domain.extents[loop] - 1) for loop, c in dim.terms if c > 0)
        if dim.offset < 0 or reach >= member.operands[0].shape[d]:
            found.add(d)
    return found


def emit_generic(e: Emitter, stage: Stage, i: int) -> None:
    """Write the stage of a contraction or window as loops."""
    _Loops(e, stage, i).write()
