"""Making a failing case smaller: fewer outputs, nodes and merges, and smaller extents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fusion_search.errors import FusionSearchError
from fusion_search.fusion.loops import segments
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph, Node, Shape, Value
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Array, Type
from fusion_search.ir.verify import verify_graph
from fusion_search.testing.cases import Case

#: Runs of the check that making a case smaller may take.
TRIES = 120


def smaller(case: Case, check: Callable[[Case], Sequence[str]]) -> Case:
    """Drop what a failure does not need: outputs, nodes, merges of groups, extents; a cut value becomes an input.

    Parameters
    ----------
    case : Case
        It fails.
    check : callable
        What is wrong with a case.
    """
    for trials in (_fewer, _shorter):
        left, changed = TRIES, True
        while changed and left > 0:
            changed = False
            for trial in trials(case):
                left -= 1
                if left >= 0 and check(trial):
                    case, changed = trial, True
                    break
    return case


def _shorter(case: Case) -> Iterator[Case]:
    extents = sorted({n for value in case.graph.values.values() for n in value.shape if n > 1}, reverse=True)
    for old in extents:
        for new in sorted({1, 2, old // 2, old - 1} - {old}):
            for changes in _with_products(case.graph, old, new):
                trial = _resized(case, changes)
                if trial is not None and _elements(trial) < _elements(case):  # an extent may be the sum of others
                    yield trial
                    break


def _with_products(graph: Graph, old: int, new: int) -> list[dict[int, int]]:
    """One extent's change alone, and with that of the extents that views make of it, which others may have to share."""
    products = {old: new}
    for value in graph.values.values():
        base = graph.values[value.view_of].shape if value.view_of is not None else ()
        for side in segments(base, value.shape) if value.view_of is not None else ():
            for dims, shape in zip(side, (base, value.shape), strict=True):
                if old in (parts := [shape[d] for d in dims]) and len(parts) > 1:
                    products[math.prod(parts)] = math.prod(new if n == old else n for n in parts)
    return [{old: new}, products] if len(products) > 1 else [{old: new}]


def _elements(case: Case) -> int:
    return sum(value.size for value in case.graph.values.values())


def _fewer(case: Case) -> Iterable[Case]:
    graph = case.graph
    found: list[Case | None] = [_pruned(case, [graph.values[node.output]], set()) for node in graph.nodes]
    found = [trial for trial in found if trial is not None and len(trial.graph.nodes) < len(graph.nodes)]
    found += [_pruned(case, [value], set()) for value in graph.outputs] if len(graph.outputs) > 1 else []
    found += [_pruned(case, [*graph.outputs], {node.output}) for node in graph.nodes]
    for k, group in enumerate(case.groups):
        if len(group) > 1:
            found.append(replace(case, groups=(*case.groups[:k], *((name,) for name in group), *case.groups[k + 1 :])))
    return [trial for trial in found if trial is not None]


def _pruned(case: Case, outputs: Sequence[Value], cut: set[str]) -> Case | None:
    """Keep what some outputs need; the values in `cut` become inputs with the reference's numbers."""
    graph = case.graph
    if any(graph.base(value.name) in cut for value in outputs):
        outputs = [value for value in outputs if graph.base(value.name) not in cut]
    if not outputs:
        return None
    needed = {graph.base(value.name) for value in outputs}
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if node.output in needed and node.output not in cut:
            nodes.insert(0, node)
            needed |= {graph.base(name) for name in node.inputs}
    if not nodes:
        return None
    feeds = {name: array for name, array in case.feeds.items() if name in needed}
    inputs = [value for value in graph.inputs if value.name in needed]
    for name in sorted(cut & needed):
        every = replace(graph, outputs=(graph.values[name],))
        feeds[name] = np.asarray(evaluate(every, case.feeds)[name])
        inputs.append(graph.values[name])
    names = {node.name for node in nodes}
    used = needed | {name for node in nodes for name in (*node.inputs, *node.outputs)} | {value.name for value in outputs}
    values = {
        name: replace(value, view_of=graph.base(name) if value.view_of is not None else None)
        for name, value in graph.values.items()
        if name in used
    }
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    pruned = Graph(graph.name, tuple(inputs), tuple(outputs), tuple(nodes), values, constants)
    groups = tuple(kept for group in case.groups if (kept := tuple(name for name in group if name in names)))
    return replace(case, graph=pruned, groups=groups, feeds=feeds)


# ---------------------------------------------------------------------- extents


def _resized(case: Case, changes: Mapping[int, int]) -> Case | None:
    """Give every dimension of some extents another; None where the graph does not work for it."""
    graph = case.graph
    makers = {node.output: node for node in graph.nodes}
    shapes: dict[str, Shape] = {}
    nodes: dict[str, Node] = {}
    try:
        for name, value in graph.values.items():
            if value.view_of is not None:
                shapes[name] = _view_shape(graph.values[value.view_of].shape, value.shape, shapes[value.view_of], changes)
            elif name in makers:
                node = makers[name]
                operands = [Type(graph.values[i].dtype, shapes[i]) for i in node.inputs]
                attrs = _attrs(node, operands[0].shape, changes)
                shapes[name] = OPS[node.op].infer(operands, attrs).shape
                nodes[node.name] = replace(node, attrs=tuple(sorted(attrs.items())))
            else:
                shapes[name] = tuple(changes.get(n, n) for n in value.shape)
        values = {name: replace(value, shape=shapes[name]) for name, value in graph.values.items()}
        constants = {name: _cut(array, shapes[name]) for name, array in graph.constants.items()}
        inputs, outputs = (tuple(values[value.name] for value in found) for found in (graph.inputs, graph.outputs))
        resized = Graph(graph.name, inputs, outputs, tuple(nodes[node.name] for node in graph.nodes), values, constants)
        feeds = {name: _cut(array, shapes[name]) for name, array in case.feeds.items()}
        verify_graph(resized)
        _index(resized, constants, feeds)
        with np.errstate(all="ignore"):
            evaluate(resized, feeds)  # a computed index may be outside of what is left
    except (FusionSearchError, ValueError, LookupError):
        return None
    return replace(case, graph=resized, feeds=feeds)


def _index(graph: Graph, *given: dict[str, Array]) -> None:
    """Move indices that are given into what is left of their data."""
    for node in graph.nodes:
        if node.op in ("Gather", "GatherElements", "GatherND", "Scatter"):
            data, index = graph.values[node.inputs[0]].shape, graph.base(node.inputs[1])
            if node.op == "GatherND":
                n = min(data[: graph.values[node.inputs[1]].shape[-1]])
            else:
                n = data[1] if node.op == "Scatter" else data[node.attr("axis")]
            for arrays in given:
                if index in arrays:
                    arrays[index] = np.clip(arrays[index], -n, n - 1)


def _cut(array: Array, shape: Shape) -> Array:
    return np.ascontiguousarray(array[tuple(slice(n) for n in shape)]).reshape(shape)


def _view_shape(base: Shape, view: Shape, now: Shape, changes: Mapping[int, int]) -> Shape:
    """The shape of a view of a resized value: dimension by dimension, or the product where it joins some."""
    shape = list(view)
    for left, right in segments(base, view):
        if len(right) == 1:
            shape[right[0]] = math.prod(now[d] for d in left)
        else:
            for d in right:
                shape[d] = changes.get(view[d], view[d])
    if math.prod(shape) != math.prod(now):
        raise ValueError("the view does not fit")
    return tuple(shape)


def _attrs(node: Node, operand: Shape, changes: Mapping[int, int]) -> dict[str, Any]:
    """The attributes of a node that are extents, for others."""
    attrs = dict(node.attrs)
    if node.op == "Expand":
        lead = len(attrs["shape"]) - len(operand)
        mapped = [changes.get(n, n) for n in attrs["shape"]]
        attrs["shape"] = tuple(operand[d - lead] if d >= lead and operand[d - lead] != 1 else n for d, n in enumerate(mapped))
    elif node.op == "Slice":
        starts = tuple(min(start, max(n - 1, 0)) for start, n in zip(attrs["starts"], operand, strict=True))
        rooms = (
            (n - 1 - start) // step + 1 if step > 0 else start // -step + 1
            for start, step, n in zip(starts, attrs["steps"], operand, strict=True)
        )
        attrs |= {"starts": starts, "sizes": tuple(min(size, room) for size, room in zip(attrs["sizes"], rooms, strict=True))}
    return attrs
