"""Inputs and constants for random graphs: tame ones, and such that are full of special numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from fusion_search.ir.graph import Graph, Shape
from fusion_search.ir.spec import Array

BOOL = np.dtype(bool)


def random_feeds(graph: Graph, seed: int) -> dict[str, Array]:
    """Make inputs: floats in [-2, 2] with some zeros and ones, integers in [-8, 8), bools."""
    rng = np.random.default_rng([seed, 77])
    feeds = {}
    for value in graph.inputs:
        if value.dtype == BOOL:
            feeds[value.name] = rng.random(value.shape) < 0.5
        elif value.dtype.kind in "iu":
            feeds[value.name] = rng.integers(-8, 8, value.shape).astype(value.dtype)
        else:
            smooth = rng.uniform(-2, 2, value.shape)
            feeds[value.name] = np.where(rng.random(value.shape) < 0.05, np.rint(smooth), smooth).astype(value.dtype)
    return feeds


def special_array(rng: np.random.Generator, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Make numbers of which a third are NaN, infinite, negative zeros, denormal, or the extremes of their dtype."""
    if dtype == BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    odd: list[Any]
    plain: Array
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        odd = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, info.max // 2]
        plain = rng.integers(0 if dtype.kind == "u" else -8, 8, shape)
    else:
        limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        tiny, least, most = float(limits.tiny), float(limits.smallest_subnormal), float(limits.max)
        odd = [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, -tiny, least, -3 * least, most, -most]
        odd += [1.0, -1.0, 0.5, 1.5, 2.5, 300.0, -70000.0, 3e9]
        plain = rng.normal(0, 3, shape)
    share = float(rng.choice([0.02, 0.3, 0.9]))
    with np.errstate(all="ignore"):
        picked = np.array(odd, dtype)[rng.integers(len(odd), size=shape)]
        return np.where(rng.random(shape) < share, picked, plain.astype(dtype))


def special_feeds(graph: Graph, seed: int) -> dict[str, Array]:
    """Make inputs with special numbers among them; what indexes a gather or scatter stays as :func:`random_feeds` has it."""
    rng = np.random.default_rng([seed, 78])
    feeds = random_feeds(graph, seed)
    indexed = ("Gather", "GatherElements", "GatherND", "Scatter")
    indices = {graph.base(node.inputs[1]) for node in graph.nodes if node.op in indexed}
    tame = {name for name in feeds if name in indices or rng.random() < 0.3}
    return {name: feed if name in tame else special_array(rng, feed.dtype, feed.shape) for name, feed in feeds.items()}
