"""Convolutions of one block: a call of the library's tile kernel."""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear, row_major
from fusion_search.codegen.emit import Emitter, Place
from fusion_search.codegen.extents import actual
from fusion_search.codegen.packing import window_packing
from fusion_search.codegen.rt.conv import COLUMNS_PACKED, PLAIN, WindowShape, conv_scratch_bytes
from fusion_search.fusion.program import Member


def window_shape(member: Member, packed: int = PLAIN) -> WindowShape:
    """Return the library's description of a convolution, its weights as they lie; one-dimensional ones have a height of 1."""
    x, w, out = member.operands[0].shape, member.operands[1].shape, member.shape
    flat = len(x) == 4

    def pair(values: tuple[int, ...], one: int) -> tuple[int, int]:
        return (one, actual(values[0])) if flat else (actual(values[0]), actual(values[1]))

    strides, dilations, before = (member.node.attr(name) for name in ("strides", "dilations", "before"))
    top, left = pair(before, 0)
    return WindowShape(
        x[1] * x[2], w[0] * w[1], *pair(x[3:], 1), *pair(out[3:], 1), pair(w[3:], 1), pair(strides, 1), pair(dilations, 1), top, left, x[1],
        packed=packed,
    )  # fmt: skip


def emit_convolution(e: Emitter, i: int) -> None:
    """Write a convolution's stage."""
    w, member, result = e.w, e.group.members[i], e.places[i]
    turned = i in e.forms
    shape = window_shape(member, COLUMNS_PACKED if turned else PLAIN)
    fields = shape.descriptor()
    names = [w.number(("conv", i, k), int(value)) for k, value in enumerate(fields)]
    at = f"A + {8 * int(names[0][1:])}"  # the descriptor lies in the argument table itself
    loops = [e.original[i][k] for k in range(member.domain.rank)]
    image, group, filters, *positions = (atoms[0] if atoms else None for atoms in loops)
    row = positions[0] if len(positions) == 2 else None
    function, scratch = w.external("conv_tile_f32"), e.reserve("conv scratch", conv_scratch_bytes(shape))
    # where an operand lies in scratch, its groups may lie apart: then they are called for one by one
    apart = any(e.memory_of(i, k)[0].kind == "scratch" for k in ((0,) if turned else (0, 1)))
    bias = _bias_address(e, i)
    with ExitStack() as stack:
        index: dict[int, str] = {}
        inside: dict[int, str] = {}
        for atom in (image, group) if apart else (image,):
            if atom is None:
                continue
            if atom not in e.group.outer or atom in e.tiles:
                inside[atom] = w.name("i")
                stack.enter_context(w.block(f"for {inside[atom]} in range({e.bound(atom)}):"))
            index[atom] = " + ".join(part[atom] for part in (e.index, inside) if atom in part)
        if group is None:
            g0, g1 = "np.int64(0)", "np.int64(1)"
        elif apart:
            g0, g1 = index[group], f"{index[group]} + 1"
        else:
            g0, g1 = block_range(e, group, names[14])
        oc0, oc1 = block_range(e, filters, names[3])
        h0, h1 = block_range(e, row, names[4])
        target = target_address(e, i, result, inside)
        steps = [
            w.number(("conv group step", i), result.strides.get(group, 0) if group is not None else 0),
            w.number(("conv channel step", i), result.strides.get(filters, 0) if filters is not None else 0),
            w.number(("conv row step", i), result.strides.get(row, 0) if row is not None else shape.out_width),
        ]
        weights = (
            w.packed(e.program.value_name[member.operands[1].base], window_packing(member)) if turned else whole_address(e, i, 1, inside)
        )
        call = [at, whole_address(e, i, 0, inside), weights, bias or "np.int64(0)", target]
        call += [index[image] if image is not None else "np.int64(0)", g0, g1, oc0, oc1, h0, h1, *steps, f"S + {scratch}"]
        w.put(f"call_address({function}, ({', '.join(call)}))")
    if len(member.operands) > 2 and not bias:
        _emit_bias(e, i, [a for a in (image, group, filters, *positions) if a is not None])


def _bias_address(e: Emitter, i: int) -> str:
    """Address of all the biases where they lie in a tensor; the call starts from them."""
    if len(e.group.members[i].operands) < 3:
        return ""
    how = "parameter" if e.group.members[i].operands[2].parameter else e.source_of(i, 2)[0]
    if how not in ("parameter", "memory"):
        return ""
    place, linear, _ = e.memory_of(i, 2)
    return place.address if place.kind == "tensor" and not linear.offset else ""


def block_range(e: Emitter, atom: int | None, full: str) -> tuple[str, str]:
    """First and past-the-last index of a block along one dimension; `full` is its extent."""
    if atom is None or atom not in e.group.outer:
        return "np.int64(0)", full
    if atom in e.tiles:
        return e.index[atom], f"{e.index[atom]} + {e.sizes[atom]}"
    return e.index[atom], f"{e.index[atom]} + 1"


def whole_address(e: Emitter, i: int, k: int, inside: dict[int, str]) -> str:
    """Address at which an operand would begin if all of it lay in memory as its block does in scratch: the kernel counts from there."""
    member = e.group.members[i]
    place = e.memory_of(i, k)[0]
    if place.kind != "scratch":
        return place.address
    steps, shift = row_major(member.operands[k].shape), []
    for d in range(2):  # image and group, or group and filter
        for atom in e.original[i][d + k]:
            w, full, mine = e.w, steps[d], place.strides.get(atom, 0)
            if atom in inside:
                shift.append(f"{inside[atom]} * {w.number(('conv shift', i, k, atom), mine - full)}")
            if atom in e.group.outer:
                shift.append(f"{e.index[atom]} * {w.number(('conv start', i, k, atom), -full)}")
    return f"{place.address} + ({' + '.join(shift) or '0'}) * 4"


def target_address(e: Emitter, i: int, result: Place, inside: dict[int, str]) -> str:
    """Address of the first element of a block of float32."""
    parts = [e.base(f"w{i}", result, Linear(result.strides))]
    parts += [f"{v} * {e.step(f'w{i}', a, result.strides[a])}" for a, v in inside.items() if result.strides.get(a)]
    offset = " + ".join(p for p in parts if p != "0") or "0"
    return f"{result.address} + ({offset}) * 4"


def _emit_bias(e: Emitter, i: int, atoms: list[int]) -> None:
    """Add the biases to a block; they are some member's result."""
    w, result = e.w, e.places[i]
    walked = [a for a in atoms if a not in e.group.outer or a in e.tiles]
    with ExitStack() as stack:
        variables: dict[int, str] = {}
        for atom in walked[:-1]:
            variables[atom] = w.name("i")
            stack.enter_context(w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
        last = walked[-1] if walked else None
        how, source, _, _ = e.source_of(i, 2)
        if how == "local" and isinstance(source, Place):
            value = source.address
        else:
            place, linear, key = e.memory_of(i, 2)
            parts = [e.base(key, place, linear)]
            parts += [f"{v} * {e.step(key, a, linear.strides[a])}" for a, v in variables.items() if linear.strides.get(a)]
            value = w.name("h")
            w.put(f"{value} = p_f4({place.address}, {' + '.join(p for p in parts if p != '0') or '0'})")
            stride = linear.strides.get(last, 0) if last is not None else 0
            value = f"{value}[{f'j * {e.step(key, last, stride)}' if stride and last is not None else '0'}]"
        pointer = w.name("x")
        parts = [e.base(f"w{i}", result, Linear(result.strides))]
        parts += [f"{v} * {e.step(f'w{i}', a, result.strides[a])}" for a, v in variables.items() if result.strides.get(a)]
        w.put(f"{pointer} = p_f4({result.address}, {' + '.join(p for p in parts if p != '0') or '0'})")
        if last is None:
            w.put(f"{pointer}[0] = {pointer}[0] + {value}")
            return
        stride = result.strides.get(last, 0)
        at = "j" if stride == 1 else f"j * {e.step(f'w{i}', last, stride)}"
        with w.block(f"for j in range({e.bound(last)}):"):
            w.put(f"{pointer}[{at}] = {pointer}[{at}] + {value}")
