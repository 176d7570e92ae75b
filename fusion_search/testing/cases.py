"""Fuzzing cases as files: a graph, a plan and inputs in JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fusion_search.ir.graph import Graph, Node, Value
from fusion_search.ir.spec import Array


@dataclass(frozen=True, slots=True)
class Case:
    """A graph, a plan of it and inputs.

    Attributes
    ----------
    graph : Graph
    groups : tuple of tuple of str
        Node names of each group, in an order in which they can run.
    feeds : dict of str to numpy.ndarray
    elements : int
        Elements of a block (``blocks.ITEM_ELEMENTS``).
    note : str
        Where the case comes from.
    """

    graph: Graph
    groups: tuple[tuple[str, ...], ...]
    feeds: dict[str, Array]
    elements: int = 4096
    note: str = ""


# ---------------------------------------------------------------------- files


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _packed(array: Array) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _unpacked(entry: Mapping[str, Any]) -> Array:
    raw = np.frombuffer(base64.b64decode(entry["data"]), np.uint8)
    return raw.view(_dtype(entry["dtype"])).reshape(entry["shape"]).copy()


def _tuples(item: Any) -> Any:
    return tuple(_tuples(part) for part in item) if isinstance(item, list) else item


def to_json(case: Case, *, compiled: bool = False) -> str:
    """Write a case."""
    graph = case.graph
    return json.dumps(
        {
            "note": case.note,
            "compiled": compiled,
            "elements": case.elements,
            "groups": case.groups,
            "values": [[v.name, v.dtype.name, v.shape, v.view_of] for v in graph.values.values()],
            "inputs": [v.name for v in graph.inputs],
            "outputs": [v.name for v in graph.outputs],
            "nodes": [[n.name, n.op, n.inputs, n.outputs, [[key, _plain(value)] for key, value in n.attrs]] for n in graph.nodes],
            "constants": {name: _packed(array) for name, array in graph.constants.items()},
            "feeds": {name: _packed(array) for name, array in case.feeds.items()},
        },
        indent=1,
    )


def _plain(item: Any) -> Any:
    if isinstance(item, tuple):
        return [_plain(part) for part in item]
    return item.item() if isinstance(item, np.generic) else item


def from_json(text: str) -> tuple[Case, bool]:
    """Read a case, and whether it is to be compiled."""
    data = json.loads(text)
    values = {name: Value(name, _dtype(dtype), tuple(shape), view) for name, dtype, shape, view in data["values"]}
    nodes = tuple(
        Node(name, op, tuple(inputs), tuple(outputs), tuple((key, _tuples(value)) for key, value in attrs))
        for name, op, inputs, outputs, attrs in data["nodes"]
    )
    graph = Graph(
        "case",
        tuple(values[name] for name in data["inputs"]),
        tuple(values[name] for name in data["outputs"]),
        nodes,
        values,
        {name: _unpacked(entry) for name, entry in data["constants"].items()},
    )
    feeds = {name: _unpacked(entry) for name, entry in data["feeds"].items()}
    return Case(graph, _tuples(data["groups"]), feeds, data["elements"], data["note"]), data["compiled"]


def save(case: Case, folder: Path, *, compiled: bool = False) -> Path:
    """Write a case into a folder, named by its content."""
    text = to_json(case, compiled=compiled)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path
