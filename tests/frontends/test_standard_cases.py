"""The standard's own test cases: one small model for every operator and most of its attributes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from fusion_search.errors import FusionSearchError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.verify import verify_graph
from fusion_search.passes import run_passes

#: Random numbers; a Scan that the reference evaluator does not run; sizes that are no integers under align_corners, where the
#: runtimes and the reference evaluator differ (rounded here, as in the runtimes).
DIFFERENT = (
    "bernoulli",
    "test_scan_sum",
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
)


@cache
def cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.model is not None]


def array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def extents(model: onnx.ModelProto, values: list[Any]) -> Iterator[tuple[str, int]]:
    for info, value in zip(model.graph.input, values, strict=False):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                yield dim.dim_param or f"{info.name}_dim{axis}", value.shape[axis]


def freeze(model: onnx.ModelProto, values: list[Any]) -> int:
    """Make initialisers of all inputs but the first; return how many inputs are left."""
    if len(model.graph.input) != len(values):
        return len(values)
    for value in values[1:]:
        if not isinstance(value, np.ndarray | np.generic) or np.asarray(value).dtype == object:
            return len(values)
    for info, value in list(zip(model.graph.input, values, strict=True))[1:]:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
        model.graph.input.remove(info)
    return min(1, len(values))


def differs(got: Any, want: Any) -> bool:
    if not isinstance(want, np.ndarray) or want.dtype == object:
        return False  # strings, sequences and optionals only have to run
    if got.dtype != want.dtype or got.shape != want.shape:
        return True
    if want.dtype.kind in "fV":
        tolerance = 1e-3 if want.dtype.itemsize > 2 else 2e-2
        with np.errstate(all="ignore"):
            return not np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance / 100, equal_nan=True)
    return not np.array_equal(got, want)


@pytest.mark.parametrize("frozen", [False, True], ids=["as inputs", "as constants"])
@pytest.mark.filterwarnings("ignore")
def test_standard_cases(frozen: bool) -> None:
    failures = []
    for case in cases():
        if any(text in case.name for text in DIFFERENT):
            continue
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        if max([entry.version for entry in model.opset_import if not entry.domain] or [7]) < 7:
            continue
        values = [array(value) for value in case.data_sets[0][0]]
        if frozen:
            values = values[: freeze(model, values)]
        feeds = {info.name: value for info, value in zip(model.graph.input, values, strict=False)}
        want = {info.name: array(value) for info, value in zip(model.graph.output, case.data_sets[0][1], strict=True)}
        try:
            graph = load_onnx(model, dict(extents(model, values)))
            verify_graph(graph)
            got = evaluate(run_passes(graph), feeds)
        except FusionSearchError as error:
            failures.append(f"{case.name}: {error}")
            continue
        failures += [f"{case.name}: {name} differs" for name in want if differs(got[name], want[name])]
    assert not failures, "\n".join(failures)
    assert len(cases()) > 1000
