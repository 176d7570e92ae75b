"""Reductions of other dimensions, or of whole numbers: one accumulator an output, in the order of the reduced loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fusion_search.codegen import blocks
from fusion_search.codegen.access import Linear
from fusion_search.codegen.caches import exceeds_caches, moved_bytes
from fusion_search.codegen.emit import NEUTRAL, Emitter, Place
from fusion_search.codegen.extents import actual
from fusion_search.codegen.nest import Nest, Ready, argument, define, open_loops, prepare
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, converted, rounded, store

#: Rows of a matrix that are summed at a time, so that a sum of columns is loaded and stored once for all of them; and the pairs of
#: addresses, one read and one written, up to which LLVM tests that they do not overlap, rather than leave a loop in scalars.
ROWS = 8
#: Columns that are summed at a time: a cache line of float32.
VECTOR = 16
#: Members of a stage, each as often as rows are summed at a time, that are compiled in no time.
BODY = 32


def emit_accumulators(e: Emitter, stage: Stage, reducers: list[int]) -> None:
    """Reductions over leading dimensions: one accumulator an output, in the order of the reduced loops."""
    reduced = e.group.loops[reducers[0]].reduced
    if e.shares and stage is e.stages[0]:
        _emit_rows(e, stage, reducers, e.shares.count)
        return
    parallel = [a for a in stage.order if a not in reduced]
    totals = {i: _accumulator(e, i, parallel) for i in reducers}
    for i in reducers:
        _over(e, stage, i, parallel, totals[i], "start")
    order = stage.order
    inner = order[-1] if order else None
    sums = [i for i in reducers if e.group.members[i].spec.combiner in ("sum", "mean") and COMPUTE[e.places[i].code] == "f4"]
    with ExitStack() as stack:
        variables = open_loops(e, stack, [a for a in order[:-1] if a not in reduced])
        chunks = Chunks(Nest(e, stage, inner if inner not in reduced else None, variables), {i: totals[i] for i in sums})
        with chunks.terms([a for a in order[:-1] if a in reduced], inner if inner in reduced else None) as walked:
            nest = Nest(e, stage, inner, variables | walked)
            ready = prepare(nest, stage.members)
            pointers = {i: nest.pointer(f"a{i}", total, Linear(total.strides)) for i, total in totals.items() if total.kind != "local"}
            with ExitStack() as row:
                if inner is not None:
                    row.enter_context(e.w.block(f"for j in range({e.bound(inner)}):"))
                define(nest, stage.members, ready)
                for i in reducers:
                    text, source = argument(nest, ready, i, 0)
                    total = totals[i]
                    at = nest.element(f"a{i}", pointers[i], Linear(total.strides)) if i in pointers else total.address
                    e.w.put(f"{at} = {rounded(total.code, _combined(e, i, at, converted(source, text)))}")
                if inner in reduced:
                    chunks.count()
        chunks.finish()
    for i in reducers:
        _over(e, stage, i, parallel, totals[i], "finish")


def _emit_rows(e: Emitter, stage: Stage, reducers: list[int], count: int) -> None:
    """The same for the rows of a matrix, a chunk of them an item: memory is read in one piece, and no two items sum in one place.

    What follows in the kernel belongs to the last item.
    """
    w = e.w
    rows, inner = stage.order
    size, items, width = w.number("terms of a chunk", blocks.CHUNK_TERMS), w.number("shares", count), e.extent(inner)
    each, together = f"for j in range({width}):", _rows_together(e, stage, reducers)
    start, at = w.name("s"), w.name("i")
    shared: dict[int, str] = {}
    sums: dict[int, str] = {}
    w.put(f"{start} = item * {size}")
    for i in reducers:
        shared[i], sums[i] = e.share(("rows", i), count * 4 * actual(e.group.extents[inner])), w.name("a")
        w.put(f"{sums[i]} = p_f4({shared[i]}, item * {width})")
    with w.block(each):
        for i in reducers:
            w.put(f"{sums[i]}[j] = T_f4(-0.0)")
    stop = w.name("i")
    w.put(f"{stop} = min({start} + {size}, {e.extent(rows)})")
    done = ""
    if together > 1:
        first, columns = w.name("i"), w.name("m")
        w.put(f"{first} = {start} + ({stop} - {start}) // {together} * {together}")
        w.put(f"{columns} = {width} // {VECTOR} * {VECTOR}")
        with w.block(f"for {at} in range({start}, {first}, {together}):"):
            _add_blocks(e, stage, [Nest(e, stage, inner, {rows: f"({at} + {k})"}) for k in range(together)], sums, columns)
        done = f"{columns} if {at} < {first} else 0, "
    with w.block(f"for {at} in range({start}, {stop}):"):
        nest = Nest(e, stage, inner, {rows: at})
        ready = prepare(nest, stage.members)
        with w.block(f"for j in range({done}{width}):"):
            for i, total in _added(nest, ready, {i: f"{name}[j]" for i, name in sums.items()}).items():
                w.put(f"{sums[i]}[j] = {total}")
    w.put(f"if arrive({w.arrivals()}, {items}):")
    w.depth += 1  # up to the end of the kernel
    for i in reducers:
        small, large, k, chunk = w.name("u"), w.name("u"), w.name("k"), w.name("x")
        offsets = [e.reserve(("chunks", i, level), 4 * e.group.extents[inner]) for level in range(2)]
        for name, offset in zip((small, large), offsets, strict=True):
            w.put(f"{name} = p_f4(S + {offset}, 0)")
        with w.block(each):
            w.put(f"{small}[j] = T_f4(-0.0)")
            w.put(f"{large}[j] = T_f4(-0.0)")
        with w.block(f"for {k} in range({items}):"):
            w.put(f"{chunk} = p_f4({shared[i]}, {k} * {width})")
            with w.block(each):
                w.put(f"{small}[j] = {small}[j] + {chunk}[j]")
            with w.block(f"if ({k} + 1) % {size} == 0:"), w.block(each):
                w.put(f"{large}[j] = {large}[j] + {small}[j]")
                w.put(f"{small}[j] = T_f4(-0.0)")
        with w.block(each):
            w.put(f"{small}[j] = {large}[j] + {small}[j]")
        _over(e, stage, i, [inner], Place("scratch", "f4", f"S + {offsets[0]}", {inner: 1}, f"total{i}"), "finish")


def _add_blocks(e: Emitter, stage: Stage, nests: list[Nest], sums: dict[int, str], columns: str) -> None:
    """Add some rows to the sums of their first columns, a vector at a time; what is read next in these columns is fetched meanwhile.

    Rows are far apart in memory, and a processor expects the next ones too late; from a cache it need not expect them. The loop writes
    to a buffer of its own, so that it needs no test that what it reads does not overlap with it.
    """
    w, at = e.w, e.w.name("t")
    ready = [prepare(nest, stage.members) for nest in nests]
    with w.block(f"for {at} in range(0, {columns}, {VECTOR}):"):
        with w.block(f"if {w.number('fetched', exceeds_caches(moved_bytes(e.group, e.live_out)))} != 0:"):
            for pointer, step, nbytes in _next_rows(nests, ready):
                w.put(f"fetch(padd({pointer}, {at} + {step}), {VECTOR * nbytes})")
        buffers = {i: w.name("u") for i in sums}
        for buffer in buffers.values():
            w.put(f"{buffer} = next_f4()")
        with w.block(f"for lane in range({VECTOR}):"):
            w.put(f"j = {at} + lane")
            totals = {i: f"{name}[j]" for i, name in sums.items()}
            for nest, prepared in zip(nests, ready, strict=True):
                totals = _added(nest, prepared, totals)
            for i, total in totals.items():
                w.put(f"{buffers[i]}[lane] = {total}")
        for i, buffer in buffers.items():
            w.put(f"vector_put_f32(padd({sums[i]}, {at}), {buffer})")


def _next_rows(nests: list[Nest], ready: list[Ready]) -> list[tuple[str, str, int]]:
    """Find what nests of rows that follow each other read one element beside the other: pointers, how far behind the same columns of
    the next such rows lie, and the bytes of an element.
    """
    found = {}
    e, inner, rows = nests[0].e, nests[0].inner, next(iter(nests[0].variables))
    for prepared in ready:
        for (i, k), (pointer, _, linear, key) in prepared.reads.items():
            if inner is not None and linear.strides.get(inner) == 1 and linear.strides.get(rows):
                step = f"{len(nests)} * {e.step(key, rows, linear.strides[rows])}"
                found[pointer] = pointer, step, e.group.members[i].operands[k].itemsize
    return list(found.values())


def _added(nest: Nest, ready: Ready, totals: dict[int, str]) -> dict[int, str]:
    """Write the definitions of one row in a column, and what they add to the totals; return the names of these."""
    e, w, added = nest.e, nest.e.w, {}
    define(nest, nest.stage.members, ready)
    for i, total in totals.items():
        text, source = argument(nest, ready, i, 0)
        added[i] = w.name("v")
        w.put(f"{added[i]} = {rounded('f4', _combined(e, i, total, converted(source, text)))}")
    return added


def _rows_together(e: Emitter, stage: Stage, reducers: list[int]) -> int:
    """How many rows one pass over the sums of columns takes."""
    if e.live_out.intersection(stage.members).difference(reducers):
        return 1
    reads = {
        operand.base
        for i in stage.members
        for k, operand in enumerate(e.group.members[i].operands)
        if (i, k) not in e.group.producers and not operand.parameter
    }
    return max(1, min(ROWS // (max(len(reads), 1) * len(reducers)), BODY // len(stage.members)))


class Chunks:
    """Sums of many float32 terms, one after the other, would lose digits: they are summed in chunks, and the chunks in chunks.

    Chunks are counted in terms of one result, so that the order of additions is fixed by the shape. Up to one chunk of terms
    nothing is different.

    Parameters
    ----------
    nest : Nest
        The loops outside the reduced ones, and the innermost one unless it is reduced.
    totals : dict of int to Place
        Where the reductions accumulate.
    """

    def __init__(self, nest: Nest, totals: dict[int, Place]) -> None:
        self.nest, self.totals = nest, totals
        self.size, self.counter, self.chunks = "", "", ""
        self.sums: list[dict[int, Place]] = []
        self.pointers: dict[int, str] = {}
        if not totals:
            return
        w = nest.e.w
        self.size, self.counter, self.chunks = w.number("terms of a chunk", blocks.CHUNK_TERMS), w.name("k"), w.name("k")
        self.sums = [{i: self._row((i, level)) for i in totals} for level in range(2)]
        for i, total in totals.items():
            if total.kind != "local":
                self.pointers[i] = nest.pointer(f"a{i}", total, Linear(total.strides))
        w.put(f"{self.chunks} = 0")

    def _row(self, key: tuple[int, int]) -> Place:
        """A sum of chunks for every accumulator that the innermost loop reaches."""
        e, inner = self.nest.e, self.nest.inner
        if inner is None:
            name = e.w.name("v")
            e.w.put(f"{name} = T_f4(-0.0)")
            return Place("local", "f4", name)
        offset = e.reserve(("chunks", *key), 4 * e.tiles.get(inner, e.group.extents[inner]))
        name = e.w.name("u")
        e.w.put(f"{name} = p_f4(S + {offset}, 0)")
        return Place("scratch", "f4", f"{name}[j]")

    def _total(self, i: int) -> str:
        total = self.totals[i]
        return self.nest.element(f"a{i}", self.pointers[i], Linear(total.strides)) if i in self.pointers else total.address

    def _each(self, *lines: str) -> None:
        """Write lines for every element of the innermost loop."""
        w = self.nest.e.w
        with ExitStack() as stack:
            if self.nest.inner is not None:
                stack.enter_context(w.block(f"for j in range({self.nest.e.bound(self.nest.inner)}):"))
            for line in lines:
                w.put(line)

    @contextmanager
    def terms(self, atoms: list[int], innermost: int | None) -> Iterator[dict[int, str]]:
        """Open the reduced loops outside the innermost loop; yield their variables. The body is one term of every result.

        Parameters
        ----------
        atoms : list of int
        innermost : int or None
            The innermost loop when it is reduced as well: then the body has many terms, and counts them itself.
        """
        e, w = self.nest.e, self.nest.e.w
        if len(atoms) == 1 and innermost is None and self.totals:  # cut the loop, which is cheaper than counting its steps
            at, start, bound = w.name("i"), w.name("i"), e.bound(atoms[0])
            with w.block(f"for {start} in range(0, {bound}, {self.size}):"):
                with w.block(f"for {at} in range({start}, min({start} + {self.size}, {bound})):"):
                    yield {atoms[0]: at}
                with w.block(f"if {start} + {self.size} <= {bound}:"):
                    self._carry()
            return
        if self.totals:
            w.put(f"{self.counter} = 0")
        with ExitStack() as walk:
            yield open_loops(e, walk, atoms)
            if innermost is None:
                self.count()

    def count(self) -> None:
        """Count one term."""
        if not self.totals:
            return
        w, k, n = self.nest.e.w, self.counter, self.size
        w.put(f"{k} += 1")
        with w.block(f"if {k} == {n}:"):  # no remainder: a division for each term would cost more than the term
            w.put(f"{k} = 0")
            self._carry()

    def _carry(self) -> None:
        """After a chunk of terms, add the accumulators to the sums of chunks."""
        w, n = self.nest.e.w, self.size
        w.put(f"{self.chunks} += 1")
        for i in self.totals:
            at, (small, large) = self._total(i), (level[i].address for level in self.sums)
            with w.block(f"if {self.chunks} == 1:"):
                self._each(f"{small} = T_f4(-0.0)", f"{large} = T_f4(-0.0)")
            self._each(f"{small} = {small} + {at}", f"{at} = T_f4(-0.0)")
            with w.block(f"if {self.chunks} % {n} == 0:"):
                self._each(f"{large} = {large} + {small}", f"{small} = T_f4(-0.0)")

    def finish(self) -> None:
        """Add up what is left."""
        if not self.totals:
            return
        with self.nest.e.w.block(f"if {self.chunks}:"):
            for i in self.totals:
                at, (small, large) = self._total(i), (level[i].address for level in self.sums)
                self._each(f"{at} = {large} + ({small} + {at})")


def _accumulator(e: Emitter, i: int, parallel: list[int]) -> Place:
    """Where a reduction accumulates: its own place when that has the type to do so, else scratch."""
    place = e.places[i]
    code = COMPUTE[place.code]
    if code == place.code:
        return place
    if place.kind == "local":
        return Place("local", code, e.w.name("v"))
    spanned = [a for a in e.group.loops[i].parallel if a in parallel]
    strides, step = {}, 1
    for atom in reversed(spanned):
        strides[atom] = step
        step *= e.tiles.get(atom, e.group.extents[atom])
    return Place("scratch", code, f"S + {e.reserve(('total', i), 4 * step)}", strides, f"total{i}")


def _combined(e: Emitter, i: int, total: str, text: str) -> str:
    combiner = e.group.members[i].spec.combiner
    code = COMPUTE[e.places[i].code]
    if combiner in ("sum", "mean"):
        return f"{total} + {text}"
    if combiner == "prod":
        return f"{total} * {text}"
    word = {"max": "maximum", "min": "minimum"}[combiner]
    return f"{'np_' + word if code == 'f4' else 'np_' + word + '64' if code == 'f8' else 'int_' + word}({total}, {text})"


def _neutral(e: Emitter, i: int) -> str:
    combiner = e.group.members[i].spec.combiner
    code = COMPUTE[e.places[i].code]
    if code in ("f4", "f8"):
        return f"T_{code}({NEUTRAL[combiner]})"
    if combiner in ("sum", "mean"):
        return f"T_{code}(0)"
    if combiner == "prod":
        return f"T_{code}(1)"
    bits = 8 * int(code[1]) if code != "b1" else 8
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if code[0] == "i" else (0, (1 << bits) - 1)
    return f"T_{code}({low if combiner == 'max' else high})"


def _over(e: Emitter, stage: Stage, i: int, parallel: list[int], total: Place, what: str) -> None:
    """Write the loops that start or finish a reduction's accumulators."""
    w = e.w
    place = e.places[i]
    code = COMPUTE[place.code]
    mean = e.group.members[i].spec.combiner == "mean"
    if what == "finish" and not mean and total is place:
        return
    if total.kind == "local":
        text = _neutral(e, i) if what == "start" else f"{total.address} / T_{code}({e.terms(i)})" if mean else total.address
        w.put(f"{total.address if what == 'start' else place.address} = {rounded(place.code if what == 'finish' else code, text)}")
        return
    with ExitStack() as stack:
        variables = open_loops(e, stack, parallel[:-1])
        nest = Nest(e, stage, parallel[-1] if parallel else None, variables)
        pointer = nest.pointer(f"a{i}", total, Linear(total.strides))
        target = pointer if total is place else nest.pointer(f"w{i}", place, Linear(place.strides)) if what == "finish" else pointer
        if parallel:
            stack.enter_context(w.block(f"for j in range({e.bound(parallel[-1])}):"))
        at = nest.element(f"a{i}", pointer, Linear(total.strides))
        if what == "start":
            w.put(f"{at} = {_neutral(e, i)}")
        else:
            text = f"{at} / T_{code}({e.terms(i)})" if mean else at
            value = w.name("v")
            w.put(f"{value} = {rounded(place.code, text)}")
            w.put(f"{nest.element(f'w{i}' if total is not place else f'a{i}', target, Linear(place.strides))} = {store(place.code, value)}")
