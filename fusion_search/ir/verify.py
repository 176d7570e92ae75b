"""The verifier: what must hold of every graph, whatever built it."""

from __future__ import annotations

from fusion_search.errors import ModelError
from fusion_search.ir.graph import Graph
from fusion_search.ir.opaque import RUNTIME
from fusion_search.ir.ops import OPS
from fusion_search.ir.spec import Type


def verify_graph(graph: Graph) -> None:
    """Raise when a graph is not well formed.

    Checks single assignment, definition before use, known operators, inferred types, views of equal size and
    outputs that exist. Linear in the graph.

    Raises
    ------
    ModelError
        Naming the first node or value that breaks a rule.
    """
    defined = {value.name for value in graph.inputs} | set(graph.constants)
    names: set[str] = set()

    def known(name: str) -> bool:
        return name in graph.values and graph.base(name) in defined

    for node in graph.nodes:
        if node.name in names:
            raise ModelError(f"node {node.name!r}: the name is used twice")
        names.add(node.name)
        if node.op not in OPS:
            raise ModelError(f"node {node.name!r}: unknown core operator {node.op!r}")
        for name in node.inputs:
            if name and not known(name):
                raise ModelError(f"node {node.name!r}: reads {name!r} before it is defined")
        for name in node.outputs:
            if name in defined:
                raise ModelError(f"node {node.name!r}: defines {name!r} again")
            defined.add(name)
        if node.op != "Opaque":
            types = [Type(graph.values[i].dtype, graph.values[i].shape) for i in node.inputs]
            if any(t.dtype == RUNTIME for t in types):
                raise ModelError(f"node {node.name!r}: reads a value whose type is known only at run time")
            out = OPS[node.op].infer(types, dict(node.attrs))
            value = graph.values[node.output]
            if (value.dtype, value.shape) != (out.dtype, out.shape):
                raise ModelError(f"node {node.name!r}: declares {value.dtype}{list(value.shape)}, infers {out.dtype}{list(out.shape)}")
    for value in graph.values.values():
        if value.view_of is not None:
            other = graph.values.get(value.view_of)
            if other is None or other.size != value.size or other.dtype != value.dtype:
                raise ModelError(f"value {value.name!r}: is no view of {value.view_of!r}")
    for value in graph.outputs:
        if not known(value.name):
            raise ModelError(f"output {value.name!r} is never computed")
