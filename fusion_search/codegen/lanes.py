"""Reductions along the last dimension: 64 running lanes in registers, with the maps of their nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from fusion_search.codegen import blocks
from fusion_search.codegen.access import Linear
from fusion_search.codegen.emit import NEUTRAL, Emitter
from fusion_search.codegen.nest import Nest, Ready, argument, define, open_loops, prepare
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, rounded, store

#: Running values of a reduction along the last dimension.
LANES = 64
#: Rows from here on are written to lines that no cache near by has; these are fetched so many elements before.
LONG_ROW, AHEAD = 1 << 13, 1 << 11
LANE_WORDS = {
    "sum": ("add", "fold_sum"),
    "mean": ("add", "fold_sum"),
    "max": ("max", "fold_max"),
    "min": ("min", "fold_min"),
}


def emit_lanes(e: Emitter, stage: Stage, reducers: list[int]) -> None:
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
        lanes = {i: start_lanes(e, i) for i in reducers}
        totals = {i: start_lanes(e, i) for i in sums}
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
            finish_lanes(e, stage, i, lanes[i], variables)


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
    lanes = {i: start_lanes(e, i) for i in reducers}
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
        total = start_lanes(e, i)
        with w.block(f"for {k} in range({items}):"):
            w.put(f"{total} = {_call(e, i)}({total}, p_{codes[i]}({places[i]}, {k} * {LANES}))")
        finish_lanes(e, stage, i, total, {})


def _reduce_strip(nest: Nest, reducers: list[int], lanes: Mapping[int, str], size: str) -> None:
    """Write the maps of one strip, and reduce their values into the lanes: 64 at a time, then the rest."""
    w = nest.e.w
    walk = LaneWalk(nest, reducers, lanes)
    whole, at = w.name("m"), w.name("t")
    w.put(f"{whole} = {size} // {LANES} * {LANES}")
    with w.block(f"for {at} in range(0, {whole}, {LANES}):"):
        walk.block(at)
    walk.rest(whole, size)


class LaneWalk:
    """The reductions of a nest, with its maps, along a piece of their rows.

    What 64 elements give goes through buffers, in one of which a value is to be found whether it is stored or not: LLVM keeps them in
    registers, and the loop writes to nothing that could overlap with what it reads.

    Parameters
    ----------
    nest : Nest
        Its pointers are written at once.
    reducers : list of int
    lanes : mapping of int to str
        The running lanes of each.
    """

    def __init__(self, nest: Nest, reducers: list[int], lanes: Mapping[int, str]) -> None:
        self.nest, self.reducers, self.lanes = nest, reducers, lanes
        e, w = nest.e, nest.e.w
        self.ready = prepare(nest, nest.stage.defined)
        self._tiles = _lane_operands(nest, self.ready, reducers)
        self._computed = [i for i, tile in self._tiles.items() if tile is None]
        self._stored = {i: pointer for i, (pointer, linear) in self.ready.writes.items() if _in_lanes(nest, i, linear)}
        self._loaded, self._writes = dict(nest.loaded), dict(self.ready.writes)
        # a caller's array may begin anywhere: what is stored there waits for whole lines
        self._waiting = {i: (w.name("a"), w.name("m")) for i in self._stored if e.places[i].kind == "tensor"}
        for i, (carry, first) in self._waiting.items():
            code = e.places[i].code
            w.put(f"{carry}, {first} = lanes_{code}(T_{code}(0)), before_line({self._stored[i]}, {code[1]})")

    def block(self, at: str) -> None:
        """Write 64 elements from `at` on."""
        e, w = self.nest.e, self.nest.e.w
        buffers = self._define([*self._computed, *self._stored], at, str(LANES))
        for i, pointer in self._stored.items():
            target = f"padd({pointer}, {at}), {buffers[i]}"
            if i in self._waiting:
                carry, first = self._waiting[i]
                w.put(f"{carry} = lanes_lines_{_bits(e, i)}({target}, {carry}, {first}, {at})")
                if self.nest.inner is not None and e.group.extents[self.nest.inner] >= LONG_ROW:
                    w.put(f"fetch(padd({pointer}, {at} + {AHEAD}), {LANES * int(e.places[i].code[1])})")
            else:
                w.put(f"lanes_put_{_bits(e, i)}({target})")
        kept = {pointer: buffers[i] for i, pointer in self._stored.items()}
        for i in self.reducers:
            source = buffers.get(i) or kept.get(str(self._tiles[i])) or f"padd({self._tiles[i]}, {at})"
            w.put(f"{self.lanes[i]} = {_call(e, i)}({self.lanes[i]}, {source})")

    def rest(self, whole: str, size: str) -> None:
        """Write what is left behind whole blocks of 64: what waits for the end of its line, and the last elements."""
        e, w = self.nest.e, self.nest.e.w
        if self._waiting:
            with w.block(f"if {whole} > 0:"):
                for i, (carry, first) in self._waiting.items():
                    w.put(f"lanes_last_{_bits(e, i)}(padd({self._stored[i]}, {whole}), {carry}, {first})")
        with w.block(f"if {whole} < {size}:"):
            buffers = self._define(self._computed, whole, f"{size} - {whole}")
            for i in self.reducers:
                source = buffers.get(i) or f"padd({self._tiles[i]}, {whole})"
                w.put(f"{self.lanes[i]} = {_call(e, i, 'rest')}({self.lanes[i]}, {source}, {size} - {whole})")

    def _define(self, kept: Sequence[int], first: str, steps: str) -> dict[int, str]:
        """Write the maps of some elements from `first` on; return the buffers that keep the values of some members."""
        nest, ready = self.nest, self.ready
        e, w, stage = nest.e, nest.e.w, nest.stage
        buffers = {i: w.name("u") for i in kept}
        for i, buffer in buffers.items():
            w.put(f"{buffer} = next_{COMPUTE[e.places[i].code]}()")
        nest.loaded, nest.values, nest.buffers = dict(self._loaded), {}, frozenset(buffers.values())
        ready.writes = {i: (buffers.get(i, pointer), linear) for i, (pointer, linear) in self._writes.items()}
        if self._computed or set(stage.defined) != set(self.reducers):
            with w.block(f"for lane in range({steps}):"):
                w.put(f"j = {first} + lane")
                define(nest, stage.defined, ready)
                for i in self._computed:
                    w.put(f"{buffers[i]}[lane] = {argument(nest, ready, i, 0)[0]}")
        return buffers


def _in_lanes(nest: Nest, i: int, linear: Linear) -> bool:
    """Whether a value is stored as it is reduced: contiguous, and of a type that lanes have."""
    return nest.inner is not None and linear.strides.get(nest.inner, 0) == 1 and nest.e.places[i].code in ("f4", "f8")


def start_lanes(e: Emitter, i: int) -> str:
    """Write the start of a reduction's running lanes; return their name."""
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


def finish_lanes(e: Emitter, stage: Stage, i: int, lanes: str, variables: Mapping[int, str]) -> None:
    """Fold running lanes, divide a mean, round, and put a reduction's result where it lives."""
    place = e.places[i]
    code = COMPUTE[place.code]
    text = _folded(e, i, lanes)
    if e.group.members[i].spec.combiner == "mean":
        text = f"{text} / T_{code}({e.terms(i)})"
    if place.kind == "local":
        e.w.put(f"{place.address} = {rounded(place.code, text)}")
        return
    parts = [e.base(f"w{i}", place, Linear(place.strides))]
    parts += [f"{variables[a]} * {e.step(f'w{i}', a, place.strides[a])}" for a in stage.order if place.strides.get(a) and a in variables]
    pointer, value = e.w.name("x"), e.w.name("v")
    e.w.put(f"{pointer} = p_{place.code}({place.address}, {' + '.join(p for p in parts if p != '0') or '0'})")
    e.w.put(f"{value} = {rounded(place.code, text)}")
    e.w.put(f"{pointer}[0] = {store(place.code, value)}")
