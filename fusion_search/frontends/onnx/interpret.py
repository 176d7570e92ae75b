"""One forward pass over a model's nodes with concrete shapes: fold what is known, lower what has a rule, carry the rest whole."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper

from fusion_search.errors import FusionSearchError, ModelError
from fusion_search.frontends.onnx.binding import bound_shape, input_shapes, static_type
from fusion_search.frontends.onnx.lower import RULES
from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, axis_of
from fusion_search.frontends.onnx.lower.layout import cut
from fusion_search.frontends.onnx.lower.legacy import modern
from fusion_search.frontends.onnx.lower.narrow import NARROW
from fusion_search.frontends.onnx.opaque import REFUSALS, ReferenceCall, canonical, infer_types, sequence_call
from fusion_search.frontends.onnx.reader import OnnxModel, captures, label, subgraphs
from fusion_search.frontends.onnx.tensors import CORE_DTYPES, dtype_of, tensor_array
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph, Source, Value
from fusion_search.ir.opaque import RUNTIME, OpaqueCall
from fusion_search.ir.orders import turned
from fusion_search.ir.spec import Array, Type

Env = MutableMapping[str, Item]

#: Operators whose rules only hand values on, so that a value of any type may pass.
_HAND_ON = frozenset(
    {"Identity", "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength", "Constant", "SplitToSequence"}
)
#: Operators whose rules convert numbers of less than 16 bits, which no other rule sees.
_CONVERT = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
#: Never folded and never replaced by their definitions: every run draws again.
_RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"})
_FOLDED_BYTES = 64 << 20
_DEEPEST = 16
#: Most nodes of a Scan that is written out step by step.
_MOST_STEPS = 4096
_LARGEST = float(np.finfo(np.float32).max)


@cache
def _defaults(op: str, version: int, domain: str) -> dict[str, float]:
    """The standard's defaults of float attributes, which are float32: a default of 0.01 is not the float64 next to it."""
    if not defs.has(op, version, domain):
        return {}
    attributes = defs.get_schema(op, version, domain).attributes
    found = {name: entry.default_value.f for name, entry in attributes.items() if entry.default_value.type == onnx.AttributeProto.FLOAT}
    return {name: value for name, value in found.items() if abs(value) < _LARGEST}  # of an old Clip: no bound


class Interpreter:
    """Builds the graph of one model for one binding of its dimensions.

    Parameters
    ----------
    model : OnnxModel
    dims : mapping of str to int
        Every symbolic dimension, bound.
    overrides : mapping of str to numpy.ndarray
        Initialisers that are replaced.
    values : mapping of str to numpy.ndarray
        Inputs whose elements are known; they stay inputs, which nothing reads.
    """

    def __init__(self, model: OnnxModel, dims: Mapping[str, int], overrides: Mapping[str, Array], values: Mapping[str, Array]) -> None:
        self.model, self.dims, self.values = model, dims, values
        self.constants: dict[str, Array] = {**model.constants, **overrides}
        self.builder = GraphBuilder(model.name)
        self.ctx = Lowering(self.builder)
        self.ctx.symbolic = bool(dims)
        self.overridable: set[str] = set()
        self.declared = {value.name: value for value in (*model.proto.graph.value_info, *model.proto.graph.output)}
        self._made: dict[str, str] = {}  # initialisers that were read, and the constants that they became
        self._labels: set[str] = set()
        self._depth = 0

    def run(self, source: Source) -> Graph:
        """Return the graph."""
        graph, builder = self.model.proto.graph, self.builder
        builder.reserve(name for node in graph.node for name in node.output if name)
        builder.reserve([*self.constants, *(value.name for value in (*graph.input, *graph.output))])
        env: dict[str, Item] = {}
        shapes = input_shapes(self.model)
        for value in graph.input:
            if value.name in shapes:
                tensor = value.type.HasField("tensor_type")
                dtype = dtype_of(value.type.tensor_type.elem_type, f"input {value.name!r}") if tensor else RUNTIME
                env[value.name] = builder.input(value.name, dtype, bound_shape(shapes[value.name], self.dims))
                if value.name in self.values:
                    env[value.name] = builder.constant(self.values[value.name], f"{value.name}.bound")
        for index, node in enumerate(graph.node):
            name = stem = label(node, index)
            k = 1
            while name in self._labels:
                k += 1
                name = f"{stem}.{k}"
            self._labels.add(name)
            with builder.origin(name, node.op_type):
                self._node(node, env, name, self.model.imports, top=True)
        for value in graph.output:
            with builder.origin("", "SequenceConstruct"):  # what a known sequence takes to be returned
                item = self._tensor(self._resolve(value.name, env))
            builder.output(value.name, item)
        for name, made in self._made.items():  # the model keeps no second copy of weights that the graph has turned
            kept = builder.constants.get(made)
            if kept is not None and turned(kept) and self.constants[name] is self.model.constants.get(name):
                self.model.constants[name] = kept
        return builder.build(source=source, overridable=frozenset(self.overridable))

    # ------------------------------------------------------------------ values

    def _resolve(self, name: str, env: Env) -> Item:
        """Return a model value's item; initialisers become constants when they are first read."""
        if not name or name in env:
            return env[name] if name else ""
        if name not in self.constants:
            raise ModelError(f"reads {name!r}, which nothing defines")
        since = self.builder.mark()
        made = self.builder.constant(self.constants[name])
        if self.builder.rename(made, name, since):
            made = name
        if name in self.model.overridable:
            self.overridable.add(made)
        env[name] = self._made[name] = made
        return made

    def _tensor(self, item: Item) -> str:
        """Return one value for an item; a known sequence becomes a value of its own."""
        if isinstance(item, str):
            return item
        name = self.builder.fresh("sequence")
        self.builder.opaque(sequence_call(), item, [Value(name, RUNTIME, ())])
        return name

    def _known(self, item: Item) -> bool:
        return isinstance(item, str) and (not item or item in self.builder.constants)

    # ------------------------------------------------------------------ nodes

    def _node(self, node: onnx.NodeProto, env: Env, where: str, imports: Mapping[str, int], *, top: bool) -> None:
        """Lower one node and bind its outputs."""
        place = f"node {where!r} ({node.op_type})"
        try:
            inputs = tuple(self._resolve(name, env) for name in node.input)
            captured = {name: self._resolve(name, env) for name in captures(node)}
            since = self.builder.mark()  # operands keep their names, also those that were first read here
            results = self._results(node, inputs, captured, env, where, imports, top=top)
        except NotLowered:
            raise
        except FusionSearchError as error:
            if error.where or error.what.startswith("node "):
                raise
            raise type(error)(error.what, where=place, hint=error.hint) from None
        except KeyError as error:
            raise ModelError(f"has no attribute {error.args[0]!r}", where=place) from None
        except (*REFUSALS, RecursionError, MemoryError) as error:
            raise ModelError(str(error)[:300] or type(error).__name__, where=place) from None
        touched = self.overridable and any(i in self.overridable for i in (*inputs, *captured.values()) if isinstance(i, str))
        for k, name in enumerate(node.output):
            if not name:
                continue
            item = results[k] if k < len(results) else ""
            if not item and not isinstance(item, tuple):
                raise ModelError(f"has no output {k}", where=place)
            if top and isinstance(item, str) and item != name and self.builder.rename(item, name, since):
                item = name
            env[name] = item
        if touched:
            self.overridable.update(self.builder.new_constants(since))

    def _results(
        self,
        node: onnx.NodeProto,
        inputs: tuple[Item, ...],
        captured: Mapping[str, Item],
        env: Env,
        where: str,
        imports: Mapping[str, int],
        *,
        top: bool,
    ) -> list[Item]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        attrs = {**_defaults(node.op_type, imports[domain], domain), **{a.name: attribute(a) for a in node.attribute}}
        call = Call(node.op_type, imports[domain], inputs, attrs, tuple(bool(name) for name in node.output), node)
        start = len(self.builder.nodes)
        rule = RULES.get(f"{domain}.{node.op_type}" if domain else node.op_type)
        plain = all(self._plain(item) for item in inputs)
        if rule is not None and (plain or node.op_type in _HAND_ON or (node.op_type in _CONVERT and all(map(self._numbers, inputs)))):
            try:
                results = list(rule(self.ctx, modern(self.ctx, call)))
                if all(k < len(results) and results[k] != "" for k, wanted in enumerate(call.wanted) if wanted):
                    return results
            except NotLowered:
                pass
            del self.builder.nodes[start:]
        if node.op_type == "If" and self._known(inputs[0]):
            return self._branch(attrs["then_branch" if self._truth(inputs[0]) else "else_branch"], env, where, imports)
        if node.op_type == "Scan" and plain and not domain:
            try:
                return self._steps(call, attrs, env, where, imports)
            except NotLowered:
                del self.builder.nodes[start:]
        schema = defs.get_schema(node.op_type, imports[domain], domain)
        whole = not captured and node.op_type not in _RANDOM
        if whole and not subgraphs(node) and all(map(self._known, inputs)):
            folded = self._fold(node, inputs, where, imports)
            if folded is not None:
                return folded
        if whole and plain and self._depth < _DEEPEST:
            try:
                return self._composite(schema, node, inputs, where, imports)
            except NotLowered:
                del self.builder.nodes[start:]
        if self._depth:  # inside a function body: better the whole function opaque than a part of it
            raise NotLowered
        return self._opaque(node, inputs, captured, where, imports, top=top)

    def _plain(self, item: Item) -> bool:
        """Whether core operators may read an item."""
        names = (item,) if isinstance(item, str) else item
        return all(not name or self.builder.values[name].dtype in CORE_DTYPES for name in names)

    def _numbers(self, item: Item) -> bool:
        """Whether an item is a tensor of numbers, however few bits they have."""
        return isinstance(item, str) and (not item or self.builder.values[item].dtype in CORE_DTYPES | NARROW)

    def _truth(self, item: Item) -> bool:
        return isinstance(item, str) and bool(self.builder.constants[item].reshape(-1)[0])

    def _branch(self, graph: onnx.GraphProto, env: Env, where: str, imports: Mapping[str, int]) -> list[Item]:
        """Lower the branch of an If that is known to be taken."""
        inner: dict[str, Item] = dict(env)
        for tensor in graph.initializer:
            inner[tensor.name] = self.builder.constant(tensor_array(tensor, f"initializer {tensor.name!r}"))
        for node in graph.node:
            self._node(node, inner, where, imports, top=False)
        return [self._resolve(value.name, inner) for value in graph.output]

    def _steps(self, call: Call, attrs: Mapping[str, Any], env: Env, where: str, imports: Mapping[str, int]) -> list[Item]:
        """Lower a Scan step by step, when the number of its steps holds for all bindings and is small."""
        body: onnx.GraphProto = attrs["body"]
        count = int(attrs["num_scan_inputs"])
        states, scanned = list(call.tensors[: len(call.inputs) - count]), call.tensors[len(call.inputs) - count :]
        results = len(body.output) - len(states)
        if call.opset < 9 or self.ctx.symbolic or len(call.tensors) != len(call.inputs) or not scanned:
            raise NotLowered
        axes, turned = (tuple(attrs.get(f"scan_input_{key}") or (0,) * count) for key in ("axes", "directions"))
        axes = tuple(axis_of(axis, len(self.ctx.shape(name))) for axis, name in zip(axes, scanned, strict=True))
        steps = {self.ctx.shape(name)[axis] for name, axis in zip(scanned, axes, strict=True)}
        if len(steps) != 1:
            raise ValueError(f"sequences of {sorted(steps)} elements are walked together")
        (length,) = steps
        if not 0 < length * len(body.node) <= _MOST_STEPS:
            raise NotLowered
        gathered: list[list[str]] = [[] for _ in range(results)]
        self._depth += 1
        try:
            for step in range(length):
                inner: dict[str, Item] = dict(env)
                for tensor in body.initializer:
                    inner[tensor.name] = self.builder.constant(tensor_array(tensor, f"initializer {tensor.name!r}"))
                parts = [
                    self._slice_of(name, axis, length - 1 - step if back else step)
                    for name, axis, back in zip(scanned, axes, turned, strict=True)
                ]
                inner.update((value.name, item) for value, item in zip(body.input, (*states, *parts), strict=True))
                for node in body.node:
                    self._node(node, inner, where, imports, top=False)
                found = [self._tensor(self._resolve(value.name, inner)) for value in body.output]
                states = found[: len(states)]
                for column, name in zip(gathered, found[len(states) :], strict=True):
                    column.append(name)
        except ModelError:
            raise NotLowered from None
        finally:
            self._depth -= 1
        axes, turned = (tuple(attrs.get(f"scan_output_{key}") or (0,) * results) for key in ("axes", "directions"))
        return [*states, *(self._stacked(*column) for column in zip(gathered, axes, turned, strict=True))]

    def _slice_of(self, name: str, axis: int, place: int) -> str:
        shape = self.ctx.shape(name)
        return self.ctx.view(cut(self.ctx, name, axis, place, 1, part="step"), shape[:axis] + shape[axis + 1 :])

    def _stacked(self, names: list[str], axis: int, back: int) -> str:
        shape = self.ctx.shape(names[0])
        axis = axis_of(axis, len(shape) + 1)
        views = [self.ctx.view(name, (*shape[:axis], 1, *shape[axis:])) for name in (names[::-1] if back else names)]
        return views[0] if len(views) == 1 else self.ctx.op("Concat", *views, part="stack", axis=axis)

    def _composite(self, schema: Any, node: onnx.NodeProto, inputs: tuple[Item, ...], where: str, imports: Mapping[str, int]) -> list[Item]:
        """Lower an operator by its definition; with 16-bit floats in float32 inside, rounded once at the results."""
        wide = tuple(self.ctx.widen(item) if isinstance(item, str) and item and not self._depth else item for item in inputs)
        if wide == inputs:
            return self._body(schema, node, inputs, where, imports)
        types = self._types(canonical(node, ()), [item for item in inputs if isinstance(item, str)], imports)
        results = self._body(schema, node, wide, where, imports)
        left = iter(types)
        wanted = [next(left).dtype if name else None for name in node.output]
        if RUNTIME in wanted:
            raise NotLowered
        ends = (
            self.ctx.narrow(item, dtype) if isinstance(item, str) and item and dtype is not None else item
            for item, dtype in zip(results, wanted, strict=False)
        )
        return list(ends)

    def _body(self, schema: Any, node: onnx.NodeProto, inputs: tuple[Item, ...], where: str, imports: Mapping[str, int]) -> list[Item]:
        """Lower the standard's own definition of an operator by simpler ones."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        function = _function(schema, node, [self._proto_type(item) for item in inputs], imports[domain])
        if function is None:
            raise NotLowered
        defaults = (a.default_value for a in schema.attributes.values() if a.default_value.type)
        given = {a.name: a for a in (*defaults, *function.attribute_proto, *node.attribute)}
        inner: dict[str, Item] = {name: inputs[k] if k < len(inputs) else "" for k, name in enumerate(function.input)}
        versions = {**imports, **{entry.domain: entry.version for entry in function.opset_import}}
        self._depth += 1
        try:
            for step in function.node:
                self._node(_with_attributes(step, given), inner, where, versions, top=False)
        except ModelError:
            raise NotLowered from None
        finally:
            self._depth -= 1
        return [inner.get(name, "") for name in function.output]

    def _proto_type(self, item: Item) -> onnx.TypeProto:
        if not isinstance(item, str):
            raise NotLowered
        if not item:
            return onnx.TypeProto()
        value = self.builder.values[item]
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)

    def _types(self, copy: onnx.NodeProto, names: list[str], imports: Mapping[str, int]) -> list[Type]:
        known = [self.builder.type_of(name) if name else None for name in names]
        arrays = [self.builder.constants.get(name) for name in names]
        return infer_types(copy, known, arrays, imports, self.model.proto.ir_version)

    def _fold(self, node: onnx.NodeProto, inputs: tuple[Item, ...], where: str, imports: Mapping[str, int]) -> list[Item] | None:
        """Evaluate a node whose operands are all known; None when it fails or its results are too large to keep."""
        names = [item for item in inputs if isinstance(item, str)]
        copy = canonical(node, ())
        types = self._types(copy, names, imports)
        limit = max([_FOLDED_BYTES, *(self.builder.values[name].nbytes for name in names if name)])
        if any(Value("", t.dtype, t.shape).nbytes > limit for t in types):
            return None
        call = ReferenceCall(copy, (), imports, self.model.proto.ir_version, types, f"node {where!r} ({node.op_type})")
        results = call([self.builder.constants[name] if name else None for name in names])
        if not all(isinstance(result, np.ndarray | np.generic) for result in results):
            return None
        left = iter(results)
        return [self.builder.constant(np.asarray(next(left))) if name else "" for name in node.output]

    def _opaque(
        self,
        node: onnx.NodeProto,
        inputs: tuple[Item, ...],
        captured: Mapping[str, Item],
        where: str,
        imports: Mapping[str, int],
        *,
        top: bool,
    ) -> list[Item]:
        """Carry a node whole."""
        names = [self._tensor(item) for item in inputs]
        outer = [self._tensor(item) for item in captured.values()]
        copy = canonical(node, list(captured))
        types = self._types(copy, names, imports)
        wanted = [name for name in node.output if name]
        for k, name in enumerate(wanted):
            pair = static_type(self.declared[name], self.dims) if top and name in self.declared else None
            if types[k].dtype == RUNTIME and pair is not None:
                types[k] = Type(*pair)
        place = f"node {where!r} ({node.op_type})"
        call = ReferenceCall(copy, list(captured), imports, self.model.proto.ir_version, types, place)
        values = [Value(name if top else self.builder.fresh(name), t.dtype, t.shape) for name, t in zip(wanted, types, strict=True)]
        self.builder.opaque(OpaqueCall(node.op_type, call.digest, call), [*names, *outer], values)
        left = iter(values)
        return [next(left).name if name else "" for name in node.output]


def attribute(proto: onnx.AttributeProto) -> Any:
    """Return an attribute as a Python value: strings decoded, lists as tuples."""
    kind = onnx.AttributeProto
    if proto.type == kind.FLOAT:
        return proto.f
    if proto.type == kind.INT:
        return proto.i
    if proto.type == kind.STRING:
        return proto.s.decode("utf-8", "replace")
    if proto.type == kind.FLOATS:
        return tuple(proto.floats)
    if proto.type == kind.INTS:
        return tuple(proto.ints)
    if proto.type == kind.STRINGS:
        return tuple(s.decode("utf-8", "replace") for s in proto.strings)
    return helper.get_attribute_value(proto)


def _function(schema: Any, node: onnx.NodeProto, types: list[onnx.TypeProto], opset: int) -> onnx.FunctionProto | None:
    """Return the standard's definition of an operator in the newest form that the model's operator set has."""
    proto: onnx.FunctionProto
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if schema.has_function and versions:
        found = schema.get_function_with_opset_version(max(versions))
        proto = onnx.FunctionProto.FromString(found if isinstance(found, bytes) else found.SerializeToString())
        return proto
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if schema.has_context_dependent_function and versions:
        encoded = [t.SerializeToString() for t in types]
        found = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), encoded)
        proto = onnx.FunctionProto.FromString(found)
        return proto if proto.node else None
    return None


def _with_attributes(step: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Copy a node of a function body with its references to the function's attributes resolved."""
    copy = onnx.NodeProto()
    copy.CopyFrom(step)
    del copy.attribute[:]
    for a in step.attribute:
        if not a.ref_attr_name:
            copy.attribute.add().CopyFrom(a)
        elif a.ref_attr_name in given:
            copy.attribute.add().CopyFrom(given[a.ref_attr_name])
            copy.attribute[-1].name = a.name
    return copy
