"""The form of a profile on disk: TOML in which every figure is a table with its value and where it is from.

::

    name = "my-chip"
    description = "one line"
    kind = "npu"

    [dram_bandwidth_bytes_per_s]
    value = 68e9
    source = "vendor's data sheet, page 3"
    kind = "documented"            # or measured, derived, estimate
    note = "optional"
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields

from .profile import Kind

__all__ = ["FIGURES", "Figure", "File", "ForbiddenEntry", "Names", "Rate", "Seconds", "Share", "Switch", "Whole"]

Text = Annotated[str, Meta(pattern=r"\S")]
FigureKind = Literal["documented", "measured", "derived", "estimate"]


class Figure(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What every figure carries beside its value.

    Attributes
    ----------
    source : str
        Who says so, or how it was worked out; never empty.
    kind : {"documented", "measured", "derived", "estimate"}
        How far to trust it.
    note : str
        Anything else worth knowing.
    """

    expected: ClassVar[str] = "a figure"

    source: Text
    kind: FigureKind
    note: str = ""


# The upper bounds are far beyond any machine; they keep every quotient of a count and a rate finite.


class Rate(Figure, frozen=True):
    """A positive number: bytes or operations a second."""

    expected: ClassVar[str] = "a number > 0"
    bounds: ClassVar[tuple[float, float]] = (1.0, 1e24)

    value: Annotated[float, Meta(gt=0)]


class Seconds(Figure, frozen=True):
    """A time; zero is allowed, for a study of a machine without the cost."""

    expected: ClassVar[str] = "a number >= 0"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1e6)

    value: Annotated[float, Meta(ge=0)]


class Whole(Figure, frozen=True):
    """A positive whole number: a count or a size."""

    expected: ClassVar[str] = "a whole number > 0"
    bounds: ClassVar[tuple[float, float]] = (1, 2**62)

    value: Annotated[int, Meta(gt=0)]


class Share(Figure, frozen=True):
    """A number from 0 to 1."""

    expected: ClassVar[str] = "a number from 0 to 1"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    value: Annotated[float, Meta(ge=0, le=1)]


class Switch(Figure, frozen=True):
    """Yes or no."""

    expected: ClassVar[str] = "true or false"

    value: bool


class Names(Figure, frozen=True):
    """A list of names, at least one."""

    expected: ClassVar[str] = "a list of names"

    value: Annotated[list[Text], Meta(min_length=1)]


class ForbiddenEntry(Struct, forbid_unknown_fields=True, frozen=True):
    """A combination of operators that cannot be one kernel."""

    nodes: Annotated[list[Text], Meta(min_length=1)]
    reason: Text
    source: Text


class File(Struct, forbid_unknown_fields=True, frozen=True):
    """A whole profile file; the fields are those of `Profile`, in its order."""

    name: Text
    description: Text
    kind: Kind
    dram_bandwidth_bytes_per_s: Rate
    cache_bandwidth_bytes_per_s: Rate
    cache_bytes: Whole
    l1_bandwidth_bytes_per_s: Rate
    fast_memory_bytes: Whole
    line_bytes: Whole
    launch_overhead_s: Seconds
    parallel_units: Whole
    registers: Whole
    operand_limit: Whole
    peak_flops_per_s: Rate
    peak_contract_flops_per_s: Rate
    peak_special_flops_per_s: Rate
    dtypes: Names
    grid_sync: Switch
    overlap: Share
    runs_here: bool = False
    forbidden: list[ForbiddenEntry] = []


FIGURES: dict[str, type[Figure]] = {
    field.name: field.type for field in fields(File) if isinstance(field.type, type) and issubclass(field.type, Figure)
}
"""The figures of a file and the form of each, in order."""
