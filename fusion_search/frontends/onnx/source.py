"""Loading a model, and what a loaded graph can do later: bind other extents, answer as the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from fusion_search.errors import FusionSearchError, ModelError, UnsupportedError
from fusion_search.frontends.onnx.binding import bind_dims, check_overrides, check_values, generic_dims, input_shapes
from fusion_search.frontends.onnx.interpret import Interpreter
from fusion_search.frontends.onnx.opaque import REFUSALS
from fusion_search.frontends.onnx.reader import OnnxModel, read_model
from fusion_search.frontends.onnx.reference_ops import corrections
from fusion_search.ir.binding import bind_asked, values_key
from fusion_search.ir.graph import Distributed, Graph
from fusion_search.ir.spec import Array

_T = TypeVar("_T")


@dataclass(frozen=True)
class OnnxSource:
    """A model that was read, and what its symbolic dimensions are bound to.

    Attributes
    ----------
    model : OnnxModel
        Shared between all bindings; its weights are decoded once.
    dims : dict of str to int
    overrides : dict of str to numpy.ndarray
        Initialisers in place of the model's own.
    values : dict of str to numpy.ndarray
        Inputs whose elements are bound, as extents are: axes, shapes, repeats and the like.
    asked : set of str
        Further inputs, all scalars and vectors, whose elements some node needs and does not have, so that it is carried whole.
    distributed : tuple of Distributed
        Maps that the passes distribute over concats, in every binding.
    family : dict
        What all bindings of the model have in common, found when it is first needed.
    """

    model: OnnxModel = field(repr=False)
    dims: dict[str, int]
    overrides: dict[str, Array] = field(default_factory=dict, repr=False)
    values: dict[str, Array] = field(default_factory=dict, repr=False)
    asked: set[str] = field(default_factory=set, repr=False, compare=False)
    distributed: tuple[Distributed, ...] = ()
    family: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def symbolic_inputs(self) -> dict[str, tuple[str | int, ...]]:
        """Each input's shape with its symbolic dimensions by name."""
        return input_shapes(self.model)

    @cached_property
    def overridable(self) -> dict[str, Array]:
        """Initialisers that a caller may feed, with the values they have now."""
        return {name: self.overrides.get(name, self.model.constants[name]) for name in sorted(self.model.overridable)}

    @property
    def generic(self) -> Graph | None:
        """The model bound to generic extents (see `binding.generic_dims`); None when nothing is symbolic or they do not work."""
        key = f"generic {values_key(self.values)} {self.distributed}"
        if key not in self.family:
            extents = generic_dims(self.model)
            # what is bound by its elements has a length of its own
            fixed = {dim for name in self.values for dim in self.symbolic_inputs[name]}
            extents |= {dim: self.dims[dim] for dim in extents if dim in fixed}
            try:
                self.family[key] = self.bind(extents) if extents else None
            except FusionSearchError:
                self.family[key] = None
        found: Graph | None = self.family[key]
        return found

    def distributing(self, more: Sequence[Distributed]) -> OnnxSource:
        """Return the same source with further maps to distribute."""
        return replace(self, distributed=(*self.distributed, *more))

    def bind(
        self, dims: Mapping[str, int], overrides: Mapping[str, Array] | None = None, values: Mapping[str, Array] | None = None
    ) -> Graph:
        """Build the graph for other extents, other overridable initialisers, or other elements of inputs.

        Parameters
        ----------
        dims : mapping of str to int
        overrides : mapping of str to numpy.ndarray, optional
        values : mapping of str to numpy.ndarray, optional
            Those of this source by default.

        Raises
        ------
        FusionSearchError
            When a dimension is unbound or unknown, or the model does not work for these extents.
        """
        bound = bind_dims(input_shapes(self.model), dims)
        checked = check_values(self.model, bound, self.values if values is None else values)
        source = OnnxSource(
            self.model, bound, check_overrides(self.model, overrides), checked, distributed=self.distributed, family=self.family
        )
        interpreter = Interpreter(self.model, source.dims, source.overrides, source.values)
        graph = _guarded(lambda: interpreter.run(source))
        source.asked.update(interpreter.ctx.asked)
        return graph

    def reference(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model as it was read, by the reference evaluator of the ``onnx`` package.

        Raises
        ------
        UnsupportedError
            When that evaluator does not serve this model.
        """
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.run(None, {**self.model.constants, **self.overrides, **self.values, **feeds})
        except REFUSALS as error:
            raise UnsupportedError(f"the reference evaluator fails: {type(error).__name__}: {str(error)[:200]}") from None
        return dict(zip((value.name for value in self.model.proto.graph.output), results, strict=True))

    @cached_property
    def _evaluator(self) -> ReferenceEvaluator:
        proto = self.model.proto
        opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 1)
        return ReferenceEvaluator(proto, new_ops=corrections(opset))


def load_onnx(
    path: str | PathLike[str] | onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    overrides: Mapping[str, Array] | None = None,
    values: Mapping[str, Any] | None = None,
) -> Graph:
    """Read an ONNX model as a graph of core operators.

    Parameters
    ----------
    path : path or onnx.ModelProto
        Weights stored beside the file are read from its own folder only.
    dims : mapping of str to int, optional
        An extent for every symbolic dimension of the inputs.
    overrides : mapping of str to numpy.ndarray, optional
        Values for initialisers that are also graph inputs, in place of the model's own.
    values : mapping of str to array_like, optional
        Elements of inputs that shapes and index maps depend on, such as axes, shapes or repeats.

    Returns
    -------
    Graph
        Not yet simplified; its `source` binds other dimensions and runs the model as a reference.

    Raises
    ------
    ModelError
        When the file cannot be read or is no well-formed model.
    UsageError
        When `dims` leaves a dimension unbound, or names one that is unknown; when `values` are of no input.
    UnsupportedError
        When the model needs an operator that nothing here runs.

    Notes
    -----
    Linear in the number of nodes, plus the size of the weights.
    """
    model = _guarded(lambda: read_model(path))
    return OnnxSource(model, {}).bind(dims or {}, overrides, values or {})


def load_for_feeds(path: str | PathLike[str] | onnx.ModelProto, feeds: Mapping[str, Any]) -> Graph:
    """Read a model for the inputs it will get: their extents bind its dimensions, and operands like axes are bound to their elements.

    Parameters
    ----------
    path : path or onnx.ModelProto
    feeds : mapping of str to array_like

    Returns
    -------
    Graph
        Its `source.values` says which inputs were bound by their elements.
    """
    model = _guarded(lambda: read_model(path))
    source = OnnxSource(model, {})
    return bind_asked(source, _dims_of(model, feeds), {}, feeds, {})


def _dims_of(model: OnnxModel, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return what the fed shapes make of the symbolic dimensions."""
    found: dict[str, int] = {}
    for name, shape in input_shapes(model).items():
        if name in feeds and not isinstance(feeds[name], list):
            found.update((dim, int(n)) for dim, n in zip(shape, np.shape(feeds[name]), strict=False) if isinstance(dim, str))
    return found


def _guarded(work: Callable[[], _T]) -> _T:
    """Turn whatever the onnx package raises for a damaged model into one line."""
    try:
        return work()
    except FusionSearchError:
        raise
    except MemoryError:
        raise ModelError("the model needs more memory than there is") from None
    except RecursionError:
        raise ModelError("the model is nested too deeply") from None
    except REFUSALS as error:
        raise ModelError(f"the model is damaged: {type(error).__name__}: {str(error)[:200]}") from None
