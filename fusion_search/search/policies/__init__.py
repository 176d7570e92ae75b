"""The fusion policies of known compilers as baselines: published rules, applied in our space and priced by our J.

Each takes a space and returns the groups of an acyclic partition in execution order. They are written from what the
projects publish about their rules, as we read it, not from their code, and merge only what the space calls legal, so that every plan
can be compared with the optimum of the same space. What a rule needs and the space does not have, such as a copy of a
producer for each of its consumers, is left out or replaced; the docstring of each file says by what. So the figures say
what a *policy* is worth on these costs, not how fast a compiler's code is.
"""

from __future__ import annotations

from collections.abc import Callable

from fusion_search.fusion.space import GroupSpace
from fusion_search.search.policies.inductor import inductor
from fusion_search.search.policies.linear_clusters import linear_clusters
from fusion_search.search.policies.ort_patterns import ort_patterns
from fusion_search.search.policies.tvm import tvm
from fusion_search.search.policies.xla_instruction import xla_instruction
from fusion_search.search.policies.xla_priority import xla_priority

__all__ = ["POLICIES"]

POLICIES: dict[str, Callable[[GroupSpace, float], tuple[int, ...]]] = {
    "xla-priority": xla_priority,
    "xla-instruction": xla_instruction,
    "inductor": inductor,
    "tvm": tvm,
    "ort-patterns": ort_patterns,
    "linear-clusters": linear_clusters,
}
"""Policies by the name of their method. Each takes a space, and when to merge no more on the clock of `time.monotonic`."""
