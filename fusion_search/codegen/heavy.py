"""Contractions and windows of one block: calls of library kernels on panels, and pools written out."""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear, pointwise_window
from fusion_search.codegen.emit import NEUTRAL, Emitter, Place
from fusion_search.codegen.rt.gemm import gemm_scratch_bytes
from fusion_search.codegen.stages import Stage, contraction_loops
from fusion_search.codegen.writer import COMPUTE, load, rounded, store


def absorbed(e: Emitter) -> set[int]:
    """Members that a contraction reads through: transposes of live-ins that nothing else needs."""
    group = e.group
    found = set()
    for i, member in enumerate(group.members):
        if member.spec.name != "Transpose" or i in e.live_out or (i, 0) in group.producers:
            continue
        readers = [where for where, producer in group.producers.items() if producer == i]
        if readers and all(_is_product(e, r) and group.identity[(r, k)] for r, k in readers):
            found.add(i)
    return found


def _is_product(e: Emitter, i: int) -> bool:
    member = e.group.members[i]
    return member.spec.kind == "contract" or (member.spec.name == "Conv" and pointwise_window(member))


def emit_heavy(e: Emitter, stage: Stage) -> None:
    """Write the stage of a contraction or window."""
    (i,) = stage.members
    if _is_product(e, i):
        _emit_product(e, i)
    elif e.group.members[i].spec.name == "Conv":
        from fusion_search.codegen.convolution import emit_convolution

        emit_convolution(e, stage, i)
    else:
        _emit_pool(e, stage, i)


# ---------------------------------------------------------------- matrix products


def operand_address(e: Emitter, i: int, k: int) -> tuple[Place, Linear, str]:
    """Where a contraction's operand lies, looking through an absorbed transpose."""
    producer = e.group.producers.get((i, k))
    if producer in e.skip and producer is not None:
        return e.memory_of(producer, 0)
    return e.memory_of(i, k)


def _emit_product(e: Emitter, i: int) -> None:
    w, product = e.w, contraction_loops(e.group, i)
    result = e.places[i]
    left, right = operand_address(e, i, product.left), operand_address(e, i, product.right)
    target = (result, Linear(dict(result.strides)), f"w{i}")
    rows = _chain(e, product.rows, (left[1], target[1]))
    columns = _chain(e, product.columns, (right[1], target[1]))
    depth = _chain(e, product.depth, (left[1], right[1]))
    bias = len(e.group.members[i].operands) > 2
    walked = [a for a in (*product.batch, *product.rows, *product.columns) if a not in rows and a not in columns]
    loops = [a for a in walked if a not in e.group.outer or a in e.tiles]
    size = 8 if result.code == "f8" else 4
    function = w.address("@gemm_f64" if size == 8 else "@gemm_f32")
    scratch = w.number("gemm scratch", e.reserve(gemm_scratch_bytes()))
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
        begin = "1" if bias else f"min({' + '.join(variables[a] for a in outside)}, 1)" if outside else "0"
        call = [_size(e, rows), _size(e, columns), _size(e, depth)]
        for (place, linear, key), (major, minor) in ((left, (rows, depth)), (right, (depth, columns))):
            call += [_at(e, place, linear, key, variables, size), _chain_step(e, key, linear, major), _chain_step(e, key, linear, minor)]
        call += [_at(e, *target, variables, size), _chain_step(e, target[2], target[1], rows), f"np.int64({begin})", f"S + {scratch}"]
        w.put(f"call_address({function}, ({', '.join(call)}))")


def _chain(e: Emitter, atoms: tuple[int, ...], addresses: tuple[Linear, ...]) -> tuple[int, ...]:
    """The longest run of last loops that every address steps through as through one."""
    chain: list[int] = []
    for atom in reversed(atoms):
        if chain:
            below = chain[0]
            inside = e.tiles.get(below, e.group.extents[below])
            whole = inside == e.group.extents[below] or e.tiles.get(atom, e.group.extents[atom]) == 1
            if not whole or any(a.strides.get(atom, 0) != a.strides.get(below, 0) * inside for a in addresses):
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


# ---------------------------------------------------------------- pools


def _emit_pool(e: Emitter, stage: Stage, i: int) -> None:
    """Write a pool: the window's loops outside, the result's last loop inside, clipped to what lies in the input."""
    w, member, place = e.w, e.group.members[i], e.places[i]
    combiner, code = member.spec.combiner, COMPUTE[place.code]
    source, linear, key = e.memory_of(i, 0)
    windows = _window_axes(e, i)
    kernel_atoms = [atom for _, _, atom, _ in windows if atom is not None]
    order = [a for a in stage.order if a not in kernel_atoms]
    inner = order[-1] if order else None
    target = Linear(dict(place.strides))
    neutral = NEUTRAL[combiner]
    if code not in ("f4", "f8"):
        info = {"max": f"T_{code}({-(1 << (8 * int(code[1]) - 1)) if code[0] == 'i' else 0})", "sum": f"T_{code}(0)"}[combiner]
    else:
        info = f"T_{code}({neutral})" if combiner == "max" else f"T_{code}(0)"
    combine = {
        "sum": "{0} + {1}",
        "max": {"f4": "np_maximum({0}, {1})", "f8": "np_maximum64({0}, {1})"}.get(code, "int_maximum({0}, {1})"),
    }[combiner]
    with ExitStack() as stack:
        variables: dict[int, str] = {}
        for atom in order[:-1]:
            variables[atom] = w.name("i")
            stack.enter_context(w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
        out = w.name("x")
        outside = {a: v for a, v in variables.items() if a != inner}
        w.put(f"{out} = p_{place.code}({place.address}, {_offset(e, place, target, f'w{i}', outside)})")
        step = f" * {e.step(f'w{i}', inner, target.strides[inner])}" if inner is not None and target.strides.get(inner, 0) > 1 else ""
        total = w.name("u") if place.code != code else out
        if place.code != code:
            raise ValueError("16-bit pools are evaluated, not generated")
        if inner is None:
            w.put(f"{out}[0] = {info}")
        else:
            with w.block(f"for j in range({e.bound(inner)}):"):
                w.put(f"{out}[j{step}] = {info}")
        low, high = "0", e.bound(inner) if inner is not None else "1"
        for axis, (loop, coefficient, window, dilation) in enumerate(windows):
            size = w.number(("size", i, axis), _axis_size(e, i, axis))
            pad = w.number(("pad", i, axis), _axis_offset(e, i, axis))
            stride = w.number(("window stride", i, axis), coefficient)
            if window is not None:
                variables[window] = w.name("k")
                stack.enter_context(w.block(f"for {variables[window]} in range({e.extent(window)}):"))
                shift = f"{variables[window]} * {w.number(('dilation', i, axis), dilation)} + {pad}"
            else:
                shift = pad
            at = w.name("y")
            w.put(f"{at} = {shift}")
            if loop is None:
                stack.enter_context(w.block(f"if 0 <= {at} < {size}:"))
            elif loop != inner:
                stack.enter_context(w.block(f"if 0 <= {at} + ({_absolute(e, loop, variables)}) * {stride} < {size}:"))
            else:
                origin = e.index[loop] if loop in e.tiles else "0"
                low, high = w.name("l"), w.name("l")
                # positions j with 0 <= (origin + j) * stride + at < size
                w.put(f"{low} = max(-(({at}) // {stride}) - {origin}, 0)")
                w.put(f"{high} = min(({size} - 1 - {at}) // {stride} + 1 - {origin}, {e.bound(inner)})")
        source_offset = _offset(e, source, linear, key, {a: v for a, v in variables.items() if a != inner})
        x = w.name("x")
        w.put(f"{x} = p_{source.code}({source.address}, {source_offset})")
        value = "j"
        if inner is None:
            element, result = f"{x}[0]", f"{total}[0]"
        else:
            stack.enter_context(w.block(f"for j in range({low}, {high}):"))
            stride_in = linear.strides.get(inner, 0)
            element = f"{x}[{value if stride_in == 1 else f'j * {e.step(key, inner, stride_in)}'}]"
            result = f"{total}[j{step}]"
        w.put(f"{result} = {store(place.code, rounded(code, combine.format(result, load(source.code, element))))}")


def _absolute(e: Emitter, atom: int, variables: dict[int, str]) -> str:
    """A loop's index in the whole tensor, from inside a block."""
    if atom in e.group.outer:
        return f"{e.index[atom]} + {variables[atom]}" if atom in e.tiles else e.index[atom]
    return variables[atom]


def _window_axes(e: Emitter, i: int) -> list[tuple[int | None, int, int | None, int]]:
    """For each axis with a window or padding: (result loop, stride, window loop, dilation)."""
    member = e.group.members[i]
    found = []
    for d in _axes(e, i):
        dim = member.domain.reads[0].dims[d]
        atom = window = None
        coefficient = dilation = 1
        for loop, c in dim.terms:
            (only,) = e.original[i][loop]
            if loop < member.domain.rank:
                atom, coefficient = only, c
            else:
                window, dilation = only, c
        found.append((atom, coefficient, window, dilation))
    return found


def _axes(e: Emitter, i: int) -> list[int]:
    """Axes with a window, a stride or padding."""
    member = e.group.members[i]
    rank = member.domain.rank
    return [d for d, dim in enumerate(member.domain.reads[0].dims) if (dim.terms or dim.offset) and (dim.loop is None or dim.loop >= rank)]


def _axis_size(e: Emitter, i: int, k: int) -> int:
    return e.group.members[i].operands[0].shape[_axes(e, i)[k]]


def _axis_offset(e: Emitter, i: int, k: int) -> int:
    return e.group.members[i].domain.reads[0].dims[_axes(e, i)[k]].offset
