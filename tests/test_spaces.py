"""What is kept of graphs that were asked about."""

import gc
import weakref

import pytest

import fusion_search as fs
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.spaces import space_of


def _graph(name: str) -> Graph:
    b = GraphBuilder(name)
    x = b.input("x", "float32", (64, 32))
    shared = b.op("Relu", x)  # read twice, so that there are copies
    b.output("y", b.op("Add", b.op("Exp", shared), b.op("ReduceSum", shared, axes=(1,), keepdims=True)))
    return b.build()


@pytest.fixture(autouse=True)
def _without_the_collector() -> object:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_questions_about_one_graph_share_its_space() -> None:
    graph, profile = _graph("one"), fs.load_profile("local")
    first = space_of(graph, profile, "weighted", None)
    other = space_of(graph, fs.load_profile("nvidia-h100-sxm"), "weighted", None)
    assert space_of(graph, profile, "weighted", None) is first is not other
    assert first.program is other.program


def test_more_machines_than_are_kept() -> None:
    graph, profile = _graph("one"), fs.load_profile("local")
    first = space_of(graph, profile, "weighted", None)
    for k in range(20):
        space_of(graph, profile, "weighted", {"launch": 2.0 + k})
    assert space_of(graph, profile, "weighted", None) is not first


def test_graphs_go_with_their_weights_when_others_were_asked_about() -> None:
    """At once: cycles of objects would keep gigabytes until the collector looks at the oldest ones."""
    profile, seen = fs.load_profile("local"), []
    for k in range(4):
        graph = _graph(f"model {k}")
        seen.append(weakref.ref(graph))
        fs.search(graph, profile)
        gc.disable()
        del graph
    assert [ref() is None for ref in seen] == [True, True, False, False]
