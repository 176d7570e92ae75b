"""Memory of results that the runtime makes itself: recycled once nobody holds it.

Touching new pages costs more than most kernels.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from fusion_search.ir.graph import Value

Array = np.ndarray[Any, Any]


def _references(buffers: list[Array], k: int) -> int:
    return sys.getrefcount(buffers[k])


#: References to a kept buffer when no result lives in it: counted, since interpreters differ in what a call holds.
UNHELD = _references([np.empty(1, np.uint8)], 0)
#: Buffers kept for each result.
KEPT_BUFFERS = 2


class ResultBuffers:
    """Gives out arrays for results; safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, list[Array]] = {}

    def fresh(self, value: Value) -> Array:
        """Return an array for a result: memory of an earlier one that nobody holds any more, or new memory.

        Whoever holds an earlier result, or a view of it, holds its buffer.
        """
        with self._lock:
            kept = self._kept.setdefault(value.name, [])
            for k in range(len(kept)):
                if _references(kept, k) == UNHELD:
                    return _as(value, kept[k])
            made = np.empty(max(int(value.nbytes), 1), np.uint8)
            if len(kept) < KEPT_BUFFERS:
                kept.append(made)
            return _as(value, made)


def _as(value: Value, buffer: Array) -> Array:
    return buffer[: int(value.nbytes)].view(value.dtype).reshape(value.shape)
