"""What the checker may import, and how its work grows with the graph."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.search.check import check, counts
from fusion_search.search.plan import Plan
from tests.search.checked_plans import f32, plan_of, space_of


def test_the_checker_imports_nothing_of_the_search() -> None:
    allowed = ("fusion_search.ir", "fusion_search.search.plan", "costmodels", "hardware_profiles", "networkx")
    for file in Path(str(counts.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2
                names = [node.module or ""] if node.level == 0 else []
            for name in names:
                assert name.startswith(allowed) or not name.startswith("fusion_search"), f"{file.name} imports {name}"


def _deep(layers: int) -> tuple[Graph, Plan]:
    b = GraphBuilder("deep")
    x = b.input("x", f32, (128, 64))
    for _ in range(layers):
        e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
        p = b.op("Div", e, b.op("ReduceSum", e, axes=(1,)))
        t = b.op("Tanh", b.reshape(p, (8, 16, 64)))
        x = b.op("MatMul", b.op("Add", b.reshape(t, (128, 64)), x), b.constant(np.ones((64, 64), f32)))
        x = b.op("Relu", x)
    b.output("y", x)
    graph = b.build()
    space = space_of(graph)
    size = 9
    plan = plan_of(
        space,
        [sum(1 << p for p in range(k, min(k + size - 2, space.n))) for k in range(0, space.n, size)]
        + [sum(1 << p for p in range(k + size - 2, min(k + size, space.n))) for k in range(0, space.n, size)],
    )
    return graph, plan


def test_the_work_grows_with_the_nodes() -> None:
    """Counted in calls, which do not depend on the machine: four times the nodes, four times the work."""
    counts = []
    for layers in (28, 112):
        graph, plan = _deep(layers)
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            found = check(graph, plan)
        finally:
            sys.setprofile(before)
        assert found == []
        counts.append(calls)
    assert len(graph.nodes) == 1008
    assert counts[1] < 4.5 * counts[0]
