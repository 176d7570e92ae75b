"""Which members are evaluated at the points of a concat or pad that reads them, by name."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .digits import Digits
from .facts import Operand, Step

#: A concat of more parts evaluates none of them in place.
FEW_PARTS = 4


def evaluated_in_parts(steps: Sequence[Step], stores: Collection[str], digits: Digits) -> dict[str, str]:
    """Return for each such member the concat or pad in whose parts it is evaluated.

    It is pointwise, not stored, and read once, in its own shape: by a concat of few parts or a pad, or at the same point of equal
    extents by another one; and reads nothing of the group but such members. Nothing is, where some member has one loop twice.
    """
    if digits.twice:
        return {}
    makers = {value: step for step in steps for value in step.node.outputs}
    uses: dict[str, list[tuple[Step, Operand]]] = {}
    for step in steps:
        for operand in step.operands:
            if operand.base in makers:
                uses.setdefault(makers[operand.base].name, []).append((step, operand))
    host: dict[str, str] = {}
    for step in reversed(steps):
        pointwise = step.spec.kind == "map" or (step.spec.kind == "layout" and step.spec.body is not None)
        if pointwise and not set(step.node.outputs) & set(stores) and len(uses.get(step.name, ())) == 1:
            ((reader, operand),) = uses[step.name]
            whole = operand.shape == operand.base_shape
            if whole and _joins(reader) and all(_movable(digits, step, reader, loop) for loop in range(len(step.extents))):
                host[step.name] = reader.name
            elif whole and reader.name in host and reader.extents == step.extents and _same_point(operand, reader):
                host[step.name] = host[reader.name]
    alone = True
    while alone:
        kept = {name: place for name, place in host.items() if _inside(name, host, uses, steps, makers)}
        alone, host = len(kept) < len(host), kept
    return host


def _inside(
    name: str, host: dict[str, str], uses: dict[str, list[tuple[Step, Operand]]], steps: Sequence[Step], makers: dict[str, Step]
) -> bool:
    """Whether what a member reads of the group, and its reader if that is no concat or pad, are evaluated in parts too."""
    step = next(step for step in steps if step.name == name)
    ((reader, _),) = uses[name]
    return all(makers[o.base].name in host for o in step.operands if o.base in makers) and (_joins(reader) or reader.name in host)


def _joins(step: Step) -> bool:
    return step.node.op == "Pad" or (step.node.op == "Concat" and len(step.operands) <= FEW_PARTS)


def _movable(digits: Digits, step: Step, reader: Step, loop: int) -> bool:
    """Whether a loop is the reader's, or the reader's is not cut, so that one may be the other, shifted."""
    mine, theirs = (digits.of.get((name, loop), []) for name in (step.name, reader.name))
    return [digits.name[d] for d in mine] == [digits.name[d] for d in theirs] or len(theirs) < 2


def _same_point(operand: Operand, reader: Step) -> bool:
    return all(n == 1 or dim.loop == d for d, (dim, n) in enumerate(zip(operand.access.dims, operand.shape, strict=True)))
