"""Errors print as one line and survive a trip to another process."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware_profiles.errors import HintedError, ProfileError, one_line


def test_parts_in_order() -> None:
    assert str(HintedError("what")) == "what"
    assert str(HintedError("what", where="file.toml: key")) == "file.toml: key: what"
    assert str(HintedError("what", hint="try this")) == "what (try this)"
    assert str(HintedError("what", where="place", hint="try this")) == "place: what (try this)"


def test_pickle_keeps_all_parts() -> None:
    error = pickle.loads(pickle.dumps(ProfileError("what", where="place", hint="try this")))
    assert type(error) is ProfileError
    assert (error.what, error.where, error.hint, str(error)) == ("what", "place", "try this", "place: what (try this)")


@pytest.mark.parametrize(
    ("text", "line"), [("a\n  b", "a b"), ("a\tb", "a b"), ("a\x1b[0m", "a\\x1b[0m"), ("a\u2028b", "a b"), ("é  x", "é  x")]
)
def test_one_line(text: str, line: str) -> None:
    assert one_line(text) == line


@settings(derandomize=True)
@given(st.text())
def test_any_text_is_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert one_line(line) == line.strip()
