"""Operators that the reference evaluator of the ``onnx`` package computes otherwise than the standard says.

Handed to it as ``new_ops``, so that a model of an old operator set, or with LRN, has a reference that can be trusted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from fusion_search.ir.spec import Array


class LRN(OpRun):
    """Local response normalisation; the package's own runs over the batch where it should run over the channels."""

    op_domain = ""

    def _run(self, x: Array, alpha: Any = None, beta: Any = None, bias: Any = None, size: Any = None) -> tuple[Array]:
        channels, below, above = x.shape[1], (size - 1) // 2, math.ceil((size - 1) / 2)
        squares = np.stack([(x[:, max(0, c - below) : c + above + 1] ** 2).sum(axis=1) for c in range(channels)], axis=1)
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


def _rows(operator: OpRun, x: Array, axis: Any) -> Array:
    # The package fills in the default of the newest operator set, which is another one.
    given = any(attribute.name == "axis" for attribute in operator.onnx_node.attribute)
    axis = axis % max(x.ndim, 1) if given else 1
    return x.reshape(math.prod(x.shape[:axis]), -1) if x.size else x


class Softmax(OpRun):
    """Before operator set 13: over all axes from `axis` on, 1 by default; the package's own takes the last axis alone."""

    op_domain = ""

    def _run(self, x: Array, axis: Any = None) -> tuple[Array]:
        rows = _rows(self, x, axis)
        powers = np.exp(rows - rows.max(axis=-1, keepdims=True)) if x.size else rows
        return ((powers / powers.sum(axis=-1, keepdims=True)).astype(x.dtype).reshape(x.shape) if x.size else x,)


class LogSoftmax(OpRun):
    """Before operator set 13, as `Softmax`."""

    op_domain = ""

    def _run(self, x: Array, axis: Any = None) -> tuple[Array]:
        rows = _rows(self, x, axis)
        if not x.size:
            return (x,)
        shifted = rows - rows.max(axis=-1, keepdims=True)
        return ((shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))).astype(x.dtype).reshape(x.shape),)


class BatchNormalization(OpRun):
    """Before operator set 14, with one output: inference; the package's own updates the statistics as in training."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: Any = None, **_: Any) -> tuple[Array]:
        scale, bias, mean, var = (a.reshape(-1, *(1,) * (x.ndim - 2)) for a in (scale, bias, mean, var))
        return ((scale * (x - mean) / np.sqrt(var + np.asarray(1e-5 if epsilon is None else epsilon, x.dtype)) + bias).astype(x.dtype),)


def corrections(opset: int) -> list[type[OpRun]]:
    """Return the operators to replace in a model of this operator set."""
    return [LRN, *([Softmax, LogSoftmax] if opset < 13 else []), *([BatchNormalization] if opset < 14 else [])]
