"""Random small ONNX models over the operators that have lowering rules, with inputs: all from seeds.

A drawn model is a chain of a few operators, each reading what came before; operators that are not continuous stand alone, so that a
tolerance on the results means something.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fusion_search.ir.spec import Array
from fusion_search.testing.model_drawing import Draw
from fusion_search.testing.model_forms import FORMS
from fusion_search.testing.model_forms_more import EXACT, MORE

OPSET = 20
_LAST = {"Sign": ({},), "Floor": ({},), "Ceil": ({},), "Round": ({},), "IsNaN": ({},), "IsInf": ({},), "ThresholdedRelu": ({"alpha": 0.6},)}


def random_model(seed: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Make a valid model and inputs for it.

    Parameters
    ----------
    seed : int
        The same seed gives the same model.

    Returns
    -------
    model : onnx.ModelProto
    feeds : dict of str to numpy.ndarray
    """
    rng = np.random.default_rng([seed, 3])
    d = Draw(rng, np.float64 if rng.random() < 0.15 else np.float32)
    if d.flip(0.2):
        results = [d.one(EXACT)(d)]
    elif d.flip(0.15):  # one operator that is not continuous, on inputs
        shape = d.shape(d.number(0, 4))
        x, op = d.feed(shape), d.one([*sorted(_LAST), "Less", "Greater", "Equal", "Cast"])
        if op in _LAST:
            results = [d.node(op, x, **d.one(_LAST[op]))]
        elif op == "Cast":
            to = d.one(["INT8", "UINT8", "INT32", "INT64", "FLOAT16", "DOUBLE", "BOOL"])
            x = d.node("Abs", x) if to == "UINT8" else x
            results = [d.node(op, x, to=getattr(onnx.TensorProto, to))]
        else:
            results = [d.node(op, x, d.feed(shape))]
    else:
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
