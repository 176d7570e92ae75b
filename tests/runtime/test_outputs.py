"""``out=``: results in arrays that the caller brings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fusion_search.errors import FeedError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.program import BoundPlan
from tests.frontends.modeling import info, model, node, random
from tests.runtime.plans import Array, classifier, classify, compiled

X = random((8, 24))


def unaligned(nbytes: int = 320) -> Array:
    return np.zeros(nbytes + 1, np.uint8)[1:].view(np.float32).reshape(8, 10)


def read_only() -> Array:
    array = np.zeros((8, 10), np.float32)
    array.flags.writeable = False
    return array


def test_results_go_where_the_caller_says() -> None:
    run = compiled(classifier(), {"batch": 8})
    y = np.full((8, 10), np.nan, np.float32)
    got = run({"x": X}, out={"y": y})
    assert got["y"] is y
    np.testing.assert_array_equal(y, run({"x": X})["y"])
    np.testing.assert_allclose(y, classify(X), rtol=1e-5)
    wide = np.zeros((16, 10), np.float32)
    run({"x": random((3, 24))}, out={"y": wide[4:7]})
    np.testing.assert_allclose(wide[4:7], classify(random((3, 24))), rtol=1e-5)
    assert not wide[:4].any()
    assert not wide[7:].any()


@pytest.mark.parametrize(
    ("out", "line"),
    [
        (list, "out: expected a mapping from names to arrays, got list (the outputs are y)"),
        (lambda: {"z": np.zeros((8, 10), np.float32)}, "out: unknown name z (the outputs are y)"),
        (lambda: {"y": None}, "out: output 'y': expected an array, got NoneType"),
        (lambda: {"y": [[0.0]]}, "out: output 'y': expected an array, got list"),
        (lambda: {"y": np.zeros((8, 10))}, "out: output 'y': has dtype float64, expected float32"),
        (lambda: {"y": np.zeros((8, 10), ">f4")}, "out: output 'y': has dtype >f4, expected float32"),
        (lambda: {"y": np.zeros((8, 11), np.float32)}, "out: output 'y': has shape [8, 11], expected [8, 10]"),
        (lambda: {"y": np.zeros(80, np.float32)}, "out: output 'y': has shape [80], expected [8, 10]"),
        (lambda: {"y": np.zeros((10, 8), np.float32).T}, "out: output 'y': is not C-contiguous"),
        (lambda: {"y": np.zeros((8, 20), np.float32)[:, ::2]}, "out: output 'y': is not C-contiguous"),
        (lambda: {"y": unaligned()}, "out: output 'y': does not start at a multiple of 4 bytes"),
        (lambda: {"y": read_only()}, "out: output 'y': is read-only"),
    ],
)
def test_an_array_that_cannot_take_the_result_is_refused(out: Callable[[], object], line: str) -> None:
    run = compiled(classifier(), {"batch": 8})
    with pytest.raises(FeedError) as caught:
        run({"x": X}, out=out())  # type: ignore[arg-type]
    told, _, hint = str(caught.value).partition(" (make it with ")
    assert told == line
    assert not hint or hint == "numpy.empty([8, 10], 'float32'))"


def test_an_array_that_overlaps_an_input_or_another_result_is_refused() -> None:
    b = GraphBuilder("two")
    x = b.input("x", np.float32, (4, 6))
    b.output("y", b.op("Exp", x))
    b.output("z", b.op("Tanh", x))
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    memory = np.zeros(96, np.float32)
    fed = memory[:48].reshape(4, 12)[:, ::2]
    free = memory[48:72].reshape(4, 6)
    for clash in (memory[:24].reshape(4, 6), memory[40:64].reshape(4, 6)):
        with pytest.raises(FeedError, match="out: output 'y': shares memory with input 'x'"):
            run({"x": fed}, {"y": clash})
    with pytest.raises(FeedError, match="out: output 'z': shares memory with output 'y'"):
        run({"x": fed}, {"y": free, "z": memory[60:84].reshape(4, 6)})
    assert not memory.any()
    run({"x": fed}, {"y": free, "z": memory[72:].reshape(4, 6)})
    assert (free == 1).all()
    # between the elements of a strided input there is room that is nobody's
    one = GraphBuilder("one")
    one.output("y", one.op("Exp", one.input("x", np.float32, (2, 1))))
    small = one.build()
    strided = np.zeros(8, np.float32)
    got = BoundPlan(small, [[n.name for n in small.nodes]])({"x": strided[::4].reshape(2, 1)}, {"y": strided[1:3].reshape(2, 1)})
    assert strided.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    assert (got["y"] == 1).all()


@pytest.mark.parametrize(
    "named", [(), ("same",), ("r1",), ("r2",), ("r3",), ("r3", "r1"), ("flat", "weight"), ("same", "flat", "weight", "r1", "r2", "r3")]
)
def test_outputs_that_are_inputs_constants_or_one_value_under_names_are_copied_right(named: tuple[str, ...]) -> None:
    b = GraphBuilder("owned")
    x = b.input("x", np.float32, (4, 4))
    c = b.constant(random((4, 4), 1))
    r = b.op("Relu", x)
    for name, value in (("same", x), ("flat", b.reshape(x, (16,))), ("weight", c), ("r1", r), ("r2", r), ("r3", b.reshape(r, (2, 8)))):
        b.output(name, value)
    graph = b.build()
    run = BoundPlan(graph, [[n.name for n in graph.nodes]])
    fed, weight = random((4, 4)), random((4, 4), 1)
    kept = fed.copy()
    shapes = {value.name: value.shape for value in graph.outputs}
    out = {name: np.full(shapes[name], np.nan, np.float32) for name in named}
    got = run({"x": fed}, out)
    want = {"same": kept, "flat": kept.reshape(16), "weight": weight, "r1": np.maximum(kept, 0), "r2": np.maximum(kept, 0)}
    want["r3"] = want["r1"].reshape(2, 8)
    assert list(got) == list(want)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    assert all(got[name] is array for name, array in out.items())
    arrays = [fed, graph.constants[c], *got.values()]
    assert not any(np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[k + 1 :])


def test_a_called_node_s_result_goes_out_too() -> None:
    b = GraphBuilder("called")
    b.output("y", b.op("ReduceMax", b.input("x", np.bool_, (8, 8)), axes=(1,)))
    run = BoundPlan(b.build(), [["ReduceMax_0"]])
    assert type(run.steps[0]).__name__ == "CallStep"
    x, y = random((8, 8)) > 1, np.ones((8, 1), np.bool_)
    assert run({"x": x}, {"y": y})["y"] is y
    np.testing.assert_array_equal(y, x.any(1, keepdims=True))


@pytest.mark.parametrize("n", [4, 0, 2])
def test_a_result_without_elements(n: int) -> None:
    run = compiled(model([node("Relu", ["x"])], [info("x", ["n", 3])]), {"n": 4})
    x, y = random((n, 3)), np.empty((n, 3), np.float32)
    assert run({"x": x}, out={"y": y})["y"] is y
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_results_of_the_runtime_s_own_are_not_the_caller_s() -> None:
    run = compiled(classifier(), {"batch": 8})
    mine = np.zeros((8, 10), np.float32)
    run({"x": X}, out={"y": mine})
    kept = mine.copy()
    for seed in range(4):
        run({"x": random((8, 24), seed + 5)})
    np.testing.assert_array_equal(mine, kept)


def test_an_input_at_an_odd_address_is_copied() -> None:
    run = compiled(classifier(), {"batch": 8})
    x = np.zeros(8 * 24 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(8, 24)
    x[...] = X
    assert not x.flags.aligned
    np.testing.assert_array_equal(run({"x": x})["y"], run({"x": X})["y"])
