"""What every loop nest has: pointers before the innermost loop, then one definition after the other in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from fusion_search.codegen.access import Linear, row_major
from fusion_search.codegen.blocks import is_reduce
from fusion_search.codegen.emit import Emitter, Place, dimension_of
from fusion_search.codegen.signs import never_positive
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, code_of, converted, load, rounded, store
from fusion_search.ir.spec import NEVER_POSITIVE


@dataclass(slots=True)
class Nest:
    """State while one nest is written."""

    e: Emitter
    stage: Stage
    inner: int | None  # the innermost loop, None for a nest of no loops
    variables: dict[int, str]  # loop -> index variable
    values: dict[int, str] = field(default_factory=dict)  # member -> text
    pointers: dict[tuple[object, ...], str] = field(default_factory=dict)
    loaded: dict[tuple[object, ...], str] = field(default_factory=dict)
    strip: str = ""  # start of the strip along the innermost loop
    turned: dict[tuple[int, int], tuple[Place, Linear]] = field(default_factory=dict)  # operands that were copied into scratch, turned
    joined: frozenset[int] = frozenset()  # loops that the innermost one runs through as well
    buffers: frozenset[str] = frozenset()  # pointers to the elements of one round of lanes only

    def offset(self, key: str, place: Place, linear: Linear) -> str:
        """Offset of an address, all loops but the innermost in it."""
        e = self.e
        parts = [e.base(key, place, linear)]
        for atom in self.stage.order:
            stride = linear.strides.get(atom, 0)
            if atom in self.joined:
                continue
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
        if pointer in self.buffers:
            return f"{pointer}[lane]"
        if stride == 0:
            return f"{pointer}[0]"
        at = "j" if stride == 1 else f"j * {self.e.step(key, self.inner or 0, stride)}"
        return f"{pointer}[{at}]"


def open_loops(e: Emitter, stack: ExitStack, atoms: Sequence[int]) -> dict[int, str]:
    variables = {}
    for atom in atoms:
        variables[atom] = e.w.name("i")
        stack.enter_context(e.w.block(f"for {variables[atom]} in range({e.bound(atom)}):"))
    return variables


@dataclass(slots=True)
class Ready:
    """What was prepared before the innermost loop: pointers by read and by write."""

    reads: dict[tuple[int, int], tuple[str, Place, Linear, str]] = field(default_factory=dict)
    writes: dict[int, tuple[str, Linear]] = field(default_factory=dict)


def prepare(nest: Nest, members: Sequence[int], targets: bool = True) -> Ready:
    """Write the pointers that the innermost loop needs, and load what does not change in it."""
    e, ready = nest.e, Ready()
    for i in members:
        member = e.group.members[i]
        for k in range(len(member.operands)):
            how, place, linear, key = e.source_of(i, k)
            if how != "memory" or not isinstance(place, Place) or linear is None:
                continue
            if (i, k) in nest.turned:
                (place, linear), key = nest.turned[(i, k)], f"t{key}"
            same = (place.key, tuple(sorted(linear.strides.items())), linear.offset)
            if same not in nest.pointers:
                nest.pointers[same] = nest.pointer(key, place, linear)
                invariant = nest.inner is None or not linear.strides.get(nest.inner, 0)
                if invariant and not indirect(e, i, k):
                    name = e.w.name("h")
                    e.w.put(f"{name} = {load(place.code, nest.pointers[same] + '[0]')}")
                    nest.loaded[same] = name
            ready.reads[(i, k)] = (nest.pointers[same], place, linear, key)
        place = e.places[i]
        if targets and place.kind in ("tensor", "scratch") and not is_reduce(member):
            linear = Linear(dict(place.strides))
            # read and overwritten: by one pointer, or the loop would start with a test that the two do not overlap
            same = (place.key, tuple(sorted(linear.strides.items())), linear.offset)
            ready.writes[i] = (nest.pointers[same] if same in nest.pointers else nest.pointer(f"w{i}", place, linear), linear)
    return ready


def indirect(e: Emitter, i: int, k: int) -> bool:
    return any(dim.indirect for dim in e.group.members[i].domain.reads[k].dims)


def argument(nest: Nest, ready: Ready, i: int, k: int) -> tuple[str, str]:
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
    operand = e.group.members[i].operands[k]
    return code_of(e.graph.values[e.program.value_name[operand.base]].dtype)


def define(nest: Nest, members: Sequence[int], ready: Ready) -> None:
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


def _expression(nest: Nest, ready: Ready, i: int) -> str:
    e = nest.e
    member = e.group.members[i]
    arguments = [argument(nest, ready, i, k) for k in range(len(member.operands))]
    code = e.places[i].code
    source = arguments[-1][1] if member.spec.name != "Where" else code
    body = member.spec.body
    if body is None:
        raise TypeError(f"{member.spec.name} has no scalar expression")
    texts = [text for text, _ in arguments]
    if member.node.op == "Cast" and code != "b1":
        texts = [converted(source, texts[0])]
    if member.node.op == "BitCast" and {source, code} & {"f2", "bf2"}:  # they compute as float32: their bits are what is stored
        stored = store(source, texts[0])
        return load(code, f"T_u2({stored})") if code in ("f2", "bf2") else f"T_{code}({stored})"
    attrs = dict(member.node.attrs)
    if never_positive(e.group, i, 0):
        attrs[NEVER_POSITIVE] = True
    return rounded(code, body(COMPUTE[source], texts, attrs))


def _gathered(nest: Nest, ready: Ready, i: int) -> str:
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
        texts = [argument(nest, ready, i, 1)[0]]
    names = []
    for d, text in zip(axes, texts, strict=True):
        size = e.w.number(("gather size", i, d), data.shape[d])
        names.append(e.w.name("g"))
        e.w.put(f"{names[-1]} = checked_index(np.int64({text}), {size}, {e.flag})")
    if (i, 0) not in ready.reads:  # one element along every axis that is gathered from: the one at hand
        return argument(nest, ready, i, 0)[0]
    pointer, place, linear, key = ready.reads[(i, 0)]
    steps = _stored_steps(e, i)
    at = nest.element(key, pointer, linear)[len(pointer) + 1 : -1]
    for d, name in zip(axes, names, strict=True):
        at += f" + {name} * {e.w.number(('gather step', i, d), steps[d])}"
    return load(place.code, f"{pointer}[{at}]")


def _stored_steps(e: Emitter, i: int) -> list[int]:
    """Element stride of each dimension of a gather's data where it lies."""
    producer = e.group.producers.get((i, 0))
    operand = e.group.members[i].operands[0]
    if e.group.identity.get((i, 0)):  # one element along every axis that is gathered from; a view may merge or cut the others
        return [0] * len(operand.shape)
    if producer is not None and e.places[producer].kind == "scratch":
        steps, stored = e.dimension_steps(producer, e.places[producer]), dimension_of(operand)
        return [steps[stored[d]] if d in stored else 0 for d in range(len(operand.shape))]
    return row_major(operand.shape)
