"""Cost models: from the features of a fusion group and a hardware profile to a price."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from .errors import CostModelError
from .features import Count, Flops, GroupFeatures, RecomputedFlops, Reread
from .model import ATTOSECONDS_PER_S, Best, CostModel, attoseconds
from .roofline import Roofline
from .terms import TERMS
from .weighted import Weighted

__all__ = [
    "ATTOSECONDS_PER_S",
    "MODELS",
    "TERMS",
    "Best",
    "CostModel",
    "CostModelError",
    "Count",
    "Flops",
    "GroupFeatures",
    "RecomputedFlops",
    "Reread",
    "Roofline",
    "Weighted",
    "attoseconds",
    "model",
]

MODELS: dict[str, type[CostModel]] = {
    "weighted": Weighted,
    "roofline": Roofline,
}
"""The cost models by name; the first is the default."""


def model(name: str = "weighted", weights: Mapping[str, float] | None = None) -> CostModel:
    """Return the cost model of that name.

    Parameters
    ----------
    name : str
        A key of `MODELS`.
    weights : mapping of str to float, optional
        Weights by term; 1 for every term that is not named.

    Returns
    -------
    CostModel
        Ready to price groups.

    Raises
    ------
    CostModelError
        For an unknown name, an unknown term, or a weight that has no meaning.
    """
    if name not in MODELS:
        close = get_close_matches(str(name), MODELS, n=1)
        meant = f"did you mean {close[0]!r}? " if close else ""
        raise CostModelError(f"unknown cost model {name!r}", hint=f"{meant}known models: {', '.join(MODELS)}")
    return MODELS[name]({} if weights is None else weights)
