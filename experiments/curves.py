"""J over chain length and over memory bandwidth, and the staircase from the unfused graph to the optimum.

J is the modelled cost of a plan in seconds. Nothing here measures time, so every number is the same on every machine.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fusion_search as fs

METHODS = ("unfused", "per-operator", "fuse-all", "exact")

Row = dict[str, str | int | float]


def projection_chain(length: int, *, rows: int = 512, width: int = 256, seed: int = 0) -> onnx.ModelProto:
    """Make a chain of residual layers: softmax(x @ w * s) + x.

    Parameters
    ----------
    length : int
        Number of layers, from 1.
    rows, width : int
        Shape of the activations, float32[rows, width].
    seed : int
        Of the weights, which are normal with variance 1 / `width`.

    Returns
    -------
    onnx.ModelProto
        With four operators a layer, one of them composite, so that the four methods have different plans.
    """
    rng = np.random.default_rng(seed)
    nodes, weights = [], [numpy_helper.from_array(np.asarray(width**-0.5, np.float32), "scale")]
    for k in range(length):
        weight = rng.standard_normal((width, width)) * width**-0.5
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{k}"))
        nodes += [
            helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"projected{k}"], f"project_{k}"),
            helper.make_node("Mul", [f"projected{k}", "scale"], [f"scaled{k}"], f"scale_{k}"),
            helper.make_node("Softmax", [f"scaled{k}"], [f"weighed{k}"], f"softmax_{k}", axis=-1),
            helper.make_node("Add", [f"weighed{k}", f"x{k}"], [f"x{k + 1}"], f"residual_{k}"),
        ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, width]) for name in ("x0", f"x{length}")]
    graph = helper.make_graph(nodes, f"chain_of_{length}", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def read(model: onnx.ModelProto) -> fs.Graph:
    """Read a model that is in memory the way a model file is read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{model.graph.name or 'model'}.onnx"
        onnx.save(model, path)
        return fs.load(path)


def cost_over_length(lengths: Iterable[int], profile: fs.Profile, *, seed: int = 0, methods: Sequence[str] = METHODS) -> list[Row]:
    """Plan a chain of each length by each method.

    Returns
    -------
    list of dict
        One row a length and method, with `cost_s` (J) and `launches`.
    """
    rows: list[Row] = []
    for length in lengths:
        graph = read(projection_chain(length, seed=seed))
        rows += [{"length": length, **_planned(graph, profile, method)} for method in methods]
    return rows


def cost_over_bandwidth(
    graph: fs.Graph, profile: fs.Profile, bandwidths_bytes_per_s: Iterable[float], *, methods: Sequence[str] = METHODS
) -> list[Row]:
    """Plan one graph for copies of a profile that differ in the bandwidth of main memory only.

    Returns
    -------
    list of dict
        One row a bandwidth and method.
    """
    rows: list[Row] = []
    for bandwidth in bandwidths_bytes_per_s:
        varied = dataclasses.replace(profile, dram_bandwidth_bytes_per_s=float(bandwidth))
        rows += [{"dram_bandwidth_bytes_per_s": float(bandwidth), **_planned(graph, varied, method)} for method in methods]
    return rows


def staircase(graph: fs.Graph, profile: fs.Profile) -> list[Row]:
    """Go from the unfused graph to the optimum, the fusion that saves most first.

    Returns
    -------
    list of dict
        One row a step, the unfused graph first: the `origin` of the group that is merged, `cost_s` after it, and that as
        `percent` of the unfused cost. The last step costs what the exact plan costs.

    Raises
    ------
    ValueError
        When a step is refused, which would contradict the note below.

    Notes
    -----
    J is a sum over groups, so what a group saves does not depend on the others and the order by savings is well defined. Every
    step is legal: a cycle between some of the plan's groups and single nodes would be one between the plan's groups, or one
    in the graph.
    """
    order = {node.name: k for k, node in enumerate(graph.nodes)}
    best = fs.search(graph, profile)
    alone = {group.nodes[0]: group.cost_s for group in fs.search(graph, profile, method="unfused").groups}
    merges = [group for group in best.groups if len(group.nodes) > 1]
    merges.sort(key=lambda group: (group.cost_s - sum(alone[name] for name in group.nodes), order[group.nodes[0]]))
    rows: list[Row] = []
    for step in range(len(merges) + 1):
        merged = [list(group.nodes) for group in merges[:step]]
        taken = {name for names in merged for name in names}
        priced = fs.price(graph, merged + [[name] for name in order if name not in taken], profile)
        if isinstance(priced, list):
            raise ValueError(f"step {step} is refused: {'; '.join(map(str, priced))}")
        origin = " ".join(merges[step - 1].origin) if step else "unfused"
        first = float(rows[0]["cost_s"]) if rows else priced.cost_s
        rows.append(
            {
                "step": step,
                "origin": origin,
                "cost_s": priced.cost_s,
                "percent": 100.0 * (priced.cost_s / first),
                "launches": priced.launches,
            }
        )
    return rows


def series(rows: Iterable[Mapping[str, str | int | float]], over: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return `cost_s` against the column `over`, for each method."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        x, y = lines.setdefault(str(row["method"]), ([], []))
        x.append(float(row[over]))
        y.append(float(row["cost_s"]))
    return lines


def write_csv(path: Path, rows: Sequence[Mapping[str, str | int | float]]) -> None:
    """Write rows under the names of their columns, aside and then renamed."""
    aside = path.with_name(f"{path.name}.part")
    with aside.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    os.replace(aside, path)


def _planned(graph: fs.Graph, profile: fs.Profile, method: str) -> Row:
    plan = fs.search(graph, profile, method=method)
    return {"method": method, "status": plan.status, "cost_s": plan.cost_s, "lower_bound_s": plan.lower_bound_s, "launches": plan.launches}
