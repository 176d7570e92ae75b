"""The one tree of errors that leaves the public interface.

`hardware_profiles` and `costmodels` are packages of their own and raise their own errors; `fusion_search.api` turns those into the
classes below, so that a caller needs one ``except FusionSearchError``.
"""

from __future__ import annotations

from hardware_profiles.errors import HintedError

__all__ = ["FeedError", "FusionSearchError", "ModelError", "PlanError", "ProfileError", "UnsupportedError", "UsageError"]


class FusionSearchError(HintedError):
    """Any error that a caller of this package may expect.

    Parameters
    ----------
    what : str
        What is wrong.
    where : str, optional
        The file, node or option it concerns; printed before `what`, with a colon.
    hint : str, optional
        What would work; printed last, in brackets. ``str()`` is always one line.
    """


class ModelError(FusionSearchError):
    """A model that cannot be read, or a graph that is not well formed."""


class ProfileError(FusionSearchError):
    """A hardware profile that is unknown, unreadable or wrong."""


class PlanError(FusionSearchError):
    """A plan that cannot be read, or does not fit its graph."""


class FeedError(FusionSearchError):
    """Inputs of a run that are missing, unknown, or of the wrong dtype or shape."""


class UsageError(FusionSearchError):
    """An option or argument that has no meaning: an unknown method, a negative weight, a bad constraint."""


class UnsupportedError(FusionSearchError):
    """A request that is well formed and that this version does not serve."""
