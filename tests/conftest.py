"""Settings for the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

# Shared machines are noisy: a slow example is no failure. In CI a run must be repeatable.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
