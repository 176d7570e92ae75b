"""The standard's own backend suite run through this project: a backend, what is left out of the suite and why, and a survey.

``python -m fusion_search.testing.backend`` says how many of the suite's node tests run wholly in generated kernels and lists,
by operator, the tests in which something is called as a whole instead.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numba
import onnx
from onnx import numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType
from onnx.backend.test.loader import load_model_tests

from fusion_search import api
from fusion_search.errors import FusionSearchError
from fusion_search.frontends.onnx import load_for_feeds
from fusion_search.frontends.onnx.binding import input_shapes
from fusion_search.frontends.onnx.reader import read_model
from fusion_search.passes import run_passes
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.steps import CallStep, make_steps
from fusion_search.search.plan import Plan

#: Tests that no implementation can be held to, or that need what is not installed here: pattern of the name and reason.
EXCLUDED: dict[str, str] = {
    "test_bernoulli": "draws random numbers, which no seed makes the same in two implementations",
    "test_scan_sum": "a Scan whose optional operand is left out: the reference evaluator does not support it",
    "test_if_opt": "the expected output lacks one level of the sequence that the model returns, in the reference evaluator too",
    "test_loop16_seq_none": "the suite's runner cannot compare a sequence that holds a scalar, from the reference evaluator neither",
    "test_gradient_of_add": "Gradient differentiates a graph: the reference evaluator has no implementation of it",
}


#: Operators that the suite's tests leave to calls of the whole operator, and why: all others must run in generated kernels.
WHOLE: dict[str, str] = {
    **dict.fromkeys(("If", "Loop", "Scan"), "control flow whose course is known only when it runs"),
    **dict.fromkeys(("SequenceMap", "SequenceEmpty", "SequenceInsert", "SequenceLength", "SequenceConstruct"), "sequences fed or returned"),
    **dict.fromkeys(("OptionalGetElement", "OptionalHasElement"), "optionals"),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), "recurrent networks"),
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "LabelEncoder"), "strings"),
    **dict.fromkeys(("NonZero", "NonMaxSuppression", "Unique"), "results whose extents depend on data"),
    **dict.fromkeys(("Bernoulli", "Dropout", "RandomUniformLike"), "random numbers"),
    "TopK": "a sort",
    "ImageDecoder": "a decoder of files",
    "TreeEnsemble": "a walk through trees",
    "DFT": "the complex inverse alone, whose zeros the suite compares with a float32 transform's own rounding",
    "Equal": "strings",
    "Cast": "a value that a Loop returns: its shape is known only when it runs",
}

#: How long one test's plan is searched for: what counts here are the results of plans, not their certificates.
SEARCH_S = 1.0

#: Tests with another tolerance than the suite's, and why.
TOLERANCES: dict[str, dict[str, float]] = {
    # Softmax computes in float32 inside and rounds once, where the expected output rounds every step to float16: two units of the
    # last place, 0.1 per cent, are more than the suite's tolerance
    "test_attention_4d_causal_fp16_expanded": {"rtol": 2e-3},
}


class PlannedModel(BackendRep):
    """A model that is planned for the extents, and the elements of axes and the like, that it is fed first, and then runs on any.

    Parameters
    ----------
    model : onnx.ModelProto
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._names = list(input_shapes(read_model(model)))
        self._all = [value.name for value in model.graph.input]
        self._outputs = [value.name for value in model.graph.output]
        self._compiled: CompiledPlan | None = None

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model on a list of inputs in its own order, or a mapping by name."""
        feeds = dict(inputs) if isinstance(inputs, Mapping) else self._named(inputs)
        if self._compiled is None:
            self._compiled = CompiledPlan(plan_for_feeds(self.model, feeds))
        results = self._compiled(feeds)
        return tuple(results[name] for name in self._outputs)

    def _named(self, inputs: Any) -> dict[str, Any]:
        values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        return dict(zip(self._names if len(values) <= len(self._names) else self._all, values, strict=False))


class FusionSearchBackend(Backend):
    """Loads, plans (method ``exact``, profile ``local``, for a second at most), compiles and runs models for ``onnx.backend.test``."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PlannedModel:
        """Plan and compile a model."""
        return PlannedModel(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Only the CPU."""
        return bool(Device(device).type == DeviceType.CPU)


def plan_for_feeds(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Plan:
    """Load a model for what it will be fed, simplify it and plan it for this machine."""
    return api.search(run_passes(load_for_feeds(model, feeds)), api.load_profile("local"), time_limit_s=SEARCH_S)


# ---------------------------------------------------------------- the survey


@dataclass(frozen=True, slots=True)
class Finding:
    """How one test runs.

    Attributes
    ----------
    name : str
    kernels : int
        Steps that are generated kernels.
    calls : tuple of str
        The model's operators of the steps that are called as a whole instead, each as ``origin/core``.
    error : str
        Why the model could not be planned.
    bound : bool
        Whether inputs like axes or extents were bound to their elements.
    """

    name: str
    kernels: int
    calls: tuple[str, ...] = ()
    error: str = ""
    bound: bool = False


def survey(kind: str = "node") -> Iterator[Finding]:
    """Load every test of one kind and say of what steps it consists, node by node; nothing is searched or compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind=kind)
        for test in tests:
            if test.model is not None:
                yield _finding(test)


def _finding(test: Any) -> Finding:
    values = [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in test.data_sets[0][0]]
    try:
        names = input_shapes(read_model(test.model))
        graph = run_passes(load_for_feeds(test.model, dict(zip(names, values, strict=False))))
        # a group of a plan for this machine is one kernel wherever each of its nodes is
        steps = make_steps(graph, [[node.name] for node in graph.nodes], int(numba.get_num_threads()))
    except FusionSearchError as error:
        return Finding(test.name, 0, error=str(error))
    calls = tuple(f"{s.node.origin_op}/{s.node.op}" for s in steps if isinstance(s, CallStep))
    return Finding(test.name, len(steps) - len(calls), calls, bound=bool(graph.source and graph.source.values))


def main() -> int:
    """Print how the suite's node tests run."""
    found = list(survey())
    write = sys.stdout.write
    by_operator: dict[str, list[str]] = {}
    for finding in found:
        for call in dict.fromkeys(finding.calls):
            by_operator.setdefault(call, []).append(finding.name)
    for call, names in sorted(by_operator.items(), key=lambda item: (-len(item[1]), item[0])):
        write(f"{len(names):5d}  {call}: {', '.join(names)}\n")
    for finding in found:
        if finding.error:
            write(f"       {finding.name}: {finding.error}\n")
    counts = Counter("error" if f.error else "calls" if f.calls else "kernels" if f.kernels else "nothing" for f in found)
    write(
        f"{len(found)} node tests: {counts['kernels']} wholly in generated kernels, {counts['nothing']} with nothing to compute (views and "
        f"constants), {counts['calls']} with a call of a whole operator, {counts['error']} that cannot be planned\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
