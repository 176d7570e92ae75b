"""The profiles that come with the package: spot checks of figures, and what the NPUs forbid."""

from __future__ import annotations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from hardware_profiles import load, names, records

NPUS = [name for name in names() if load(name).kind == "npu"]


def conv_and(epilogue: str) -> Graph:
    b = GraphBuilder(f"conv_{epilogue}")
    x = b.input("x", np.float32, (1, 1, 8, 32, 32))  # [N, group, C, ...]
    weights = b.constant(np.ones((1, 8, 8, 1, 1), np.float32))
    y = b.op("Conv", x, weights, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0))
    if epilogue == "Cast":
        b.output("y", b.op("Cast", y, to="float16"))
    elif epilogue == "ReduceMean":
        b.output("y", b.op("ReduceMean", y, axes=(2,)))
    else:
        b.output("y", b.op(epilogue, y))
    return b.build()


@pytest.mark.parametrize(
    ("name", "bandwidth", "units", "fast"),
    [
        ("nvidia-a100-sxm", 2039.04e9, 108, 166912),
        ("nvidia-rtx-4090", 1008e9, 128, 101376),
        ("amd-mi300x", 5300e9, 304, 65536),
        ("intel-xeon-8480", 307.2e9, 56, 2097152),
        ("qualcomm-snapdragon-888", 51.2e9, 4, 524288),
        ("huawei-ascend-310p", 144.2e9, 8, 262144),
        ("rockchip-rk3588-npu", 34e9, 3, 393216),
    ],
)
def test_figures(name: str, bandwidth: float, units: int, fast: int) -> None:
    profile = load(name)
    assert (profile.dram_bandwidth_bytes_per_s, profile.parallel_units, profile.fast_memory_bytes) == (bandwidth, units, fast)


def test_an_estimate_says_that_it_is_one() -> None:
    for name in names():
        for row in records(name):
            if "no measurement" in f"{row['source']} {row['note']}" and "measured" not in str(row["source"]):
                assert row["kind"] == "estimate", row


def test_there_are_two_npus_with_forbidden_combinations() -> None:
    assert len(NPUS) >= 2
    for name in NPUS:
        assert load(name).forbidden
        assert all(len(rule.nodes) > 1 and rule.reason and rule.source for rule in load(name).forbidden)


@pytest.mark.parametrize(("name", "epilogue"), [("huawei-ascend-310p", "Cast"), ("rockchip-rk3588-npu", "ReduceMean")])
def test_a_forbidden_combination_is_refused_and_planned_around(name: str, epilogue: str) -> None:
    graph, profile = conv_and(epilogue), fs.load_profile(name)
    refused = fs.price(graph, [[node.name for node in graph.nodes]], profile)
    assert isinstance(refused, list)
    assert [reason.rule for reason in refused] == ["forbidden"]
    plan = fs.search(graph, profile)
    assert (plan.status, plan.launches) == ("optimal", 2)
    assert fs.check(graph, plan) == []
    # What is not forbidden fuses, and elsewhere the same pair fuses too.
    assert fs.search(conv_and("Relu"), profile).launches == 1
    assert fs.search(graph, fs.load_profile("raspberry-pi-5")).launches == 1
