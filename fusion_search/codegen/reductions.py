"""Reductions, with the maps of their nest: in lanes along the last dimension, or one accumulator an output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from fusion_search.codegen import blocks
from fusion_search.codegen.access import Linear
from fusion_search.codegen.blocks import by_lanes, is_reduce
from fusion_search.codegen.emit import NEUTRAL, Emitter, Place
from fusion_search.codegen.extents import actual
from fusion_search.codegen.nest import Nest, Ready, argument, define, open_loops, prepare
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, converted, rounded, store

#: Running values of a reduction along the last dimension.
LANES = 64
#: Rows of a matrix that are summed at a time, so that a sum of columns is loaded and stored once for all of them; and the pairs of
#: addresses, one read and one written, up to which LLVM tests that they do not overlap, rather than leave a loop in scalars.
ROWS = 8
#: Members of a stage, each as often as rows are summed at a time, that are compiled in no time.
BODY = 32
LANE_WORDS = {
    "sum": ("add", "fold_sum"),
    "mean": ("add", "fold_sum"),
    "max": ("max", "fold_max"),
    "min": ("min", "fold_min"),
}


def emit_reductions(e: Emitter, stage: Stage) -> None:
    """Write a stage that holds reductions."""
    reducers = [i for i in stage.members if is_reduce(e.group.members[i])]
    if by_lanes(e.group.members[reducers[0]]) and all(_floating(e, i) for i in reducers):
        _emit_lanes(e, stage, reducers)
    else:
        _emit_accumulate(e, stage, reducers)


def _floating(e: Emitter, i: int) -> bool:
    return COMPUTE[e.places[i].code] in ("f4", "f8")


def _emit_lanes(e: Emitter, stage: Stage, reducers: list[int]) -> None:
    """Reductions along the last dimension: 64 running lanes, strip by strip, folded in a fixed order."""
    w = e.w
    reduced = e.group.loops[reducers[0]].reduced
    if e.shares and stage is e.stages[0]:
        _emit_shares(e, stage, reducers, e.shares.count)
        return
    parallel = [a for a in stage.order if a not in reduced]
    inner = reduced[-1]
    # 40 million float32 terms, one after the other in 64 lanes, would lose three digits
    sums = [i for i in reducers if e.group.members[i].spec.combiner in ("sum", "mean")]
    count = w.name("k")
    with ExitStack() as stack:
        variables = open_loops(e, stack, parallel)
        lanes = {i: _started(e, i) for i in reducers}
        totals = {i: _started(e, i) for i in sums}
        if sums:
            w.put(f"{count} = 0")
        with ExitStack() as walk:
            variables |= open_loops(e, walk, reduced[:-1])
            strip, size = w.name("t"), w.name("m")
            walk.enter_context(w.block(f"for {strip} in range(0, {e.bound(inner)}, STRIP):"))
            w.put(f"{size} = min(STRIP, {e.bound(inner)} - {strip})")
            _reduce_strip(Nest(e, stage, inner, variables, strip=strip), reducers, lanes, size)
            if sums:
                w.put(f"{count} += 1")
                with w.block(f"if {count} % STRIPS == 0:"):
                    for i in sums:
                        w.put(f"{totals[i]} = {_call(e, i, 'join')}({totals[i]}, {lanes[i]})")
                        w.put(f"{lanes[i]} = {_start(e, i)}")
        if sums:
            with w.block(f"if {count} >= STRIPS:"):
                for i in sums:
                    w.put(f"{lanes[i]} = {_call(e, i, 'join')}({lanes[i]}, {totals[i]})")
        for i in reducers:
            _finish(e, stage, i, _folded(e, i, lanes[i]), variables)


def _emit_shares(e: Emitter, stage: Stage, reducers: list[int], count: int) -> None:
    """The same for a whole tensor, a share of it an item: lanes lie in memory that all items share, and the last one adds them up.

    A share is what the walk over all of it sums before it starts anew, so both give the same bits. What follows in the kernel
    belongs to the last item.
    """
    w = e.w
    (inner,) = stage.order
    share, items = w.number("elements of a share", blocks.SHARE), w.number("shares", count)
    start, left, at, strip, size = w.name("s"), w.name("m"), w.name("t"), w.name("t"), w.name("m")
    w.put(f"{start} = item * {share}")
    w.put(f"{left} = min({share}, {e.extent(inner)} - {start})")
    codes = {i: COMPUTE[e.places[i].code] for i in reducers}
    places = {i: e.share(("lanes", i), count * LANES * int(codes[i][1])) for i in reducers}
    lanes = {i: _started(e, i) for i in reducers}
    with w.block(f"for {at} in range(0, {left}, STRIP):"):
        w.put(f"{strip} = {start} + {at}")
        w.put(f"{size} = min(STRIP, {left} - {at})")
        _reduce_strip(Nest(e, stage, inner, {}, strip=strip), reducers, lanes, size)
    for i in reducers:
        w.put(f"lanes_store_{_bits(e, i)}(p_{codes[i]}({places[i]}, item * {LANES}), {lanes[i]})")
    w.put(f"if arrive({w.arrivals()}, {items}):")
    w.depth += 1  # up to the end of the kernel
    k = w.name("k")
    for i in reducers:
        total = _started(e, i)
        with w.block(f"for {k} in range({items}):"):
            w.put(f"{total} = {_call(e, i)}({total}, p_{codes[i]}({places[i]}, {k} * {LANES}))")
        _finish(e, stage, i, _folded(e, i, total), {})


def _reduce_strip(nest: Nest, reducers: list[int], lanes: Mapping[int, str], size: str) -> None:
    """Write the maps of one strip, and reduce their values into the lanes: 64 at a time, then the rest.

    What 64 elements give goes through buffers, in one of which a value is to be found whether it is stored or not: LLVM keeps them in
    registers, and the loop writes to nothing that could overlap with what it reads.
    """
    e, stage, w = nest.e, nest.stage, nest.e.w
    ready = prepare(nest, stage.defined)
    tiles = _lane_operands(nest, ready, reducers)
    computed = [i for i, tile in tiles.items() if tile is None]
    stored = {i: pointer for i, (pointer, linear) in ready.writes.items() if _in_lanes(nest, i, linear)}
    before, writes = dict(nest.loaded), dict(ready.writes)

    def define_all(kept: Sequence[int], first: str, steps: str) -> dict[int, str]:
        """Write the maps of some elements from `first` on; return the buffers that keep the values of some members."""
        buffers = {i: w.name("u") for i in kept}
        for i, buffer in buffers.items():
            w.put(f"{buffer} = next_{COMPUTE[e.places[i].code]}()")
        nest.loaded, nest.values, nest.buffers = dict(before), {}, frozenset(buffers.values())
        ready.writes = {i: (buffers.get(i, pointer), linear) for i, (pointer, linear) in writes.items()}
        if computed or set(stage.defined) != set(reducers):
            with w.block(f"for lane in range({steps}):"):
                w.put(f"j = {first} + lane")
                define(nest, stage.defined, ready)
                for i in computed:
                    w.put(f"{buffers[i]}[lane] = {argument(nest, ready, i, 0)[0]}")
        return buffers

    whole, at = w.name("m"), w.name("t")
    w.put(f"{whole} = {size} // {LANES} * {LANES}")
    with w.block(f"for {at} in range(0, {whole}, {LANES}):"):
        buffers = define_all([*computed, *stored], at, str(LANES))
        for i, pointer in stored.items():
            w.put(f"lanes_put_{_bits(e, i)}(padd({pointer}, {at}), {buffers[i]})")
        kept = {pointer: buffers[i] for i, pointer in stored.items()}
        for i in reducers:
            source = buffers.get(i) or kept.get(str(tiles[i])) or f"padd({tiles[i]}, {at})"
            w.put(f"{lanes[i]} = {_call(e, i)}({lanes[i]}, {source})")
    with w.block(f"if {whole} < {size}:"):
        buffers = define_all(computed, whole, f"{size} - {whole}")
        for i in reducers:
            source = buffers.get(i) or f"padd({tiles[i]}, {whole})"
            w.put(f"{lanes[i]} = {_call(e, i, 'rest')}({lanes[i]}, {source}, {size} - {whole})")


def _in_lanes(nest: Nest, i: int, linear: Linear) -> bool:
    """Whether a value is stored as it is reduced: contiguous, and of a type that lanes have."""
    return nest.inner is not None and linear.strides.get(nest.inner, 0) == 1 and nest.e.places[i].code in ("f4", "f8")


def _started(e: Emitter, i: int) -> str:
    """Write the start of running lanes; return their name."""
    name = e.w.name("a")
    e.w.put(f"{name} = {_start(e, i)}")
    return name


def _start(e: Emitter, i: int) -> str:
    code = COMPUTE[e.places[i].code]
    return f"lanes_{code}(T_{code}({NEUTRAL[e.group.members[i].spec.combiner]}))"


def _call(e: Emitter, i: int, what: str = "") -> str:
    """Name of the function that reduces into running lanes 64 elements, the ``rest``, or other lanes, to ``join``."""
    return f"lanes_{what}{'_' if what else ''}{LANE_WORDS[e.group.members[i].spec.combiner][0]}_{_bits(e, i)}"


def _folded(e: Emitter, i: int, lanes: str) -> str:
    return f"{LANE_WORDS[e.group.members[i].spec.combiner][1]}_{_bits(e, i)}({lanes})"


def _bits(e: Emitter, i: int) -> str:
    return "f64" if COMPUTE[e.places[i].code] == "f8" else "f32"


def _lane_operands(nest: Nest, ready: Ready, reducers: list[int]) -> dict[int, str | None]:
    """For each reduction, the pointer to its operand when that lies contiguous in memory; None when it is computed."""
    found: dict[int, str | None] = {}
    for i in reducers:
        found[i] = None
        if (i, 0) in ready.reads:
            pointer, place, linear, _ = ready.reads[(i, 0)]
            if nest.inner is not None and linear.strides.get(nest.inner, 0) == 1 and place.code in ("f4", "f8"):
                found[i] = pointer
        else:
            producer = nest.e.group.producers[(i, 0)]
            if producer in ready.writes:
                pointer, linear = ready.writes[producer]
                if nest.inner is not None and linear.strides.get(nest.inner, 0) == 1 and nest.e.places[producer].code in ("f4", "f8"):
                    found[i] = pointer
    return found


def _count(e: Emitter, i: int) -> str:
    total = 1
    for atom in e.group.loops[i].reduced:
        total *= e.group.extents[atom]
    return e.w.number(("count of", i), total)


def _finish(e: Emitter, stage: Stage, i: int, text: str, variables: dict[int, str]) -> None:
    """Divide a mean, round, and put a reduction's result where it lives."""
    place = e.places[i]
    code = COMPUTE[place.code]
    if e.group.members[i].spec.combiner == "mean":
        text = f"{text} / T_{code}({_count(e, i)})"
    if place.kind == "local":
        e.w.put(f"{place.address} = {rounded(place.code, text)}")
        return
    parts = [e.base(f"w{i}", place, Linear(place.strides))]
    parts += [f"{variables[a]} * {e.step(f'w{i}', a, place.strides[a])}" for a in stage.order if place.strides.get(a) and a in variables]
    pointer, value = e.w.name("x"), e.w.name("v")
    e.w.put(f"{pointer} = p_{place.code}({place.address}, {' + '.join(p for p in parts if p != '0') or '0'})")
    e.w.put(f"{value} = {rounded(place.code, text)}")
    e.w.put(f"{pointer}[0] = {store(place.code, value)}")


def _emit_accumulate(e: Emitter, stage: Stage, reducers: list[int]) -> None:
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
    start, at, shared, sums = w.name("s"), w.name("i"), {}, {}
    w.put(f"{start} = item * {size}")
    for i in reducers:
        shared[i], sums[i] = e.share(("rows", i), count * 4 * actual(e.group.extents[inner])), w.name("a")
        w.put(f"{sums[i]} = p_f4({shared[i]}, item * {width})")
    with w.block(each):
        for i in reducers:
            w.put(f"{sums[i]}[j] = T_f4(-0.0)")
    stop, whole = w.name("i"), w.name("i")
    w.put(f"{stop} = min({start} + {size}, {e.extent(rows)})")
    w.put(f"{whole} = {start} + ({stop} - {start}) // {together} * {together}")
    for first, last, step in ((start, whole, together), (whole, stop, 1)):
        with w.block(f"for {at} in range({first}, {last}, {step}):"):
            nests = [Nest(e, stage, inner, {rows: f"({at} + {k})"}) for k in range(step)]
            ready = [prepare(nest, stage.members) for nest in nests]
            with w.block(each):
                totals = {i: f"{sums[i]}[j]" for i in reducers}
                for nest, prepared in zip(nests, ready, strict=True):
                    define(nest, stage.members, prepared)
                    for i in reducers:
                        text, source = argument(nest, prepared, i, 0)
                        total = w.name("v")
                        w.put(f"{total} = {rounded('f4', _combined(e, i, totals[i], converted(source, text)))}")
                        totals[i] = total
                for i in reducers:
                    w.put(f"{sums[i]}[j] = {totals[i]}")
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
        text = _neutral(e, i) if what == "start" else f"{total.address} / T_{code}({_count(e, i)})" if mean else total.address
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
            text = f"{at} / T_{code}({_count(e, i)})" if mean else at
            value = w.name("v")
            w.put(f"{value} = {rounded(place.code, text)}")
            w.put(f"{nest.element(f'w{i}' if total is not place else f'a{i}', target, Linear(place.strides))} = {store(place.code, value)}")
