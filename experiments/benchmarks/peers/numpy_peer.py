"""NumPy: one operator after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from experiments.benchmarks.case import Array, Case
from experiments.benchmarks.peers.base import Runner

_F = np.float32


class Words:
    """The operators of the workloads in NumPy."""

    exp, log, tanh, sqrt, abs = (staticmethod(f) for f in (np.exp, np.log, np.tanh, np.sqrt, np.abs))

    def relu(self, x: Array) -> Any:
        return np.maximum(x, _F(0))

    def sigmoid(self, x: Array) -> Any:
        return _F(1) / (_F(1) + np.exp(-x))

    def clip(self, x: Array, low: float, high: float) -> Any:
        return np.clip(x, _F(low), _F(high))

    def silu(self, x: Array) -> Any:
        return x * self.sigmoid(x)

    def gelu(self, x: Array) -> Any:
        return _F(0.5) * x * (_F(1) + special.erf(x * _F(0.5**0.5)))

    def gelu_tanh(self, x: Array) -> Any:
        return _F(0.5) * x * (_F(1) + np.tanh(_F((2 / np.pi) ** 0.5) * (x + _F(0.044715) * x * x * x)))

    def softmax(self, x: Array) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layer_norm(self, x: Array, scale: Array, bias: Array) -> Any:
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + _F(1e-5)) * scale + bias

    def rms_norm(self, x: Array, scale: Array) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + _F(1e-5)) * scale

    def batch_norm(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
        factor = scale / np.sqrt(variance + _F(1e-5))
        return x * factor[:, None, None] + (bias - mean * factor)[:, None, None]

    def sum(self, x: Array, axis: int) -> Any:
        return x.sum(axis)

    def mean_all(self, x: Array) -> Any:
        return x.mean()

    def concat(self, parts: Sequence[Array], axis: int) -> Any:
        return np.concatenate(parts, axis)

    def cut(self, x: Array, axis: int, start: int, stop: int) -> Any:
        at = [slice(None)] * x.ndim
        at[axis] = slice(start, stop)
        return x[tuple(at)]

    def permute(self, x: Array, order: Sequence[int]) -> Any:
        return x.transpose(order)

    def contiguous(self, x: Array) -> Any:
        return np.ascontiguousarray(x)

    def pad(self, x: Array, width: int) -> Any:
        return np.pad(x, width)

    def matmul(self, a: Array, b: Array) -> Any:
        return a @ b

    def reshape(self, x: Array, shape: Sequence[int]) -> Any:
        return np.reshape(x, tuple(shape))

    def conv(self, x: Array, weight: Array, bias: Array, *, pad: int, groups: int = 1) -> Any:
        size = weight.shape[-1]
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        patches = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
        if groups == 1:
            _, channels, height, width = patches.shape[:4]
            columns = patches.transpose(0, 1, 4, 5, 2, 3).reshape(x.shape[0], channels * size * size, height * width)
            made = (weight.reshape(len(weight), -1) @ columns).reshape(x.shape[0], len(weight), height, width)
        else:
            made = np.einsum("nchwij,cij->nchw", patches, weight[:, 0])
        return made + bias[:, None, None]


class Library:
    """NumPy as people write it: every operator makes a new array."""

    version = np.__version__

    def __init__(self, threads: int) -> None:
        del threads  # its BLAS takes the process's

    def prepare(self, case: Case) -> Runner | str:
        if case.form is None:
            return "takes no ONNX models"
        form: Any = case.form
        words, inputs = Words(), case.operands
        return Runner(lambda: form(words, *inputs))
