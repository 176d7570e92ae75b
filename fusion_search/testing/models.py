"""Random small ONNX models over the operators that have lowering rules, with inputs: all from seeds.

A drawn model is a chain of a few operators, each reading what came before; operators that are not continuous stand alone, so that a
tolerance on the results means something.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fusion_search.ir.spec import Array
from fusion_search.testing.model_drawing import Draw
from fusion_search.testing.model_forms import FORMS
from fusion_search.testing.model_forms_more import EXACT, MORE

OPSET = 20
#: Two first extents that say what depends on them: primes that no other extent of a drawn model is.
_BATCHES = (11, 13)
_LAST = {"Sign": ({},), "Floor": ({},), "Ceil": ({},), "Round": ({},), "IsNaN": ({},), "IsInf": ({},), "ThresholdedRelu": ({"alpha": 0.6},)}


def random_model(seed: int, *, special: bool = False, batch: int | None = None) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Make a valid model and inputs for it.

    Parameters
    ----------
    seed : int
        The same seed gives the same model.
    special : bool
        Feed special floats to operators that take them (see `model_drawing`).
    batch : int, optional
        The first extent of what the model starts from.

    Returns
    -------
    model : onnx.ModelProto
    feeds : dict of str to numpy.ndarray
    """
    rng = np.random.default_rng([seed, 3])
    d = Draw(rng, np.float64 if rng.random() < 0.15 else np.float32, np.random.default_rng([seed, 4]), batch)
    if d.flip(0.2):
        results = [d.one(EXACT)(d)]
    elif d.flip(0.15):  # one operator that is not continuous, on inputs
        shape = d.shape(d.number(0, 4))
        op = d.one([*sorted(_LAST), "Less", "Greater", "Equal", "Cast"])
        d.special = special and op != "Cast"  # what an integer cannot hold is the machine's business
        x = d.feed(shape)
        if op in _LAST:
            results = [d.node(op, x, **d.one(_LAST[op]))]
        elif op == "Cast":
            to = d.one(["INT8", "UINT8", "INT32", "INT64", "FLOAT16", "DOUBLE", "BOOL"])
            x = d.node("Abs", x) if to == "UINT8" else x
            results = [d.node(op, x, to=getattr(onnx.TensorProto, to))]
        else:
            results = [d.node(op, x, d.feed(shape))]
    else:
        d.special = special
        shape = d.shape(d.number(1, 4))
        x = d.feed(shape)
        for _ in range(d.number(1, 4)):
            made = d.one(FORMS + MORE)(d, x, shape)
            if made is not None and math.prod(made[1]) <= 400 and len(made[1]) <= 5:
                x, shape = made
        results = [x if d.nodes and x == d.nodes[-1].output[0] else d.node("Identity", x)]
    given = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in d.inputs.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in results]
    weights = [numpy_helper.from_array(v, k) for k, v in d.constants.items()]
    graph = helper.make_graph(d.nodes, f"random{seed}", given, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9), d.inputs


def symbolic_model(seed: int, *, special: bool = False) -> tuple[onnx.ModelProto, Callable[[int], dict[str, Array]]] | None:
    """Make a model that is valid for any first extent, which it calls ``n``, and inputs for it; None when the draw has none.

    The same structure is drawn for two extents: where nothing but extents of inputs differs, those are ``n``.
    """
    one, two = (random_model(seed, batch=n)[0] for n in _BATCHES)
    shapes = [{v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input} for proto in (one, two)]
    rest = [_without_extents(proto) for proto in (one, two)]
    if rest[0] != rest[1] or shapes[0] == shapes[1]:
        return None
    for value in one.graph.input:
        for dim, a, b in zip(value.type.tensor_type.shape.dim, *(found[value.name] for found in shapes), strict=True):
            if a != b:
                if (a, b) != _BATCHES:
                    return None
                dim.dim_param = "n"
    fed = random_model(seed, special=special, batch=_BATCHES[0])[1]
    patterns = {name: [n if n == m else None for n, m in zip(shape, shapes[1][name], strict=True)] for name, shape in shapes[0].items()}

    def feeds(n: int) -> dict[str, Array]:
        return {name: np.resize(array, [n if fixed is None else fixed for fixed in patterns[name]]) for name, array in fed.items()}

    return one, feeds


def _without_extents(proto: onnx.ModelProto) -> bytes:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for value in copy.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return bytes(copy.SerializeToString(deterministic=True))
