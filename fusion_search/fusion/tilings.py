"""The tilings of a group's knobs, and how often blocks repeat under each: facts of the extents alone, which many groups share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

__all__ = ["Tilings", "tiles_of", "tilings_of"]


@lru_cache(maxsize=4096)
def tiles_of(extent: int) -> tuple[int, ...]:
    """Return the tiles that are tried along a loop: 1, 2, 4, ... and its extent."""
    sizes, tile = [], 1
    while tile < extent:
        sizes.append(tile)
        tile *= 2
    return (*sizes, max(extent, 1))


class Tilings:
    """Every combination of a tile for each knob.

    What has one number for each tiling is an array, and a plain number when there is one tiling only.

    Parameters
    ----------
    extents : sequence of int
        Extent of each knob.
    tilings : sequence of tuple of int
        Tiles, one for each knob.

    Attributes
    ----------
    tiles : list of float or array
        For each knob its tile.
    blocks : float or array
        Blocks along all knobs.
    """

    __slots__ = ("_more", "_repeats", "blocks", "tiles", "tilings")

    def __init__(self, extents: Sequence[int], tilings: Sequence[tuple[int, ...]]) -> None:
        self.tilings = tuple(tilings)
        table = np.array(self.tilings, dtype=np.float64).reshape(len(self.tilings), len(extents))
        self.tiles: list[Any] = [table[:, k] if len(self.tilings) > 1 else float(table[0, k]) for k in range(len(extents))]
        self._repeats: list[Any] = [np.ceil(n / tile) for n, tile in zip(extents, self.tiles, strict=True)]
        self.blocks: Any = 1.0
        for count in self._repeats:
            self.blocks = self.blocks * count
        self._more: dict[int, tuple[Any, bool]] = {}

    def more(self, inside: int) -> tuple[Any, bool]:
        """Return how many times more than once something is done that only the knobs in a bit mask index, and whether it ever is."""
        found = self._more.get(inside)
        if found is None:
            factor: Any = 1.0
            for k, count in enumerate(self._repeats):
                if not inside >> k & 1:
                    factor = factor * count
            more = factor - 1.0
            found = self._more[inside] = (more, bool(np.any(more > 0)))
        return found


@lru_cache(maxsize=1024)
def tilings_of(extents: tuple[int, ...]) -> Tilings:
    """Return all tilings of knobs of these extents."""
    return Tilings(extents, tuple(product(*(tiles_of(n) for n in extents))))
