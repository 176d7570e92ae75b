"""Passes: functions from graphs to graphs, run in a fixed order, each checked by the verifier and recorded in the graph's log."""

from __future__ import annotations

from fusion_search.passes.base import Pass
from fusion_search.passes.cleanup import Cleanup
from fusion_search.passes.dead_code import DeadCode
from fusion_search.passes.distribute import Distribute, rewritten
from fusion_search.passes.fold_affine import FoldAffine
from fusion_search.passes.pipeline import PIPELINE, run_passes
from fusion_search.passes.sites import Site, distribute, distributed_again, sites

__all__ = [
    "PIPELINE",
    "Cleanup",
    "DeadCode",
    "Distribute",
    "FoldAffine",
    "Pass",
    "Site",
    "distribute",
    "distributed_again",
    "rewritten",
    "run_passes",
    "sites",
]
