"""How long a member takes on one thread, roughly: what the sizes of blocks and tasks are weighed by."""

from __future__ import annotations

from math import prod

from fusion_search.codegen.extents import actual
from fusion_search.fusion.program import Member
from fusion_search.ir.spec import OpSpec


def serial_ns(member: Member) -> float:
    """Return a rough serial time for the extents of the run."""
    return _points(member) * _nanoseconds(member.spec)


def _points(member: Member) -> int:
    """How often a member's body runs; a scatter copies, and writes each update once."""
    if member.spec.kind == "scatter":
        return actual(prod(member.shape)) + actual(prod(member.operands[2].shape))
    return actual(prod(member.domain.extents))


def _nanoseconds(spec: OpSpec) -> float:
    if spec.kind == "map" and spec.flop_class == "simple":
        return 0.025 * max(spec.flops, 1)  # whole vectors, from cache to cache
    return {"none": 0.15, "simple": 0.15, "special": 0.6, "contract": 0.02}[spec.flop_class] * max(spec.flops, 1)
