"""How long a member takes on one thread, roughly: what the sizes of blocks and tasks are weighed by."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from fusion_search.codegen.extents import actual
from fusion_search.fusion.program import Member
from fusion_search.ir.spec import OpSpec

#: One byte from the third-level cache or memory, on one thread of several.
BYTE_NS = 0.04


def serial_ns(member: Member) -> float:
    """Return a rough serial time for the extents of the run."""
    return _points(member) * _nanoseconds(member.spec)


def reading_ns(member: Member, inside: Collection[int]) -> float:
    """Return a rough time for reading a member's operands from outside the block's own stages.

    Parameters
    ----------
    member : Member
    inside : collection of int
        Operands that its group computes.
    """
    points = prod(member.domain.extents)
    outside = [operand for k, operand in enumerate(member.operands) if k not in inside and not operand.parameter]
    return BYTE_NS * sum(operand.itemsize * actual(min(prod(operand.base_shape), points)) for operand in outside)


def _points(member: Member) -> int:
    """How often a member's body runs; a scatter copies, and writes each update once."""
    if member.spec.kind == "scatter":
        return actual(prod(member.shape)) + actual(prod(member.operands[2].shape))
    return actual(prod(member.domain.extents))


def _nanoseconds(spec: OpSpec) -> float:
    if spec.kind == "map" and spec.flop_class == "simple":
        return 0.025 * max(spec.flops, 1)  # whole vectors, from cache to cache
    return {"none": 0.15, "simple": 0.15, "special": 0.6, "contract": 0.02}[spec.flop_class] * max(spec.flops, 1)
