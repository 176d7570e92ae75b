"""Hardware profiles: one TOML file a machine, every figure with its source."""

from __future__ import annotations

from .errors import ProfileError
from .loader import load, names, records
from .profile import DTYPES, Forbidden, Profile

__all__ = ["DTYPES", "Forbidden", "Profile", "ProfileError", "load", "names", "records"]
