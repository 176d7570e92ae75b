"""What a group says of its values' signs: a function that is only asked below zero need not guard itself above."""

from __future__ import annotations

from fusion_search.codegen.access import GroupAccess


def never_positive(group: GroupAccess, i: int, k: int) -> bool:
    """Whether an operand of a member is at most 0 wherever it is a number: rounding keeps the sign of what follows from the group."""
    maker = group.producers.get((i, k))
    if maker is None:
        return False
    name = group.members[maker].spec.name
    return (name == "Sub" and _at_most(group, maker)) or (name == "Neg" and _never_negative(group, maker, 0))


def _at_most(group: GroupAccess, i: int) -> bool:
    """Whether a member's first operand never exceeds its second: that is the first one's maximum, at the place it was taken from.

    A maximum keeps the dimensions that it reduces, with extent 1, and views keep the order of elements: equal shapes are equal places.
    """
    value, most = group.members[i].operands
    top = group.producers.get((i, 1))
    if top is None or group.members[top].spec.name != "ReduceMax":
        return False
    (taken,) = group.members[top].operands
    return (taken.base, taken.shape) == (value.base, value.shape) and most.shape == tuple(group.members[top].shape)


def _never_negative(group: GroupAccess, i: int, k: int) -> bool:
    maker = group.producers.get((i, k))
    if maker is None:
        return False
    member = group.members[maker]
    if member.spec.name == "Mul":
        first, second = member.operands
        return (first.base, first.shape) == (second.base, second.shape)
    return member.spec.name in ("Abs", "Relu", "Exp")
