"""The public tree: one base, a hint everywhere, one line always."""

from __future__ import annotations

import pickle

import pytest

from fusion_search import errors

SUBCLASSES = [
    errors.ModelError,
    errors.ProfileError,
    errors.PlanError,
    errors.FeedError,
    errors.UsageError,
    errors.UnsupportedError,
]


@pytest.mark.parametrize("kind", SUBCLASSES)
def test_every_error_is_one_of_the_tree(kind: type[errors.FusionSearchError]) -> None:
    error = kind("no node 'a\nb'", where="model.onnx", hint="try 'c'")
    assert isinstance(error, errors.FusionSearchError)
    assert str(error) == "model.onnx: no node 'a b' (try 'c')"
    assert error.hint == "try 'c'"
    assert kind("what").hint == ""
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
