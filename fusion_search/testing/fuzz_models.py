"""Fuzzing of ONNX models: loaded, planned and run against ``onnx.reference``, which arbitrates, and onnxruntime.

``python -m fusion_search.testing.fuzz_models --models 500`` lists where this project differs from the reference evaluator, and
where onnxruntime does; every other model gets special inputs. ``--compiled`` compiles the plans, ``--symbolic`` runs one plan for
several extents.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import onnx

from fusion_search import api
from fusion_search.errors import ModelError, UnsupportedError
from fusion_search.frontends.onnx import load_onnx
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph
from fusion_search.ir.spec import Array
from fusion_search.passes import run_passes
from fusion_search.runtime.compiled import CompiledPlan
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.refit import RunGroup, refit
from fusion_search.search.plan import Plan
from fusion_search.testing.fuzz import small_blocks, space_of
from fusion_search.testing.graphs import random_partition
from fusion_search.testing.interpreter import Interpreter, interpret
from fusion_search.testing.models import random_model, symbolic_model

#: The extent for which a model with a symbolic dimension is planned, and those for which the plan is run.
PLANNED = 3
BINDINGS = (3, 1, 2, 0, 17)

#: Largest difference over the largest magnitude of the result, by dtype.
TOLERANCE = {"float16": 4e-3, "float32": 2e-4, "float64": 1e-9}
#: Operators that the arbiter is known to get wrong, for when there is no third opinion (onnxruntime lacks many kernels for float64).
KNOWN = {
    "LpNormalization": "onnx.reference: p = 1 divides by the sum, not by the sum of magnitudes",
    "MaxPool": "onnx.reference, onnxruntime: a NaN may be lost",
    "LogSoftmax": "onnx.reference: the logarithm of a softmax that is 0",
    "ConvTranspose": "here gaps between the elements count as zeros: 0 times an infinite weight",
    "LpPool": "onnx.reference: other windows than the specification's",
    "GlobalLpPool": "onnx.reference: has no implementation",
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
        ``interpreter``, ``compiled``, ``evaluate`` or ``onnxruntime``: it differs from the reference evaluator; ``reference``: that
        one fails, or differs from all others.
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
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


def check_model(seed: int, *, runtime: bool = True, special: bool = False, compiled: bool = False) -> list[Difference]:
    """Compare everything on one model.

    Parameters
    ----------
    seed : int
    runtime : bool
        Say as well where only onnxruntime differs; it is asked anyhow where this project does.
    special : bool
        Feed special floats.
    compiled : bool
        Compile the plan instead of interpreting it.
    """
    proto, feeds = random_model(seed, special=special)
    graph = load_onnx(proto)
    how = "compiled" if compiled else "interpreter"
    runs = {"evaluate": lambda: evaluate(graph, feeds), how: lambda: _planned(graph, feeds, seed, compiled)}
    return _arbitrated(seed, proto, graph, feeds, runs, runtime=runtime)


def check_symbolic(seed: int, *, special: bool = False, compiled: bool = False) -> list[Difference] | None:
    """Plan a model once and run the plan for several extents of its symbolic dimension, 0 and 1 among them.

    Returns
    -------
    list of Difference or None
        None when the draw has no model with a symbolic dimension.
    """
    made = symbolic_model(seed, special=special)
    if made is None:
        return None
    proto, feeds_for = made
    try:
        graph = run_passes(load_onnx(proto, {"n": PLANNED}))
    except ModelError:  # constant indices beyond this extent
        return None
    if not graph.nodes:
        return []
    found: list[Difference] = []
    with small_blocks(96):
        plan = _drawn_plan(graph, seed)
        run = _Interpreted(plan) if not compiled else CompiledPlan(plan)
        for n in BINDINGS:
            feeds = feeds_for(n)
            how = f"{'compiled' if compiled else 'interpreter'} for n={n}"
            runs = {how: lambda feeds=feeds: {name: array.copy() for name, array in run(feeds).items()}}
            found += _arbitrated(seed, proto, graph, feeds, runs, runtime=False)
    return found


def _arbitrated(
    seed: int,
    proto: onnx.ModelProto,
    graph: Graph,
    feeds: Mapping[str, Array],
    runs: Mapping[str, Callable[[], dict[str, Any]]],
    *,
    runtime: bool,
) -> list[Difference]:
    """Compare some runs of ours with the reference, and say who is right where they differ."""
    ops = "+".join(node.op_type for node in proto.graph.node)
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

    ours = [compare(who, run) for who, run in runs.items()]
    if any(d.who != "reference" for d in found) and all(ours) and _unstable(proto, graph, feeds, want, ours):
        return [Difference(seed, "reference", f"{ops}: moves as much when inputs move by a unit in the last place")]
    wrong = any(d.who != "reference" for d in found)
    if not runtime and not wrong:
        return found
    theirs = compare("onnxruntime", lambda: _onnxruntime(proto, feeds))
    if wrong and theirs and all(results and not any(differs(results[name], theirs[name]) for name in theirs) for results in ours):
        return [Difference(seed, "reference", d.what) for d in found if d.who == "onnxruntime"]  # all of ours and it against one
    known = [KNOWN[node.op_type] for node in proto.graph.node if node.op_type in KNOWN]
    if wrong and known and all(ours) and not any(differs(results[name], ours[0][name]) for results in ours[1:] for name in want):
        return [Difference(seed, "reference", f"{ops}: {known[0]}")]
    return found


def _unstable(
    proto: onnx.ModelProto, graph: Graph, feeds: Mapping[str, Array], want: Mapping[str, Any], ours: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the reference itself moves as far from its result when inputs move by a rounding: then a difference says nothing."""
    source = graph.source
    assert source is not None
    rng, reach = np.random.default_rng(0), {name: np.zeros(np.shape(value)) for name, value in want.items()}
    for _ in range(8):
        near = {name: _nudged(array, rng) for name, array in feeds.items()}
        try:
            moved = source.reference(near)
        except UnsupportedError:
            return False
        for name, value in want.items():
            a, b = np.asarray(moved[name]), np.asarray(value)
            if a.shape != b.shape or b.dtype.kind != "f":
                return False
            with np.errstate(all="ignore"):
                gap = np.where(np.isnan(a) == np.isnan(b), np.nan_to_num(np.abs(a.astype(np.float64) - b), nan=0.0), np.inf)
            reach[name] = np.maximum(reach[name], gap)
    for results in ours:
        for name, value in want.items():
            x, y = np.asarray(results[name], np.float64), np.asarray(value, np.float64)
            scale = float(np.abs(y[np.isfinite(y)]).max(initial=0.0))
            with np.errstate(all="ignore"):
                within = np.abs(x - y) <= 4 * reach[name] + TOLERANCE[np.asarray(value).dtype.name] * max(scale, 1e-3)
            if not (within | (x == y) | (np.isnan(x) & np.isnan(y))).all():
                return False
    return True


def _nudged(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    with np.errstate(all="ignore"):
        return np.asarray(np.nextafter(array, np.where(rng.random(array.shape) < 0.5, -np.inf, np.inf).astype(array.dtype)))


def _drawn_plan(graph: Graph, seed: int) -> Plan:
    """A random legal plan for this machine."""
    space = space_of(graph)
    groups = [space.program.names(mask) for mask in random_partition(space, np.random.default_rng(seed))]
    plan = api.price(graph, groups, space.profile)
    assert isinstance(plan, Plan), "; ".join(map(str, plan))
    return plan


def _planned(graph: Graph, feeds: dict[str, Array], seed: int, compiled: bool) -> dict[str, Array]:
    graph = run_passes(graph)
    if not graph.nodes:
        return evaluate(graph, feeds)
    with small_blocks(96):
        groups = [RunGroup(group.nodes, group.stores) for group in _drawn_plan(graph, seed).groups]
        return BoundPlan(graph, groups)(feeds) if compiled else interpret(graph, groups, feeds, seed)


class _Interpreted:
    """What `CompiledPlan` does for other extents, in the interpreter."""

    def __init__(self, plan: Plan) -> None:
        source = plan.graph.source
        assert source is not None
        self.plan, self.source, self.groups = plan, source, [RunGroup(group.nodes, group.stores) for group in plan.groups]
        generic = source.generic
        self.generic = run_passes(generic) if generic is not None else None
        if self.generic is not None:
            self.groups = refit(plan, self.groups, self.generic)

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        dims = {
            dim: int(n)
            for name, shape in self.source.symbolic_inputs.items()
            for dim, n in zip(shape, feeds[name].shape, strict=True)
            if isinstance(dim, str)
        }
        graph = run_passes(self.source.bind(dims, {}))
        run = Interpreter(graph, refit(self.plan, self.groups, graph), self.generic)
        return run.outputs(run(feeds))


def _checks(options: argparse.Namespace) -> Iterator[Callable[[int], list[Difference] | None]]:
    """What is done with each seed: tame and special inputs in turn."""
    while True:
        for special in (False, True):
            if options.symbolic:
                yield partial(check_symbolic, special=special, compiled=options.compiled)
            else:
                yield partial(check_model, special=special, compiled=options.compiled)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit status says whether this project differs anywhere."""
    parser = argparse.ArgumentParser(prog="fusion_search.testing.fuzz_models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--compiled", action="store_true", help="compile the plans instead of interpreting them")
    parser.add_argument("--symbolic", action="store_true", help="plan once, run for several extents of a symbolic dimension")
    options = parser.parse_args(arguments)
    end, done, ours = time.monotonic() + options.seconds, 0, 0
    for seed, check in zip(count(options.seed), _checks(options)):
        if done >= options.models or time.monotonic() > end:
            break
        try:
            differences = check(seed)
            if differences is None:
                continue
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
