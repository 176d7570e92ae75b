"""Whole models: networks that come with the ``onnx`` package, generated ones, and those of a folder, at any batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

from experiments.benchmarks.case import Array, Case
from experiments.benchmarks.onnx_language import to_model
from fusion_search.frontends.light import light_names, seeded_light

#: Tokens a sequence, where a model's length is symbolic.
SEQUENCE = 128
#: Largest difference that counts as equal in a whole model; products are summed in another order by everyone.
RTOL, ATOL = 1e-3, 1e-3


def _dense(rng: np.random.Generator, *shape: int) -> Array:
    return np.asarray(rng.standard_normal(shape) * shape[0] ** -0.5, np.float32)


def encoder(batch: int, *, layers: int = 4, width: int = 256, heads: int = 4, tokens: int = SEQUENCE, seed: int = 0) -> Case:
    """Make a transformer encoder: attention with softmax, layer norms, GELU, all as separate operators where ONNX has them so."""
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((batch, tokens, width)).astype(np.float32)}
    weights: dict[str, Array] = {}
    for k in range(layers):
        weights |= {f"{n}{k}": _dense(rng, width, width) for n in ("q", "k", "v", "o")}
        weights |= {f"up{k}": _dense(rng, width, 4 * width), f"down{k}": _dense(rng, 4 * width, width)}
        weights |= {f"s{k}": np.ones(width, np.float32), f"b{k}": np.zeros(width, np.float32), f"c{k}": _dense(rng, 4 * width)}
    each, size = 9, width // heads

    def split(k: Any, t: Any) -> Any:
        return k.permute(k.reshape(t, (batch, tokens, heads, size)), (0, 2, 1, 3))

    def form(k: Any, x: Any, *w: Any) -> Any:
        for n in range(layers):
            q, key, v, o, up, down, scale, bias, inner = w[each * n : each * (n + 1)]
            heads_of = [split(k, k.matmul(x, m)) for m in (q, key, v)]
            scores = k.softmax(k.matmul(heads_of[0], k.permute(heads_of[1], (0, 1, 3, 2))) * size**-0.5)
            mixed = k.reshape(k.permute(k.matmul(scores, heads_of[2]), (0, 2, 1, 3)), (batch, tokens, width))
            x = k.layer_norm(x + k.matmul(mixed, o), scale, bias)
            x = k.layer_norm(x + k.matmul(k.gelu(k.matmul(x, up) + inner), down), scale, bias)
        return x

    return _generated(f"encoder_b{batch}", "transformer", form, feeds, weights)


def gated(batch: int, *, layers: int = 6, width: int = 64, side: int = 56, seed: int = 0) -> Case:
    """Make a pointwise network on images: gates, normalisations and residuals, and no product at all."""
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.standard_normal((batch, width, side, side)).astype(np.float32)}
    weights: dict[str, Array] = {}
    for k in range(layers):
        weights |= {f"{n}{k}": rng.uniform(0.5, 1.5, (width, 1, 1)).astype(np.float32) for n in ("a", "b", "c", "d")}
        weights[f"s{k}"] = rng.uniform(0.5, 1.5, (side,)).astype(np.float32)

    def form(k: Any, x: Any, *w: Any) -> Any:
        for n in range(layers):
            a, b, c, d, scale = w[5 * n : 5 * (n + 1)]
            x = x + k.silu(x * a + b) * k.tanh(x * c) * 0.5
            x = k.rms_norm(k.gelu_tanh(x - d) + x, scale)
        return x

    return _generated(f"gated_b{batch}", "pointwise", form, feeds, weights)


def _generated(name: str, family: str, form: Any, feeds: dict[str, Array], weights: dict[str, Array]) -> Case:
    model = to_model(name, form, feeds, weights)
    return Case(name, family, model, feeds, form, weights, rtol=RTOL, atol=ATOL, whole_model=True)


GENERATED: dict[str, Callable[[int], Case]] = {"encoder": encoder, "gated": gated}


# ---------------------------------------------------------------- models that come as files


def from_model(name: str, model: onnx.ModelProto, batch: int, *, seed: int = 0) -> Case:
    """Make a case of a model at a batch size, its other symbolic dimensions `SEQUENCE`.

    Raises
    ------
    ValueError
        When the model's inputs have no leading dimension to be the batch.
    """
    model = with_batch(model, batch)
    held = {tensor.name for tensor in model.graph.initializer}
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in held:
            continue
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f":
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
        else:
            feeds[value.name] = np.ones(shape, dtype) if "mask" in value.name else rng.integers(0, 64, shape).astype(dtype)
    return Case(f"{name}_b{batch}", family_of(model), model, feeds, rtol=RTOL, atol=ATOL, whole_model=True)


def family_of(model: onnx.ModelProto) -> str:
    """Tell a kind of network by its operators: a product of two computed values makes a transformer, else a convolution counts."""
    held = {tensor.name for tensor in model.graph.initializer}
    held |= {output for node in model.graph.node if node.op_type == "Constant" for output in node.output}
    if any(node.op_type == "MatMul" and not held & set(node.input) for node in model.graph.node):
        return "transformer"
    return "convolutional" if any(node.op_type == "Conv" for node in model.graph.node) else "pointwise"


def with_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """Return a model with its leading input dimension set, and every reshape that repeats it."""
    known = shape_inference.infer_shapes(model)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*known.graph.value_info, *known.graph.input)}
    fixed = any(_leading(value) == 1 for value in model.graph.input)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    for value in graph.input:
        if value.name in held:
            continue
        dims = value.type.tensor_type.shape.dim
        if not dims:
            raise ValueError(f"input {value.name!r} of {graph.name!r} has no leading dimension")
        for at, dim in enumerate(dims):
            if at == 0 or dim.dim_param:
                dim.dim_value = batch if at == 0 else SEQUENCE
    if fixed and batch != 1:
        for node in graph.node:
            if node.op_type == "Reshape" and node.input[1] in held and shapes.get(node.input[0], [0])[:1] == [1]:
                target = numpy_helper.to_array(held[node.input[1]]).copy()
                if target.size and target[0] == 1:
                    target[0] = batch
                    node.input[1] = f"{node.output[0]} at batch {batch}"
                    graph.initializer.append(numpy_helper.from_array(target, node.input[1]))
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    return shape_inference.infer_shapes(changed)


def _leading(value: onnx.ValueInfoProto) -> int:
    dims = value.type.tensor_type.shape.dim
    return dims[0].dim_value if dims else 0


def model_cases(names: Sequence[str] | None, folder: Path | None, batches: Sequence[int]) -> Iterator[Case]:
    """Make the cases of whole models, one at a time.

    Parameters
    ----------
    names : sequence of str, optional
        Keys of `GENERATED`, names of light networks, or stems of files in `folder`; by default the folder's models, or without a
        folder all generated and light ones.
    folder : path, optional
    batches : sequence of int
    """
    files = {path.stem: path for path in sorted(folder.glob("*.onnx"))} if folder else {}
    default = list(files) if folder else [*GENERATED, *light_names()]
    for name in default if names is None else names:
        for batch in batches:
            if name in files:
                yield from_model(name, onnx.load(files[name]), batch)
            elif name in GENERATED:
                yield GENERATED[name](batch)
            else:
                yield from_model(name, seeded_light(name), batch)


def model_names(folder: Path | None) -> list[str]:
    """Return the names that `model_cases` knows."""
    return [*GENERATED, *light_names(), *(sorted(path.stem for path in folder.glob("*.onnx")) if folder else [])]
