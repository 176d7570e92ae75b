"""Calls that no lowering rule covers: a model of one node, run by the reference evaluator of the ``onnx`` package."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from fusion_search.errors import FusionSearchError, ModelError, UnsupportedError
from fusion_search.frontends.onnx.binding import type_of_proto
from fusion_search.frontends.onnx.reference_ops import corrections
from fusion_search.ir.opaque import RUNTIME, OpaqueCall
from fusion_search.ir.spec import Array, Type

#: What the onnx package raises for a node or model that it does not accept, whichever of its layers finds it.
REFUSALS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,  # and with it NotImplementedError
    AssertionError,
    OSError,
    shape_inference.InferenceError,
    onnx.checker.ValidationError,
)

#: Operators for which the onnx package infers other shapes than its evaluator gives.
_MISINFERRED = frozenset({"STFT"})
_TERM = r"[A-Za-z]*(\.\.\.)?[A-Za-z]*"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


class ReferenceCall:
    """Runs one node of the model.

    Parameters
    ----------
    node : onnx.NodeProto
        With all its inputs and outputs named.
    captured : sequence of str
        Outer values that the node's subgraphs read.
    imports : mapping of str to int
    ir_version : int
    types : sequence of Type
        Declared types of the outputs; those known only at run time have the dtype `RUNTIME`.
    where : str
        The node, for messages.
    """

    def __init__(
        self, node: onnx.NodeProto, captured: Sequence[str], imports: Mapping[str, int], ir_version: int, types: Sequence[Type], where: str
    ) -> None:
        if node.op_type == "Scatter":  # the older name of an operator that the evaluator knows by its newer one
            node.op_type, imports = "ScatterElements", {**imports, "": max(imports[""], 11)}
        self.names = [*node.input, *captured]
        feeds = [name for name in dict.fromkeys([*node.input, *captured]) if name]
        self.types = tuple(types)
        self.where = where
        blank = onnx.TypeProto()
        graph = helper.make_graph(
            [node],
            "call",
            [helper.make_value_info(name, blank) for name in feeds],
            [helper.make_value_info(name, blank) for name in node.output if name],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(imports.items())]
        self.model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
        try:
            opset = next((entry.version for entry in self.model.opset_import if entry.domain in ("", "ai.onnx")), 1)
            self.evaluator = ReferenceEvaluator(self.model, new_ops=corrections(opset))
        except REFUSALS as error:
            hint = "the onnx package has no reference implementation of it"
            raise UnsupportedError(f"cannot be run: {str(error)[:200]}", where=where, hint=hint) from None

    @property
    def digest(self) -> str:
        """Equal for equal calls."""
        return hashlib.sha256(self.model.SerializeToString(deterministic=True)).hexdigest()

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the node."""
        feeds = {name: value for name, value in zip(self.names, inputs, strict=True) if name}
        try:
            with np.errstate(all="ignore"):
                results = self.evaluator.run(None, feeds)
        except FusionSearchError as error:
            raise UnsupportedError(error.what, where=self.where, hint=error.hint) from None
        except REFUSALS as error:
            raise UnsupportedError(
                f"failed in the reference evaluator: {type(error).__name__}: {str(error)[:200]}", where=self.where
            ) from error
        checked = []
        for result, (dtype, shape) in zip(results, self.types, strict=True):
            if dtype != RUNTIME:
                result = np.ascontiguousarray(np.asarray(result, dtype)).reshape(np.shape(result))
                if result.size == math.prod(shape):  # the evaluator stacks the scalars of a loop as columns
                    result = result.reshape(shape)
                if result.shape != shape:
                    raise UnsupportedError(f"gave {list(result.shape)} where the model promises {list(shape)}", where=self.where)
            checked.append(result)
        return checked


def canonical(node: onnx.NodeProto, captured: Sequence[str]) -> onnx.NodeProto:
    """Copy a node under neutral names, so that equal calls in different places are equal."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = copy.doc_string = ""
    prefix = "_"
    while any(name.startswith(prefix) for name in captured):
        prefix += "_"
    seen: dict[str, str] = {}
    for k, name in enumerate(node.input):
        copy.input[k] = seen.setdefault(name, f"{prefix}in{k}") if name else ""
    for k, name in enumerate(node.output):
        copy.output[k] = f"{prefix}out{k}" if name else ""
    while copy.output and not copy.output[-1]:
        del copy.output[-1]
    return copy


def infer_types(
    node: onnx.NodeProto, known: Sequence[Type | None], constants: Sequence[Array | None], imports: Mapping[str, int], ir_version: int
) -> list[Type]:
    """Return the types of a canonical node's named outputs; `RUNTIME` where they depend on data."""
    unknown = [Type(RUNTIME, ()) for name in node.output if name]
    domain = "" if node.domain == "ai.onnx" else node.domain
    if node.op_type in _MISINFERRED:
        return unknown
    if node.op_type == "Einsum":  # a malformed equation sends the onnx package's inference into an endless loop
        equation = next((a.s.decode("utf-8", "replace") for a in node.attribute if a.name == "equation"), "")
        if not _EQUATION.fullmatch(equation.replace(" ", "")):
            raise ModelError(f"malformed equation {equation!r}", hint="such as 'bij,bjk->bik'")
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    try:
        schema = defs.get_schema(node.op_type, imports[domain], domain)
        for name, found, array in zip(node.input, known, constants, strict=True):
            if not name:
                continue
            if found is None or found.dtype == RUNTIME:
                return unknown
            types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(found.dtype), found.shape)
            if array is not None and array.size <= 4096:
                data[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        opsets = [helper.make_opsetid(d, v) for d, v in imports.items()]
        found_types = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets, ir_version=ir_version)
        results = []
        for name in node.output:
            if name:
                pair = type_of_proto(found_types[name], {}) if name in found_types else None
                results.append(Type(*pair) if pair else Type(RUNTIME, ()))
        return results
    except (*REFUSALS, FusionSearchError):
        return unknown  # no fault: types that cannot be inferred are those that the evaluator gives at run time


def sequence_call() -> OpaqueCall:
    """Return the call that makes a sequence of its operands."""
    return OpaqueCall("SequenceConstruct", hashlib.sha256(b"sequence of the operands").hexdigest(), lambda arrays: [list(arrays)])
