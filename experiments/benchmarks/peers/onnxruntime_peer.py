"""ONNX Runtime: all graph optimisations, the default CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from experiments.benchmarks.case import Case
from experiments.benchmarks.peers.base import Runner


class Library:
    """A session a case; with given outputs by its binding of inputs and outputs."""

    version = ort.__version__

    def __init__(self, threads: int) -> None:
        self._options = ort.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._options.log_severity_level = 3

    def prepare(self, case: Case) -> Runner | str:
        session = ort.InferenceSession(case.model.SerializeToString(), self._options, providers=["CPUExecutionProvider"])
        feeds, names = dict(case.feeds), case.output_names

        def fresh() -> Any:
            return tuple(session.run(names, feeds))

        outputs = [np.empty_like(result) for result in fresh()]
        binding = session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in zip(names, outputs, strict=True):
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

        def preallocated() -> Any:
            session.run_with_iobinding(binding)
            return tuple(outputs)

        return Runner(fresh, preallocated)
