"""A hardware profile in memory: plain numbers in SI units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DTYPES", "Forbidden", "Kind", "Profile"]

Kind = Literal["gpu", "cpu", "npu"]

DTYPES: tuple[str, ...] = (
    "float64", "float32", "float16", "bfloat16",
    "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
    "bool",
)  # fmt: skip
"""The dtype names a profile may list, spelled as NumPy and ml_dtypes spell them."""


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A combination of operators that a machine cannot run as one kernel.

    Attributes
    ----------
    nodes : tuple of str
        Operator names; a group that contains them all is illegal.
    reason : str
        Why, for a person.
    source : str
        Who says so.
    """

    nodes: tuple[str, ...]
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What a cost model and the legality rules need to know about one machine.

    A sweep varies one figure with `dataclasses.replace`; `hardware_profiles.records` gives the source of every figure of a file.

    Attributes
    ----------
    name, description : str
        A short name, and one line for a person.
    kind : {"gpu", "cpu", "npu"}
        The class of machine.
    dram_bandwidth_bytes_per_s : float
        Main memory, reads and writes together.
    cache_bandwidth_bytes_per_s : float
        The last shared cache, which serves what blocks read again.
    cache_bytes : int
        Its size: an operand that is larger is read again from main memory.
    l1_bandwidth_bytes_per_s : float
        First-level caches, all cores together; serves spilled registers.
    fast_memory_bytes : int
        What the scratch buffers of one block may take.
    line_bytes : int
        The unit in which main memory is read and written.
    launch_overhead_s : float
        Time that one launch adds to a queue of launches.
    parallel_units : int
        Multiprocessors or cores: fewer blocks than this leave some idle.
    registers : int
        Scalars that can live at once in a thread or lane before they spill.
    operand_limit : int
        Live-ins and live-outs that one kernel may have.
    peak_flops_per_s : float
        float32 vector arithmetic.
    peak_contract_flops_per_s : float
        Matrix products of float32 data.
    peak_special_flops_per_s : float
        Elements of a transcendental function a second.
    dtypes : frozenset of str
        dtypes that kernels may read and write, of `DTYPES`.
    grid_sync : bool
        Whether the blocks of one launch may wait for each other.
    runs_here : bool
        Whether plans for this profile run on the machine at hand.
    forbidden : tuple of Forbidden
        Combinations of operators that cannot be one kernel.
    overlap : float
        Share, from 0 to 1, of the shorter of compute and memory time that hides behind the longer.
    """

    name: str
    description: str
    kind: Kind
    dram_bandwidth_bytes_per_s: float
    cache_bandwidth_bytes_per_s: float
    cache_bytes: int
    l1_bandwidth_bytes_per_s: float
    fast_memory_bytes: int
    line_bytes: int
    launch_overhead_s: float
    parallel_units: int
    registers: int
    operand_limit: int
    peak_flops_per_s: float
    peak_contract_flops_per_s: float
    peak_special_flops_per_s: float
    dtypes: frozenset[str]
    grid_sync: bool
    runs_here: bool
    forbidden: tuple[Forbidden, ...]
    overlap: float
