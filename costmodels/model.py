"""What all cost models share: weights, integer prices, and the choice among tilings.

A model prices one group at a time and a plan costs the sum over its groups; that is what lets the search be exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import ClassVar

import numpy as np

from hardware_profiles import Profile

from .errors import CostModelError
from .features import GroupFeatures
from .terms import Seconds, Term

__all__ = ["ATTOSECONDS_PER_S", "Best", "CostModel", "attoseconds"]

ATTOSECONDS_PER_S = 10**18

# Larger weights say nothing that smaller ones do not, and could overflow.
MAX_WEIGHT = 1e12

_OUT_OF_RANGE = "a feature or a weight is out of range"

Best = tuple[int, int, dict[str, float]]
"""Index of a tiling, its price in attoseconds, its unweighted terms in seconds."""


def attoseconds(seconds: float) -> int:
    """Round a time to whole attoseconds, halves to even.

    Sums of integers do not depend on their order, so equal plans cost the same to the last bit.

    Parameters
    ----------
    seconds : float
        A finite time of any size.

    Returns
    -------
    int
        Attoseconds; exact integers of any size.

    Raises
    ------
    CostModelError
        When `seconds` is NaN or infinite.
    """
    scaled = seconds * 1e18
    if -math.inf < scaled < math.inf:
        # float() first: round() of a NumPy scalar goes through NumPy.
        return round(float(scaled))
    if not math.isfinite(seconds):
        raise CostModelError(f"expected a finite time, got {seconds} s", hint=_OUT_OF_RANGE)
    # So large a float is a whole number.
    return int(seconds) * ATTOSECONDS_PER_S


def checked_weights(weights: object, names: Iterable[str]) -> dict[str, float]:
    """Return a weight for every name, 1 where none is given.

    Parameters
    ----------
    weights : mapping of str to float, or None
        Weights by term; anything else is refused.
    names : iterable of str
        The terms of the model, in order.

    Returns
    -------
    dict
        In the order of `names`.

    Raises
    ------
    CostModelError
        For an unknown term, or a weight that is no number from 0 to 1e12.
    """
    checked = dict.fromkeys(names, 1.0)
    if weights is None:
        return checked
    if not isinstance(weights, Mapping):
        raise CostModelError(
            f"expected a weight by term, got {_shown(weights)}", where="weights", hint=f"known terms: {', '.join(checked)}"
        )
    for name, weight in weights.items():
        if name not in checked:
            close = get_close_matches(str(name), checked, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise CostModelError(f"unknown term {_shown(name)}", where="weights", hint=f"{meant}known terms: {', '.join(checked)}")
        is_number = isinstance(weight, (int, float, np.integer, np.floating)) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight <= MAX_WEIGHT:
            raise CostModelError(
                f"expected a number from 0 to {MAX_WEIGHT:g}, got {_shown(weight)}",
                where=f"weights: {name}",
                hint="a weight of 0 leaves the term out, 1 is the default",
            )
        checked[name] = float(weight)
    return checked


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class CostModel(ABC):
    """Prices groups; the base of every model.

    A subclass names its terms and says how weighted terms combine into the price of one group.

    Parameters
    ----------
    weights : mapping of str to float, optional
        Weights by term; 1 for every term that is not named.

    Attributes
    ----------
    weights : dict of str to float
        The weight of every term, in order.
    """

    name: ClassVar[str]
    term_functions: ClassVar[dict[str, Term]]

    weights: Mapping[str, float] = field(default_factory=dict, hash=False)
    _factors: tuple[float, ...] = field(init=False, repr=False, compare=True)

    def __post_init__(self) -> None:
        weights = checked_weights(self.weights, self.term_functions)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "_factors", tuple(weights.values()))

    @abstractmethod
    def _combine(self, terms: Sequence[Seconds], profile: Profile) -> Seconds:
        """Return the price of a group in seconds from its unweighted terms, in the order of `term_functions`."""

    def terms(self, features: GroupFeatures, profile: Profile) -> dict[str, float]:
        """Return the unweighted terms of a group.

        Parameters
        ----------
        features : GroupFeatures
            Counts of the group; plain numbers, no arrays.
        profile : Profile
            The machine.

        Returns
        -------
        dict of str to float
            Seconds by term, in order.
        """
        return {name: float(term(features, profile)) for name, term in self.term_functions.items()}

    def cost_s(self, terms: Mapping[str, float], profile: Profile) -> float:
        """Return the price of one group from its terms.

        Parameters
        ----------
        terms : mapping of str to float
            Seconds by term, as from `terms`.
        profile : Profile
            The machine.

        Returns
        -------
        float
            Seconds, before rounding; ``attoseconds(cost_s(...))`` is what `best` returns.
        """
        return float(self._combine([terms[name] for name in self.term_functions], profile))

    def best_scalar(self, features: GroupFeatures, profile: Profile) -> int | None:
        """Return the price of a group whose features are plain numbers.

        The shortest path to a price: no terms are kept.

        Parameters
        ----------
        features : GroupFeatures
            Counts of the group; plain numbers, no arrays.
        profile : Profile
            The machine.

        Returns
        -------
        int or None
            Attoseconds, or None when the scratch of a block does not fit in fast memory.
        """
        if features.scratch_bytes > profile.fast_memory_bytes:
            return None
        return attoseconds(self._combine([term(features, profile) for term in self.term_functions.values()], profile))  # type: ignore[arg-type]  # no arrays in, no array out

    def prices(self, features: GroupFeatures, profile: Profile) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return the price of every candidate, whether its scratch fits or not.

        Parameters
        ----------
        features : GroupFeatures
            Counts; those that differ from candidate to candidate, bytes included, are arrays of equal length.
        profile : Profile
            The machine.

        Returns
        -------
        numpy.ndarray
            Whole attoseconds, with the bits that `best` gives one candidate at a time.
        """
        terms = [term(features, profile) for term in self.term_functions.values()]
        return np.rint(np.atleast_1d(np.asarray(self._combine(terms, profile), np.float64)) * 1e18)

    def best(self, features: GroupFeatures, profile: Profile) -> Best | None:
        """Return the cheapest tiling that fits.

        Parameters
        ----------
        features : GroupFeatures
            Counts of the group; any of the tiling-dependent ones may be one-dimensional arrays of equal length.
        profile : Profile
            The machine.

        Returns
        -------
        tuple of (int, int, dict) or None
            The index of the tiling (0 when nothing is an array), its price in attoseconds, and its unweighted terms in seconds; None
            when the scratch of a block fits in fast memory under no tiling. Of tilings of equal price, the lowest index.
        """
        scratch = features.scratch_bytes
        limit = profile.fast_memory_bytes
        terms = [term(features, profile) for term in self.term_functions.values()]
        cost = self._combine(terms, profile)
        if not isinstance(cost, np.ndarray) and not isinstance(scratch, np.ndarray):
            if scratch > limit:
                return None
            return 0, attoseconds(cost), dict(zip(self.term_functions, terms, strict=True))  # type: ignore[arg-type]  # numbers all: the cost is one
        # Rounded first: prices that differ by less than an attosecond are equal, and the lowest index takes them.
        prices = np.rint(cost * 1e18)
        ranked = np.where(scratch <= limit, prices, math.inf)
        if ranked.size == 0:
            return None
        index = int(ranked.argmin())
        if not ranked[index] < math.inf:
            if np.any(scratch <= limit):
                raise CostModelError("expected a finite time, got none", hint=_OUT_OF_RANGE)
            return None
        chosen = {name: _entry(term, index) for name, term in zip(self.term_functions, terms, strict=True)}
        return index, int(ranked[index]), chosen


def _entry(values: Seconds, index: int) -> float:
    if not isinstance(values, np.ndarray):
        return float(values)
    return float(values[index if values.size > 1 else 0])
