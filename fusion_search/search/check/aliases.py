"""Which concats need no kernel, from where their parts lie in the result; names and byte ranges only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from fusion_search.ir.opaque import RUNTIME
from fusion_search.search.plan import Plan, PlanGroup

from .digits import strides
from .facts import Facts, Step, Violation

#: A value's bytes in a result: the node of the concat, first byte, past the last byte.
Span = tuple[str, int, int]


def aliasing(plan: Plan) -> bool:
    """Whether a plan's space says that such concats are free; under a limit on live memory they cannot be."""
    off = any(demand.get("kind") == "peak_bytes" or demand.get("rule") == "alias" for demand in plan.space.get("constraints", ()))
    return not off and "alias" in str(plan.space.get("name", "")).split("+")


def written_in_place(facts: Facts) -> set[str]:
    """Return the concats whose parts can be written where they belong.

    The largest come first, then those first in canonical order; each value belongs to one result.
    """
    spans = {name: found for name, step in facts.steps.items() if step.node.op == "Concat" and (found := _spans(facts, step))}
    home: dict[str, Span] = {}
    free = set()
    for name in sorted(spans, key=lambda name: (-max(stop for _, _, stop in spans[name].values()), facts.place[name])):
        out = facts.steps[name].node.output
        held = [home[value] for value in spans[name] if value in home]
        if not held:
            home |= spans[name]
            free.add(name)
        elif len(held) == len(spans[name]) and out not in home and out not in facts.returned and _one_span(held):
            home[out] = (held[0][0], held[0][1], held[-1][2])
            free.add(name)
    return free


def _spans(facts: Facts, step: Step) -> dict[str, Span]:
    """The bytes of the result in which each operand lies; nothing when some operand is not one piece, or not a node's, or not its own."""
    result = facts.graph.values[step.node.output]
    if result.dtype == RUNTIME:
        return {}
    found: dict[str, Span] = {}
    stride = strides(result.shape)
    for operand in step.operands:
        first = sum(-dim.offset * s for dim, s in zip(operand.access.dims, stride, strict=True))
        last = first + sum((n - 1) * s for n, s in zip(operand.shape, stride, strict=True))
        whole = operand.nbytes == (last + 1 - first) * operand.itemsize
        own = operand.base in facts.maker and operand.base not in facts.returned and operand.base not in found
        if not operand.nbytes or not whole or not own:
            return {}
        found[operand.base] = (step.name, first * operand.itemsize, (last + 1) * operand.itemsize)
    return found


def _one_span(held: Sequence[Span]) -> bool:
    """Whether pieces lie one after the other in one result."""
    return all(a[0] == b[0] and a[2] == b[1] for a, b in pairwise(held))


def alias_errors(group: PlanGroup, free: set[str], where: str) -> Iterator[Violation]:
    """Yield why a group is a kernel though it says that it is none, or the other way round."""
    may_be = len(group.nodes) == 1 and group.nodes[0] in free
    if group.alias and not may_be:
        yield Violation("alias", where, "needs a kernel: its producers cannot write it in this space")
    elif may_be and not group.alias:
        yield Violation("alias", where, "is priced as a kernel, though its producers write it")
    if group.alias and (group.schedule.tiles or group.tuned is not None):
        yield Violation("alias", where, "is no kernel and has no schedule")
