"""Arrays that a caller brings for the results: checked before a run, so that nothing is half written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fusion_search.errors import FeedError
from fusion_search.ir.graph import Graph, Value
from fusion_search.ir.opaque import RUNTIME

Array = np.ndarray[Any, Any]

#: Candidate addresses that are tried before two strided arrays count as overlapping.
OVERLAP_WORK = 10_000


def checked_outputs(graph: Graph, out: Mapping[str, Array], fed: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays for some or all of the results, or raise FeedError for the first that cannot take its result.

    Parameters
    ----------
    graph : Graph
        The model for the extents of the run.
    out : mapping of str to numpy.ndarray
    fed : mapping of str to object
        The inputs, which no array of `out` may overlap.
    """
    known = {value.name: value for value in graph.outputs}
    listed = f"the outputs are {', '.join(known) or 'none'}"
    if not isinstance(out, Mapping):
        raise FeedError(f"out: expected a mapping from names to arrays, got {type(out).__name__}", hint=listed)
    strange = [str(name) for name in out if name not in known]
    if strange:
        raise FeedError(f"out: unknown name {', '.join(strange)}", hint=listed)
    checked: dict[str, Array] = {}
    taken = [("input", name, array) for name, array in fed.items() if isinstance(array, np.ndarray)]
    for name, array in out.items():
        problem = _unfit(known[name], array)
        if problem:
            raise FeedError(f"out: output {name!r}: {problem[0]}", hint=problem[1])
        shared = _overlapping(array, taken)
        if shared:
            raise FeedError(f"out: output {name!r}: shares memory with {shared}", hint="give each result memory of its own")
        checked[name] = array
        taken.append(("output", name, array))
    return checked


def _unfit(value: Value, array: Any) -> tuple[str, str] | None:
    """What is wrong with an array as the place of a result, and what would do."""
    if value.dtype == RUNTIME:
        return "has no plain tensor type", "leave it out"
    problem = _problem(value, array)
    return (problem, f"make it with numpy.empty({list(value.shape)}, {value.dtype.name!r})") if problem else None


def _problem(value: Value, array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return f"expected an array, got {type(array).__name__}"
    if array.dtype != value.dtype:
        return f"has dtype {array.dtype}, expected {value.dtype}"
    if array.shape != value.shape:
        return f"has shape {list(array.shape)}, expected {list(value.shape)}"
    flags = array.flags
    if not flags.c_contiguous:
        return "is not C-contiguous"
    if not flags.aligned:
        return f"does not start at a multiple of {value.dtype.alignment} bytes"
    return "" if flags.writeable else "is read-only"


def _overlapping(array: Array, others: Iterable[tuple[str, str, Array]]) -> str:
    """Name the first array that shares memory with one, or return an empty string."""
    for kind, name, other in others:
        if np.may_share_memory(array, other):
            try:
                if np.shares_memory(array, other, max_work=OVERLAP_WORK):  # type: ignore[arg-type]  # the stubs know two limits only
                    return f"{kind} {name!r}"
            except np.exceptions.TooHardError:
                return f"{kind} {name!r}"
    return ""
