"""The small model zoo inside the ``onnx`` package, given weights that make its outputs worth comparing.

``onnx`` ships nine whole networks whose large weights are a ``ConstantOfShape`` of 0.02, so that the files stay small. With
them every class gets the same score and a wrong kernel can go unnoticed. ``seeded_light`` replaces each such constant, and the
batch-normalisation statistics that were trained for other weights, by seeded random numbers scaled for what reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_PREFIX = "light_"
_RESHAPING = ("Reshape", "Unsqueeze")  # a weight may pass through these before an operator uses it


def light_names() -> tuple[str, ...]:
    """Return the names that `seeded_light` accepts, sorted."""
    return tuple(sorted(path.stem.removeprefix(_PREFIX) for path in _FOLDER.glob(f"{_PREFIX}*.onnx")))


def seeded_light(name: str, *, seed: int = 0) -> onnx.ModelProto:
    """Read one light network and give it seeded random weights.

    Parameters
    ----------
    name
        One of `light_names()`, such as ``"squeezenet"``.
    seed
        The same name and seed give the same weights, bit for bit.

    Returns
    -------
    onnx.ModelProto
        The network with every weight an initialiser, and only its true inputs among the graph inputs.

    Raises
    ------
    ValueError
        When there is no such network.

    Notes
    -----
    Filters and matrices are normal with variance 2 / fan-in (He et al., "Delving deep into rectifiers", ICCV 2015), or 1 / fan-in
    in networks with batch normalisation, whose residual sums add up. Scales and variances are uniform and positive; all else is
    normal with standard deviation 0.1. Every output is finite, and no softmax saturates.
    """
    names = light_names()
    if name not in names:
        raise ValueError(f"no light network named {name!r}; there are: {', '.join(names)}")
    model = onnx.load(_FOLDER / f"{_PREFIX}{name}.onnx")
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
        for position, value in enumerate(node.input):
            readers.setdefault(value, []).append((node, position))
    gain = 1.0 if any(node.op_type == "BatchNormalization" for node in graph.node) else 2.0

    shapes: dict[str, list[int]] = {}  # the weights to make, in the order of the file
    for tensor in graph.initializer:
        # The few trained statistics that the files do carry belong to other filters, and would blow the activations up.
        if any(node.op_type == "BatchNormalization" for node, _ in readers.get(tensor.name, ())):
            shapes[tensor.name] = list(tensor.dims)
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shapes[node.output[0]] = [int(extent) for extent in numpy_helper.to_array(constants[node.input[0]])]
    for index, (weight, shape) in enumerate(shapes.items()):
        data = _weight(shape, set(_uses(weight, readers)), gain, np.random.default_rng([seed, index]))
        constants[weight] = numpy_helper.from_array(data, weight)
    kept = [node for node in graph.node if not set(node.output) & shapes.keys()]
    del graph.node[:]
    graph.node.extend(kept)

    # Before IR version 4 an initialiser had to be listed as an input, which makes it a default rather than a constant.
    model.ir_version = max(model.ir_version, 4)
    used = {value for node in kept for value in node.input}
    weights = [tensor for tensor in constants.values() if tensor.name in used]
    inputs = [value for value in graph.input if value.name in used - constants.keys()]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    del graph.input[:]
    graph.input.extend(inputs)
    return model


def _uses(value: str, readers: dict[str, list[tuple[onnx.NodeProto, int]]]) -> Iterable[tuple[str, int]]:
    """Yield (operator, operand position) of everything that uses `value`, also through reshapes."""
    for node, position in readers.get(value, ()):
        if node.op_type in _RESHAPING and position == 0:
            yield from _uses(node.output[0], readers)
        else:
            yield node.op_type, position


def _weight(shape: list[int], uses: set[tuple[str, int]], gain: float, rng: np.random.Generator) -> NDArray[np.float32]:
    if ("Conv", 1) in uses:
        weight = rng.standard_normal(shape) * math.sqrt(gain / math.prod(shape[1:]))
    elif ("Gemm", 1) in uses:  # the light networks store it as outputs by inputs
        weight = rng.standard_normal(shape) * math.sqrt(gain / shape[-1])
    elif uses & {("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 0), ("Mul", 1)}:
        weight = rng.uniform(0.5, 1.5, shape)
    else:
        weight = rng.standard_normal(shape) * 0.1
    return weight.astype(np.float32)
