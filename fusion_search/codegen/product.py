"""Matrix products of one block: calls of the library's product on panels, the bias first."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from fusion_search.codegen.access import Linear, library_kernel
from fusion_search.codegen.blocks import PANEL_COLUMNS, Product, contraction_loops
from fusion_search.codegen.emit import Emitter, Place
from fusion_search.codegen.extents import actual
from fusion_search.codegen.packing import PackedSide, packed_side
from fusion_search.codegen.rt.gemm import gemm_scratch_bytes

#: Bytes of a row of columns up to which the library reads a right side where it lies: four vectors of the micro-kernel.
PANEL_BYTES = 256
#: The copy of a right side for several products stays in the second-level cache, beside what else they read.
SHARED_BYTES = 512 << 10


def operand_address(e: Emitter, i: int, k: int) -> tuple[Place, Linear, str]:
    """Where a contraction's operand lies, looking through an absorbed transpose."""
    producer = e.group.producers.get((i, k))
    if producer in e.skip and producer is not None:
        return e.memory_of(producer, 0)
    return e.memory_of(i, k)


@dataclass(frozen=True, slots=True)
class Call:
    """A product in one block: what one call of the library takes, and the loops around the calls.

    Attributes
    ----------
    left, right, target : tuple of (Place, Linear, str)
        Where the operands and the result lie.
    rows, columns, depth : tuple of int
        Loops that one call runs through.
    loops : list of int
        Loops of the result around the calls.
    outside : list of int
        Loops of the depth around the calls.
    side : PackedSide, optional
        How the right side is packed, where it is.
    """

    left: tuple[Place, Linear, str]
    right: tuple[Place, Linear, str]
    target: tuple[Place, Linear, str]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    loops: list[int]
    outside: list[int]
    side: PackedSide | None


def call_of(e: Emitter, i: int) -> Call:
    """Find what one call of a contraction's stage takes."""
    form = e.forms.get(i, "")
    product, result = contraction_loops(e.group, i, form), e.places[i]
    side = packed_side(e.group, i, product) if form else None
    left = operand_address(e, i, product.left)
    right = _packed(e, i, product, side) if side is not None else operand_address(e, i, product.right)
    target = (result, Linear(dict(result.strides)), f"w{i}")
    rows = _chain(e, product.rows, (left[1], target[1]))
    columns = _chain(e, product.columns, (right[1] if side is None else Linear(side.column), target[1]))
    depth = _chain(e, product.depth, (left[1], right[1]))
    walked = [a for a in (*product.batch, *product.rows, *product.columns) if a not in rows and a not in columns]
    loops = [a for a in walked if a not in e.group.outer or a in e.tiles]
    return Call(left, right, target, rows, columns, depth, loops, [a for a in product.depth if a not in depth], side)


def emit_product(e: Emitter, i: int) -> None:
    """Write the stage of a contraction, or of a convolution whose kernel is one point."""
    w, result, made = e.w, e.places[i], call_of(e, i)
    left, right, target, rows, columns, depth = made.left, made.right, made.target, made.rows, made.columns, made.depth
    outside, side, form = made.outside, made.side, e.forms.get(i, "")
    lines, pieces = (columns, rows) if form == "turned" else (rows, columns)  # of the result: those that lie apart, and along them
    start = None if outside else _row_bias(e, i, lines, pieces)
    bias = len(e.group.members[i].operands) > 2 and start is None
    size = 8 if result.code == "f8" else 4
    library = f"gemm_{form}" if form else "gemm"
    function = w.external(f"{library}_f{8 * size}")
    copies = bool(depth) and actual(left[1].strides.get(depth[-1], 0)) != 1
    needed = gemm_scratch_bytes(actual(prod(e.group.extents[a] for a in depth)), copies=copies, form=library)
    scratch = e.reserve("gemm scratch", needed)
    with ExitStack() as stack:
        variables: dict[int, str] = {}
        for atom in made.loops:
            variables[atom] = w.name("i")
            stack.enter_context(w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
        if bias:
            _emit_bias(e, i, variables, lines, pieces)
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
        if side is None:
            call[6:] = _shared_panel(e, i, made, size) or call[6:]
        else:
            first = _offset(e, right[0], Linear(side.column), f"{right[2]} column", variables)
            call[7:] = [w.number(("panel", i), side.panel), f"np.int64({first})"]
        call += [_at(e, *target, variables, size), _chain_step(e, target[2], target[1], lines), begin, f"S + {scratch}"]
        if not outside:
            _fetch_ahead(e, i, lines, pieces, variables)
        w.put(f"call_address({function}, ({', '.join(call)}))")


def _packed(e: Emitter, i: int, product: Product, side: PackedSide) -> tuple[Place, Linear, str]:
    """Where the packed right side of a product lies, and how its matrices and what is summed over are stepped through."""
    operand = e.group.members[i].operands[product.right]
    tensor = e.program.value_name[operand.base]
    return Place("tensor", e.places[i].code, e.w.packed(tensor, side.packing), {}, tensor), Linear(side.at), f"r{i}.{product.right}"


def _shared_panel(e: Emitter, i: int, made: Call, size: int) -> list[str]:
    """Side by side in scratch, the columns of a block that several products read: copied by the first, as they would be for each.

    Returns
    -------
    list of str
        Address and strides of the copy; nothing where each product reads its right side by itself.
    """
    place, linear, key = made.right
    columns = prod(e.tiles.get(a, e.group.extents[a]) for a in made.columns)
    step, deep = -(-actual(columns) // 16) * 16, prod(e.group.extents[a] for a in made.depth)
    apart = place.kind == "tensor" and made.columns and made.depth and linear.strides.get(made.columns[-1]) == 1
    # of float64 a block of columns is wider than what the library reads in place
    if not apart or size * PANEL_COLUMNS > PANEL_BYTES or deep * PANEL_BYTES > SHARED_BYTES:
        return []
    readers = [j for j, m in enumerate(e.group.members) if library_kernel(m) == "product" and _same_columns(call_of(e, j), made)]
    if len(readers) < 2 or i not in readers:
        return []
    stages = [e.stage_of[j] for j in readers]
    at = e.reserve(("panel", readers[0]), actual(deep) * step * size, (min(stages), max(stages)))
    step_name = e.w.number(("panel step", readers[0]), step)
    if e.stage_of[i] == min(stages):
        source, copy, row = e.w.name("x"), e.w.name("x"), _chain_step(e, key, linear, made.depth)
        e.w.put(f"{source} = p_{place.code}({place.address}, {_offset(e, place, linear, key, {})})")
        e.w.put(f"{copy} = p_{place.code}(S + {at}, 0)")
        with e.w.block(f"for k in range({_size(e, made.depth)}):"), e.w.block(f"for j in range({_size(e, made.columns)}):"):
            e.w.put(f"{copy}[k * {step_name} + j] = {source}[k * {row} + j]")
    return [f"S + {at}", f"np.int64({step_name})", "np.int64(1)"]


def _same_columns(other: Call, made: Call) -> bool:
    """Whether a product is one call whose right side is that of another."""
    sides = [(call.side is None, call.right[0].key, call.right[1], call.columns, call.depth) for call in (other, made)]
    return not other.loops and not other.outside and sides[0] == sides[1]


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
