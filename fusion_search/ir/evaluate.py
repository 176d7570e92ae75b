"""The reference evaluator of core graphs: each node by its spec's NumPy form, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusion_search.ir.graph import Graph
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Array


def evaluate(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a graph node by node in NumPy.

    Parameters
    ----------
    graph : Graph
    feeds : mapping of str to numpy.ndarray
        One array for each input.

    Returns
    -------
    dict of str to numpy.ndarray
        One array for each output.
    """
    memory: dict[str, Any] = {**graph.constants, **feeds}

    def read(name: str) -> Any:
        value = graph.values[name]
        if value.view_of is None:
            return memory[name]
        return np.reshape(memory[graph.base(name)], value.shape) if value.dtype != object else memory[graph.base(name)]

    for node in graph.nodes:
        arrays: list[Any] = [read(name) if name else None for name in node.inputs]
        if node.op == "Opaque":
            memory.update(zip(node.outputs, node.attr("call").function(arrays), strict=True))
        else:
            with np.errstate(all="ignore"):  # infinities and NaN are results like others
                memory[node.output] = OPS[node.op].evaluate(arrays, dict(node.attrs))
    results: dict[str, Any] = {value.name: read(value.name) for value in graph.outputs}
    # a sequence stays a list
    for name, result in results.items():
        results[name] = result if isinstance(result, list) else np.asarray(result)
    return results
