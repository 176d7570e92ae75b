"""``python -m fusion_search`` is ``fusion-search``."""

from __future__ import annotations

import sys

from fusion_search.cli import main

if __name__ == "__main__":
    sys.exit(main())
