"""JAX: `jit` through XLA for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from experiments.benchmarks.case import Case
from experiments.benchmarks.peers.base import Runner, as_tuple


class Words:
    """The operators of the workloads in JAX."""

    exp, log, tanh, sqrt, abs = (staticmethod(f) for f in (jnp.exp, jnp.log, jnp.tanh, jnp.sqrt, jnp.abs))
    relu, sigmoid, silu, matmul = (staticmethod(f) for f in (jax.nn.relu, jax.nn.sigmoid, jax.nn.silu, jnp.matmul))

    def clip(self, x: Any, low: float, high: float) -> Any:
        return jnp.clip(x, low, high)

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def gelu_tanh(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=True)

    def softmax(self, x: Any) -> Any:
        return jax.nn.softmax(x, -1)

    def layer_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        d = x - x.mean(-1, keepdims=True)
        return d * lax.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + bias

    def rms_norm(self, x: Any, scale: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def batch_norm(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        factor = scale * lax.rsqrt(variance + 1e-5)
        return x * factor[:, None, None] + (bias - mean * factor)[:, None, None]

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis)

    def mean_all(self, x: Any) -> Any:
        return x.mean()

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return jnp.concatenate(tuple(parts), axis)

    def cut(self, x: Any, axis: int, start: int, stop: int) -> Any:
        return lax.slice_in_dim(x, start, stop, axis=axis)

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        return x.transpose(tuple(order))

    def contiguous(self, x: Any) -> Any:
        return x

    def pad(self, x: Any, width: int) -> Any:
        return jnp.pad(x, width)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return x.reshape(tuple(shape))

    def conv(self, x: Any, weight: Any, bias: Any, *, pad: int, groups: int = 1) -> Any:
        made = lax.conv_general_dilated(
            x, weight, (1, 1), [(pad, pad)] * 2, dimension_numbers=("NCHW", "OIHW", "NCHW"), feature_group_count=groups
        )
        return made + bias[:, None, None]


class Library:
    """Jitted; results are waited for."""

    version = jax.__version__

    def __init__(self, threads: int) -> None:
        del threads  # XLA takes the processors that the process may use
        jax.config.update("jax_platforms", "cpu")

    def prepare(self, case: Case) -> Runner | str:
        if case.form is None:
            return "takes no ONNX models"
        form, words = case.form, Words()
        inputs = [jax.device_put(array) for array in case.operands]
        function = jax.jit(lambda *arrays: form(words, *arrays))
        return Runner(
            lambda: jax.block_until_ready(function(*inputs)),
            arrays=lambda results: [np.asarray(r) for r in as_tuple(results)],
        )
