"""The standard's own backend suite, compiled serially; a hundred of its node tests again with every kernel cut into tasks."""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import numba
import pytest
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from fusion_search.runtime import steps
from fusion_search.testing.backend import EXCLUDED, TOLERANCES, FusionSearchBackend, survey

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
def test_most_node_tests_run_wholly_in_kernels() -> None:
    found = list(survey())
    assert len(found) == len([test for test in load_model_tests(kind="node") if test.model is not None])
    whole = [finding for finding in found if finding.kernels and not finding.calls]
    assert len(whole) >= 1100
