"""Each term against the formula, worked out by hand on a machine of round numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels import TERMS, Flops, GroupFeatures, RecomputedFlops, Reread
from costmodels.terms import compute, launch, lost_parallelism, recompute, spill, traffic
from hardware_profiles import load

ROUND = dataclasses.replace(
    load("local"),
    dram_bandwidth_bytes_per_s=100.0,
    cache_bandwidth_bytes_per_s=1000.0,
    cache_bytes=4096,
    l1_bandwidth_bytes_per_s=10_000.0,
    launch_overhead_s=0.5,
    parallel_units=8,
    registers=16,
    peak_flops_per_s=10.0,
    peak_contract_flops_per_s=100.0,
    peak_special_flops_per_s=1.0,
)
BASE = GroupFeatures(
    nodes=2,
    bytes_read=300,
    bytes_written=100,
    rereads=(),
    launches=1,
    blocks=8,
    iterations=1000,
    live=16,
    itemsize=4,
    scratch_bytes=0,
    flops=Flops(20, 3, 400),
    recomputed=RecomputedFlops(0, 0, 0),
)


def but(**changes: Any) -> GroupFeatures:
    return dataclasses.replace(BASE, **changes)


def test_order() -> None:
    assert list(TERMS) == ["traffic", "launch", "spill", "recompute"]


def test_traffic() -> None:
    assert traffic(BASE, ROUND) == 4.0
    assert traffic(but(blocks=2), ROUND) == 16.0


def test_what_is_read_again_comes_from_the_cache_when_it_fits() -> None:
    assert traffic(but(rereads=(Reread(4096, 5),)), ROUND) == 4.0 + 4096 * 5 / 1000
    assert traffic(but(rereads=(Reread(4097, 5),)), ROUND) == 4.0 + 4097 * 5 / 100
    both = but(rereads=(Reread(4096, 5), Reread(4097, 0.5)), blocks=4)
    assert traffic(both, ROUND) == pytest.approx(2 * (4.0 + 20.48 + 20.485))


def test_launch() -> None:
    assert launch(but(launches=3, blocks=1), ROUND) == 1.5


def test_spill() -> None:
    assert spill(BASE, ROUND) == 0.0
    assert spill(but(live=20), ROUND) == 1000 * 2 * 4 * 4**2 / 16 / 10_000
    assert spill(but(live=24), ROUND) == 4 * spill(but(live=20), ROUND)
    assert spill(but(live=20, blocks=1), ROUND) == 8 * spill(but(live=20), ROUND)


@settings(derandomize=True)
@given(st.integers(1, 10_000), st.integers(0, 1 << 40), st.integers(1, 100))
def test_one_node_never_spills(live: int, iterations: int, blocks: int) -> None:
    assert spill(but(nodes=1, live=live, iterations=iterations, blocks=blocks), ROUND) == 0.0


def test_recompute_and_compute_by_class() -> None:
    assert recompute(but(blocks=1), ROUND) == 0.0
    assert recompute(but(recomputed=RecomputedFlops(20, 3, 400)), ROUND) == 9.0 == compute(BASE, ROUND)
    assert recompute(but(recomputed=RecomputedFlops(20, 3, 400), blocks=4), ROUND) == 18.0 == compute(but(blocks=4), ROUND)


def test_lost_parallelism() -> None:
    assert [lost_parallelism(blocks, 8) for blocks in (0, 1, 2, 3, 8, 9)] == [8.0, 8.0, 4.0, 8 / 3, 1.0, 1.0]
    lost = lost_parallelism(np.array([0, 1, 2, 3, 8, 9]), 8)
    assert isinstance(lost, np.ndarray)
    assert lost.tolist() == [8.0, 8.0, 4.0, 8 / 3, 1.0, 1.0]


def test_large_counts_do_not_wrap_around() -> None:
    scalar = traffic(but(rereads=(Reread(1 << 40, 1 << 40),)), ROUND)
    array = traffic(but(rereads=(Reread(1 << 40, np.array([1 << 40])),)), ROUND)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [scalar]
    assert scalar == pytest.approx(2.0**80 / 100)
