"""Fuzzing of ONNX models: loaded, planned and interpreted against ``onnx.reference``, which arbitrates, and onnxruntime.

``python -m fusion_search.testing.fuzz_models --models 500`` lists where this project differs from the reference evaluator, and
where onnxruntime does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from fusion_search.errors import UnsupportedError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.ir.spec import Array
from fusion_search.passes import run_passes
from fusion_search.testing.fuzz import small_blocks, space_of
from fusion_search.testing.graphs import random_partition
from fusion_search.testing.interpreter import interpret
from fusion_search.testing.models import random_model

#: Largest difference over the largest magnitude of the result, by dtype.
TOLERANCE = {"float16": 4e-3, "float32": 2e-4, "float64": 1e-9}
#: Operators that the arbiter is known to get wrong, for when there is no third opinion (onnxruntime lacks many kernels for float64).
KNOWN = {
    "LpNormalization": "onnx.reference: p = 1 divides by the sum, not by the sum of magnitudes",
    "LpPool": "onnx.reference: other windows than the specification's",
    "GlobalMaxPool": "onnx.reference: drops a dimension of tensors of rank 3, and channels",
    "MeanVarianceNormalization": "onnxruntime: NaN where the variance is 0 but for rounding",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One model on which two implementations differ.

    Attributes
    ----------
    seed : int
    who : str
        ``interpreter``, ``evaluate`` or ``onnxruntime``: it differs from the reference evaluator; ``reference``: that one fails, or
        differs from all others.
    what : str
    """

    seed: int
    who: str
    what: str


def differs(got: Any, want: Any) -> str:
    """Say how a result differs from the reference's; empty when it does not."""
    a, b = np.asarray(got), np.asarray(want)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
    if b.dtype.kind != "f":
        return "" if np.array_equal(a, b) else f"{int((a != b).sum())} of {b.size} elements differ"
    x, y = a.astype(np.float64), b.astype(np.float64)
    scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
    with np.errstate(all="ignore"):
        good = (np.abs(x - y) <= TOLERANCE[b.dtype.name] * max(scale, 1e-3)) | (x == y) | (np.isnan(x) & np.isnan(y))
    if good.all():
        return ""
    k = tuple(int(i) for i in np.argwhere(~good)[0])
    return f"{int((~good).sum())} of {b.size} elements differ, at {list(k)} {x[k]!r}, expected {y[k]!r}"


def _onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Any]:
    import onnxruntime as ort  # type: ignore[import-untyped]

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def check_model(seed: int, *, runtime: bool = True) -> list[Difference]:
    """Compare everything on one model.

    Parameters
    ----------
    seed : int
    runtime : bool
        Say as well where only onnxruntime differs; it is asked anyhow where this project does.
    """
    proto, feeds = random_model(seed)
    ops = "+".join(node.op_type for node in proto.graph.node)
    graph = load_onnx(proto)
    source = graph.source
    assert source is not None
    found: list[Difference] = []
    try:
        want = source.reference(feeds)
    except UnsupportedError as error:  # it has faults of its own: then onnxruntime arbitrates
        found.append(Difference(seed, "reference", f"{ops}: {error}"))
        try:
            want = _onnxruntime(proto, feeds)
        except Exception:  # noqa: BLE001 - no one to compare with
            return found

    def compare(who: str, run: Any) -> dict[str, Any]:
        try:
            results: dict[str, Any] = run()
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a finding
            found.append(Difference(seed, who, f"{ops}: {type(error).__name__}: {str(error)[:200]}"))
            return {}
        for name, expected in want.items():
            if message := differs(results[name], expected):
                found.append(Difference(seed, who, f"{ops}: {message}"))
        return results

    ours = [compare("evaluate", lambda: evaluate(graph, feeds)), compare("interpreter", lambda: _planned(graph, feeds, seed))]
    wrong = any(d.who != "reference" for d in found)
    if not runtime and not wrong:
        return found
    theirs = compare("onnxruntime", lambda: _onnxruntime(proto, feeds))
    if wrong and theirs and all(results and not any(differs(results[name], theirs[name]) for name in theirs) for results in ours):
        return [Difference(seed, "reference", d.what) for d in found if d.who == "onnxruntime"]  # three against one
    known = [KNOWN[node.op_type] for node in proto.graph.node if node.op_type in KNOWN]
    if wrong and known and all(ours) and not any(differs(ours[0][name], ours[1][name]) for name in want):
        return [Difference(seed, "reference", f"{ops}: {known[0]}")]
    return found


def _planned(graph: Graph, feeds: dict[str, Array], seed: int) -> dict[str, Array]:
    graph = run_passes(graph)
    if not graph.nodes:
        return evaluate(graph, feeds)
    with small_blocks(96):
        space = space_of(graph)
        groups = [space.program.names(mask) for mask in random_partition(space, np.random.default_rng(seed))]
        return interpret(graph, groups, feeds, seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit status says whether this project differs anywhere."""
    parser = argparse.ArgumentParser(prog="fusion_search.testing.fuzz_models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args(arguments)
    end, done, ours = time.monotonic() + options.seconds, 0, 0
    for seed in range(options.seed, options.seed + options.models):
        if time.monotonic() > end:
            break
        try:
            differences = check_model(seed)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a finding
            differences = [Difference(seed, "loader", f"{type(error).__name__}: {str(error)[:300]}")]
        done += 1
        ours += any(d.who not in ("onnxruntime", "reference") for d in differences)
        for d in differences:
            sys.stdout.write(f"seed {d.seed}, {d.who}: {d.what}\n")
    sys.stdout.write(f"{done} models, {ours} on which this project differs\n")
    return int(bool(ours))


if __name__ == "__main__":
    raise SystemExit(main())
