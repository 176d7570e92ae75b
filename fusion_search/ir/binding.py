"""Inputs that are bound by their elements, as symbolic dimensions are by their extents: axes, shapes, repeats and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion_search.ir.graph import Graph, Source
from fusion_search.ir.spec import Array

ValuesKey = tuple[tuple[str, tuple[int, ...], bytes], ...]


def values_key(values: Mapping[str, Array]) -> ValuesKey:
    """Return what tells bound elements apart."""
    return tuple((name, array.shape, array.tobytes()) for name, array in sorted(values.items()))


def bind_asked(
    source: Source, dims: Mapping[str, int], overrides: Mapping[str, Array], feeds: Mapping[str, Any], values: Mapping[str, Array]
) -> Graph:
    """Bind a program, and by their elements the inputs that it asks for and that are fed.

    Parameters
    ----------
    source : Source
    dims : mapping of str to int
    overrides : mapping of str to numpy.ndarray
    feeds : mapping of str to array_like
    values : mapping of str to numpy.ndarray
        What is bound by its elements in any case.
    """
    while True:
        graph = source.bind(dims, overrides, values)
        more = sorted(set(graph.source.asked).intersection(feeds) - set(values)) if graph.source is not None else []
        if not more:
            return graph
        values = {**values, **{name: np.asarray(feeds[name]) for name in more}}
