"""Running a graph by a plan and comparing it with the reference, as closely as the operators allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numba
import numpy as np

import costmodels
import hardware_profiles
from fusion_search.codegen.capability import can_emit
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.ir.ops import OPS
from fusion_search.runtime.program import BoundPlan

Array = np.ndarray[Any, Any]
#: Largest difference over the largest magnitude on the way to an output, by the coarsest float dtype on it.
TOLERANCE = {"float16": 8e-3, "float32": 1e-5, "float64": 1e-12}


def space_of(graph: Graph) -> GroupSpace:
    """The groups that can be emitted, on the profile of this machine."""
    return GroupSpace(Program(graph), hardware_profiles.load("local"), costmodels.model("weighted"), can_emit)


def all_values(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Evaluate every value of a graph."""
    memory: dict[str, Array] = {**graph.constants, **feeds}
    for node in graph.nodes:
        arrays = [np.reshape(memory[graph.base(name)], graph.values[name].shape) for name in node.inputs]
        memory[node.output] = OPS[node.op].evaluate(arrays, dict(node.attrs))
    return memory


def exact_values(graph: Graph) -> set[str]:
    """Values that have the same bits under any order of evaluation."""
    found = {value.name for value in graph.inputs} | set(graph.constants)
    for node in graph.nodes:
        if all(graph.base(name) in found for name in node.inputs):
            spec = OPS[node.op]
            whole = graph.values[node.output].dtype.kind in "iub"
            if spec.exact or whole or (spec.combiner in ("max", "min") and spec.kind in ("reduce", "window")):
                found.add(node.output)
    return found


def allowed(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, float]:
    """For each value, the largest difference that rounding may explain; 0 for exact ones."""
    memory, exact = all_values(graph, feeds), exact_values(graph)
    scale: dict[str, tuple[float, float]] = {}  # largest magnitude and tolerance on the way
    limits: dict[str, float] = {}
    for name, array in memory.items():
        made = graph.producer.get(name)
        parts = [scale[graph.base(i)] for i in graph.nodes[made].inputs] if made is not None else []
        finite = np.abs(array[np.isfinite(array)]) if array.dtype.kind == "f" else np.zeros(0)
        own = (float(finite.max(initial=0.0)), TOLERANCE.get(array.dtype.name, 0.0))
        scale[name] = (max(own[0], *(p[0] for p in parts), 0.0), max(own[1], *(p[1] for p in parts), 0.0))
        limits[name] = 0.0 if name in exact else max(scale[name][0], 1.0) * scale[name][1]
    return limits


def differences(graph: Graph, feeds: Mapping[str, Array], got: Mapping[str, Array]) -> list[str]:
    """Say how results differ from the reference beyond what their operators allow; empty when they do not."""
    want, limits = evaluate(graph, feeds), allowed(graph, feeds)
    found = []
    if list(got) != list(want):
        found.append(f"outputs {list(got)}, expected {list(want)}")
    for name, expected in want.items():
        result, limit = got[name], limits[graph.base(name)]
        if result.dtype != expected.dtype or result.shape != expected.shape:
            found.append(f"{name}: {result.dtype}{result.shape}, expected {expected.dtype}{expected.shape}")
        elif limit == 0 or expected.dtype.kind != "f":
            if not np.array_equal(result, expected, equal_nan=expected.dtype.kind == "f"):
                found.append(f"{name}: {np.count_nonzero(result != expected)} of {expected.size} elements differ, all must be exact")
            elif not np.array_equal(np.signbit(result), np.signbit(expected)) and not np.isnan(expected).any():
                found.append(f"{name}: signs of zeros differ")
        else:
            a, b = result.astype(np.float64), expected.astype(np.float64)
            odd = ~np.isfinite(b)
            if not np.array_equal(a[odd], b[odd], equal_nan=True) or not np.isfinite(a[~odd]).all():
                found.append(f"{name}: infinities or NaN differ")
            elif (most := float(np.abs(a[~odd] - b[~odd]).max(initial=0.0))) > limit:
                found.append(f"{name}: differs by {most:.3g}, allowed {limit:.3g}")
    return found


def disagreements(graph: Graph, groups: Sequence[Sequence[str]], feeds: Mapping[str, Array]) -> list[str]:
    """Run a plan with one thread and with two; say what is wrong."""
    before = {name: array.copy() for name, array in feeds.items()}
    results = []
    threads = numba.get_num_threads()
    try:
        for count in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(count)
            results.append(BoundPlan(graph, groups)(feeds))
    finally:
        numba.set_num_threads(threads)
    found = differences(graph, feeds, results[0])
    found += [f"{name}: other bits with two threads" for name in results[0] if results[0][name].tobytes() != results[1][name].tobytes()]
    found += [f"input {name} was written" for name in feeds if feeds[name].tobytes() != before[name].tobytes()]
    return found
