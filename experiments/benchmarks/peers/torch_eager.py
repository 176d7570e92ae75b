"""PyTorch in eager mode: one optimised kernel an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from experiments.benchmarks.case import Case
from experiments.benchmarks.peers.base import Runner, as_tuple


class Words:
    """The operators of the workloads in PyTorch, by the composite where it has one."""

    relu, exp, log, tanh, sigmoid, sqrt, abs = (
        staticmethod(f) for f in (torch.relu, torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.sqrt, torch.abs)
    )
    silu, gelu, matmul = staticmethod(F.silu), staticmethod(F.gelu), staticmethod(torch.matmul)

    def clip(self, x: Any, low: float, high: float) -> Any:
        return torch.clamp(x, low, high)

    def gelu_tanh(self, x: Any) -> Any:
        return F.gelu(x, approximate="tanh")

    def softmax(self, x: Any) -> Any:
        return F.softmax(x, -1)

    def layer_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        return F.layer_norm(x, scale.shape, scale, bias, 1e-5)

    def rms_norm(self, x: Any, scale: Any) -> Any:
        return F.rms_norm(x, scale.shape, scale, 1e-5)

    def batch_norm(self, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, 1e-5)

    def sum(self, x: Any, axis: int) -> Any:
        return x.sum(axis)

    def mean_all(self, x: Any) -> Any:
        return x.mean()

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return torch.cat(tuple(parts), axis)

    def cut(self, x: Any, axis: int, start: int, stop: int) -> Any:
        return x.narrow(axis, start, stop - start)

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        return x.permute(tuple(order))

    def contiguous(self, x: Any) -> Any:
        return x.contiguous()

    def pad(self, x: Any, width: int) -> Any:
        return F.pad(x, (width,) * 4)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        return x.reshape(tuple(shape))

    def conv(self, x: Any, weight: Any, bias: Any, *, pad: int, groups: int = 1) -> Any:
        return F.conv2d(x, weight, bias, padding=pad, groups=groups)


def runner(case: Case, wrap: Callable[[Any], Any]) -> Runner | str:
    """Make a runner of a case's form, compiled or not by `wrap`."""
    if case.form is None:
        return "takes no ONNX models"
    form, words = case.form, Words()
    inputs = [torch.from_numpy(array) for array in case.operands]
    function = wrap(lambda *tensors: form(words, *tensors))

    def fresh() -> Any:
        with torch.inference_mode():
            return function(*inputs)

    return Runner(fresh, arrays=lambda results: [t.numpy() for t in as_tuple(results)])


class Library:
    """Eager mode; the operators of the forms have no way to name their outputs."""

    version = torch.__version__

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def prepare(self, case: Case) -> Runner | str:
        return runner(case, lambda function: function)
