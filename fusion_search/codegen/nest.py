"""Loop nests: fused maps with their reductions, and the part-wise writes of concat and pad."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from fusion_search.codegen.access import Linear
from fusion_search.codegen.extents import actual
from fusion_search.codegen.emit import NEUTRAL, Emitter, Place, dimension_of
from fusion_search.codegen.stages import Stage, by_lanes, is_reduce
from fusion_search.codegen.writer import COMPUTE, Slot, converted, load, rounded, store

#: From this many parts on, a concat is written as a loop over them.
MANY_PARTS = 3
LANE_WORDS = {
    "sum": ("lanes_add", "fold_sum"),
    "mean": ("lanes_add", "fold_sum"),
    "max": ("lanes_max", "fold_max"),
    "min": ("lanes_min", "fold_min"),
}


@dataclass(slots=True)
class _Nest:
    """State while one nest is written."""

    e: Emitter
    stage: Stage
    inner: int | None  # the innermost loop, None for a nest of no loops
    variables: dict[int, str]  # loop -> index variable
    values: dict[int, str] = field(default_factory=dict)  # member -> text
    pointers: dict[tuple[object, ...], str] = field(default_factory=dict)
    loaded: dict[tuple[object, ...], str] = field(default_factory=dict)
    strip: str = ""  # start of the strip along the innermost loop

    def offset(self, key: str, place: Place, linear: Linear) -> str:
        """Offset of an address, all loops but the innermost in it."""
        e = self.e
        parts = [e.base(key, place, linear)]
        for atom in self.stage.order:
            stride = linear.strides.get(atom, 0)
            if stride and atom != self.inner:
                parts.append(f"{self.variables[atom]} * {e.step(key, atom, stride)}")
            elif stride and self.strip:
                parts.append(f"{self.strip} * {e.step(key, atom, stride)}")
        return " + ".join(part for part in parts if part != "0") or "0"

    def pointer(self, key: str, place: Place, linear: Linear) -> str:
        """A pointer for the innermost loop, written once before it."""
        offset = self.offset(key, place, linear)
        name = self.e.w.name("x")
        self.e.w.put(f"{name} = p_{place.code}({place.address}, {offset})")
        return name

    def element(self, key: str, pointer: str, linear: Linear) -> str:
        """The element that a pointer gives in the innermost loop."""
        stride = linear.strides.get(self.inner, 0) if self.inner is not None else 0
        if stride == 0:
            return f"{pointer}[0]"
        at = "j" if stride == 1 else f"j * {self.e.step(key, self.inner or 0, stride)}"
        return f"{pointer}[{at}]"


def emit_nest(e: Emitter, stage: Stage) -> None:
    """Write a loop stage."""
    reducers = [i for i in stage.members if is_reduce(e.group.members[i])]
    if not reducers:
        _emit_loops(e, stage, [], stage.order)
    elif by_lanes(e.group.members[reducers[0]]) and all(_floating(e, i) for i in reducers):
        _emit_lanes(e, stage, reducers)
    else:
        _emit_accumulate(e, stage, reducers)


def _floating(e: Emitter, i: int) -> bool:
    return COMPUTE[e.places[i].code] in ("f4", "f8")


def _open(e: Emitter, stack: ExitStack, atoms: Sequence[int]) -> dict[int, str]:
    variables = {}
    for atom in atoms:
        variables[atom] = e.w.name("i")
        stack.enter_context(e.w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
    return variables


def _emit_loops(e: Emitter, stage: Stage, reducers: list[int], order: list[int]) -> None:
    """Write plain loops around the members' definitions."""
    inner = order[-1] if order else None
    with ExitStack() as stack:
        variables = _open(e, stack, order[:-1])
        nest = _Nest(e, stage, inner, variables)
        ready = _prepare(nest, stage.members)
        if inner is not None:
            stack.enter_context(e.w.block(f"for j in range({e.bound(inner)}):"))
        _define(nest, stage.members, ready)


# ---------------------------------------------------------------- definitions


@dataclass(slots=True)
class _Ready:
    """What was prepared before the innermost loop: pointers by read and by write."""

    reads: dict[tuple[int, int], tuple[str, Place, Linear, str]] = field(default_factory=dict)
    writes: dict[int, tuple[str, Linear]] = field(default_factory=dict)


def _prepare(nest: _Nest, members: Sequence[int], targets: bool = True) -> _Ready:
    """Write the pointers that the innermost loop needs, and load what does not change in it."""
    e, ready = nest.e, _Ready()
    for i in members:
        member = e.group.members[i]
        for k in range(len(member.operands)):
            how, place, linear, key = e.source_of(i, k)
            if how != "memory" or not isinstance(place, Place) or linear is None:
                continue
            same = (place.key, tuple(sorted(linear.strides.items())), linear.offset)
            if same not in nest.pointers:
                nest.pointers[same] = nest.pointer(key, place, linear)
                invariant = nest.inner is None or not linear.strides.get(nest.inner, 0)
                if invariant and not _indirect(e, i, k):
                    name = e.w.name("h")
                    e.w.put(f"{name} = {load(place.code, nest.pointers[same] + '[0]')}")
                    nest.loaded[same] = name
            ready.reads[(i, k)] = (nest.pointers[same], place, linear, key)
        place = e.places[i]
        if targets and place.kind in ("tensor", "scratch") and not is_reduce(member):
            linear = Linear(dict(place.strides))
            ready.writes[i] = (nest.pointer(f"w{i}", place, linear), linear)
    return ready


def _indirect(e: Emitter, i: int, k: int) -> bool:
    return any(dim.indirect for dim in e.group.members[i].domain.reads[k].dims)


def _argument(nest: _Nest, ready: _Ready, i: int, k: int) -> tuple[str, str]:
    """Text and storage code of one operand in the innermost loop."""
    e = nest.e
    member = e.group.members[i]
    operand = member.operands[k]
    code_here = _code(e, i, k)
    if operand.parameter:
        return e.parameters[operand.base], code_here
    if (i, k) not in ready.reads:
        producer = e.group.producers[(i, k)]
        place = e.places[producer]
        return (place.address if place.kind == "local" and producer not in nest.values else nest.values[producer]), place.code
    pointer, place, linear, key = ready.reads[(i, k)]
    same = (place.key, tuple(sorted(linear.strides.items())), linear.offset)
    if same not in nest.loaded:
        name = e.w.name("v")
        e.w.put(f"{name} = {load(place.code, nest.element(key, pointer, linear))}")
        nest.loaded[same] = name
    return nest.loaded[same], place.code


def _code(e: Emitter, i: int, k: int) -> str:
    from fusion_search.codegen.writer import code_of

    operand = e.group.members[i].operands[k]
    return code_of(e.graph.values[e.program.value_name[operand.base]].dtype)


def _define(nest: _Nest, members: Sequence[int], ready: _Ready) -> None:
    """Write each map's definition and its store."""
    e = nest.e
    for i in members:
        member = e.group.members[i]
        if is_reduce(member):
            continue
        text = _gathered(nest, ready, i) if member.spec.kind == "gather" else _expression(nest, ready, i)
        place = e.places[i]
        name = place.address if place.kind == "local" else e.w.name("v")
        e.w.put(f"{name} = {text}")
        nest.values[i] = name
        if i in ready.writes:
            pointer, linear = ready.writes[i]
            e.w.put(f"{nest.element(f'w{i}', pointer, linear)} = {store(place.code, name)}")


def _expression(nest: _Nest, ready: _Ready, i: int) -> str:
    e = nest.e
    member = e.group.members[i]
    arguments = [_argument(nest, ready, i, k) for k in range(len(member.operands))]
    code = e.places[i].code
    source = arguments[-1][1] if member.spec.name != "Where" else code
    body = member.spec.body
    if body is None:
        raise TypeError(f"{member.spec.name} has no scalar expression")
    texts = [text for text, _ in arguments]
    if member.node.op == "Cast" and code != "b1":
        texts = [converted(source, texts[0])]
    return rounded(code, body(COMPUTE[source], texts, dict(member.node.attrs)))


def _gathered(nest: _Nest, ready: _Ready, i: int) -> str:
    """Read a tensor at indices that come from another one."""
    e = nest.e
    member = e.group.members[i]
    data = member.operands[0]
    axes = [d for d, dim in enumerate(member.domain.reads[0].dims) if dim.indirect]
    if member.spec.name == "GatherND" and (i, 1) in ready.reads:
        base_pointer, base_place, base_linear, base_key = ready.reads[(i, 1)]
        first = nest.element(base_key, base_pointer, base_linear)[len(base_pointer) + 1 : -1]
        texts = [f"{base_pointer}[{first} + {c}]" for c in range(len(axes))]
        del base_place
    else:
        texts = [_argument(nest, ready, i, 1)[0]]
    names = []
    for d, text in zip(axes, texts, strict=True):
        size = e.w.number(("gather size", i, d), data.shape[d])
        names.append(e.w.name("g"))
        e.w.put(f"{names[-1]} = checked_index(np.int64({text}), {size}, {e.flag})")
    if (i, 0) not in ready.reads:  # one element along every axis that is gathered from: the one at hand
        return _argument(nest, ready, i, 0)[0]
    pointer, place, linear, key = ready.reads[(i, 0)]
    steps = _stored_steps(e, i)
    at = nest.element(key, pointer, linear)[len(pointer) + 1 : -1]
    for d, name in zip(axes, names, strict=True):
        at += f" + {name} * {e.w.number(('gather step', i, d), steps[d])}"
    return load(place.code, f"{pointer}[{at}]")


def _stored_steps(e: Emitter, i: int) -> list[int]:
    """Element stride of each dimension of a gather's data where it lies."""
    from fusion_search.codegen.access import row_major

    producer = e.group.producers.get((i, 0))
    operand = e.group.members[i].operands[0]
    if producer is not None and e.places[producer].kind == "scratch":
        steps, stored = e.dimension_steps(producer, e.places[producer]), dimension_of(operand)
        return [steps[stored[d]] if d in stored else 0 for d in range(len(operand.shape))]
    return row_major(operand.shape)


# ---------------------------------------------------------------- reductions


def _emit_lanes(e: Emitter, stage: Stage, reducers: list[int]) -> None:
    """Reductions along the last dimension: 64 running lanes, strip by strip, folded in a fixed order."""
    w = e.w
    reduced = e.group.loops[reducers[0]].reduced
    parallel = [a for a in stage.order if a not in reduced]
    inner = reduced[-1]
    lanes = {}
    for i in reducers:
        code = COMPUTE[e.places[i].code]
        lanes[i] = w.name("a")
        w.put(f"{lanes[i]} = lanes_{code}()")
    with ExitStack() as stack:
        variables = _open(e, stack, parallel)
        for i in reducers:
            code = COMPUTE[e.places[i].code]
            w.put(f"lanes_fill({lanes[i]}, T_{code}({NEUTRAL[e.group.members[i].spec.combiner]}))")
        with ExitStack() as walk:
            variables |= _open(e, walk, reduced[:-1])
            strip, size = w.name("t"), w.name("m")
            walk.enter_context(w.block(f"for {strip} in range(0, {e.bound(inner)}, STRIP):"))
            w.put(f"{size} = min(STRIP, {e.bound(inner)} - {strip})")
            nest = _Nest(e, stage, inner, variables, strip=strip)
            ready = _prepare(nest, stage.members)
            tiles = _lane_operands(nest, ready, reducers)
            maps = [i for i in stage.members if i not in reducers]
            if maps or any(tile is None for tile in tiles.values()):
                buffers = {i: _strip(nest, i) for i, tile in tiles.items() if tile is None}
                with w.block(f"for j in range({size}):"):
                    _define(nest, stage.members, ready)
                    for i, buffer in buffers.items():
                        text, code = _argument(nest, ready, i, 0)
                        w.put(f"{buffer}[j] = {text}")
                tiles |= buffers
            for i in reducers:
                word = LANE_WORDS[e.group.members[i].spec.combiner][0]
                kind = "f64" if COMPUTE[e.places[i].code] == "f8" else "f32"
                w.put(f"{word}_{kind}({lanes[i]}, {tiles[i]}, {size})")
        for i in reducers:
            word = LANE_WORDS[e.group.members[i].spec.combiner][1]
            kind = "f64" if COMPUTE[e.places[i].code] == "f8" else "f32"
            _finish(e, stage, i, f"{word}_{kind}({lanes[i]})", variables)


def _strip(nest: _Nest, i: int) -> str:
    name = nest.e.w.name("u")
    nest.e.w.put(f"{name} = strip_{COMPUTE[nest.e.places[i].code]}()")
    return name


def _lane_operands(nest: _Nest, ready: _Ready, reducers: list[int]) -> dict[int, str | None]:
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
    w = e.w
    reduced = e.group.loops[reducers[0]].reduced
    parallel = [a for a in stage.order if a not in reduced]
    totals = {i: _accumulator(e, i, parallel) for i in reducers}
    for i in reducers:
        _over(e, stage, i, parallel, totals[i], "start")
    order = stage.order
    inner = order[-1] if order else None
    with ExitStack() as stack:
        variables = _open(e, stack, order[:-1])
        nest = _Nest(e, stage, inner, variables)
        ready = _prepare(nest, stage.members)
        pointers = {i: nest.pointer(f"a{i}", total, Linear(total.strides)) for i, total in totals.items() if total.kind != "local"}
        if inner is not None:
            stack.enter_context(w.block(f"for j in range({e.bound(inner)}):"))
        _define(nest, stage.members, ready)
        for i in reducers:
            text, source = _argument(nest, ready, i, 0)
            total = totals[i]
            at = nest.element(f"a{i}", pointers[i], Linear(total.strides)) if i in pointers else total.address
            w.put(f"{at} = {rounded(total.code, _combined(e, i, at, converted(source, text)))}")
    for i in reducers:
        _over(e, stage, i, parallel, totals[i], "finish")


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
    return Place("scratch", code, f"S + {e.w.number(('total', i), e.reserve(4 * step))}", strides, f"total{i}")


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
        variables = _open(e, stack, parallel[:-1])
        nest = _Nest(e, stage, parallel[-1] if parallel else None, variables)
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


# ---------------------------------------------------------------- concat and pad


def emit_parts(e: Emitter, stage: Stage) -> None:
    """Write a concat or a pad: each part over its own range of the result."""
    (i,) = stage.members
    member = e.group.members[i]
    place = e.places[i]
    if member.spec.name == "Pad":
        fill = e.w.name("c")
        value = e.graph.values[member.node.output].dtype.type(member.node.attr("value"))
        e.w.put(f"{fill} = {_literal(e, place.code, value)}")
        _part(e, stage, i, None, {}, fill)
    axis = member.node.attr("axis")
    start = 0
    if member.spec.name == "Concat" and _emit_alike(e, stage, i, axis):
        return
    for k, operand in enumerate(member.operands):
        spans: dict[int, tuple[int, int]] = {}
        if member.spec.name == "Concat":
            spans[axis] = (start, start + operand.shape[axis])
            start += operand.shape[axis]
        else:
            for d, (before, n) in enumerate(zip(member.node.attr("before"), operand.shape, strict=True)):
                if (before, before + n) != (0, member.shape[d]):
                    spans[d] = (max(before, 0), min(before + n, member.shape[d]))
        # a dimension of extent 1 has no loop: its one element is in the part or not
        if all(e.original[i][d] or low <= 0 < high for d, (low, high) in spans.items()):
            _part(e, stage, i, k, {e.original[i][d][0]: span for d, span in spans.items() if e.original[i][d]}, "")


def _emit_alike(e: Emitter, stage: Stage, i: int, axis: int) -> bool:
    """Write a concat of many tensors that are read alike as one loop over its parts, which the argument table lists.

    The text then does not grow with the number of parts, and all such concats share one kernel.
    """
    w, member, place = e.w, e.group.members[i], e.places[i]
    atoms = e.original[i][axis]
    if len(member.operands) < MANY_PARTS or not atoms or any(operand.parameter for operand in member.operands):
        return False
    sources = [e.source_of(i, k) for k in range(len(member.operands))]
    order, atom = stage.order, atoms[0]
    inner = order[-1] if order else None
    kinds = set()
    rows: list[list[Slot]] = []
    start = 0
    for (_, where, linear, _), operand in zip(sources, member.operands, strict=True):
        if not isinstance(where, Place) or where.kind != "tensor" or linear is None:
            return False
        walked = tuple(a for a in sorted(linear.strides) if linear.strides[a])
        kinds.add((where.code, walked, inner is not None and linear.strides.get(inner, 0) == 1))
        stop = start + operand.shape[axis]
        steps = [Slot(None, actual(linear.strides[a])) for a in walked]
        rows.append([Slot(None, actual(start)), Slot(None, actual(stop)), Slot(where.key), Slot(None, actual(linear.offset)), *steps])
        start = stop
    if len(kinds) != 1:
        return False
    ((code, walked, unit),) = kinds
    begin, count = w.table(rows)
    target = Linear(dict(place.strides))
    row, at = w.name("r"), w.name("p")
    with ExitStack() as stack:
        stack.enter_context(w.block(f"for {at} in range({count}):"))
        w.put(f"{row} = {begin} + {at} * {len(rows[0])}")
        steps_of = {a: f"T[{row} + {4 + k}]" for k, a in enumerate(walked)}
        low, high = f"T[{row}]", f"T[{row} + 1]"
        lows: dict[int, str] = {}
        highs: dict[int, str] = {}
        if atom in e.group.outer and atom not in e.tiles:
            stack.enter_context(w.block(f"if {low} <= {e.index[atom]} < {high}:"))
        else:
            origin = e.index[atom] if atom in e.tiles else "0"
            lows[atom], highs[atom] = w.name("l"), w.name("l")
            w.put(f"{lows[atom]} = max({low} - {origin}, 0)")
            w.put(f"{highs[atom]} = min({high} - {origin}, {e.bound(atom)})")
        variables = {}
        for a in order[:-1]:
            variables[a] = w.name("i")
            span = f"{lows[a]}, {highs[a]}" if a in lows else e.bound(a)
            stack.enter_context(w.block(f"for {variables[a]} in range({span}):"))
        nest = _Nest(e, stage, inner, variables, strip=lows.get(inner, "") if inner is not None else "")
        pointer = nest.pointer(f"w{i}", place, target)
        parts = [f"T[{row} + 3]"]
        for a in walked:
            if a in e.group.outer:
                parts.append(f"{e.index[a]} * {steps_of[a]}")
            if a in variables:
                parts.append(f"{variables[a]} * {steps_of[a]}")
            elif a == inner and nest.strip:
                parts.append(f"{nest.strip} * {steps_of[a]}")
        source = w.name("x")
        w.put(f"{source} = p_{code}(T[{row} + 2], {' + '.join(parts)})")
        element = f"{source}[0]"
        if inner is not None:
            if inner in walked:
                element = f"{source}[j]" if unit else f"{source}[j * {steps_of[inner]}]"
            bound = f"{highs[inner]} - {lows[inner]}" if inner in lows else e.bound(inner)
            stack.enter_context(w.block(f"for j in range({bound}):"))
        w.put(f"{nest.element(f'w{i}', pointer, target)} = {store(place.code, load(code, element))}")
    return True


def _literal(e: Emitter, code: str, value: object) -> str:
    if COMPUTE[code] in ("f4", "f8"):
        number = float(value)  # type: ignore[arg-type]
        text = {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(repr(number), number.hex())
        return f"T_{COMPUTE[code]}({text})" if "np" in text else f"T_{COMPUTE[code]}({number!r})"
    return f"T_{'u1' if code == 'b1' else code}({int(value)}){' != 0' if code == 'b1' else ''}"  # type: ignore[call-overload]


def _part(e: Emitter, stage: Stage, i: int, k: int | None, ranges: dict[int, tuple[int, int]], fill: str) -> None:
    """Write one part: loops over its range of the result, clipped to the block."""
    w, member, place = e.w, e.group.members[i], e.places[i]
    target = Linear(dict(place.strides))
    if k is not None and member.operands[k].parameter:
        fill = e.parameters[member.operands[k].base]
    source = None
    if k is not None and not fill:
        source = e.memory_of(i, k)
    with ExitStack() as stack:
        lows: dict[int, str] = {}
        highs: dict[int, str] = {}
        for atom, (start, stop) in sorted(ranges.items()):
            low, high = w.number(("part", i, k, atom, 0), start), w.number(("part", i, k, atom, 1), stop)
            if atom in e.group.outer and atom not in e.tiles:
                stack.enter_context(w.block(f"if {low} <= {e.index[atom]} < {high}:"))
                continue
            origin = e.index[atom] if atom in e.tiles else "0"
            lows[atom], highs[atom] = w.name("l"), w.name("l")
            w.put(f"{lows[atom]} = max({low} - {origin}, 0)")
            w.put(f"{highs[atom]} = min({high} - {origin}, {e.bound(atom)})")
        order = stage.order
        inner = order[-1] if order else None
        variables = {}
        for atom in order[:-1]:
            variables[atom] = w.name("i")
            span = f"{lows[atom]}, {highs[atom]}" if atom in lows else e.bound(atom)
            stack.enter_context(w.block(f"for {variables[atom]} in range({span}):"))
        nest = _Nest(e, stage, inner, variables, strip=lows.get(inner, "") if inner is not None else "")
        pointer = nest.pointer(f"w{i}", place, target)
        text = fill
        if source is not None:
            from_pointer = nest.pointer(source[2], source[0], source[1])
            text = load(source[0].code, nest.element(source[2], from_pointer, source[1]))
        if inner is not None:
            count = f"{highs[inner]} - {lows[inner]}" if inner in lows else e.bound(inner)
            stack.enter_context(w.block(f"for j in range({count}):"))
        w.put(f"{nest.element(f'w{i}', pointer, target)} = {store(place.code, text)}")
