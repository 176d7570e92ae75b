"""Checks folded weights against the model they came from, channel by channel, without the code that folded them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fusion_search.ir.graph import Graph, Node
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Array

#: Roundings that a folded number may be away from the float64 one: its own, and those of the constants it is made of.
ROUNDINGS = 4


@dataclass(frozen=True, slots=True)
class FoldedWeights:
    """One convolution whose weights were folded.

    Attributes
    ----------
    node : str
        The convolution.
    channels : int
        Output channels.
    worst_channel : int
        The channel that differs most.
    max_rel : float
        Its largest difference, relative to the channel's largest weight or bias.
    ok : bool
        Within rounding of the weights' dtype.
    """

    node: str
    channels: int
    worst_channel: int
    max_rel: float
    ok: bool


def audit_folding(unfolded: Graph, folded: Graph) -> tuple[FoldedWeights, ...]:
    """Compare the weights of every convolution that two forms of one model share and that differ.

    The operators that were folded are run, in float64, on a result of zeros and on one of ones: an affine chain is known
    by its offset and its slope in each channel.

    Parameters
    ----------
    unfolded, folded : Graph
        The model as it was read, and after the passes; nodes and values keep their names.
    """
    found = []
    for node in folded.nodes:
        before = unfolded.nodes[unfolded.index[node.name]] if node.name in unfolded.index else None
        if node.op == "Conv" and before is not None and before.inputs[1:] != node.inputs[1:]:
            found.append(_compare(unfolded, before, folded, node))
    return tuple(found)


def _compare(unfolded: Graph, before: Node, folded: Graph, after: Node) -> FoldedWeights:
    shape = folded.values[after.output].shape
    chain = _chain(unfolded, before.output, folded, after.output)
    offset, at_one = (_run(unfolded, chain, before.output, np.full(shape, x)) for x in (0.0, 1.0))
    slope = at_one - offset
    _, groups, filters = shape[:3]
    old, new = (_weights(graph, node) for graph, node in ((unfolded, before), (folded, after)))
    factor = slope.reshape(groups, filters)
    want = np.concatenate([old[0] * factor[..., None], (old[1] * factor + offset.reshape(groups, filters))[..., None]], axis=-1)
    got = np.concatenate([new[0], new[1][..., None]], axis=-1)
    difference = np.abs(got - want).max(axis=-1).reshape(-1)
    # a bias is a difference of products: it is as exact as the numbers it is made of
    made_of = np.abs(old[1] * factor) + np.abs(offset.reshape(groups, filters))
    scale = np.maximum(np.abs(want).max(axis=-1), made_of).reshape(-1)
    relative = np.where(difference > 0, difference / np.maximum(scale, np.finfo(np.float64).tiny), 0.0)
    worst = int(relative.argmax()) if relative.size else 0
    most = float(relative[worst]) if relative.size else 0.0
    precision = float(
        np.finfo(np.float16 if folded.values[after.inputs[1]].dtype.itemsize == 2 else folded.values[after.inputs[1]].dtype).eps
    )
    return FoldedWeights(after.name, int(relative.size), worst, most, bool(most <= ROUNDINGS * precision))


def _weights(graph: Graph, node: Node) -> tuple[Array, Array]:
    """Weights as [group, M, the rest] and bias as [group, M], in float64."""

    def operand(k: int) -> Array:
        name = node.inputs[k]
        return graph.constants[graph.base(name)].reshape(graph.values[name].shape).astype(np.float64)

    weight = operand(1)
    bias = operand(2) if len(node.inputs) > 2 else np.zeros(weight.shape[:2])
    return weight.reshape(*weight.shape[:2], -1), bias


def _chain(unfolded: Graph, start: str, folded: Graph, result: str) -> list[Node]:
    """The nodes between a convolution and the last value that the folded graph reads as its result."""
    absorbed = {name for name in folded.values if name in unfolded.producer and name != start and folded.base(name) == result}
    chain: list[Node] = []
    reached = {start}
    for node in unfolded.nodes:
        if node.op != "Opaque" and any(unfolded.base(name) in reached for name in node.inputs):
            if not absorbed:
                break
            reached.add(node.output)
            chain.append(node)
            absorbed.discard(node.output)
            if not absorbed:
                break
    return chain


def _run(graph: Graph, chain: list[Node], start: str, value: Array) -> Array:
    """Run the chain in float64 from one value of the convolution; return one number a channel."""
    memory: Mapping[str, Array] = {start: value}
    last = value
    for node in chain:
        arrays = []
        for name in node.inputs:
            base = graph.base(name)
            array = memory[base] if base in memory else graph.constants[base].astype(np.float64)
            arrays.append(array.reshape(graph.values[name].shape))
        last = arrays[0] if node.op == "Cast" else np.asarray(OPS[node.op].evaluate(arrays, dict(node.attrs)))
        memory = {**memory, node.output: last}
    channels = value.shape[1] * value.shape[2]
    return last.reshape(value.shape[0], channels, -1)[0, :, 0]
