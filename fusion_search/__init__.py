"""fusion_search: a cost-model-driven search engine for operator fusion.

>>> import fusion_search as fs
>>> graph = fs.load("model.onnx", dims={"batch": 1})            # doctest: +SKIP
>>> plan = fs.search(graph, fs.load_profile("local"))           # doctest: +SKIP
>>> plan.status                                                 # doctest: +SKIP
'optimal'

Names are imported when they are first used, so that ``import fusion_search`` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion_search.api import (
        Bounds,
        FusionSearchError,
        Graph,
        Mismatch,
        Plan,
        Profile,
        Replay,
        TriedSite,
        assert_fused,
        check,
        compile,
        distribute,
        explain,
        fusion_off,
        keep,
        list_profiles,
        load,
        load_profile,
        margins,
        measure,
        methods,
        min_gain_s,
        must_fuse,
        never_fuse,
        pareto,
        peak_bytes,
        price,
        replay,
        search,
        sensitivity,
        sweep,
        tune,
        verify,
    )

__version__ = "0.1.0"

__all__ = [
    "Bounds",
    "FusionSearchError",
    "Graph",
    "Mismatch",
    "Plan",
    "Profile",
    "Replay",
    "TriedSite",
    "assert_fused",
    "check",
    "compile",
    "distribute",
    "explain",
    "fusion_off",
    "keep",
    "list_profiles",
    "load",
    "load_profile",
    "margins",
    "measure",
    "methods",
    "min_gain_s",
    "must_fuse",
    "never_fuse",
    "pareto",
    "peak_bytes",
    "price",
    "replay",
    "search",
    "sensitivity",
    "sweep",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fusion_search' has no attribute {name!r}")
    return getattr(importlib.import_module("fusion_search.api"), name)


def _function_over_subpackage(name: str) -> property:
    """Importing a subpackage sets an attribute of its parent; here that is ignored."""
    return property(lambda package: __getattr__(name), lambda package, module: None)


class _Package(types.ModuleType):
    """The package as a module whose ``search`` and ``tune`` are the functions, although subpackages have these names too.

    The subpackages stay reachable by their full names.
    """

    search = _function_over_subpackage("search")
    tune = _function_over_subpackage("tune")


sys.modules[__name__].__class__ = _Package
