"""The workloads: each written once, in the words that every library has a language for.

They are the fusion workloads of language models, vision networks and optimisers at the sizes where one thing decides: the caches
(2^16 elements), the edge of the last cache (2^22) or memory (2^24), or the multipliers (products and convolutions).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.benchmarks.case import Array, Case, Form
from experiments.benchmarks.onnx_language import to_model


@dataclass(frozen=True)
class Workload:
    """How to make a case: what it computes, on what, and what must reach memory.

    Attributes
    ----------
    form : callable
    shapes : mapping of str to shape
    family, bound : str
        As in :class:`Case`.
    outputs : int
        Elements of all outputs together.
    flops : int
    draw : callable, optional
        Makes one input from its name, shape and generator, where uniform values between -1 and 1 will not do.
    """

    form: Form
    shapes: dict[str, tuple[int, ...]]
    family: str
    bound: str
    outputs: int
    flops: int = 0
    draw: Callable[[str, tuple[int, ...], np.random.Generator], Array] | None = None

    def case(self, name: str, seed: int = 0) -> Case:
        """Make the model and its inputs."""
        rng = np.random.default_rng(seed)
        draw = self.draw or _uniform
        feeds = {key: np.ascontiguousarray(draw(key, shape, rng), np.float32) for key, shape in self.shapes.items()}
        nbytes = 4 * self.outputs + sum(array.nbytes for array in feeds.values())
        model = to_model(name, self.form, feeds)
        return Case(name, self.family, model, feeds, self.form, nbytes=nbytes, flops=self.flops, bound=self.bound)


def _uniform(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    del name
    return rng.uniform(-1, 1, shape).astype(np.float32)


# ---------------------------------------------------------------- pointwise


def chain(length: int) -> Form:
    """Make a chain of `length` operators on two inputs; values stay below 4 whatever the length."""

    def form(k: Any, x: Any, y: Any) -> Any:
        t = x
        for step in range(length):
            which = step % 4
            t = t * y if which == 0 else t + x if which == 1 else k.relu(t) if which == 2 else t * 0.75
        return t

    return form


def _mix(k: Any, x: Any) -> Any:
    return k.exp(-(x * x)) * k.tanh(x) + k.log(k.abs(x) + 1.0) * k.sigmoid(x)


def _log(k: Any, x: Any) -> Any:
    return k.log(x)


def _positive(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    del name
    return rng.uniform(0.1, 4, shape).astype(np.float32)


def _swiglu(k: Any, gate: Any, up: Any) -> Any:
    return k.silu(gate) * up


def _outer_exp(k: Any, column: Any, row: Any) -> Any:
    return k.exp(column + row)


def _eight(k: Any, x: Any) -> Any:
    return tuple(k.relu(x * (0.25 * n) + (0.5 - 0.125 * n)) for n in range(1, 9))


def _adam(k: Any, parameter: Any, gradient: Any, mean: Any, square: Any) -> Any:
    m = mean * 0.9 + gradient * 0.1
    v = square * 0.999 + gradient * gradient * 0.001
    return parameter - m * 10.0 * 1e-3 / (k.sqrt(v * 1000.0) + 1e-8), m, v


def _draw_adam(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    made = _uniform(name, shape, rng)
    return np.abs(made) * np.float32(0.01) if name == "square" else made


def _rope(k: Any, x: Any, cosine: Any, sine: Any) -> Any:
    half = k.cut(x, -1, 0, 32), k.cut(x, -1, 32, 64)
    return x * cosine + k.concat((-half[1], half[0]), -1) * sine


# ---------------------------------------------------------------- rows and columns


def _masked_softmax(k: Any, scores: Any, mask: Any) -> Any:
    return k.softmax(scores * 0.125 + mask)


def _layer_norm(k: Any, x: Any, residual: Any, scale: Any, bias: Any) -> Any:
    return k.layer_norm(x + residual, scale, bias)


def _rms_norm(k: Any, x: Any, residual: Any, scale: Any) -> Any:
    return k.rms_norm(x + residual, scale)


def _norm_relu(k: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    return k.relu(k.batch_norm(x, scale, bias, mean, variance))


def _draw_norm(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    return rng.uniform(0.5, 2, shape).astype(np.float32) if name == "variance" else _uniform(name, shape, rng)


def _column_sum(k: Any, x: Any) -> Any:
    return k.sum(k.relu(x * 1.5 + 0.5), 0)


def _mse(k: Any, a: Any, b: Any) -> Any:
    d = a - b
    return k.mean_all(d * d)


# ---------------------------------------------------------------- layout


def _transpose(k: Any, x: Any) -> Any:
    return k.contiguous(k.relu(k.permute(x, (1, 0)) * 2.0 + 1.0))


def _permute(k: Any, x: Any) -> Any:
    return k.contiguous(k.relu(k.permute(x, (0, 2, 3, 1))))


def _concat(k: Any, a: Any, b: Any, c: Any) -> Any:
    return k.relu(k.concat((a, b, c), 1))


def _slice_pad(k: Any, x: Any) -> Any:
    return k.pad(k.relu(k.cut(k.cut(x, 0, 1, 2047), 1, 1, 2047) * 2.0), 3)


# ---------------------------------------------------------------- products and windows


def _project_gelu(k: Any, a: Any, b: Any, bias: Any) -> Any:
    return k.gelu(k.matmul(a, b) + bias)


def _project_residual(k: Any, a: Any, b: Any, bias: Any, residual: Any) -> Any:
    return k.relu(k.matmul(a, b) + bias + residual)


def _qkv(k: Any, x: Any, q: Any, key: Any, value: Any) -> Any:
    return k.matmul(x, q), k.matmul(x, key), k.matmul(x, value)


def _attention(k: Any, q: Any, key: Any, value: Any, mask: Any) -> Any:
    return k.matmul(k.softmax(k.matmul(q, k.permute(key, (0, 1, 3, 2))) * 0.125 + mask), value)


def _draw_attention(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if name == "mask":
        return np.where(np.tril(np.ones(shape)) > 0, np.float32(0), np.float32(-1e9)).astype(np.float32)
    return _uniform(name, shape, rng)


def _small_weights(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    made = _uniform(name, shape, rng)
    return made * np.float32(0.05) if name in ("b", "q", "key", "value", "weight") else made


def _conv(k: Any, x: Any, weight: Any, bias: Any) -> Any:
    return k.relu(k.conv(x, weight, bias, pad=1))


def _conv_1x1(k: Any, x: Any, weight: Any, bias: Any) -> Any:
    return k.relu(k.conv(x, weight, bias, pad=0))


def _depthwise(k: Any, x: Any, weight: Any, bias: Any) -> Any:
    return k.clip(k.conv(x, weight, bias, pad=1, groups=144), 0.0, 6.0)


# ---------------------------------------------------------------- the table


def _unary(form: Form, draw: Any = None) -> Workload:
    n = 1 << 22
    return Workload(form, {"x": (n,)}, "pointwise", "compute", n, draw=draw)


def _chains() -> Iterator[tuple[str, Workload]]:
    for exponent, bound in ((24, "memory"), (16, "cache")):
        for length in (4, 8, 16, 32):
            n = 1 << exponent
            yield f"chain{length}_2p{exponent}", Workload(chain(length), {"x": (n,), "y": (n,)}, "chain", bound, n)


_ROWS = (4096, 1024)
_IMAGE = (8, 64, 112, 112)

WORKLOADS: dict[str, Workload] = {
    **dict(_chains()),
    "gelu_erf": _unary(lambda k, x: k.gelu(x)),
    "gelu_tanh": _unary(lambda k, x: k.gelu_tanh(x)),
    "silu": _unary(lambda k, x: k.silu(x)),
    "sigmoid": _unary(lambda k, x: k.sigmoid(x)),
    "tanh": _unary(lambda k, x: k.tanh(x)),
    "exp": _unary(lambda k, x: k.exp(x)),
    "log": _unary(_log, draw=_positive),
    "mix": _unary(_mix),
    "softmax_4096x1024": Workload(lambda k, x: k.softmax(x), {"x": _ROWS}, "softmax", "compute", math.prod(_ROWS)),
    "softmax_64x65536": Workload(lambda k, x: k.softmax(x), {"x": (64, 65536)}, "softmax", "compute", 1 << 22),
    "softmax_mask": Workload(_masked_softmax, {"scores": _ROWS, "mask": _ROWS}, "softmax", "compute", math.prod(_ROWS)),
    "layernorm": Workload(
        _layer_norm, {"x": _ROWS, "residual": _ROWS, "scale": (1024,), "bias": (1024,)}, "norm", "memory", math.prod(_ROWS)
    ),
    "rmsnorm": Workload(_rms_norm, {"x": _ROWS, "residual": _ROWS, "scale": (1024,)}, "norm", "memory", math.prod(_ROWS)),
    "bn_relu": Workload(
        _norm_relu,
        {"x": _IMAGE, "scale": (64,), "bias": (64,), "mean": (64,), "variance": (64,)},
        "pointwise", "memory", math.prod(_IMAGE), draw=_draw_norm,
    ),
    "colsum": Workload(_column_sum, {"x": (4096, 4096)}, "reduction", "memory", 4096),
    "mse": Workload(_mse, {"a": (1 << 24,), "b": (1 << 24,)}, "reduction", "memory", 1),
    "adam": Workload(
        _adam, dict.fromkeys(("parameter", "gradient", "mean", "square"), (1 << 22,)), "pointwise", "memory", 3 << 22, draw=_draw_adam
    ),
    "swiglu": Workload(_swiglu, dict.fromkeys(("gate", "up"), (1024, 11008)), "pointwise", "memory", 1024 * 11008),
    "rope": Workload(
        _rope, {"x": (1, 32, 1024, 64), "cosine": (1024, 64), "sine": (1024, 64)}, "pointwise", "cache", 32 * 1024 * 64
    ),
    "outer_exp": Workload(_outer_exp, {"column": (4096, 1), "row": (1, 4096)}, "pointwise", "memory", 1 << 24),
    "horiz8": Workload(_eight, {"x": (1 << 16,)}, "pointwise", "cache", 8 << 16),
    "transpose_ew": Workload(_transpose, {"x": (2048, 2048)}, "layout", "cache", 1 << 22),
    "permute_ew": Workload(_permute, {"x": (8, 64, 96, 96)}, "layout", "cache", 8 * 64 * 96 * 96),
    "concat_relu": Workload(_concat, dict.fromkeys("abc", (2048, 683)), "layout", "cache", 3 * 2048 * 683),
    "slice_pad": Workload(_slice_pad, {"x": (2048, 2048)}, "layout", "cache", 2052 * 2052),
    "gemm_bias_gelu": Workload(
        _project_gelu, {"a": (512, 768), "b": (768, 3072), "bias": (3072,)},
        "product", "compute", 512 * 3072, 2 * 512 * 768 * 3072, _small_weights,
    ),
    "gemm_bias_res_relu": Workload(
        _project_residual, {"a": (2048, 1024), "b": (1024, 1024), "bias": (1024,), "residual": (2048, 1024)},
        "product", "compute", 2048 * 1024, 2 * 2048 * 1024 * 1024, _small_weights,
    ),
    "qkv": Workload(
        _qkv, {"x": (512, 768), **dict.fromkeys(("q", "key", "value"), (768, 768))},
        "product", "compute", 3 * 512 * 768, 6 * 512 * 768 * 768, _small_weights,
    ),
    "conv3x3": Workload(
        _conv, {"x": (1, 64, 56, 56), "weight": (64, 64, 3, 3), "bias": (64,)},
        "convolution", "compute", 64 * 3136, 2 * 64 * 64 * 9 * 3136, _small_weights,
    ),
    "conv1x1": Workload(
        _conv_1x1, {"x": (1, 256, 56, 56), "weight": (64, 256, 1, 1), "bias": (64,)},
        "convolution", "compute", 64 * 3136, 2 * 64 * 256 * 3136, _small_weights,
    ),
    "dwconv": Workload(
        _depthwise, {"x": (1, 144, 56, 56), "weight": (144, 1, 3, 3), "bias": (144,)},
        "depthwise", "cache", 144 * 3136, 2 * 144 * 9 * 3136, _small_weights,
    ),
    "attention": Workload(
        _attention, {**dict.fromkeys(("q", "key", "value"), (1, 12, 512, 64)), "mask": (512, 512)},
        "attention", "compute", 12 * 512 * 64, 4 * 12 * 512 * 512 * 64, _draw_attention,
    ),
}  # fmt: skip


def cases(names: Sequence[str] | None = None, seed: int = 0) -> Iterator[Case]:
    """Make the cases, one at a time since some are large.

    Parameters
    ----------
    names : sequence of str, optional
        Keys of `WORKLOADS`; all by default.
    seed : int
        Of the inputs.
    """
    for name in WORKLOADS if names is None else names:
        yield WORKLOADS[name].case(name, seed)
