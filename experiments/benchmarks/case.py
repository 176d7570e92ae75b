"""What is measured: a model, its inputs, and what it must move and compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

Array = np.ndarray[Any, Any]
#: A workload in any library: takes a language and the inputs, gives one output or a tuple of them.
Form = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    Attributes
    ----------
    name : str
    family : str
        ``chain``, ``pointwise``, ``softmax``, ``norm``, ``reduction``, ``layout``, ``product``, ``convolution`` or ``attention``; for whole
        models ``transformer``, ``pointwise`` or ``convolutional``.
    model : onnx.ModelProto
        What is computed; it says nothing about how.
    feeds : mapping of str to numpy.ndarray
        In the order of the model's inputs.
    form : callable, optional
        The same in the words of a library: ``form(language, *operands)``. None for a model that came as a file.
    weights : mapping of str to numpy.ndarray
        What the model holds as initialisers; a form takes them after the feeds.
    nbytes : int
        Bytes of inputs and outputs, each once; 0 where it says nothing.
    flops : int
        Of products and convolutions; 0 elsewhere.
    bound : str
        ``memory`` when its arrays fill a last cache of 32 MiB and its arithmetic is cheap, so that it should run at the speed of
        memory; ``cache`` when they do not; ``compute`` when products or special functions take longer than the traffic.
    rtol, atol : float
        Tolerance of the comparison, relative to each element and to the output's largest magnitude.
    whole_model : bool
        A whole network rather than one workload.
    """

    name: str
    family: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    form: Form | None = None
    weights: Mapping[str, Array] = field(default_factory=dict)
    nbytes: int = 0
    flops: int = 0
    bound: str = "compute"
    rtol: float = 1e-4
    atol: float = 1e-5
    whole_model: bool = False

    @property
    def operands(self) -> list[Array]:
        """What a form takes: inputs, then weights."""
        return [*self.feeds.values(), *self.weights.values()]

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs, in order."""
        return [value.name for value in self.model.graph.output]


class NotInLanguage(Exception):
    """A library has no word for an operator, so the workload does not apply to it."""
