"""OpenVINO on the CPU, held to float32, tuned for latency."""

from __future__ import annotations

from typing import Any

import openvino as ov

from experiments.benchmarks.case import Case
from experiments.benchmarks.peers.base import Runner


class Library:
    """A compiled model a case; an inference request keeps its outputs from run to run."""

    version = ov.__version__.split("-")[0]

    def __init__(self, threads: int) -> None:
        self._core = ov.Core()
        self._settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}

    def prepare(self, case: Case) -> Runner | str:
        model = self._core.read_model(case.model.SerializeToString())
        compiled = self._core.compile_model(model, "CPU", self._settings)
        request = compiled.create_infer_request()
        feeds, count = list(case.feeds.values()), len(case.output_names)

        def preallocated() -> Any:
            request.infer(feeds, share_inputs=True, share_outputs=True)
            return request

        def fresh() -> Any:
            found = request.infer(feeds, share_inputs=True, share_outputs=False)
            return tuple(found[k] for k in range(count))

        def arrays(results: Any) -> Any:
            return results if isinstance(results, tuple) else [request.get_output_tensor(k).data.copy() for k in range(count)]

        return Runner(fresh, preallocated, arrays)
