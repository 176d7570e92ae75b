"""The standard's own backend suite, compiled serially; a hundred of its node tests again with every kernel cut into tasks."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import onnx
import pytest
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

from fusion_search.runtime import steps
from fusion_search.testing.backend import EXCLUDED, TOLERANCES, WHOLE, FusionSearchBackend, survey

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _suite = BackendTest(FusionSearchBackend, __name__, test_kwargs=TOLERANCES)
for _pattern in EXCLUDED:
    _suite.exclude(_pattern)
_cases: dict[str, type[unittest.TestCase]] = {name: pytest.mark.filterwarnings("ignore")(case) for name, case in _suite.test_cases.items()}
for _case in _cases.values():
    for _name in [name for name in dir(_case) if name.endswith("_cuda")]:
        delattr(_case, _name)


@pytest.fixture(autouse=True)
def _serial() -> Iterator[None]:
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    yield
    numba.set_num_threads(threads)


globals().update(_cases)


def _sample() -> list[str]:
    names = sorted(name for name in dir(_cases["OnnxBackendNodeModelTest"]) if name.startswith("test_"))
    kept = [name for name in names if not any(pattern in name for pattern in EXCLUDED)]
    return kept[:: len(kept) // 100][:100]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _sample())
def test_in_parallel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "SERIAL_NS", 0.0)
    monkeypatch.setattr(steps, "TASK_NS", 200.0)
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    result: Any = unittest.TestResult()
    _cases["OnnxBackendNodeModelTest"](name).run(result)
    assert not result.errors, result.errors[0][1]
    assert not result.failures, result.failures[0][1]


@pytest.mark.filterwarnings("ignore")
def test_node_tests_run_wholly_in_kernels_but_for_operators_named_with_a_reason() -> None:
    found = list(survey())
    assert len(found) == len([test for test in load_model_tests(kind="node") if test.model is not None])
    whole = [finding for finding in found if finding.kernels and not finding.calls]
    assert len(whole) >= 1600
    called = {call.split("/")[0] for finding in found for call in finding.calls}
    assert called == set(WHOLE)


@pytest.mark.filterwarnings("ignore")
def test_what_is_excluded_is_random_or_fails_with_the_reference_evaluator_too() -> None:
    tests = [test for kind in ("node", "simple") for test in load_model_tests(kind=kind)]
    for pattern, reason in EXCLUDED.items():
        named = [test for test in tests if pattern in test.name]
        assert named, pattern
        assert "random" in reason or all(map(_fails, named)), pattern


def _fails(test: Any) -> bool:
    """Whether the standard's own evaluator does not give what a test expects."""
    model = test.model if test.model is not None else onnx.load(Path(test.model_dir) / "model.onnx")
    try:
        evaluator = ReferenceEvaluator(model)
        inputs, expected = test.data_sets[0]
        results = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=False)))
        Runner.assert_similar_outputs(expected, results, 1e-3, 1e-7, "")
    except Exception:  # noqa: BLE001  it has no one kind of error
        return True
    return False
