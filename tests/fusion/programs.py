"""Small programs for the tests of fusion, and their groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import costmodels
import hardware_profiles
from fusion_search.fusion.analysis import Analysis, analyse
from fusion_search.fusion.loops import GroupLoops, group_loops
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import Emit, GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph

F32 = np.float32
LINE = 64


def graph_of(build: Callable[[GraphBuilder], None]) -> Graph:
    b = GraphBuilder(build.__name__)
    build(b)
    return b.build()


def weight(b: GraphBuilder, *shape: int) -> str:
    return b.constant(np.arange(np.prod(shape), dtype=F32).reshape(shape))


def number(b: GraphBuilder, value: float) -> str:
    return b.constant(np.array([value], F32))


def space_of(graph: Graph, profile: str = "nvidia-h100-sxm", can_emit: Emit | None = None, **changes: Any) -> GroupSpace:
    loaded = replace(hardware_profiles.load(profile), **changes)
    return GroupSpace(Program(graph), loaded, costmodels.model("weighted"), can_emit)


def whole(graph: Graph) -> Analysis:
    """Analyse all nodes as one group."""
    return analyse(Program(graph), (1 << len(graph.nodes)) - 1, LINE)


def loops(graph: Graph) -> GroupLoops:
    return group_loops(Program(graph), (1 << len(graph.nodes)) - 1, LINE)


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same program: nodes in another topological order, every node, value and constant renamed."""
    rng = np.random.default_rng(seed)
    left, done, nodes = list(graph.nodes), {v.name for v in graph.inputs} | set(graph.constants), []
    while left:
        ready = [node for node in left if all(graph.base(name) in done for name in node.inputs)]
        node = ready[int(rng.integers(len(ready)))]
        left.remove(node)
        done |= set(node.outputs)
        nodes.append(node)
    kept = {value.name for value in (*graph.inputs, *graph.outputs)}
    names = {name: name if name in kept else f"v{k}" for k, name in enumerate(rng.permutation(sorted(graph.values)).tolist())}
    values = {
        names[name]: replace(value, name=names[name], view_of=None if value.view_of is None else names[value.view_of])
        for name, value in graph.values.items()
    }
    fresh = rng.permutation(len(nodes)).tolist()
    renamed = tuple(
        replace(node, name=f"n{k}", inputs=tuple(names[n] for n in node.inputs), outputs=tuple(names[n] for n in node.outputs))
        for k, node in zip(fresh, nodes, strict=True)
    )
    constants = {names[name]: array for name, array in graph.constants.items()}
    return replace(graph, nodes=renamed, values=values, constants=constants, outputs=tuple(values[v.name] for v in graph.outputs))


# ---------------------------------------------------------------------- programs


def softmax(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 128))
    e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
    b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))


def layer_norm(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 128))
    c = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
    v = b.op("ReduceMean", b.op("Mul", c, c), axes=(1,))
    d = b.op("Div", c, b.op("Sqrt", b.op("Add", v, number(b, 1e-5))))
    b.output("y", b.op("Mul", d, weight(b, 128)))


def matmul_bias_gelu(b: GraphBuilder) -> None:
    m = b.op("Add", b.op("MatMul", b.input("x", F32, (64, 128)), weight(b, 128, 96)), weight(b, 96))
    e = b.op("Erf", b.op("Mul", m, number(b, 0.7)))
    b.output("y", b.op("Mul", m, b.op("Add", e, number(b, 1))))


def column_sum(b: GraphBuilder) -> None:
    x = b.input("x", F32, (64, 1000))
    b.output("y", b.op("ReduceSum", b.op("Mul", x, x), axes=(0,)))


def mutual_wait(b: GraphBuilder) -> None:
    """The pairs (a1, a2) and (b1, b2) are each convex, and wait for each other: a1 -> a2, b2 -> b1, a1 -> b1, b2 -> a2."""
    x, y = b.input("x", F32, (256, 256)), b.input("y", F32, (256, 256))
    with b.origin("a1", "Exp"):
        a1 = b.op("Exp", x)
    with b.origin("b2", "Tanh"):
        b2 = b.op("Tanh", y)
    with b.origin("a2", "Add"):
        b.output("p", b.op("Add", a1, b2))
    with b.origin("b1", "Mul"):
        b.output("q", b.op("Mul", a1, b2))


def two_blocks(b: GraphBuilder) -> None:
    """One block twice, and a head."""
    x = b.input("x", F32, (32, 64))
    for _ in range(2):
        c = b.op("Sub", x, b.op("ReduceMean", x, axes=(1,)))
        h = b.op("Relu", b.op("Add", b.op("MatMul", c, weight(b, 64, 64)), weight(b, 64)))
        x = b.op("Add", x, b.op("MatMul", h, weight(b, 64, 64)))
    b.output("y", b.op("Tanh", x))
