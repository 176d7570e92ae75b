"""A compiled plan that serves any shape the model allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fusion_search.errors import FeedError
from fusion_search.fusion.copies import copyable
from fusion_search.fusion.program import Program
from fusion_search.ir.binding import ValuesKey, bind_asked, values_key
from fusion_search.ir.opaque import RUNTIME
from fusion_search.passes import run_passes
from fusion_search.runtime.packed import PackedConstants
from fusion_search.runtime.program import Array, BoundPlan
from fusion_search.runtime.refit import RunGroup, refit, space_of
from fusion_search.runtime.schedules import chooser
from fusion_search.search.methods import METHODS, collector_paused
from fusion_search.search.plan import Plan

#: Bindings to other extents that are kept ready, the latest ones.
KEPT_BINDINGS = 8
BindingKey = tuple[tuple[tuple[str, int], ...], ValuesKey]


class CompiledPlan:
    """Runs a plan: ``run({"x": array}) -> {"y": array}``.

    The groups are kept for other extents of the symbolic dimensions: the model is bound again, legality is checked again, and
    kernels, whose structure was made for any extents, are compiled only for groups that are no longer legal. The same holds for inputs
    whose elements decide shapes or places (axes, shapes, repeats): the model is bound to the elements that are fed.

    Parameters
    ----------
    plan : Plan
    progress : callable, optional
        Told before each kernel is compiled or loaded which of how many it is.

    Attributes
    ----------
    plan : Plan
    compilations : int
        Kernels compiled so far; those found in the disk cache do not count.
    """

    def __init__(self, plan: Plan, *, progress: Callable[[str], None] | None = None) -> None:
        with collector_paused():  # thousands of small records, none of them garbage
            self._compile(plan, progress)

    def _compile(self, plan: Plan, progress: Callable[[str], None] | None) -> None:
        self.plan = plan
        source = plan.graph.source
        generic = source.generic if source else None
        self._generic = run_passes(generic) if generic is not None else None
        # groups that hold for all extents, not only for the planned ones
        self._groups = [RunGroup(group.nodes, group.stores) for group in plan.groups]
        if self._generic is not None:
            self._groups = refit(plan, self._groups, self._generic)
        self._lock = threading.RLock()
        self._bound: dict[BindingKey, BoundPlan] = {}
        self._generics = {values_key(source.values if source else {}): self._generic}
        self._latest = plan.graph
        tuned = {group.nodes: group.tuned for group in plan.groups if group.tuned is not None}
        self._choose = chooser(tuned)  # measured for the planned extents; others run as the generator chooses
        self._aliasing = "alias" in str(plan.space.get("name", "")).split("+")
        self._packed = PackedConstants()
        self.planned = BoundPlan(
            plan.graph, self._groups, self._generic, self._choose, packed=self._packed, progress=progress, aliasing=self._aliasing
        )
        self.compilations = self.planned.compilations
        self._dims = dict(source.dims) if source else {}
        #: Inputs that are bound by their elements: those bound when it was planned, and those found to be needed.
        self._by_value = {*source.values, *source.asked} if source else set()
        self._latest_key: BindingKey | None = None
        #: The short way of the latest binding; none where elements of inputs count, which it does not look at.
        self._express = None if self._by_value else self.planned.express
        self._bound[tuple(sorted(self._dims.items())), values_key(source.values if source else {})] = self.planned

    @property
    def peak_bytes(self) -> int:
        """Planned buffers, results and scratch for the planned shapes."""
        return self.planned.peak_bytes

    def __call__(self, feeds: Mapping[str, Any], *, out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Run the plan. Several threads may do so at once, with feeds of any shapes: each run has a workspace of its own.

        Parameters
        ----------
        feeds : mapping of str to array_like
            One array for each input, of the input's dtype; its shape may differ from the planned one wherever the
            model's is symbolic. Inputs are never written. Initialisers that the model lists as inputs may be fed too.
        out : mapping of str to numpy.ndarray, optional
            Arrays for some or all of the results: of the result's dtype and shape, C-contiguous, aligned, writeable, and apart
            from the inputs and from each other. After an error in the run their content is undefined.

        Returns
        -------
        dict of str to numpy.ndarray
            The arrays of `out`, and new arrays for the other results, which later runs do not touch.

        Raises
        ------
        FeedError
            For a missing or unknown name, another dtype, a shape that the model does not allow, or an array of `out` that cannot
            take its result.
        """
        express = self._express
        if express is not None:
            found = express(feeds, out)
            if found is not None:
                return found
        arrays = self.checked(feeds)
        return self.for_feeds(arrays)(arrays, out)

    def for_feeds(self, arrays: Mapping[str, Array]) -> BoundPlan:
        """Return the plan bound to the shapes of these feeds, and to their elements where those decide shapes or places."""
        source = self.plan.graph.source
        overrides = {name: arrays[name] for name in arrays if source and name in source.overridable}
        dims = self._bind_dims(arrays)
        with self._lock:
            if overrides:
                return self._rebind(dims, overrides, arrays)
            key = self._key(dims, arrays)
            if key == self._latest_key:  # the same again, as most runs are
                return self._bound[key]
            bound = self._bound.pop(key, None) or self._rebind(dims, {}, arrays)
            self._latest_key = self._key(dims, arrays)  # binding may have found more inputs that count
            self._bound[self._latest_key] = bound  # the latest last
            for old in [k for k in self._bound if self._bound[k] is not self.planned][:-KEPT_BINDINGS]:
                del self._bound[old]
            self._latest = bound.graph
            self._express = None if self._by_value else bound.express
            return bound

    def replan(self, *, time_limit_s: float = 60.0) -> Plan:
        """Search a plan for the extents of the last run, by the method of this one.

        Returns
        -------
        Plan
            Proved, where its status says so, for ``plan.dims``; compile it to use it.
        """
        method = METHODS.get(self.plan.method, METHODS["exact"])  # a priced plan has no method of its own
        return method(space_of(self.plan, self._latest, copyable(Program(self._latest))), time_limit_s)

    def _key(self, dims: Mapping[str, int], arrays: Mapping[str, Array]) -> BindingKey:
        return tuple(sorted(dims.items())), values_key({name: arrays[name] for name in self._by_value if name in arrays})

    def _rebind(self, dims: Mapping[str, int], overrides: Mapping[str, Array], arrays: Mapping[str, Array]) -> BoundPlan:
        source = self.plan.graph.source
        if source is None:
            raise FeedError("the graph was built for its own shapes only", hint="build it again for others")
        graph = run_passes(bind_asked(source, dims, overrides, arrays, {name: arrays[name] for name in self._by_value if name in arrays}))
        found = graph.source
        values = found.values if found is not None else {}
        self._by_value.update(values)
        self._express = None
        key = values_key(values)
        if key not in self._generics:
            generic = found.generic if found is not None else None
            self._generics = {k: v for k, v in self._generics.items() if v is self._generic}
            self._generics[key] = run_passes(generic) if generic is not None else None
        choose = self._choose if dict(dims) == self._dims else None
        groups = refit(self.plan, self._groups, graph)
        bound = BoundPlan(graph, groups, self._generics[key], choose, packed=self._packed, aliasing=self._aliasing)
        self.compilations += bound.compilations
        return bound

    def checked(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return the feeds as arrays, or raise FeedError for a wrong name or dtype."""
        graph = self.plan.graph
        known = {value.name: value for value in graph.inputs}
        if not isinstance(feeds, Mapping):
            raise FeedError(
                f"feeds: expected a mapping from names to arrays, got {type(feeds).__name__}",
                hint=f"the inputs are {', '.join(known) or 'none'}",
            )
        source = graph.source
        extra = source.overridable if source else {}
        missing = [name for name in known if name not in feeds]
        strange = [name for name in feeds if name not in known and name not in extra]
        if missing or strange:
            what = f"missing {', '.join(missing)}" if missing else f"unknown name {', '.join(map(str, strange))}"
            raise FeedError(f"feeds: {what}", hint=f"the inputs are {', '.join(known) or 'none'}")
        arrays = {}
        for name, given in feeds.items():
            if name in known and known[name].dtype == RUNTIME:
                arrays[name] = given
                continue
            try:
                array = np.asarray(given)
            except (ValueError, TypeError) as error:
                raise FeedError(f"input {name!r}: is no array: {str(error).splitlines()[0]}") from None
            wanted = known[name].dtype if name in known else np.asarray(extra[name]).dtype
            if array.dtype != wanted:
                raise FeedError(
                    f"input {name!r}: has dtype {array.dtype}, expected {wanted}", hint=f"convert it with .astype({wanted.name!r})"
                )
            arrays[name] = array
        return arrays

    def _bind_dims(self, arrays: Mapping[str, Array]) -> dict[str, int]:
        graph, dims = self.plan.graph, dict(self._dims)
        source = graph.source
        fed: dict[str, int] = {}
        for value in graph.inputs:
            if value.dtype == RUNTIME:
                continue
            pattern = source.symbolic_inputs.get(value.name, value.shape) if source else value.shape
            shape = arrays[value.name].shape
            fits = len(shape) == len(pattern)
            for want, got in zip(pattern, shape, strict=False):
                fits = fits and (got == want if isinstance(want, int) else fed.setdefault(want, got) == got)
            if not fits:
                shown = ", ".join(f"{d}" for d in pattern)
                raise FeedError(f"input {value.name!r}: has shape {list(shape)}, expected [{shown}]")
        return {**dims, **fed}
