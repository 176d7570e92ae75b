"""Folds per-channel multiplications and additions after a convolution into its weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fusion_search.ir.graph import Graph, Node, PassRecord, Shape, Value
from fusion_search.ir.spec import Array
from fusion_search.passes.base import listed, rebuilt

_REAL = ("f", "V")  # numpy has bfloat16 as kind V


@dataclass(frozen=True, slots=True)
class _Step:
    """A convolution followed by operators up to `node`, as one factor and one offset for each channel, in float64."""

    node: Node
    count: int
    factor: Array
    offset: Array


@dataclass(frozen=True, slots=True)
class FoldAffine:
    """Conv followed by Mul, Div, Add or Sub with constants of one number a channel becomes one Conv with new weights.

    This covers a BatchNormalization behind a convolution, also one that an exporter has split. Folding is computed in float64 and
    rounded once, so results differ from the spelled-out form by rounding (which scales with the weights); that is all that any
    pass changes. Constants that vary over the batch or the space stay (they are no bias), so do values that someone else reads,
    weights that a caller may override, and every chain that would make a weight infinite or NaN. The record names each
    convolution with its channels and the largest relative change of a weight, and each refusal. Linear.
    """

    name: str = "fold_affine"

    def run(self, graph: Graph) -> Graph:
        """Return the graph with affine chains folded."""
        values, constants = dict(graph.values), dict(graph.constants)
        gone: set[str] = set()
        new: dict[str, Node] = {}
        done: list[str] = []
        refused: list[str] = []
        for node in graph.nodes:
            if node.op != "Conv":
                continue
            bases = [graph.base(name) for name in node.inputs[1:]]
            if any(name not in constants for name in bases):
                continue
            chain: list[Node] = []
            best: tuple[_Step, Array, Array] | None = None
            for step in _steps(graph, node, chain):
                folded = _apply(graph, node, step)
                if folded is None:
                    refused.append(f"{node.name} with {step.node.name}: a folded weight is not finite")
                    break
                fixed = {name for reader in chain[: step.count] for name in reader.inputs} | set(node.inputs)
                if fixed & graph.overridable:
                    refused.append(f"{node.name} with {step.node.name}: {min(fixed & graph.overridable)!r} may be overridden")
                    break
                if graph.values[step.node.output].dtype == graph.values[node.output].dtype:
                    best = (step, *folded)
            if best is None:
                continue
            step, weight, bias = best
            names = [_unused(f"{graph.base(node.inputs[1])}.folded", values), ""]
            values[names[0]], constants[names[0]] = Value(names[0], weight.dtype, weight.shape), weight
            names[1] = _unused(f"{node.output}.bias", values)
            values[names[1]], constants[names[1]] = Value(names[1], bias.dtype, bias.shape), bias
            new[node.name] = replace(node, inputs=(node.inputs[0], *names))
            gone.update(reader.name for reader in chain[: step.count])
            values[step.node.output] = replace(values[step.node.output], view_of=node.output)
            change = float(np.max(np.abs(step.factor - 1.0), initial=0.0))
            done.append(f"{node.name} + {step.count} ({bias.size} channels, largest relative change {change:.3g})")
        nodes = [new.get(node.name, node) for node in graph.nodes if node.name not in gone]
        detail = listed(done + [f"refused: {text}" for text in refused])
        return rebuilt(graph, PassRecord(self.name, len(done), detail), nodes=nodes, values=values, constants=constants)


def _steps(graph: Graph, conv: Node, chain: list[Node]) -> Iterator[_Step]:
    """Follow the only reader as long as it is affine with one number a channel; `chain` gets the nodes passed."""
    out = graph.values[conv.output].shape
    n, groups, m, *space = out
    channels = groups * m
    # the result is read as [N, C, ...] or as the convolution's own [N, group, M, ...]
    layouts = {(n, channels, *space): (channels, *(1,) * len(space)), out: (groups, m, *(1,) * len(space))}
    factor, offset = np.ones(channels), np.zeros(channels)
    at = conv
    while graph.values[at.output].dtype.kind in _REAL:
        base = at.output
        readers = graph.readers.get(base, ())
        if base in graph.output_bases or len(readers) != 1:
            return
        node = graph.nodes[readers[0]]
        if node.op == "Cast" and node.attr("to") in ("float16", "bfloat16", "float32", "float64"):
            chain.append(node)
            at = node
            yield _Step(node, len(chain), factor, offset)
            continue
        if node.op not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
            return
        sides = [graph.base(name) == base for name in node.inputs]
        shape = graph.values[node.output].shape
        if sides[0] == sides[1] or shape not in layouts:
            return
        own, other = node.inputs[sides.index(True)], node.inputs[sides.index(False)]
        if graph.values[own].shape != shape or graph.base(other) not in graph.constants or (node.op == "Div" and sides[1]):
            return
        array = graph.constants[graph.base(other)].reshape(graph.values[other].shape)
        vector = _per_channel(array, layouts[shape], channels)
        if vector is None:
            return
        with np.errstate(all="ignore"):
            if node.op == "Mul":
                factor, offset = factor * vector, offset * vector
            elif node.op == "Div":
                factor, offset = factor / vector, offset / vector
            elif node.op == "Add":
                offset = offset + vector
            elif sides[0]:
                offset = offset - vector
            else:
                factor, offset = -factor, vector - offset
        chain.append(node)
        at = node
        yield _Step(node, len(chain), factor, offset)


def _per_channel(array: Array, layout: Shape, channels: int) -> Array | None:
    """Return one number for each channel, or None when the constant varies over batch or space."""
    shape = array.shape
    while shape and len(shape) > len(layout) and shape[0] == 1:
        shape = shape[1:]
    if len(shape) > len(layout):
        return None
    padded = (1,) * (len(layout) - len(shape)) + shape
    if any(have not in (1, want) for have, want in zip(padded, layout, strict=True)):
        return None
    return np.broadcast_to(array.reshape(padded).astype(np.float64), layout).reshape(channels)


def _apply(graph: Graph, conv: Node, step: _Step) -> tuple[Array, Array] | None:
    """Return the new weight [group, M, C, ...] and bias [group, M]; None when one of them is not finite."""

    def operand(k: int) -> Array:
        value = graph.values[conv.inputs[k]]
        return graph.constants[graph.base(value.name)].reshape(value.shape)

    weight = operand(1)
    groups, m = weight.shape[:2]
    factor = step.factor.reshape(groups, m)
    with np.errstate(all="ignore"):
        scaled = (weight.astype(np.float64) * factor.reshape(groups, m, *(1,) * (weight.ndim - 2))).astype(weight.dtype)
        bias = operand(2).astype(np.float64) if len(conv.inputs) > 2 else np.zeros((groups, m))
        moved = (bias * factor + step.offset.reshape(groups, m)).astype(weight.dtype)
    if np.isfinite(scaled.astype(np.float32)).all() and np.isfinite(moved.astype(np.float32)).all():
        return scaled, moved
    return None


def _unused(name: str, taken: dict[str, Value]) -> str:
    k, hint = 1, name
    while name in taken:
        k += 1
        name = f"{hint}.{k}"
    return name
