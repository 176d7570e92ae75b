"""Matrix products of one block: calls of the library's product on panels, the bias first."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod

from fusion_search.codegen.access import Linear
from fusion_search.codegen.blocks import contraction_loops
from fusion_search.codegen.emit import Emitter, Place
from fusion_search.codegen.extents import actual
from fusion_search.codegen.rt.gemm import gemm_scratch_bytes


def operand_address(e: Emitter, i: int, k: int) -> tuple[Place, Linear, str]:
    """Where a contraction's operand lies, looking through an absorbed transpose."""
    producer = e.group.producers.get((i, k))
    if producer in e.skip and producer is not None:
        return e.memory_of(producer, 0)
    return e.memory_of(i, k)


def emit_product(e: Emitter, i: int) -> None:
    """Write the stage of a contraction, or of a convolution whose kernel is one point."""
    w, product = e.w, contraction_loops(e.group, i)
    result = e.places[i]
    left, right = operand_address(e, i, product.left), operand_address(e, i, product.right)
    target = (result, Linear(dict(result.strides)), f"w{i}")
    rows = _chain(e, product.rows, (left[1], target[1]))
    columns = _chain(e, product.columns, (right[1], target[1]))
    depth = _chain(e, product.depth, (left[1], right[1]))
    start = _row_bias(e, i, rows, columns) if depth == product.depth else None
    bias = len(e.group.members[i].operands) > 2 and start is None
    walked = [a for a in (*product.batch, *product.rows, *product.columns) if a not in rows and a not in columns]
    loops = [a for a in walked if a not in e.group.outer or a in e.tiles]
    size = 8 if result.code == "f8" else 4
    function = w.external("gemm_f64" if size == 8 else "gemm_f32")
    copies = bool(depth) and actual(left[1].strides.get(depth[-1], 0)) != 1
    scratch = e.reserve("gemm scratch", gemm_scratch_bytes(actual(prod(e.group.extents[a] for a in depth)), copies=copies))
    with ExitStack() as stack:
        variables: dict[int, str] = {}
        for atom in loops:
            variables[atom] = w.name("i")
            stack.enter_context(w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
        if bias:
            _emit_bias(e, i, variables, rows, columns)
        outside = [a for a in product.depth if a not in depth]
        for atom in outside:
            variables[atom] = w.name("i")
            stack.enter_context(w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
        if start is not None:
            begin = _at(e, *start, variables, size)
        else:
            number = "1" if bias else f"min({' + '.join(variables[a] for a in outside)}, 1)" if outside else "0"
            begin = f"np.int64({number})"
        call = [_size(e, rows), _size(e, columns), _size(e, depth)]
        for (place, linear, key), (major, minor) in ((left, (rows, depth)), (right, (depth, columns))):
            call += [_at(e, place, linear, key, variables, size), _chain_step(e, key, linear, major), _chain_step(e, key, linear, minor)]
        call += [_at(e, *target, variables, size), _chain_step(e, target[2], target[1], rows), begin, f"S + {scratch}"]
        if not outside:
            _fetch_ahead(e, i, rows, columns, variables)
        w.put(f"call_address({function}, ({', '.join(call)}))")


def _fetch_ahead(e: Emitter, i: int, rows: tuple[int, ...], columns: tuple[int, ...], variables: dict[int, str]) -> None:
    """Fetch what the stages after a product read and write of tensors, while it computes: short rows far apart."""
    if not rows or not columns or columns[-1] in e.whole:
        return
    seen = set()
    for j, member in enumerate(e.group.members):
        if j == i or j in e.skip or e.stage_of[j] < e.stage_of[i] or e.stages[e.stage_of[j]].kind != "loop":
            continue
        touched = [(e.places[j], Linear(dict(e.places[j].strides)), f"w{j}")]
        for k, operand in enumerate(member.operands):
            if not operand.parameter and e.source_of(j, k)[0] == "memory":
                touched.append(e.memory_of(j, k))
        for place, linear, key in touched:
            strides = linear.strides
            if place.kind != "tensor" or strides.get(columns[-1]) != 1 or not strides.get(rows[-1]) or place.key in seen:
                continue
            if any(a not in strides and a in variables for a in variables):
                continue
            seen.add(place.key)
            size = e.group.members[j].itemsize
            at = _at(e, place, linear, key, variables, size)
            e.w.put(
                f"prefetch_rows({at}, {_size(e, rows)}, {e.step(key, rows[-1], strides[rows[-1]])} * {size}, {_size(e, columns)} * {size})"
            )


def _row_bias(e: Emitter, i: int, rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[Place, Linear, str] | None:
    """Where the biases lie if there is one for each row, side by side: the product then starts from them itself."""
    operands = e.group.members[i].operands
    if len(operands) < 3:
        return None
    if not operands[2].parameter and e.source_of(i, 2)[0] != "memory":
        return None
    place, linear, key = e.memory_of(i, 2)
    if place.code != e.places[i].code or any(linear.strides.get(a, 0) for a in columns):
        return None
    step = 1
    for atom in reversed(rows):
        if linear.strides.get(atom, 0) != step:
            return None
        step *= e.group.extents[atom]
    return place, linear, key


def _chain(e: Emitter, atoms: tuple[int, ...], addresses: tuple[Linear, ...]) -> tuple[int, ...]:
    """The longest run of last loops that every address steps through as through one."""
    chain: list[int] = []
    for atom in reversed(atoms):
        if chain:
            below = chain[0]
            joined = below not in e.tiles or below in e.whole
            if not joined or any(a.strides.get(atom, 0) != a.strides.get(below, 0) * e.group.extents[below] for a in addresses):
                break
        if atom in e.group.outer and atom not in e.tiles:
            break
        chain.insert(0, atom)
    return tuple(chain)


def _size(e: Emitter, atoms: tuple[int, ...]) -> str:
    return "np.int64(" + (" * ".join(e.bound(a) for a in atoms) or "1") + ")"


def _chain_step(e: Emitter, key: str, linear: Linear, atoms: tuple[int, ...]) -> str:
    stride = linear.strides.get(atoms[-1], 0) if atoms else 1
    return f"np.int64({e.step(key, atoms[-1], stride)})" if atoms else "np.int64(1)"


def _at(e: Emitter, place: Place, linear: Linear, key: str, variables: dict[int, str], size: int) -> str:
    parts = [e.base(key, place, linear)]
    parts += [f"{variables[a]} * {e.step(key, a, linear.strides[a])}" for a in variables if linear.strides.get(a)]
    offset = " + ".join(p for p in parts if p != "0") or "0"
    return f"{place.address} + ({offset}) * {size}"


def _emit_bias(e: Emitter, i: int, variables: dict[int, str], rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
    """Start the accumulators of a block at the bias."""
    w, result = e.w, e.places[i]
    operand = e.group.members[i].operands[2]
    with ExitStack() as stack:
        inside = dict(variables)
        for atom in (*rows, *columns[:-1]):
            inside[atom] = w.name("i")
            stack.enter_context(w.block(f"for {inside[atom]} in range({e.bound(atom)}):"))
        name, last = w.name("h"), columns[-1] if columns else None
        text = name
        if operand.parameter:
            w.put(f"{name} = {e.parameters[operand.base]}")
        else:
            place, linear, key = e.memory_of(i, 2)
            w.put(f"{name} = p_{place.code}({place.address}, {_offset(e, place, linear, key, inside)})")
            stride = linear.strides.get(last, 0) if last is not None else 0
            text = f"{name}[{'0' if not stride or last is None else f'j * {e.step(key, last, stride)}'}]"
        pointer = w.name("x")
        w.put(f"{pointer} = p_{result.code}({result.address}, {_offset(e, result, Linear(result.strides), f'w{i}', inside)})")
        if last is None:
            w.put(f"{pointer}[0] = {text}")
        else:
            with w.block(f"for j in range({e.bound(last)}):"):
                w.put(f"{pointer}[j] = {text}")


def _offset(e: Emitter, place: Place, linear: Linear, key: str, variables: dict[int, str]) -> str:
    parts = [e.base(key, place, linear)]
    parts += [f"{variables[a]} * {e.step(key, a, linear.strides[a])}" for a in variables if linear.strides.get(a)]
    return " + ".join(p for p in parts if p != "0") or "0"
