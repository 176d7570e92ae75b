"""Graphs as text, one line a node, for people and for golden files."""

from __future__ import annotations

from fusion_search.ir.graph import Graph, Value


def print_graph(graph: Graph) -> str:
    """Return the graph as text: inputs, one line a node, outputs. Constants are named, not listed."""

    def show(value: Value) -> str:
        shape = "x".join(map(str, value.shape)) or "scalar"
        return f"{value.name}: {value.dtype}[{shape}]"

    lines = [f"graph {graph.name}"]
    lines += [f"  input {show(value)}" for value in graph.inputs]
    for node in graph.nodes:
        attrs = "".join(f" {key}={value}" for key, value in node.attrs)
        outs = ", ".join(show(graph.values[name]) for name in node.outputs)
        args = ", ".join(_read(graph, name) for name in node.inputs)
        lines.append(f"  {outs} = {node.op}({args}){attrs}  # {node.name}")
    lines += [f"  output {show(value)}" + (f" = {graph.base(value.name)}" if value.view_of else "") for value in graph.outputs]
    return "\n".join(lines) + "\n"


def _read(graph: Graph, name: str) -> str:
    if not name:
        return "-"
    base = graph.base(name)
    if base == name:
        return name
    return f"{base}[{'x'.join(map(str, graph.values[name].shape))}]"
