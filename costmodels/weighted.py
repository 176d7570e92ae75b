"""The weighted model: the sum of weighted terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hardware_profiles import Profile

from .model import CostModel
from .terms import TERMS, Seconds, Term

__all__ = ["Weighted"]


@dataclass(frozen=True, slots=True)
class Weighted(CostModel):
    """J of a group is the sum of weight times term; with all weights 1 it is in seconds.

    Parameters
    ----------
    weights : mapping of str to float, optional
        By the names of `costmodels.TERMS`; 1 for every term that is not named.

    Examples
    --------
    >>> Weighted({"launch": 2.0}).weights
    {'traffic': 1.0, 'launch': 2.0, 'spill': 1.0, 'recompute': 1.0}
    """

    name: ClassVar[str] = "weighted"
    term_functions: ClassVar[dict[str, Term]] = TERMS

    def _combine(self, terms: Sequence[Seconds], profile: Profile | None) -> Seconds:
        traffic, launch, spill, recompute = terms
        by_traffic, by_launch, by_spill, by_recompute = self._factors
        return by_traffic * traffic + by_launch * launch + by_spill * spill + by_recompute * recompute

    def cost_s(self, terms: Mapping[str, float], profile: Profile | None = None) -> float:
        """Return the price of one group from its terms; the sum needs no profile.

        Parameters
        ----------
        terms : mapping of str to float
            Seconds by term.
        profile : Profile, optional
            Accepted so that all models are called alike.

        Returns
        -------
        float
            Seconds, before rounding.
        """
        return float(self._combine([terms[name] for name in self.term_functions], profile))
