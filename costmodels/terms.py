"""The terms of the cost: small functions of features and profile, in seconds, that add.

Each is one row of `TERMS`; a model is a weight for each row. A term whose inputs are arrays over candidate tilings returns an
array, and every entry of it has the bits that the scalars of that tiling would give. Counts become floats before they are
multiplied, because NumPy's 64-bit integers wrap around where Python's do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hardware_profiles import Profile

from .features import Count, GroupFeatures

__all__ = ["TERMS", "Seconds", "Term", "compute", "launch", "lost_parallelism", "recompute", "spill", "traffic"]

Seconds: TypeAlias = float | npt.NDArray[np.floating[Any]]
"""A time, or one time for each candidate tiling."""

Term: TypeAlias = Callable[[GroupFeatures, Profile], Seconds]


def lost_parallelism(blocks: Count, parallel_units: int) -> Seconds:
    """Return how many times longer a launch takes because too few blocks share the work.

    Parameters
    ----------
    blocks : Count
        Independent blocks; fewer than one counts as one.
    parallel_units : int
        Cores or multiprocessors.

    Returns
    -------
    float or array
        ``max(1, parallel_units / blocks)``.
    """
    if isinstance(blocks, np.ndarray):
        # The bounds go on the divisor: no division by zero, and exactly 1 where there are blocks enough.
        factor: Seconds = parallel_units / np.minimum(np.maximum(blocks, 1), parallel_units)
        return factor
    if blocks >= parallel_units:
        return 1.0
    return parallel_units / blocks if blocks > 1 else float(parallel_units)


def traffic(features: GroupFeatures, profile: Profile) -> Seconds:
    """Return the time to move the group's bytes.

    Distinct live-ins and live-outs move once, at memory bandwidth. What blocks read again comes from the last shared cache when the
    operand fits there, from memory when not.

    Parameters
    ----------
    features : GroupFeatures
        Counts of the group.
    profile : Profile
        The machine.

    Returns
    -------
    float or array
        Seconds.
    """
    dram = profile.dram_bandwidth_bytes_per_s
    seconds: Seconds = (features.bytes_read + features.bytes_written) / dram
    for again in features.rereads:
        bandwidth = profile.cache_bandwidth_bytes_per_s if again.operand_bytes <= profile.cache_bytes else dram
        # Not in place: the first sum may be a plain float, and an extra_reads array is the caller's.
        seconds = seconds + float(again.operand_bytes) * again.extra_reads / bandwidth
    return seconds * lost_parallelism(features.blocks, profile.parallel_units)


def launch(features: GroupFeatures, profile: Profile) -> Seconds:
    """Return the time that the group's launches cost.

    Parameters
    ----------
    features : GroupFeatures
        Counts of the group.
    profile : Profile
        The machine.

    Returns
    -------
    float
        Seconds.
    """
    return features.launches * profile.launch_overhead_s


def spill(features: GroupFeatures, profile: Profile) -> Seconds:
    """Return the time to store and load the scalars that do not fit in registers.

    Charged to the fused side only, so zero for a group of one node, and super-linear in the excess: with R registers,
    ``iterations * 2 * itemsize * (live - R)**2 / R`` bytes at first-level bandwidth.

    Parameters
    ----------
    features : GroupFeatures
        Counts of the group.
    profile : Profile
        The machine.

    Returns
    -------
    float or array
        Seconds.
    """
    excess = features.live - profile.registers
    if excess <= 0 or features.nodes <= 1:
        return 0.0
    spilled_bytes = features.iterations * 2 * features.itemsize * excess**2 / profile.registers
    return spilled_bytes / profile.l1_bandwidth_bytes_per_s * lost_parallelism(features.blocks, profile.parallel_units)


def recompute(features: GroupFeatures, profile: Profile) -> Seconds:
    """Return the time of operations beyond the unfused graph's, each class at its own peak rate.

    Parameters
    ----------
    features : GroupFeatures
        Counts of the group.
    profile : Profile
        The machine.

    Returns
    -------
    float or array
        Seconds.
    """
    again = features.recomputed
    seconds: Seconds = (
        again.simple / profile.peak_flops_per_s
        + again.special / profile.peak_special_flops_per_s
        + again.contract / profile.peak_contract_flops_per_s
    )
    # Most groups recompute nothing.
    if not isinstance(seconds, np.ndarray) and seconds == 0.0:
        return 0.0
    return seconds * lost_parallelism(features.blocks, profile.parallel_units)


def compute(features: GroupFeatures, profile: Profile) -> Seconds:
    """Return the time of the unfused group's operations, each class at its own peak rate.

    No part of the weighted model: fusion leaves it unchanged. The roofline sets it against the traffic.

    Parameters
    ----------
    features : GroupFeatures
        Counts of the group.
    profile : Profile
        The machine.

    Returns
    -------
    float or array
        Seconds.
    """
    flops = features.flops
    seconds = (
        flops.simple / profile.peak_flops_per_s
        + flops.special / profile.peak_special_flops_per_s
        + flops.contract / profile.peak_contract_flops_per_s
    )
    return seconds * lost_parallelism(features.blocks, profile.parallel_units)


TERMS: dict[str, Term] = {
    "traffic": traffic,
    "launch": launch,
    "spill": spill,
    "recompute": recompute,
}
"""The terms of the weighted model, in the order in which they are added."""
