"""The short way through a run: taken when it can be, with the same results and the same promises as the long one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fusion_search.errors import FeedError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.ports import READABLE, ports_of
from fusion_search.runtime.program import BoundPlan
from tests.frontends.modeling import random
from tests.runtime.plans import Array, classifier, classify, compiled

X = random((4, 6))
Change = Callable[[Array], object]


def two_results() -> BoundPlan:
    b = GraphBuilder("two")
    x = b.input("x", np.float32, (4, 6))
    b.output("y", b.op("Exp", x))
    b.output("z", b.reshape(b.op("Tanh", x), (2, 12)))
    graph = b.build()
    return BoundPlan(graph, [[n.name for n in graph.nodes]])


def right(got: dict[str, Array] | None, x: Array = X) -> bool:
    assert got is not None
    assert list(got) == ["y", "z"]
    assert got["z"].shape == (2, 12)
    return np.allclose(got["y"], np.exp(x), rtol=1e-6) and np.allclose(got["z"].reshape(4, 6), np.tanh(x), rtol=1e-5)


def test_arrays_of_this_interpreter_are_readable() -> None:
    assert READABLE


def test_plain_arrays_go_the_short_way() -> None:
    run = two_results()
    assert run.express is not None
    y, z = np.zeros((4, 6), np.float32), np.zeros((2, 12), np.float32)
    for out in (None, {}, {"z": z}, {"y": y}, {"y": y, "z": z}):
        got = run.express({"x": X}, out)
        assert right(got)
        assert all(got[name] is array for name, array in (out or {}).items())  # type: ignore[index]


def test_results_start_where_a_cache_line_does() -> None:
    run = two_results()
    held = [run({"x": X}) for _ in range(5)]
    assert not {array.ctypes.data % 64 for got in held for array in got.values()} - {0}


@pytest.mark.parametrize(
    ("feeds", "out"),
    [
        ({"x": X.tolist()}, None),
        ({"x": X.astype(np.float64)}, None),
        ({"x": X.astype(">f4")}, None),
        ({"x": np.asfortranarray(X)}, None),
        ({"x": X.reshape(6, 4)}, None),
        ({"x": X.reshape(24)}, None),
        ({"x": np.ma.masked_array(X)}, None),
        ({}, None),
        ({"w": X}, None),
        ({"x": X, "w": X}, None),
        ([("x", X)], None),
        ({"x": X}, {"q": np.zeros((4, 6), np.float32)}),
        ({"x": X}, {"y": None}),
        ({"x": X}, {"y": np.zeros((4, 6))}),
        ({"x": X}, {"y": np.zeros((6, 4), np.float32).T}),
        ({"x": X}, [X]),
    ],
)
def test_whatever_needs_a_closer_look_is_left_to_the_long_way(feeds: Any, out: Any) -> None:
    run = two_results()
    assert run.express is not None
    assert run.express(feeds, out) is None


def test_overlap_and_what_is_read_only_are_seen_before_anything_is_written() -> None:
    run = two_results()
    memory = np.zeros(64, np.float32)
    x, y, z = memory[:24].reshape(4, 6), memory[20:44].reshape(4, 6), memory[40:].reshape(2, 12)
    fixed = memory[40:].reshape(2, 12)
    fixed.flags.writeable = False
    for out in ({"y": y}, {"y": y, "z": z}, {"z": fixed}):
        with pytest.raises(FeedError):
            run({"x": x}, out)
    assert not memory.any()
    run({"x": x}, {"z": z})
    assert right(run({"x": x}), np.zeros((4, 6), np.float32))


@pytest.mark.parametrize(
    "change",
    [
        lambda array: setattr(array, "shape", (24,)),
        lambda array: setattr(array, "dtype", np.int32),
        lambda array: array.setflags(write=False),
        lambda array: None,
    ],
    ids=["shape", "dtype", "flags", "nothing"],
)
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_what_a_holder_does_to_an_array_is_gone_with_it(change: Change, long: bool) -> None:
    run = two_results()
    feeds = {"x": np.asfortranarray(X) if long else X}
    for _ in range(4):
        got = run(feeds)
        assert right(got)
        for array in got.values():
            change(array)
        del got, array


def test_a_result_that_is_watched_is_not_written_again() -> None:
    run = two_results()
    got = run({"x": X})
    watched = weakref.ref(got["y"])
    del got
    run({"x": X + 1})
    again = watched()
    assert again is None or np.allclose(again, np.exp(X), rtol=1e-6)


def test_elements_that_are_held_by_a_view_alone_stay() -> None:
    run = two_results()
    views = [run({"x": X + k})["z"].T[3:5] for k in range(4)]
    for k, view in enumerate(views):
        np.testing.assert_allclose(view, np.tanh(X + k).reshape(2, 12).T[3:5], rtol=1e-5)


def test_shapes_that_take_turns() -> None:
    run = compiled(classifier(), {"batch": 8})
    for k in range(12):
        x = random(((8, 3, 8, 1)[k % 4], 24), k)
        np.testing.assert_allclose(run({"x": x})["y"], classify(x), rtol=1e-5, atol=1e-6)


def test_an_index_outside_is_told_on_the_short_way_too() -> None:
    b = GraphBuilder("gather")
    b.output("y", b.op("Gather", b.input("x", np.float32, (4, 6)), b.input("i", np.int64, (3,)), axis=0))
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    assert run.express is not None
    for _ in range(2):
        with pytest.raises(FeedError, match="an index is outside"):
            run.express({"x": X, "i": np.array([0, 4, 1])}, None)
        got = run.express({"x": X, "i": np.array([0, 3, -1])}, None)
        assert got is not None
        np.testing.assert_array_equal(got["y"], X[[0, 3, -1]])


def test_outputs_that_are_no_arrays_of_their_own_have_no_short_way() -> None:
    b = GraphBuilder("same")
    x = b.input("x", np.float32, (4, 6))
    y = b.op("Exp", x)
    for name in ("y", "z"):
        b.output(name, y)
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    assert run.express is None
    got = run({"x": X})
    assert not np.shares_memory(got["y"], got["z"])


def test_ports_keep_what_their_table_refers_to() -> None:
    graph = two_results().graph
    ports = ports_of(graph.inputs, graph.outputs)
    assert ports.count == 3
    assert ports.table[:, 1].tolist() == [id(value.dtype) for value in ports.values]
    assert ports.table[:, -1].tolist() == [0, 1, 1]
