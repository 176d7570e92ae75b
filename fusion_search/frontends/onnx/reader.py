"""Reading an ONNX file safely: whatever is wrong with it becomes one :class:`ModelError` line."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # comes without types
from onnx import checker, defs, inliner

from fusion_search.errors import ModelError, UnsupportedError
from fusion_search.frontends.onnx.tensors import all_tensors, read_external, sparse_array, tensor_array
from fusion_search.ir.spec import Array

_OLDEST_OPSET = 1
_DOMAINS = {"ai.onnx": ""}


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model that was read and checked.

    Attributes
    ----------
    proto : onnx.ModelProto
        Without its initialisers, with external data read, local functions inlined and nodes in topological order.
    name : str
        For people.
    imports : dict of str to int
        Version of each operator set.
    constants : dict of str to numpy.ndarray
        The initialisers, decoded once.
    overridable : frozenset of str
        Initialisers that are graph inputs too (IR version 4 and later): a caller may feed others.
    """

    proto: onnx.ModelProto
    name: str
    imports: dict[str, int]
    constants: dict[str, Array]
    overridable: frozenset[str]


def read_model(source: str | PathLike[str] | onnx.ModelProto) -> OnnxModel:
    """Read and check a model.

    Parameters
    ----------
    source : path or onnx.ModelProto

    Raises
    ------
    ModelError
        When the file cannot be read, or what it holds is no well-formed model.
    UnsupportedError
        When the model is well formed and needs what this version does not read.
    """
    if isinstance(source, onnx.ModelProto):
        folder, where, proto = None, source.graph.name or "model", onnx.ModelProto()
        proto.CopyFrom(source)
    else:
        path = Path(source)
        folder, where = path.parent, str(path)
        proto = _parse(path)
    imports = _check_versions(proto, where)
    for tensor in all_tensors(proto.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            read_external(tensor, folder, f"tensor {tensor.name!r}")
    if proto.functions:
        proto = _inline(proto, where)
        imports = {_DOMAINS.get(entry.domain, entry.domain): entry.version for entry in proto.opset_import}
    constants = _constants(proto.graph)
    del proto.graph.initializer[:], proto.graph.sparse_initializer[:]
    # only a copy frees the memory of what was removed: the weights live on as arrays, once
    slim = onnx.ModelProto()
    slim.CopyFrom(proto)
    proto = slim
    _check_graph(proto, imports, constants)
    listed = {value.name for value in proto.graph.input}
    # Before IR version 4 every initialiser had to be listed as an input, so listing says nothing there.
    overridable = frozenset(constants) & listed if proto.ir_version >= 4 else frozenset()
    return OnnxModel(proto, proto.graph.name or Path(where).stem, imports, constants, overridable)


def _parse(path: Path) -> onnx.ModelProto:
    where = str(path)
    try:
        if path.is_dir():
            raise ModelError("is a directory, not a model file", where=where, hint="give the .onnx file inside it")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ModelError("no such file", where=where, hint="give the path of an .onnx file") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where) from None
    if not data:
        raise ModelError("is empty", where=where, hint="export or copy the model again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RuntimeError) as error:
        hint = "it is truncated, damaged or of another format"
        raise ModelError(f"is no ONNX model: {error}", where=where, hint=hint) from None
    if not proto.HasField("graph"):
        raise ModelError("is no ONNX model: it holds no graph", where=where, hint="it is truncated, damaged or of another format")
    return proto


def _check_versions(proto: onnx.ModelProto, where: str) -> dict[str, int]:
    if not proto.HasField("graph"):
        raise ModelError("holds no graph", where=where)
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        hint = f"the installed onnx package reads IR versions 1 to {onnx.IR_VERSION}"
        raise ModelError(f"has IR version {proto.ir_version}", where=where, hint=hint)
    imports: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = _DOMAINS.get(entry.domain, entry.domain)
        if not 0 <= entry.version < 2**31:
            raise ModelError(f"imports version {entry.version} of operator set {domain or 'ai.onnx'!r}", where=where)
        imports[domain] = max(entry.version, imports.get(domain, 0))
    newest = defs.onnx_opset_version()
    if "" not in imports:
        if any(not node.domain or node.domain == "ai.onnx" for node in proto.graph.node):
            raise ModelError("imports no version of the standard operator set", where=where, hint=f"supported: {_OLDEST_OPSET} to {newest}")
        imports[""] = newest
    if not _OLDEST_OPSET <= imports[""] <= newest:
        hint = f"supported: {_OLDEST_OPSET} to {newest}; onnx.version_converter converts"
        raise ModelError(f"uses version {imports['']} of the standard operator set", where=where, hint=hint)
    return imports


def _inline(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Replace calls of the model's own functions by their bodies."""
    bodies = {(f.domain, f.name): f for f in proto.functions}
    done: set[tuple[str, str]] = set()

    def visit(key: tuple[str, str], path: tuple[tuple[str, str], ...]) -> None:
        if key in path:  # the inliner would not end
            raise ModelError(f"function {key[1]!r} calls itself", where=where)
        if key in done:
            return
        for node in _nested(bodies[key].node):
            if (node.domain, node.op_type) in bodies:
                visit((node.domain, node.op_type), (*path, key))
        done.add(key)

    for key in bodies:
        visit(key, ())
    try:
        return inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, TypeError, DecodeError) as error:
        raise ModelError(f"its functions cannot be inlined: {error}", where=where) from None


def _nested(nodes: Sequence[onnx.NodeProto], depth: int = 0) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those of their subgraphs."""
    if depth > 64:
        raise UnsupportedError("subgraphs are nested more than 64 deep")
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from _nested(graph.node, depth + 1)


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for tensor in graph.initializer:
        where = f"initializer {tensor.name!r}"
        if tensor.name in constants:
            raise ModelError("is defined twice", where=where)
        constants[tensor.name] = tensor_array(tensor, where)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        if name in constants:
            raise ModelError("is defined twice", where=f"initializer {name!r}")
        constants[name] = sparse_array(sparse, f"initializer {name!r}")
    return constants


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies that a node holds as attributes."""
    found = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def captures(node: onnx.NodeProto, depth: int = 0) -> list[str]:
    """Return the outer values that a node's subgraphs read, in order of first use."""
    if depth > 64:
        raise UnsupportedError("subgraphs are nested more than 64 deep")
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        inside = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        inside |= {sparse.values.name for sparse in graph.sparse_initializer}
        inside.update(name for inner in graph.node for name in inner.output)
        reads = [name for inner in graph.node for name in (*inner.input, *captures(inner, depth + 1))]
        for name in (*reads, *(value.name for value in graph.output)):
            if name and name not in inside:
                found[name] = None
    return list(found)


def label(node: onnx.NodeProto, index: int) -> str:
    """Name a node for messages: its own name, else its operator and position."""
    return node.name or f"{node.op_type}_{index}"


def _check_graph(proto: onnx.ModelProto, imports: dict[str, int], constants: dict[str, Array]) -> None:
    """Check definitions and uses, sort the nodes, and check each against its operator's schema."""
    graph = proto.graph
    names: list[Any] = [name for node in graph.node for name in (node.op_type, node.domain, node.name, *node.input, *node.output)]
    names += [*constants, *(value.name for value in (*graph.input, *graph.output))]
    if not all(isinstance(name, str) for name in names):  # protobuf gives bytes for what it cannot decode
        raise ModelError("a name in the model is no valid UTF-8", hint="the file is damaged")
    defined: dict[str, str] = {}
    for value in graph.input:
        if not value.name or value.name in defined:
            raise ModelError(f"graph input {value.name!r} is listed twice or has no name")
        defined[value.name] = "a graph input"
    defined.update(dict.fromkeys(constants, "an initializer"))
    producer: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and (name in defined or name in producer):
                other = defined.get(name) or f"node {label(graph.node[producer[name]], producer[name])!r}"
                raise ModelError(f"defines {name!r}, which {other} defines already", where=f"node {label(node, index)!r} ({node.op_type})")
            if name:
                producer[name] = index
    reads = [[name for name in (*node.input, *captures(node)) if name] for node in graph.node]
    for index, names in enumerate(reads):
        for name in names:
            if name not in defined and name not in producer:
                node = graph.node[index]
                hint = "every input must be a graph input, an initializer or another node's output"
                raise ModelError(f"reads {name!r}, which nothing defines", where=f"node {label(node, index)!r} ({node.op_type})", hint=hint)
    for value in graph.output:
        if value.name not in defined and value.name not in producer:
            raise ModelError(f"graph output {value.name!r} is defined by no node")
    if not graph.output:
        raise ModelError("the graph has no outputs", where=graph.name)
    _sort(graph, reads, producer)
    context = checker.C.CheckerContext()
    context.ir_version, context.opset_imports = proto.ir_version, imports
    for index, node in enumerate(graph.node):
        domain = _DOMAINS.get(node.domain, node.domain)
        if domain not in imports or not defs.has(node.op_type, imports[domain], domain):
            version = f" version {imports[domain]}" if domain in imports else ", which the model does not import"
            what = f"no operator {node.op_type!r} in operator set {domain or 'ai.onnx'!r}{version}"
            raise UnsupportedError(what, where=f"node {label(node, index)!r}", hint="export with standard operators")
        if not subgraphs(node):  # what a body captures is unknown to the check of one node
            try:
                checker.check_node(node, context)
            except (checker.ValidationError, RuntimeError, ValueError, TypeError) as error:
                if "is deprecated in domain_version" in str(error):  # old and still valid, as GroupNormalization 18
                    continue
                text = str(error).split("\n", 1)[0].split("==> Context", 1)[0]
                raise ModelError(text, where=f"node {label(node, index)!r} ({node.op_type})") from None


def _sort(graph: onnx.GraphProto, reads: list[list[str]], producer: dict[str, int]) -> None:
    """Put the nodes in topological order, keeping the file's own order wherever it is one."""
    if all(producer.get(name, -1) < index for index, names in enumerate(reads) for name in names):
        return
    waiting = [len({producer[name] for name in names if name in producer}) for names in reads]
    users: dict[int, set[int]] = {}
    for index, names in enumerate(reads):
        for name in names:
            if name in producer:
                users.setdefault(producer[name], set()).add(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in sorted(users.get(index, ())):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(reads):
        raise ModelError(f"the graph has a cycle through {_cycle(graph, reads, producer, set(order))}", where=graph.name)
    nodes = [graph.node[index] for index in order]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _cycle(graph: onnx.GraphProto, reads: list[list[str]], producer: dict[str, int], sorted_: set[int]) -> str:
    """Walk back from a node that never became ready until one comes up again."""
    at = next(index for index in range(len(reads)) if index not in sorted_)
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = next(producer[name] for name in reads[at] if name in producer and producer[name] not in sorted_)
    ring = path[path.index(at) :][::-1]
    first = ring.index(min(ring))
    names = [label(graph.node[index], index) for index in (*ring[first:], *ring[:first])]
    return " -> ".join([*names[:8], "..."] if len(names) > 8 else [*names, names[0]])
