"""The error of this package."""

from __future__ import annotations

from hardware_profiles.errors import HintedError

__all__ = ["CostModelError"]


class CostModelError(HintedError, ValueError):
    """An unknown cost model, a weight that has no meaning, or a price that is no finite number."""
