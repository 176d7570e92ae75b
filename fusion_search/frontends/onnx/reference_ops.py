"""Operators that the reference evaluator of the ``onnx`` package computes otherwise than the standard says.

Handed to it as ``new_ops``, so that a model of an old operator set, or with LRN, has a reference that can be trusted. Loops
also get limits: a model is untrusted, and a body that runs four billion times is no more than a few bytes of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as PackageLoop
from onnx.reference.ops.op_scan import Scan as PackageScan
from scipy import special

from fusion_search.errors import UnsupportedError
from fusion_search.ir.ops.maps import power
from fusion_search.ir.spec import Array

#: How long the iterations of one loop, with all loops inside it, may take.
LOOP_SECONDS = 8.0
#: Bytes that one loop may collect in its outputs.
LOOP_BYTES = 1 << 30
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def _limited() -> Iterator[None]:
    """Start the time of an outermost loop; a loop inside it has what is left."""
    if _deadline.get() is not None:
        yield
        return
    token = _deadline.set(time.monotonic() + LOOP_SECONDS)
    try:
        yield
    finally:
        _deadline.reset(token)


class _Iterating(OpRun):
    """An operator that runs a body again and again, under the limits of this module."""

    op_domain = ""
    _kind: str
    _run_body: Any

    def __init__(self, onnx_node: Any, run_params: Any) -> None:
        super().__init__(onnx_node, run_params)
        self._body: Any = getattr(self, "body")  # noqa: B009 - an attribute of the node, which no class declares
        self._inner = self._run_body
        self._run_body = self._timed
        self._count = self._collected = 0

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        end = _deadline.get()
        if end is not None and time.monotonic() > end:
            what = f"is still running after {LOOP_SECONDS:g} s and {self._count} iterations"
            raise UnsupportedError(f"{self._kind} {what}", hint="loops run in Python: make fewer iterations, or move them out of the model")
        self._count += 1
        results = self._inner(*args, **kwargs)
        self._collected += sum(getattr(result, "nbytes", 0) for result in results[self._first_collected() :])
        if self._collected > LOOP_BYTES:
            what = f"collects more than {LOOP_BYTES} bytes in {self._count} iterations"
            raise UnsupportedError(f"{self._kind} {what}", hint="make fewer iterations, or smaller outputs")
        return results

    def _first_collected(self) -> int:
        return 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run under the limits."""
        self._count = self._collected = 0
        with _limited():
            return super().run(*args, **kwargs)  # type: ignore[no-untyped-call]  # onnx has no types here


class Loop(_Iterating, PackageLoop):
    """The package's own takes a condition that is left out for false, and joins outputs of iterations where it should stack them."""

    _kind = "a Loop"

    def _first_collected(self) -> int:
        return 1 + self.N

    def _run(
        self, M: Any, cond: Any, *args: Any, context: Any = None, body: Any = None, attributes: Any = None, bindings: Any = None
    ) -> Any:
        names, results, made = self._body.input_names, self._body.output_names, self.output_index
        inputs = {**dict.fromkeys(names), **(context or {}), **dict(zip(names[2:], args, strict=False))}
        carried: list[Any] = [inputs[name] for name in names[2:]]
        collected: list[list[Any]] = [[] for _ in range(self.K)]
        step, go = 0, True if cond is None else bool(np.asarray(cond).all())
        most = math.inf if M is None else int(np.asarray(M).reshape(-1)[0])
        while go and step < most:
            inputs |= dict(zip(names, [np.asarray(step, np.int64), np.asarray(go), *carried], strict=True))
            outputs = self._run_body(inputs, attributes=attributes, bindings=bindings)
            go = bool(np.asarray(outputs[made[results[0]]]).all())
            carried = [outputs[made[name]] for name in results[1 : 1 + self.N]]
            for name, items in zip(results[1 + self.N :], collected, strict=True):
                items.append(outputs[made[name]])
            step += 1
        return self._check_and_fix_outputs((*carried, *(np.stack(items) if items else np.empty((0,), np.float32) for items in collected)))


class Scan(_Iterating, PackageScan):
    """The package's own, under the limits."""

    _kind = "a Scan"

    def _first_collected(self) -> int:
        return len(self.onnx_node.input) - int(getattr(self, "num_scan_inputs"))  # noqa: B009 - an attribute of the node


class Erf(OpRun):
    """The package's own rounds a float64 to float32."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(special.erf(x.astype(np.float64))).astype(x.dtype),)


class Gelu(OpRun):
    """The package's own goes by its `Erf`."""

    op_domain = ""

    def _run(self, x: Array, approximate: Any = None) -> tuple[Array]:
        wide = x.astype(np.float64)
        if approximate == "tanh":
            inner = np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
        else:
            inner = special.erf(wide / math.sqrt(2))
        return ((0.5 * wide * (1 + inner)).astype(x.dtype),)


class Pow(OpRun):
    """The package's own takes the root where the exponent is the number 0.5, which has other answers for -inf and -0."""

    op_domain = ""

    def _run(self, x: Array, y: Array) -> tuple[Array]:
        with np.errstate(all="ignore"):
            whole = x.dtype.kind in "iu" and y.dtype.kind not in "iu"  # computed in the exponent's type, then truncated
            return ((np.power if whole else power)(x, y).astype(x.dtype),)


class LRN(OpRun):
    """Local response normalisation; the package's own runs over the batch where it should run over the channels."""

    op_domain = ""

    def _run(self, x: Array, alpha: Any = None, beta: Any = None, bias: Any = None, size: Any = None) -> tuple[Array]:
        channels, below, above = x.shape[1], (size - 1) // 2, math.ceil((size - 1) / 2)
        squares = np.stack([(x[:, max(0, c - below) : c + above + 1] ** 2).sum(axis=1) for c in range(channels)], axis=1)
        alpha, beta, bias = float(alpha), float(beta), float(bias)  # the evaluator hands over float32
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
    always: list[Any] = [Loop, Scan, Erf, Gelu, Pow, LRN]
    return [*always, *([Softmax, LogSoftmax] if opset < 13 else []), *([BatchNormalization] if opset < 14 else [])]
