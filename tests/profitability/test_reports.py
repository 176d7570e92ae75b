"""Public reports whose right fusion decision is known, P01 to P24: the best plan decides as it should, and the price says why."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise as neighbours
from pathlib import Path

import numpy as np
import onnx
import pytest

import costmodels
import fusion_search as fs
from costmodels import RecomputedFlops
from fusion_search.errors import UsageError
from fusion_search.fusion.analysis import analyse
from fusion_search.fusion.program import Program
from fusion_search.ir.builder import GraphBuilder
from fusion_search.search.explain import Explanation
from tests.frontends.modeling import info, model, node
from tests.profitability.programs import (
    F32,
    H100,
    branches,
    concat_pool,
    cosine_sum,
    cross_entropy,
    difference_sum,
    exact,
    features,
    feed_forward,
    groups_with,
    halo_stencil,
    made,
    normed_concat,
    number,
    ops_of,
    pairwise,
    prologue,
    residual,
    residual_convolutions,
    rms_backward,
    rotary,
    row_chain,
    scalar_and_partners,
    scaled_softmax,
    space_of,
    stencil_sum,
    stored,
    times_computed,
    two_epilogues,
)  # fmt: skip

PI = fs.load_profile("raspberry-pi-5")
LOCAL = fs.load_profile("local")
MACHINES = [H100, PI, LOCAL]
EVERY = [fs.load_profile(name) for name in fs.list_profiles()]
by_name = pytest.mark.parametrize("profile", MACHINES, ids=lambda profile: profile.name)


def apart(plan: fs.Plan, a: str, b: str, **options: object) -> Explanation:
    found = fs.explain(plan, a, b, **{"flips": False, **options})  # type: ignore[arg-type]
    assert isinstance(found, Explanation)
    return found


def test_p01_partial_fusion_beats_none_and_all() -> None:
    graph = made("p01", concat_pool)
    # Arithmetic as slow against memory as the report's 252 us for all and 13 us for some.
    slow = replace(PI, peak_flops_per_s=PI.peak_flops_per_s / 16)
    plan = exact(graph, slow)
    assert 1 < plan.launches < len(graph.nodes)
    assert plan.cost_as < fs.search(graph, slow, method="unfused").cost_as
    # All in one: each point of a window computes its add again, and each of two readers its window.
    program = Program(graph)
    whole = analyse(program, (1 << len(graph.nodes)) - 1, slow.line_bytes).features
    windows = 144 * 63 * 63 * 4 * 2
    again = RecomputedFlops(simple=windows - 9 * 16 * 64 * 64, special=0, contract=0)
    units = slow.parallel_units
    forced = costmodels.model().best(replace(whole, recomputed=again, scratch_bytes=0, blocks=units, rereads=()), slow)
    assert forced is not None
    assert plan.cost_as < forced[1]


@by_name
@pytest.mark.parametrize("count", [8, 16])
def test_p02_what_does_not_vary_along_a_row_is_done_once_a_row(count: int, profile: fs.Profile) -> None:
    plan = exact(made("p02", row_chain(count, "Exp", 4096, 4096)), profile)
    for k in groups_with(plan, "Exp"):
        counted = features(plan, k)
        exps = ops_of(plan, k).count("Exp")
        # Once for each row and block at most, and far from once for each element.
        assert counted.recomputed.special <= (float(counted.blocks) - 1) * 4096 * exps
        assert counted.recomputed.special <= 4096 * 4096 * exps / 64
    assert all(times_computed(plan, one.name) == 1 for one in plan.graph.nodes)


@by_name
def test_p03_a_cheap_operator_before_a_broadcast(profile: fs.Profile, tmp_path: Path) -> None:
    nodes = [node("Sqrt", ["x"], ["r"]), node("Add", ["r", "wide"], ["y"])]
    file = tmp_path / "p03.onnx"
    onnx.save(model(nodes, [info("x", [4, 1]), info("wide", [4, "width"])]), file)
    plan = exact(fs.load(file, dims={"width": 64}), profile)
    assert plan.launches == 1
    found = apart(plan, "n_r", "n_y", flips=True)
    assert "width" in found.flips
    flip = found.flips["width"]
    said = str(found)
    assert (f"apart from width {flip.at:.4g}" if flip else "no flip found along width, from 1 to 256") in said


@by_name
@pytest.mark.parametrize("steps", [3, 6])
def test_p04_all_pairs_are_never_written(steps: int, profile: fs.Profile) -> None:
    plan = exact(made("p04", pairwise(steps)), profile)
    assert plan.launches == 1
    assert all(plan.graph.values[value].size == 4096 for value in stored(plan))


def test_p05_registers_decide_how_far_a_generated_sum_is_fused() -> None:
    graph = made("p05", stencil_sum())
    assert len(graph.inputs) == 60
    few, many = (replace(H100, registers=registers) for registers in (32, 255))
    cut, whole = (fs.search(graph, profile, time_limit_s=2) for profile in (few, many))
    assert cut.launches > whole.launches
    assert fs.check(graph, cut) == fs.check(graph, whole) == []
    # A rule that looks at one merge at a time stops too early or too late; the plan is no worse than any of them.
    for method in fs.methods()[1:]:
        assert cut.cost_as <= fs.search(graph, few, method=method).cost_as, method
    nodes = [one.name for one in graph.nodes]
    found = apart(cut, nodes[0], nodes[-1], time_limit_s=2)
    assert found.delta_terms["spill"] > 0
    assert "spill +" in str(found)


@by_name
def test_p06_both_sides_see_the_same_product(profile: fs.Profile) -> None:
    graph = made("p06", scaled_softmax)
    plan = exact(graph, profile)
    (product,) = [one.name for one in graph.nodes if one.op == "Mul"]
    assert times_computed(plan, product) == 1
    counted = features(plan, groups_with(plan, "Mul")[0])
    assert counted.recomputed == RecomputedFlops(0, 0, 0)
    if profile.runs_here:
        x = np.full((512, 256), 3e37, F32)
        x[:, ::3] *= F32(-1.0)
        found = fs.compile(plan)({"x": x, "c": np.linspace(0.1, 9.7, 256, dtype=F32)})["e"]
        assert np.isfinite(found).all()
        assert (found.max(axis=1) == 1).all()


def test_p07_reductions_along_both_axes_share_their_reads_where_registers_allow() -> None:
    graph = made("p07", rms_backward)
    assert len(graph.inputs) == 11
    # One unit, so that rows and columns may be one block; launches free, so that registers decide.
    machine = replace(H100, parallel_units=1, launch_overhead_s=0.0, fast_memory_bytes=1 << 30)
    few, many = (exact(graph, replace(machine, registers=registers)) for registers in (6, 255))
    assert not set(groups_with(few, "ReduceMean")) & set(groups_with(few, "ReduceSum"))
    assert set(groups_with(many, "ReduceMean")) & set(groups_with(many, "ReduceSum"))
    assert many.bytes_moved < few.bytes_moved


@by_name
def test_p08_the_order_of_operands_does_not_matter(profile: fs.Profile) -> None:
    def written(swapped: bool) -> fs.Graph:
        def build(b: GraphBuilder) -> None:
            x, y, z = (b.input(name, F32, (1024, 1024)) for name in "xyz")
            products = [b.op("Mul", x, y), b.op("Exp", z)]
            t = b.op("Add", *(products[::-1] if swapped else products))
            total = b.op("ReduceSum", t, axes=(1,))
            b.output("u", b.op("Mul", total, t) if swapped else b.op("Mul", t, total))

        return made("p08", build)

    one, other = (exact(written(swapped), profile) for swapped in (False, True))
    assert one.cost_as == other.cost_as
    assert sorted(Counter(ops_of(one, k)).most_common() for k in range(one.launches)) == sorted(
        Counter(ops_of(other, k)).most_common() for k in range(other.launches)
    )


@pytest.mark.parametrize("profile", EVERY, ids=lambda profile: profile.name)
def test_p09_a_small_cross_entropy_is_one_kernel_wherever_a_launch_costs_something(profile: fs.Profile) -> None:
    plan = exact(made("p09", cross_entropy), profile)
    if profile.launch_overhead_s > 0 and "int64" in profile.dtypes:
        assert plan.launches == 1


@by_name
def test_p10_a_shared_number_draws_no_two_big_nodes_together(profile: fs.Profile) -> None:
    plan = exact(made("p10", scalar_and_partners), profile)
    assert sorted(sorted(group.origin) for group in plan.groups) == [["big1", "partner1"], ["big2", "partner2"]]
    cost = plan.bytes_moved / fs.search(plan.graph, profile, method="unfused").bytes_moved
    assert cost == pytest.approx(0.5, abs=0.01)

    def sum_and_one(b: GraphBuilder) -> None:
        b.output("y", b.op("Add", b.op("ReduceSum", b.input("x", F32, (1 << 16,)), axes=(0,)), number(b, 1.0)))

    assert exact(made("p10", sum_and_one), profile).launches == 1


def test_p11_memory_forbids_what_a_shared_bias_would_save() -> None:
    graph = made("p11", branches)
    scans_alone = fs.fusion_off(op="CumSum")  # an operator that takes its operand from memory
    free = exact(graph, H100, constraints=[scans_alone])
    fused = apart(free, "add1", "add2")
    assert fused.fused
    assert fused.delta_terms["launch"] == pytest.approx(H100.launch_overhead_s)
    assert fused.delta_terms["traffic"] == pytest.approx(4096 / H100.dram_bandwidth_bytes_per_s, rel=1e-3)
    # One branch after the other: its wide value twice, and what the other left.
    limit = (96 + 96 + 1) << 20
    plan = exact(graph, H100, constraints=[scans_alone, fs.peak_bytes(limit)])
    assert plan.statistics["peak_bytes"] <= limit
    found = apart(plan, "add1", "add2")
    assert not found.fused
    assert {reason.rule for reason in found.reasons} == {"memory"}
    with pytest.raises(UsageError, match="memory"):
        fs.search(graph, H100, constraints=[scans_alone, fs.peak_bytes(limit), fs.must_fuse("add1", "add2")])


@by_name
def test_p12_a_concat_before_a_stencil_is_no_copy(profile: fs.Profile) -> None:
    graph = made("p12", halo_stencil)
    plan = exact(graph, profile)
    (concat,) = [one.output for one in graph.nodes if one.op == "Concat"]
    assert concat not in stored(plan)


@by_name
def test_p13_a_residual_stream_is_written_and_never_summed_again(profile: fs.Profile) -> None:
    moved = {}
    for depth in (4, 8, 16):
        graph = made("p13", residual(depth))
        plan = exact(graph, profile)
        moved[depth] = plan.bytes_moved
        assert all(times_computed(plan, one.name) == 1 for one in graph.nodes)
        assert all(features(plan, k).recomputed == RecomputedFlops(0, 0, 0) for k in range(plan.launches))
        sums = {one.output for one in graph.nodes if one.op == "Add"}
        assert sums <= stored(plan)
    assert moved[16] - moved[8] == 2 * (moved[8] - moved[4])


@by_name
def test_p14_a_wide_prologue_of_a_shrinking_product_is_not_written(profile: fs.Profile) -> None:
    plan = exact(made("p14", prologue(8)), profile)
    assert plan.launches == 1
    assert stored(plan) == {"y"} or all(plan.graph.values[value].shape == (2400, 8) for value in stored(plan))


@by_name
def test_p15_many_cheap_operators_are_not_repeated_for_a_broadcast(profile: fs.Profile) -> None:
    plan = exact(made("p15", row_chain(250, "Add", 4096, 512)), profile)
    assert all(times_computed(plan, one.name) == 1 for one in plan.graph.nodes)
    for k in range(plan.launches):
        counted = features(plan, k)
        assert counted.recomputed.simple <= (float(counted.blocks) - 1) * 250 * 4096
        assert counted.recomputed.simple <= 250 * 4096 * 512 / 64


@by_name
def test_p16_rotary_embedding_is_two_kernels_at_most(profile: fs.Profile) -> None:
    assert exact(made("p16", rotary), profile).launches <= 2


@by_name
def test_p17_what_stands_between_products_rides_on_them(profile: fs.Profile) -> None:
    plan = exact(made("p17", feed_forward()), profile)
    assert groups_with(plan, "MatMul") == list(range(plan.launches))


@by_name
def test_p18_both_forms_of_a_blend_are_one_kernel(profile: fs.Profile) -> None:
    def short(b: GraphBuilder) -> None:
        x, y, w = (b.input(name, F32, (1024, 1024)) for name in ("a", "b", "w"))
        b.output("out", b.op("Add", x, b.op("Mul", b.op("Sub", y, x), w)))

    def long(b: GraphBuilder) -> None:
        x, y, w = (b.input(name, F32, (1024, 1024)) for name in ("a", "b", "w"))
        b.output("out", b.op("Add", b.op("Mul", x, b.op("Sub", number(b, 1.0), w)), b.op("Mul", y, w)))

    plans = [exact(made("p18", build), profile) for build in (short, long)]
    assert [plan.launches for plan in plans] == [1, 1]
    assert plans[0].bytes_moved == plans[1].bytes_moved


@by_name
def test_p19_a_sum_has_no_cliff(profile: fs.Profile) -> None:
    plans = {n: exact(made("p19", cosine_sum(n)), profile) for n in (1, 2, 31, 32, 33, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1)}
    assert [plan.launches for plan in plans.values()] == [1] * len(plans)
    work = {n: plan.cost_s - profile.launch_overhead_s for n, plan in plans.items()}
    for (a, one), (b, other) in neighbours(work.items()):
        assert one <= other
        # Not more than in proportion, but for whole cache lines.
        assert other <= one * math.ceil(b / a) * 1.01 + 4 * profile.line_bytes * profile.parallel_units / profile.dram_bandwidth_bytes_per_s


@by_name
def test_p20_differences_are_slices_by_index(profile: fs.Profile) -> None:
    plan = exact(made("p20", difference_sum), profile)
    assert plan.launches == 1
    assert plan.bytes_moved < 256**3 * 4 * 2.01


@pytest.mark.parametrize("profile", EVERY, ids=lambda profile: profile.name)
def test_p21_a_product_is_computed_once_in_any_plan(profile: fs.Profile) -> None:
    graph = made("p21", two_epilogues)
    (product,) = [one.name for one in graph.nodes if one.op == "MatMul"]
    for method in fs.methods():
        plan = fs.search(graph, profile, method=method)
        assert times_computed(plan, product) == 1
        assert features(plan, groups_with(plan, "MatMul")[0]).recomputed.contract == 0


@by_name
@pytest.mark.parametrize("parts", [2, 8])
def test_p22_many_parts_are_put_together_once(parts: int, profile: fs.Profile) -> None:
    graph = made("p22", normed_concat(parts))
    plan = exact(graph, profile)
    (concat,) = [one for one in graph.nodes if one.op == "Concat"]
    (home,) = (k for k, group in enumerate(plan.groups) if concat.name in group.nodes)
    if concat.output not in plan.groups[home].stores:
        # Then its row is written once to scratch; none of its readers chooses among the parts again.
        space = space_of(plan)
        mask = space.program.mask(list(plan.groups[home].nodes))
        analysis = space.analysis(mask)
        assert concat.name in {space.program.members[analysis.positions[i]].node.name for i in analysis.scratch}
    # Too little fast memory for a row of eight parts: it is written first.
    tight = replace(profile, fast_memory_bytes=64 << 10, runs_here=False)
    plan = exact(graph, tight)
    if parts == 8:
        assert concat.output in stored(plan)
    found = apart(plan, "concat", next(one.name for one in graph.nodes if one.op == "ReduceMean"))
    # Both estimates are shown, or the rule that leaves only one.
    if found.forced_plan is None:
        assert {reason.rule for reason in found.reasons} == {"capacity"}
    else:
        assert found.forced_plan.cost_as >= plan.cost_as
        assert "in place of" in str(found)


@by_name
def test_p23_a_prologue_that_many_blocks_repeat_is_charged_for_it(profile: fs.Profile) -> None:
    small, large = (exact(made("p23", prologue(columns)), profile) for columns in (16, 16384))
    assert small.launches == 1
    assert large.launches == 2
    found = apart(large, "prologue", "product")
    assert found.forced_plan is not None
    assert found.delta_terms["recompute"] > 0 or found.delta_terms["traffic"] > 0


@by_name
def test_p24_the_sum_of_a_residual_block_rides_on_its_second_convolution(profile: fs.Profile) -> None:
    plan = exact(made("p24", residual_convolutions), profile)
    (home,) = (set(group.origin) for group in plan.groups if "add" in group.origin)
    assert "conv2" in home
