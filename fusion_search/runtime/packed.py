"""Packed constants of a compiled plan: one copy for all its bindings, as long as one of them needs it."""

from __future__ import annotations

import threading
import weakref

from fusion_search.codegen.packing import Array, Packing


class PackedConstants:
    """Packs each constant once for each way of packing.

    Bindings of one plan to several extents share its weights, and so the packed ones; a caller keeps what it gets alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, Packing], tuple[weakref.ref[Array], weakref.ref[Array]]] = {}

    def of(self, constant: Array, packing: Packing) -> Array:
        """Return a constant packed, the same array for the same two as long as it is in use."""
        key = id(constant), packing
        with self._lock:
            source, packed = self._known.get(key, (None, None))
            made = packed() if source is not None and packed is not None and source() is constant else None  # numbers are used again
            if made is None:
                made = packing.pack(constant)
                self._known[key] = weakref.ref(constant), weakref.ref(made)
            return made
