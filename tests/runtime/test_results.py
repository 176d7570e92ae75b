"""Memory of results: recycled once nobody holds it, never while somebody does."""

from __future__ import annotations

import numpy as np

from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.program import BoundPlan


def test_results_and_their_views_outlive_later_runs() -> None:
    b = GraphBuilder("twice")
    b.output("y", b.op("Add", b.input("x", np.float32, (64, 64)), "x"))
    graph = b.build()
    run = BoundPlan(graph, [[node.name for node in graph.nodes]])
    feeds = [np.full((64, 64), k, np.float32) for k in range(6)]
    kept = [run({"x": x})["y"] for x in feeds]
    view = kept[0][3:5]
    kept[0] = np.empty(0, np.float32)
    later = [run({"x": x})["y"] for x in feeds]
    assert (view == 0).all()
    assert all((y == 2 * k).all() for k, y in enumerate(kept) if k)
    assert all((y == 2 * k).all() for k, y in enumerate(later))
    del kept, later, view
    places = {run({"x": feeds[1]})["y"].ctypes.data for _ in range(5)}
    assert len(places) == 1
