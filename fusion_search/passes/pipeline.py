"""The passes in their order, and what runs them."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_search.ir.graph import Graph
from fusion_search.ir.verify import verify_graph
from fusion_search.passes.base import Pass
from fusion_search.passes.cleanup import Cleanup
from fusion_search.passes.dead_code import DeadCode
from fusion_search.passes.distribute import Distribute
from fusion_search.passes.fold_affine import FoldAffine

__all__ = ["PIPELINE", "run_passes"]

#: Idle operators go first, so that they do not hide an affine chain; what nobody reads any more goes, and what was decided of the
#: smaller graph comes last.
PIPELINE: tuple[Pass, ...] = (Cleanup(), FoldAffine(), DeadCode(), Distribute())


def run_passes(graph: Graph, passes: Sequence[Pass] = PIPELINE) -> Graph:
    """Run passes in order and verify the graph after each.

    Parameters
    ----------
    graph : Graph
    passes : sequence of Pass

    Returns
    -------
    Graph
        With one record in `log` for each pass.

    Raises
    ------
    ModelError
        When a pass leaves a graph that is not well formed, which is a defect of that pass.
    """
    for step in passes:
        graph = step.run(graph)
        verify_graph(graph)
    return graph
