"""Runs a small model under several plans and compares every result with the stated right one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fusion_search as fs
from fusion_search.frontends.onnx import load_onnx
from fusion_search.passes import run_passes

Array = np.ndarray[Any, Any]
F32 = TensorProto.FLOAT


@cache
def profile() -> fs.Profile:
    """Return a profile that runs here."""
    return next(p for p in map(fs.load_profile, fs.list_profiles()) if p.runs_here)


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> onnx.NodeProto:
    """Make a node; names are given in one string, ``-`` for one that is left out."""
    read, made = (["" if name == "-" else name for name in names.split()] for names in (inputs, outputs))
    return helper.make_node(op, read, made, **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array] | Sequence[onnx.ValueInfoProto],
    outputs: str = "y",
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    listed: Sequence[str] = (),
) -> onnx.ModelProto:
    """Make a model; inputs are given as the arrays to feed, plain Python numbers become float32 constants.

    Names in `listed` are initialisers that are graph inputs too.
    """
    weights = {name: np.asarray(a, np.float32) if isinstance(a, (float, list)) else np.asarray(a) for name, a in (constants or {}).items()}
    if isinstance(inputs, Mapping):
        inputs = [value(name, a.shape, a.dtype) for name, a in inputs.items()]
    graph = helper.make_graph(
        list(nodes),
        "case",
        [*inputs, *(value(name, weights[name].shape, weights[name].dtype) for name in listed)],
        [helper.make_empty_tensor_value_info(name) for name in outputs.split()],
        [numpy_helper.from_array(a, name) for name, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def value(name: str, shape: Sequence[int | str], dtype: Any = np.float32) -> onnx.ValueInfoProto:
    """Describe an input."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))


def load(proto: onnx.ModelProto, dims: Mapping[str, int] | None = None) -> fs.Graph:
    """Load a model without a file."""
    return run_passes(load_onnx(proto, dims))


def plans(graph: fs.Graph) -> Iterator[tuple[str, fs.Plan]]:
    """Yield the plans that every case runs under: exact, unfused, merged as far as can be, and one group where that is legal."""
    for method in ("exact", "unfused", "fuse-all"):
        yield method, fs.search(graph, profile(), method=method)
    one = fs.price(graph, [[node.name for node in graph.nodes]], profile()) if graph.nodes else []
    if isinstance(one, fs.Plan):
        yield "one group", one


def outputs(proto: onnx.ModelProto, feeds: Mapping[str, Array], dims: Mapping[str, int] | None = None) -> dict[str, dict[str, Array]]:
    """Run a model under every plan; each plan must be sound, inputs stay as they were, and a second run gives the same."""
    graph = load(proto, dims)
    found: dict[str, dict[str, Array]] = {}
    for name, plan in plans(graph):
        assert fs.check(graph, plan) == [], name
        before = {key: array.copy() for key, array in feeds.items()}
        run = fs.compile(plan)
        got = run(feeds)
        kept = {key: array.copy() for key, array in got.items()}
        again = run(feeds)
        for key, array in feeds.items():
            np.testing.assert_array_equal(array, before[key], err_msg=f"{name} wrote input {key}")
        for key, array in got.items():
            assert_bits(array, kept[key], f"{name}: output {key} was overwritten")
            assert_bits(array, again[key], f"{name}: output {key} of the second run")
        found[name] = got
    return found


def assert_bits(got: Array, want: Array, where: str = "") -> None:
    """Check dtype, shape and bits; any NaN equals any other, and the sign of zero counts."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{where}: {got.dtype}{got.shape}, expected {want.dtype}{want.shape}"
    if got.dtype.kind in "fV":
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(want) & ~np.isnan(want), err_msg=where)
    np.testing.assert_array_equal(got, want, err_msg=where)


def check(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    want: Mapping[str, Any],
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    dims: Mapping[str, int] | None = None,
) -> None:
    """Compare every plan's outputs with the right ones: bit by bit, or within a tolerance."""
    for name, got in outputs(proto, feeds, dims).items():
        assert list(got) == list(want), name
        for key, right in want.items():
            right = np.asarray(right, None if isinstance(right, np.ndarray) else got[key].dtype)
            if rtol or atol:
                assert (got[key].dtype, got[key].shape) == (right.dtype, right.shape), f"{name}: {key}"
                np.testing.assert_allclose(
                    got[key].astype(np.float64), right.astype(np.float64), rtol=rtol, atol=atol, err_msg=f"{name}: {key}"
                )
            else:
                assert_bits(got[key], right, f"{name}: {key}")
