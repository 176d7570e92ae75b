"""Stages that hold reductions, with the maps of their nest: in lanes along the last dimension, or one accumulator an output."""

from __future__ import annotations

from fusion_search.codegen.accumulators import emit_accumulators
from fusion_search.codegen.blocks import by_lanes, is_reduce
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.lanes import emit_lanes
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import COMPUTE


def emit_reductions(e: Emitter, stage: Stage) -> None:
    """Write a stage that holds reductions."""
    reducers = [i for i in stage.members if is_reduce(e.group.members[i])]
    if by_lanes(e.group.members[reducers[0]]) and all(_floating(e, i) for i in reducers):
        emit_lanes(e, stage, reducers)
    else:
        emit_accumulators(e, stage, reducers)


def _floating(e: Emitter, i: int) -> bool:
    return COMPUTE[e.places[i].code] in ("f4", "f8")
