"""What a cost model sees of a fusion group: counts, never a graph.

The counts that depend on how a group is tiled may be arrays with one entry a candidate tiling; then one call prices them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Count", "Flops", "GroupFeatures", "RecomputedFlops", "Reread"]

Count: TypeAlias = float | int | npt.NDArray[np.float64] | npt.NDArray[np.int64]
"""A number, or one number for each candidate tiling."""


@dataclass(frozen=True, slots=True)
class Reread:
    """An operand that blocks read again, such as the weights under a block of rows.

    Attributes
    ----------
    operand_bytes : int
        Bytes of one pass over the operand.
    extra_reads : Count
        How many more times than once it is read.
    """

    operand_bytes: int
    extra_reads: Count


@dataclass(frozen=True, slots=True)
class Flops:
    """Operations by class, counted on the unfused group.

    Attributes
    ----------
    simple : int
        Vector arithmetic: additions, comparisons, selections.
    special : int
        Elements of transcendental functions.
    contract : int
        Multiplications and additions of matrix products and convolutions.
    """

    simple: int
    special: int
    contract: int


@dataclass(frozen=True, slots=True)
class RecomputedFlops:
    """Operations beyond the unfused graph's, by the classes of `Flops`."""

    simple: Count
    special: Count
    contract: Count


@dataclass(frozen=True, slots=True)
class GroupFeatures:
    """The counts of one fusion group under one schedule, or under several at once.

    Attributes
    ----------
    nodes : int
        Core nodes.
    bytes_read, bytes_written : int
        Distinct live-ins and live-outs, in whole cache lines.
    rereads : tuple of Reread
        Operands that are read more than once.
    launches : int
        Launches.
    blocks : Count
        Independent parallel blocks.
    iterations : int
        Scalar iterations of the largest loop nest.
    live : int
        Largest number of simultaneously live scalars, the template's base included.
    itemsize : int
        Bytes of one such scalar.
    scratch_bytes : Count
        Scratch buffers of one block.
    flops : Flops
        Operations of the unfused group.
    recomputed : RecomputedFlops
        Operations beyond those.
    """

    nodes: int
    bytes_read: int
    bytes_written: int
    rereads: tuple[Reread, ...]
    launches: int
    blocks: Count
    iterations: int
    live: int
    itemsize: int
    scratch_bytes: Count
    flops: Flops
    recomputed: RecomputedFlops
