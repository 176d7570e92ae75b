"""The roofline model: compute hides behind memory, or memory behind compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hardware_profiles import Profile

from .model import CostModel
from .terms import TERMS, Seconds, Term, compute

__all__ = ["Roofline"]


@dataclass(frozen=True, slots=True)
class Roofline(CostModel):
    """J of a group is ``launch + max(compute, memory) + (1 - overlap) * min(compute, memory) + spill + recompute``.

    Memory is the traffic term, `overlap` the profile's. The roofline is that of Williams, Waterman and Patterson (2009); the partial
    overlap is the form of XLA's GPU performance model. The price stays additive over groups: each is one launch, and launches do not
    overlap.

    Parameters
    ----------
    weights : mapping of str to float, optional
        By the names of `costmodels.TERMS`, and ``compute``; each multiplies its term before the maximum is taken.
    """

    name: ClassVar[str] = "roofline"
    term_functions: ClassVar[dict[str, Term]] = {**TERMS, "compute": compute}

    def _combine(self, terms: Sequence[Seconds], profile: Profile) -> Seconds:
        traffic, launch, spill, recompute, busy = (factor * term for factor, term in zip(self._factors, terms, strict=True))
        exposed = 1.0 - profile.overlap
        if isinstance(traffic, np.ndarray) or isinstance(busy, np.ndarray):
            bound: Seconds = np.maximum(busy, traffic) + exposed * np.minimum(busy, traffic)
        else:
            bound = busy + exposed * traffic if busy >= traffic else traffic + exposed * busy
        return launch + bound + spill + recompute
