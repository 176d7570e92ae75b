"""Scatters: a block of the data copied, then the updates put into it one after the other.

A block holds the whole dimension along which data decides where to write, so no two blocks touch one element, and the updates that
meet keep their order whatever the number of threads.
"""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.access import Linear, row_major
from fusion_search.codegen.emit import Emitter, Place
from fusion_search.codegen.nest import Nest, open_loops
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE, load, rounded, store
from fusion_search.ir.ops.maps import larger, smaller


def combined(reduction: str, code: str, old: str, new: str) -> str:
    """Return the text of what an element becomes."""
    compute = COMPUTE[code]
    if reduction == "none":
        return new
    if reduction in ("max", "min"):
        text = (larger if reduction == "max" else smaller)(compute, old, new)
    else:
        text = f"{old} {'+' if reduction == 'add' else '*'} {new}"
    return rounded(code, text)


def emit_scatter(e: Emitter, stage: Stage, i: int) -> None:
    """Write the stage of a scatter."""
    w, place = e.w, e.places[i]
    before, along, behind, rows = ([a for a in atoms if a not in e.group.outer or a in e.tiles] for atoms in e.original[i])
    with ExitStack() as stack:
        nest, out, target = _nest(e, stage, i, [*before, *along, *behind], stack, Linear(dict(place.strides)))
        source, where, key = e.memory_of(i, 0)
        pointer = nest.pointer(key, source, where)
        if nest.inner is not None:
            stack.enter_context(w.block(f"for j in range({e.bound(nest.inner)}):"))
        w.put(f"{nest.element(f'w{i}', out, target)} = {nest.element(key, pointer, where)}")
    scattered = set(e.original[i][1])
    kept = Linear({a: step for a, step in place.strides.items() if a not in scattered})
    with ExitStack() as stack:
        nest, out, target = _nest(e, stage, i, [*before, *rows, *behind], stack, kept)
        operands: list[tuple[str, Place, Linear, str]] = []
        for k in (1, 2):
            source, where, key = e.memory_of(i, k)
            operands.append((nest.pointer(key, source, where), source, where, key))
        pointer, source, where, key = operands[0]
        moves = nest.inner is not None and where.strides.get(nest.inner, 0)
        if nest.inner is not None and moves:
            stack.enter_context(w.block(f"for j in range({e.bound(nest.inner)}):"))
        extent, step = e.group.members[i].shape[1], row_major(e.group.members[i].shape)[1]
        at = w.name("g")
        index = load(source.code, nest.element(key, pointer, where))
        w.put(f"{at} = checked_index(np.int64({index}), {w.number(('scatter size', i), extent)}, {e.flag})")
        if nest.inner is not None and not moves:
            stack.enter_context(w.block(f"for j in range({e.bound(nest.inner)}):"))
        inside = nest.element(f"w{i}", out, target)[len(out) + 1 : -1]
        element = f"{out}[{inside} + {at} * {w.number(('scatter step', i), step)}]"
        pointer, source, where, key = operands[1]
        new = load(source.code, nest.element(key, pointer, where))
        text = combined(e.group.members[i].node.attr("reduction"), place.code, load(place.code, element), new)
        w.put(f"{element} = {store(place.code, text)}")


def _nest(e: Emitter, stage: Stage, i: int, order: list[int], stack: ExitStack, target: Linear) -> tuple[Nest, str, Linear]:
    """Open all loops but the innermost; return the nest and the pointer to the result."""
    inner = order[-1] if order else None
    nest = Nest(e, Stage(stage.kind, stage.members, frozenset(order), order), inner, open_loops(e, stack, order[:-1]))
    return nest, nest.pointer(f"w{i}", e.places[i], target), target
