"""More than two contractions that read one value alike: what such a group may hold, and what refuses it, against an independent reading."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.fusion.constraints import constrain
from fusion_search.fusion.horizontal import MAX_SIBLINGS
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.search.check.facts import Facts
from fusion_search.search.check.legality import illegal
from fusion_search.search.exact import exact
from fusion_search.search.oracle import exhaustive
from tests.fusion.programs import F32, graph_of, space_of, weight


def projections(count: int, *, rows: int = 32, epilogue: tuple[str, ...] = ("Relu",), outsiders: int = 0) -> Graph:
    """Products of one input with weights of their own, maps behind each; outsiders read the input as their right side."""

    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (rows, 32))
        for k in range(count):
            y = b.op("MatMul", x, weight(b, 32, 8 + 8 * k))
            for op in epilogue:
                y = b.op(op, y)
            b.output(f"y{k}", y)
        for k in range(outsiders):
            b.output(f"z{k}", b.op("MatMul", weight(b, 16, rows), x))

    return graph_of(build)


def everything(space: GroupSpace) -> int:
    return (1 << space.n) - 1


@pytest.mark.parametrize("count", [3, MAX_SIBLINGS])
def test_projections_of_one_value_and_their_chains_are_one_group(count: int) -> None:
    space = space_of(projections(count, epilogue=("Relu", "Exp")))
    assert space.reasons(everything(space)) == []
    assert space.cost(everything(space)) is not None


@pytest.mark.parametrize(
    ("graph", "remedy"),
    [
        (
            projections(MAX_SIBLINGS + 1),
            "at most 2 contractions and windows, or more that read one value through the same map, if at most 4 do",
        ),  # a family of too many
        (projections(2, outsiders=1), "at most 2"),  # read through another map
        (projections(3, rows=1), "at most 2"),  # nothing that all of them walk
    ],
    ids=["many", "across", "vector"],
)
def test_what_is_no_family(graph: Graph, remedy: str) -> None:
    space = space_of(graph)
    (reason,) = space.reasons(everything(space))
    assert reason.rule == "contractions"
    assert reason.remedy.startswith(remedy)
    assert space.families.masks == ()


def test_a_value_of_one_cache_line_joins_nothing() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (4, 4))
        for k in range(3):
            b.output(f"y{k}", b.op("MatMul", x, weight(b, 4, 8)))

    assert space_of(graph_of(build)).families.masks == ()


def test_windows_of_one_point_are_siblings_and_others_are_not() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (1, 1, 16, 8, 8))
        rules = {"strides": (1, 1), "dilations": (1, 1)}
        for k in range(3):
            b.output(f"y{k}", b.op("Conv", x, weight(b, 1, 8, 16, 1, 1), before=(0, 0), after=(0, 0), **rules))
        b.output("z", b.op("Conv", x, weight(b, 1, 8, 16, 3, 3), before=(1, 1), after=(1, 1), **rules))

    space = space_of(graph_of(build))
    assert [mask.bit_count() for mask in space.families.masks] == [3]
    assert space.reasons(space.families.masks[0]) == []
    assert [reason.rule for reason in space.reasons(everything(space))][:1] == ["contractions"]


def strange(build_more: object) -> tuple[GroupSpace, list[fs.Reason]]:
    """Three projections and something else, all as one group."""

    def build(b: GraphBuilder) -> None:
        x = b.input("x", F32, (32, 32))
        y = [b.op("MatMul", x, weight(b, 32, 32)) for _ in range(3)]
        build_more(b, x, y)  # type: ignore[operator]

    space = space_of(graph_of(build))
    return space, space.reasons(everything(space))


def outputs(b: GraphBuilder, values: list[str]) -> None:
    for k, value in enumerate(values):
        b.output(f"y{k}", value)


MORE = {
    "two meet": lambda b, x, y: outputs(b, [b.op("Add", y[0], y[1]), y[2]]),
    "one parts": lambda b, x, y: outputs(b, [b.op("Relu", y[0]), b.op("Exp", y[0]), y[1], y[2]]),
    "diamond": lambda b, x, y: outputs(b, [b.op("Mul", y[0], b.op("Sigmoid", y[0])), y[1], y[2]]),
    "reduction": lambda b, x, y: outputs(b, [b.op("ReduceMax", y[0], axes=(1,)), y[1], y[2]]),
    "beside": lambda b, x, y: outputs(b, [b.op("Relu", x), *y]),
    "parts": lambda b, x, y: outputs(b, [b.op("Concat", y[0], x, axis=1), y[1], y[2]]),
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE.keys())
def test_nothing_but_chains_stands_behind(more: object) -> None:
    space, reasons = strange(more)
    (reason,) = reasons
    assert reason.rule == "horizontal"
    named = space.program.mask(reason.nodes)
    rest = everything(space) & ~named
    assert "keep 2 of MatMul_0, MatMul_1, MatMul_2" in reason.remedy
    assert not any(r.rule == "horizontal" for r in space.reasons(rest))


def test_the_producer_of_what_they_read_stays_outside() -> None:
    def build(b: GraphBuilder) -> None:
        x = b.op("Exp", b.input("x", F32, (32, 32)))
        for k in range(3):
            b.output(f"y{k}", b.op("MatMul", x, weight(b, 32, 32)))

    space = space_of(graph_of(build))
    (reason,) = space.reasons(everything(space))
    assert reason.rule == "horizontal"
    assert space.reasons(everything(space) & ~1) == []


@pytest.mark.parametrize("rule", ["horizontal", "cross-block", "contraction", "siblings"])
def test_it_can_be_switched_off(rule: str) -> None:
    graph = projections(3)
    profile = fs.load_profile("amd-epyc-9654")
    free = fs.search(graph, profile)
    assert [len(group.nodes) for group in free.groups] == [6]
    assert free.space["max_siblings"] == MAX_SIBLINGS
    assert "horizontal" in free.space["name"]
    bound = fs.search(graph, profile, constraints=[fs.fusion_off(rule=rule)])
    assert bound.status == "optimal"
    assert bound.space["max_siblings"] == (1 if rule == "cross-block" else 2 if rule == "horizontal" else MAX_SIBLINGS)
    most = max(sum(name.startswith("MatMul") for name in group.nodes) for group in bound.groups)
    assert most == (2 if rule == "horizontal" else 1)
    assert bound.cost_as > free.cost_as
    space = constrain(space_of(graph, "amd-epyc-9654"), [fs.fusion_off(rule=rule)])
    refused = "shared-loops" if rule == "siblings" else "user"
    assert refused in {reason.rule for reason in space.reasons(everything(space))}


def test_forced_together_and_apart() -> None:
    graph, profile = projections(3), fs.load_profile("amd-epyc-9654")
    heads = [node.name for node in graph.nodes if node.op == "MatMul"]
    apart = fs.search(graph, profile, constraints=[fs.never_fuse(*heads[:2])])
    assert not any(set(heads[:2]) <= set(group.nodes) for group in apart.groups)
    forced = fs.search(graph, profile, constraints=[fs.must_fuse(*heads)])
    assert any(set(heads) <= set(group.nodes) for group in forced.groups)
    assert fs.check(graph, apart) == fs.check(graph, forced) == []


# ---------------------------------------------------------------- random graphs


def fan(seed: int) -> Graph:
    """Up to nine nodes: three or four projections, chains and what is none behind them, often with a producer of what they read."""
    rng = random.Random(seed)

    def build(b: GraphBuilder) -> None:
        x, left = b.input("x", F32, (16, 16)), 9
        if rng.random() < 0.4:
            x, left = b.op("Exp", x), left - 1
        count = rng.choice([3, 3, 4])
        values = [b.op("MatMul", *((x, weight(b, 16, 16)) if rng.random() < 0.93 else (weight(b, 16, 16), x))) for _ in range(count)]
        read = set()
        for _ in range(rng.randint(0, left - count)):
            op = rng.choice(["Relu", "Neg", "Add", "Mul", "Transpose", "ReduceMax", "Slice"])
            one = rng.choice(values)
            if op in ("Add", "Mul"):
                two = rng.choice([*values, x, weight(b, 16, 16), weight(b, 1, 16)])
                read.add(two)
                value = b.op(op, one, two)
            elif op == "Transpose":
                value = b.op(op, one, perm=(1, 0))
            elif op == "ReduceMax":
                value = b.op("Add", weight(b, 16, 16), b.op(op, one, axes=(1,)))
            elif op == "Slice":
                value = b.op(op, one, starts=(0, 15), steps=(1, -1), sizes=(16, 16))
            else:
                value = b.op(op, one)
            read.add(one)
            values.append(value)
        outputs(b, [value for value in values if value not in read or rng.random() < 0.2])

    return graph_of(build)


@pytest.mark.parametrize("seed", range(60))
def test_the_checker_reads_the_rule_alike(seed: int) -> None:
    graph = fan(seed)
    space, facts = space_of(graph), Facts(graph)
    heavy = [node.name for node in graph.nodes if node.op == "MatMul"]
    others = [node.name for node in graph.nodes if node.op != "MatMul"]
    seen = set()
    for heads in (c for k in range(3, len(heavy) + 1) for c in combinations(heavy, k)):
        for more in (c for k in range(len(others) + 1) for c in combinations(others, k)):
            mask = space.program.mask([*heads, *more])
            mine = {r.rule for r in (space._contractions(mask), space._horizontal(mask)) if r is not None}
            steps = [facts.steps[name] for name in (*heads, *more)]
            found = {v.rule for v in illegal(facts, steps, (), (), space.profile, "")} & {"contractions", "horizontal"}
            assert mine == found, (heads, more)
            assert space.crowded(mask) == bool(mine)
            seen.add(tuple(mine))
    assert seen


class Strict:
    """A space whose price of a set that is not connected or not convex is none, for the oracle, which asks for all sets."""

    def __init__(self, space: GroupSpace) -> None:
        self.space, self.n, self.preds = space, space.n, space.preds

    def cost(self, group: int) -> int | None:
        return None if self.space.reasons(group) else self.space.cost(group)


@pytest.mark.parametrize("profile", ["amd-epyc-9654", "nvidia-h100-sxm"])
def test_random_fans_against_every_partition(profile: str) -> None:
    held = 0
    for seed in range(60):
        graph = fan(seed)
        space = space_of(graph, profile, launch_overhead_s=3e-6)
        if space.n > 9:
            continue
        best, groups = exhaustive(Strict(space))  # type: ignore[arg-type]
        found = exact(space)
        assert found.status == "optimal"
        assert found.cost == best, seed
        held += any((group & space.heavy).bit_count() > 2 for group in groups)
    assert held > 20


@pytest.mark.parametrize("profile", ["amd-epyc-9654", "raspberry-pi-5"])
def test_the_checker_counts_alike(profile: str) -> None:
    """Siblings with as many columns share that loop, others do not; bytes, scratch and tiles are the checker's own, to the last bit."""
    shared = apart = 0
    for seed in range(40):
        rng = random.Random(seed)
        widths = [rng.choice([96, 96, 128])] * 3 if rng.random() < 0.6 else [64, 96, 160]

        def build(b: GraphBuilder, widths: list[int] = widths, rng: random.Random = rng) -> None:
            x = b.input("x", F32, (*rng.choice([(), (2,)]), rng.choice([64, 128]), 64))
            for k, n in enumerate(widths):
                y = b.op("MatMul", x, weight(b, 64, n))
                y = b.op("Add", y, weight(b, n)) if rng.random() < 0.7 else y
                b.output(f"y{k}", b.op("Relu", y) if rng.random() < 0.5 else y)

        graph = graph_of(build)
        names = [node.name for node in graph.nodes]
        plan = fs.price(graph, [names], fs.load_profile(profile))
        assert isinstance(plan, fs.Plan), plan
        assert fs.check(graph, plan) == []
        last = len(graph.values[graph.nodes[0].output].shape) - 1
        columns = [loop for tile in plan.groups[0].schedule.tiles for loop in tile.loops if (last, 1) in loop.carried.values()]
        assert len(columns) == (len(set(widths)) == 1)
        assert all(set(loop.carried) == set(names) for loop in columns)
        shared, apart = shared + bool(columns), apart + (not columns)
    assert shared > 10
    assert apart > 10


def test_random_inputs_give_the_same_numbers_in_one_group_and_in_three() -> None:
    graph = projections(3, epilogue=("Relu", "Exp"))
    names = [node.name for node in graph.nodes]
    x = np.random.default_rng(0).normal(size=(32, 32)).astype(F32) / 8
    whole = fs.price(graph, [names], fs.load_profile("local"))
    assert isinstance(whole, fs.Plan), whole
    assert fs.check(graph, whole) == []
    runs = [fs.compile(plan)({"x": x}) for plan in (whole, fs.search(graph, fs.load_profile("local"), method="unfused"))]
    for name in runs[0]:
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=1e-5)
