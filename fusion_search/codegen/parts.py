"""Concat and pad: the result written part by part."""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.extents import actual
from fusion_search.codegen.nest import Nest
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, Slot, code_of, load, store

#: From this many parts on, a concat is written as a loop over them.
MANY_PARTS = 3


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
        nest = Nest(e, stage, inner, variables, strip=lows.get(inner, "") if inner is not None else "")
        pointer = nest.pointer(f"w{i}", place, target)
        text = fill
        if source is not None:
            from_pointer = nest.pointer(source[2], source[0], source[1])
            text = load(source[0].code, nest.element(source[2], from_pointer, source[1]))
        if inner is not None:
            count = f"{highs[inner]} - {lows[inner]}" if inner in lows else e.bound(inner)
            stack.enter_context(w.block(f"for j in range({count}):"))
        w.put(f"{nest.element(f'w{i}', pointer, target)} = {store(place.code, text)}")
