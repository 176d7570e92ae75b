"""Concat and pad: the result written part by part, and with it the maps that are evaluated in its parts.

These are maps that its parts are made by (`fusion.parts`), and maps that read it (`codegen.stages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise

from fusion_search.codegen.access import Linear
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.extents import actual
from fusion_search.codegen.nest import Nest, define, open_loops, prepare
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, Slot, code_of, load, store

#: From this many parts on, a concat is written as a loop over them.
MANY_PARTS = 3


def emit_parts(e: Emitter, stage: Stage) -> None:
    """Write a concat or a pad, and the maps of its nest: each part over its own range of the result."""
    i = next(i for i in stage.members if e.group.members[i].spec.name in ("Concat", "Pad"))
    if e.group.members[i].spec.name == "Pad":
        _emit_pad(e, stage, i)
    else:
        _emit_concat(e, stage, i)


def _emit_concat(e: Emitter, stage: Stage, i: int) -> None:
    member = e.group.members[i]
    axis = member.node.attr("axis")
    if _emit_alike(e, stage, i, axis):
        return
    ends = [0, *accumulate(operand.shape[axis] for operand in member.operands)]
    spans, atoms = list(pairwise(ends)), e.original[i][axis]
    if atoms and atoms[0] == stage.order[-1]:
        _rows_of_parts(e, stage, i, spans)
        return
    for k, span in enumerate(spans):
        # a dimension of extent 1 has no loop: its one element is in the part or not
        if atoms or span[0] <= 0 < span[1]:
            _part(e, stage, i, k, {atoms[0]: span} if atoms else {}, "")


def _rows_of_parts(e: Emitter, stage: Stage, i: int, spans: Sequence[tuple[int, int]]) -> None:
    """Write a concat along its innermost loop row by row, so that short parts share what there is to do for a row."""
    inner = stage.order[-1]
    clipped = [_clipped(e, i, k, inner, span) for k, span in enumerate(spans)]
    with ExitStack() as stack:
        variables = open_loops(e, stack, stage.order[:-1])
        for k, (low, high) in enumerate(clipped):
            with e.w.block(f"if {low} < {high}:"):
                _write(Nest(e, stage, inner, variables, strip=low), i, k, f"{high} - {low}", "")


def _clipped(e: Emitter, i: int, k: int | None, atom: int, span: tuple[int, int]) -> tuple[str, str]:
    """Write where a part begins and ends along a loop, clipped to the block, and counted from its beginning."""
    low, high = (e.w.number(("part", i, k, atom, end), span[end]) for end in (0, 1))
    origin = e.index[atom] if atom in e.tiles else "0"
    begin, end = e.w.name("l"), e.w.name("l")
    e.w.put(f"{begin} = max({low} - {origin}, 0)")
    e.w.put(f"{end} = min({high} - {origin}, {e.bound(atom)})")
    return begin, end


def _emit_pad(e: Emitter, stage: Stage, i: int) -> None:
    """Write a pad row by row: what lies before the operand's part of the row, the part, and what lies behind it."""
    w, member, place = e.w, e.group.members[i], e.places[i]
    fill = w.name("c")
    value = e.graph.values[member.node.output].dtype.type(member.node.attr("value"))
    w.put(f"{fill} = {_literal(e, place.code, value)}")
    spans: dict[int, tuple[int, int]] = {}
    for d, (before, n) in enumerate(zip(member.node.attr("before"), member.operands[0].shape, strict=True)):
        if (before, before + n) != (0, member.shape[d]):
            spans[d] = (max(before, 0), min(before + n, member.shape[d]))
    there = all(e.original[i][d] or low <= 0 < high for d, (low, high) in spans.items())
    ranges = {e.original[i][d][0]: span for d, span in spans.items() if e.original[i][d]}
    if not there or not stage.order:
        _part(e, stage, i, None, {}, fill)
        if there:
            _part(e, stage, i, 0, ranges, "")
        return
    order, inner = stage.order, stage.order[-1]
    ends = {atom: tuple(w.number(("part", i, 0, atom, end), span[end]) for end in (0, 1)) for atom, span in sorted(ranges.items())}
    with ExitStack() as stack:
        variables = open_loops(e, stack, order[:-1])
        begin, end, bound = w.name("l"), w.name("l"), e.bound(inner)
        origin = e.index[inner] if inner in e.tiles else "0"
        low, high = ends.pop(inner, ("0", ""))
        w.put(f"{begin} = min(max({low} - {origin}, 0), {bound})" if high else f"{begin} = 0")
        w.put(f"{end} = max(min({high} - {origin}, {bound}), {begin})" if high else f"{end} = {bound}")
        inside = [f"{low} <= {_index(e, atom, variables)} < {high}" for atom, (low, high) in ends.items()]
        if inside:
            with w.block(f"if not ({' and '.join(inside)}):"):
                w.put(f"{begin} = {bound}")
                w.put(f"{end} = {bound}")
        if high or inside:
            for strip, count in (("", begin), (end, f"{bound} - {end}")):
                _write(Nest(e, stage, inner, variables, strip=strip), i, None, count, fill)
        # what does not change along a row is read before it: from nowhere, where the operand has no part of the row
        with w.block(f"if {begin} < {end}:"):
            _write(Nest(e, stage, inner, variables, strip=begin), i, 0, f"{end} - {begin}", "")


def _index(e: Emitter, atom: int, variables: dict[int, str]) -> str:
    """Where a nest is along a loop, counted from the loop's beginning."""
    if atom not in variables:
        return e.index[atom]
    return f"{e.index[atom]} + {variables[atom]}" if atom in e.tiles else variables[atom]


def _emit_alike(e: Emitter, stage: Stage, i: int, axis: int) -> bool:
    """Write a concat of many tensors that are read alike as one loop over its parts, which the argument table lists.

    The text then does not grow with the number of parts, and all such concats share one kernel.
    """
    w, member, place = e.w, e.group.members[i], e.places[i]
    atoms = e.original[i][axis]
    if len(stage.members) > 1 or len(member.operands) < MANY_PARTS or not atoms or any(operand.parameter for operand in member.operands):
        return False
    sources = [_tensor_of(e, i, k) for k in range(len(member.operands))]
    order, atom = stage.order, atoms[0]
    inner = order[-1] if order else None
    kinds = set()
    rows: list[list[Slot]] = []
    start = 0
    for source, operand in zip(sources, member.operands, strict=True):
        if source is None:
            return False
        tensor, code, linear = source
        walked = tuple(a for a in sorted(linear.strides) if linear.strides[a])
        kinds.add((code, walked, inner is not None and linear.strides.get(inner, 0) == 1))
        stop = start + operand.shape[axis]
        steps = [Slot(None, actual(linear.strides[a])) for a in walked]
        rows.append([Slot(None, actual(start)), Slot(None, actual(stop)), Slot(tensor), Slot(None, actual(linear.offset)), *steps])
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
        nest = Nest(e, stage, inner, variables, strip=lows.get(inner, "") if inner is not None else "")
        pointer = nest.pointer(f"w{i}", place, target)
        parts = [f"T[{row} + 3]"]
        for a in walked:
            if a in e.group.outer:
                parts.append(f"{e.index[a]} * {steps_of[a]}")
            if a in variables:
                parts.append(f"{variables[a]} * {steps_of[a]}")
            elif a == inner and nest.strip:
                parts.append(f"{nest.strip} * {steps_of[a]}")
        x = w.name("x")
        w.put(f"{x} = p_{code}(T[{row} + 2], {' + '.join(parts)})")
        element = f"{x}[0]"
        if inner is not None:
            if inner in walked:
                element = f"{x}[j]" if unit else f"{x}[j * {steps_of[inner]}]"
            bound = f"{highs[inner]} - {lows[inner]}" if inner in lows else e.bound(inner)
            stack.enter_context(w.block(f"for j in range({bound}):"))
        w.put(f"{nest.element(f'w{i}', pointer, target)} = {store(place.code, load(code, element))}")
    return True


def _tensor_of(e: Emitter, i: int, k: int) -> tuple[str, str, Linear] | None:
    """The tensor that holds an operand, its storage code and address; None when no tensor does. No slot is taken for it."""
    operand = e.group.members[i].operands[k]
    producer = e.group.producers.get((i, k))
    if producer is not None and e.places[producer].kind != "tensor":
        return None
    tensor = e.program.value_name[operand.base]
    return tensor, code_of(e.graph.values[tensor].dtype), e.group.reads[(i, k)]


def _literal(e: Emitter, code: str, value: object) -> str:
    if COMPUTE[code] in ("f4", "f8"):
        number = float(value)  # type: ignore[arg-type]  # an attribute of any kind
        text = {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(repr(number), number.hex())
        return f"T_{COMPUTE[code]}({text})" if "np" in text else f"T_{COMPUTE[code]}({number!r})"
    whole = int(value)  # type: ignore[call-overload]  # an attribute of any kind
    return f"T_{'u1' if code == 'b1' else code}({whole}){' != 0' if code == 'b1' else ''}"


def _part(e: Emitter, stage: Stage, i: int, k: int | None, ranges: dict[int, tuple[int, int]], fill: str) -> None:
    """Write one part: loops over its range of the result, clipped to the block."""
    w = e.w
    with ExitStack() as stack:
        lows: dict[int, str] = {}
        highs: dict[int, str] = {}
        for atom, span in sorted(ranges.items()):
            if atom in e.group.outer and atom not in e.tiles:
                low, high = (w.number(("part", i, k, atom, end), span[end]) for end in (0, 1))
                stack.enter_context(w.block(f"if {low} <= {e.index[atom]} < {high}:"))
            else:
                lows[atom], highs[atom] = _clipped(e, i, k, atom, span)
        order = stage.order
        inner = order[-1] if order else None
        variables = {}
        for atom in order[:-1]:
            variables[atom] = w.name("i")
            steps = f"{lows[atom]}, {highs[atom]}" if atom in lows else e.bound(atom)
            stack.enter_context(w.block(f"for {variables[atom]} in range({steps}):"))
        nest = Nest(e, stage, inner, variables, strip=lows.get(inner, "") if inner is not None else "")
        if inner is not None and inner in lows:  # what does not change along a row is read before it: from nowhere, where there is no part
            stack.enter_context(w.block(f"if {lows[inner]} < {highs[inner]}:"))
        count = f"{highs[inner]} - {lows[inner]}" if inner is not None and inner in lows else ""
        _write(nest, i, k, count, fill)


def _write(nest: Nest, i: int, k: int | None, count: str, fill: str) -> None:
    """Write the innermost loop of a part: a number, an operand in memory, or the maps that are evaluated here; then what reads it."""
    e, stage, inner = nest.e, nest.stage, nest.inner
    w, member, place = e.w, e.group.members[i], e.places[i]
    target = Linear(dict(place.strides))
    chain: list[int] = []
    if k is not None and member.operands[k].parameter:
        fill = e.parameters[member.operands[k].base]
    elif k is not None:
        chain = [p for p in stage.inside if e.group.in_parts[p].operand == k]
    pointer = "" if place.kind == "register" else nest.pointer(f"w{i}", place, target)
    text = fill
    if k is not None and not chain and not fill:
        source, linear, key = e.memory_of(i, k)
        text = load(source.code, nest.element(key, nest.pointer(key, source, linear), linear))
    readers = [reader for reader in stage.members if reader != i]
    ready = prepare(nest, [*chain, *readers])
    with ExitStack() as stack:
        if inner is not None:
            stack.enter_context(w.block(f"for j in range({count or e.bound(inner)}):"))
        if chain:
            define(nest, chain, ready)
            text = nest.values[chain[-1]]
        if pointer:
            w.put(f"{nest.element(f'w{i}', pointer, target)} = {store(place.code, text)}")
        if readers:
            nest.values[i] = w.name("v")
            w.put(f"{nest.values[i]} = {text}")
            define(nest, readers, ready)
