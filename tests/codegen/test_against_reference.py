"""Random graphs under random legal plans give what the reference gives.

Exact operators must agree to the last bit, the others within what rounding explains; one thread and two give the same bits; inputs
stay as they are. ``--fuzz N`` runs N more graphs.
"""

from __future__ import annotations

import numpy as np
import pytest

from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.ops import OPS
from fusion_search.ir.verify import verify_graph
from fusion_search.testing.graphs import random_feeds, random_graph, random_partition
from tests.codegen.agree import differences, disagreements, space_of

BLOCK = 25
#: Two streams: many structures, and few structures at many extents (which need no new kernels).
STRUCTURES, VARIANTS = 75, 225


def wrong(seed: int, size: int, extents: int = 0) -> list[str]:
    graph = random_graph(seed, size=size, extents=extents)
    verify_graph(graph)
    space = space_of(graph)
    plan = [space.program.names(mask) for mask in random_partition(space, np.random.default_rng(seed))]
    return [f"seed {seed}, extents {extents}, {plan}: {text}" for text in disagreements(graph, plan, random_feeds(graph, seed))]


@pytest.mark.parametrize("start", range(0, STRUCTURES, BLOCK))
@pytest.mark.usefixtures("eager_threads")
def test_random_structures_agree_with_the_reference(start: int) -> None:
    assert [text for seed in range(start, start + BLOCK) for text in wrong(seed, 4)] == []


@pytest.mark.parametrize("start", range(0, VARIANTS, BLOCK))
@pytest.mark.usefixtures("small_blocks")
def test_random_extents_agree_with_the_reference(start: int) -> None:
    assert [text for k in range(start, start + BLOCK) for text in wrong(500 + k % 5, 6, extents=k)] == []


@pytest.mark.usefixtures("small_blocks")
def test_fuzz(fuzz_seed: int) -> None:
    assert wrong(fuzz_seed, 3 + fuzz_seed % 8, extents=fuzz_seed) == []


def test_random_graphs_draw_every_operator() -> None:
    drawn = {node.op for seed in range(400) for node in random_graph(seed).nodes}
    assert drawn <= set(OPS)
    assert set(OPS) - drawn <= {"Opaque", "CumSum", "CumProd"}  # running sums and products are not drawn yet


def test_a_seed_gives_one_graph_and_one_partition() -> None:
    first, again = random_graph(7, size=8), random_graph(7, size=8)
    assert first.nodes == again.nodes
    assert first.values == again.values
    parts = [random_partition(space_of(graph), np.random.default_rng(3)) for graph in (first, again)]
    assert parts[0] == parts[1]
    assert (
        max(mask.bit_count() for seed in range(20) for mask in random_partition(space_of(random_graph(seed)), np.random.default_rng(0))) > 3
    )


def test_a_wrong_result_is_seen() -> None:
    graph = random_graph(1, ops=["Add", "Exp", "ReduceSum"])
    feeds = random_feeds(graph, 0)
    good = evaluate(graph, feeds)
    name, result = next((name, result) for name, result in good.items() if result.size > 1)
    assert differences(graph, feeds, good) == []
    assert differences(graph, feeds, {**good, name: result + np.asarray(1, result.dtype)}) != []
    assert differences(graph, feeds, {**good, name: np.full_like(result, np.nan)}) != []
    assert differences(graph, feeds, {**good, name: result.astype(np.float64)}) != []
