"""What a user demands: plans keep to it, the search stays exact, and what cannot be had is refused by name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.fusion.constraints import ConstrainedSpace, closed_sets, constrain, nodes_named
from fusion_search.fusion.demands import Constraint, MustFuse, as_record, from_record
from fusion_search.fusion.program import bits
from fusion_search.fusion.reasons import Reason
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.search.methods import METHODS, NoPlanError
from fusion_search.search.quotient import execution_order
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import F32, graph_of, layer_norm, matmul_bias_gelu, mutual_wait, softmax, space_of

RULES = ("siblings", "multi-output", "contraction", "reduction")


class Fine:
    """A constrained space as the oracle wants it: what is demanded together is a rule on each group."""

    def __init__(self, space: GroupSpace) -> None:
        self.space, self.n, self.preds = space, space.n, space.preds

    def cost(self, group: int) -> int | None:
        space = self.space
        if space.reasons(group):
            return None
        return space.cost(group)


def best_by_force(space: GroupSpace) -> int | None:
    """The least cost of all partitions into groups that break no rule, or None when there is none."""
    fine, costs = Fine(space), {}
    best: int | None = None

    def cost(group: int) -> int | None:
        if group not in costs:
            costs[group] = fine.cost(group)
        return costs[group]

    def extend(rest: int, groups: list[int], total: int) -> None:
        nonlocal best
        if best is not None and total >= best:
            return
        if not rest:
            if execution_order(space.preds, groups) is not None:
                best = total
            return
        first = rest & -rest
        others = subset = rest ^ first
        while True:
            price = cost(first | subset)
            if price is not None:
                extend(others ^ subset, [*groups, first | subset], total + price)
            if not subset:
                return
            subset = (subset - 1) & others

    extend((1 << space.n) - 1, [], 0)
    return best


def drawn(graph: Graph, draw: random.Random) -> list[Constraint]:
    names = [node.name for node in graph.nodes]
    values = [name for node in graph.nodes for name in node.outputs]
    makers = (
        lambda: fs.must_fuse(*draw.sample(names, 2)),
        lambda: fs.must_fuse(*draw.sample(names, 2)),
        lambda: fs.never_fuse(*draw.sample(names, 2)),
        lambda: fs.keep(draw.choice(values)),
        lambda: fs.fusion_off(op=draw.choice(graph.nodes).op),
        lambda: fs.fusion_off(rule=draw.choice(RULES)),
    )
    return [draw.choice(makers)() for _ in range(draw.randint(1, 3))]


def possible(base: GroupSpace, constraints: Sequence[Constraint]) -> ConstrainedSpace | None:
    try:
        space = constrain(base, constraints)
    except UsageError as error:
        if "contradicts" not in str(error):
            raise
        return None
    assert isinstance(space, ConstrainedSpace)
    return space


def planned(space: GroupSpace) -> fs.Plan | None:
    try:
        return METHODS["exact"](space, 60.0)
    except NoPlanError as error:
        if not error.reasons:
            raise
        return None


def honoured(space: ConstrainedSpace, groups: Sequence[int]) -> None:
    """Every demand, told from its own words."""
    program = space.program
    home = {p: group for group in groups for p in bits(group)}
    for constraint in space.constraints:
        if constraint.kind == "must_fuse":
            assert len({home[p] for name in constraint.nodes for p in bits(nodes_named(program, name))}) == 1
        elif constraint.kind == "never_fuse":
            for a, b in combinations(constraint.nodes, 2):
                assert not {home[p] for p in bits(nodes_named(program, a))} & {home[p] for p in bits(nodes_named(program, b))}
        elif constraint.kind == "keep":
            for name in constraint.values:
                value = program.value_number[program.graph.base(name)]
                owner = next(p for p, member in enumerate(program.members) if value in member.outputs)
                assert value in program.kept or program.readers[value] & ~home[owner]


def test_equals_force_under_random_demands() -> None:
    met = refused = forced = 0
    for seed in range(120):
        graph = random_graph(seed, size=4)
        if not 2 <= len(graph.nodes) <= 8:
            continue
        draw = random.Random(seed)
        base = space_of(graph, draw.choice(["nvidia-h100-sxm", "raspberry-pi-5"]))
        for _ in range(3):
            constraints = drawn(graph, draw)
            space = possible(base, constraints)
            plan = None if space is None else planned(space)
            if space is None or plan is None:
                refused += 1
                assert space is None or best_by_force(space) is None, (seed, constraints)
                continue
            groups = [space.program.mask(list(group.nodes)) for group in plan.groups]
            assert plan.status == "optimal"
            assert plan.cost_as == best_by_force(space), (seed, constraints)
            honoured(space, groups)
            if all(value.size for value in graph.values.values()):
                assert fs.check(graph, plan) == []
            met += 1
            forced += any(isinstance(c, MustFuse) for c in constraints)
    assert met > 100
    assert refused > 20
    assert forced > 20


def test_without_demands_it_is_the_space_itself() -> None:
    space = space_of(graph_of(softmax))
    assert constrain(space, ()) is space


def test_a_demanded_group_that_is_legal_only_with_more_is_found() -> None:
    def joined_below(b: GraphBuilder) -> None:
        x, y = b.input("x", F32, (256, 256)), b.input("y", F32, (256, 256))
        b.output("z", b.op("Add", b.op("Relu", x), b.op("Tanh", y)))

    graph = graph_of(joined_below)
    relu, tanh, _ = (node.name for node in graph.nodes)
    space = constrain(space_of(graph), [fs.must_fuse(relu, tanh)])
    assert isinstance(space.priced(space.joined[0]), Reason)
    plan = METHODS["exact"](space, 60.0)
    assert [len(group.nodes) for group in plan.groups] == [3]
    assert plan.cost_as == METHODS["exact"](space_of(graph), 60.0).cost_as


def test_sets_that_wait_for_each_other_are_one() -> None:
    space = space_of(graph_of(mutual_wait))
    a1, a2, b1, b2 = (nodes_named(space.program, name) for name in ("a1", "a2", "b1", "b2"))
    assert closed_sets(space.preds, [a1 | a2]) == [a1 | a2]
    assert closed_sets(space.preds, [a1 | a2, b1 | b2]) == [a1 | a2 | b1 | b2]
    assert closed_sets(space.preds, [a1 | a2, a2 | b1]) == [a1 | a2 | b1]


def test_what_lies_between_comes_along() -> None:
    space = space_of(graph_of(softmax))
    maximum, _, _, total, _ = (1 << space.program.position[node.name] for node in space.program.graph.nodes)
    (joined,) = closed_sets(space.preds, [maximum | total])
    assert joined.bit_count() == 4


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        ([fs.must_fuse("Sub_1", "Exp_2"), fs.never_fuse("Sub_1", "Exp_2")], "must_fuse('Sub_1', 'Exp_2') contradicts never_fuse("),
        ([fs.must_fuse("ReduceMax_0", "Div_4"), fs.never_fuse("Sub_1", "Exp_2")], "contradicts never_fuse('Sub_1', 'Exp_2')"),
        ([fs.must_fuse("Sub_1", "Exp_2"), fs.fusion_off(op="Exp")], "contradicts fusion_off(op='Exp')"),
        ([fs.must_fuse("Sub_1", "Exp_2"), fs.fusion_off(everything=True)], "contradicts fusion_off(everything=True)"),
        ([fs.must_fuse("Sub_1", "Nothing")], "no node 'Nothing'"),
        ([fs.never_fuse("Sub_1", "Exp_3")], "did you mean 'Exp_2'"),
        ([fs.keep("nothing")], "no value 'nothing'"),
        ([fs.fusion_off(op="Conv")], "the graph has no such operator"),
        (["never_fuse"], "unknown constraint 'never_fuse'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(constraints: Sequence[Constraint], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        constrain(space_of(graph_of(softmax)), constraints)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fs.must_fuse(), "must_fuse: expected 1 names or more"),
        (lambda: fs.never_fuse("a"), "never_fuse: expected 2 names or more"),
        (lambda: fs.never_fuse("a", "a"), "never_fuse: expected 2 names or more"),
        (lambda: fs.keep(3), "keep: expected names, got 3"),
        (lambda: fs.fusion_off(), "expected one of rule, op and everything"),
        (lambda: fs.fusion_off(op="Exp", rule="siblings"), "expected one of rule, op and everything"),
        (lambda: fs.fusion_off(rule="sideways"), "unknown rule 'sideways'"),
    ],
)
def test_malformed_demands(make: object, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        make()  # type: ignore[operator]


def test_records_round_trip() -> None:
    off = (fs.fusion_off(op="Exp"), fs.fusion_off(everything=True))
    for constraint in (fs.must_fuse("a", "b"), fs.never_fuse("a", "b", "c"), *off, fs.keep("v"), fs.peak_bytes(7), fs.min_gain_s(1e-6)):
        assert from_record(as_record(constraint)) == constraint


def test_a_baseline_that_does_not_do_it_says_so() -> None:
    graph = graph_of(matmul_bias_gelu)
    narrow = replace(fs.load_profile("nvidia-h100-sxm"), operand_limit=1)
    constraints = [fs.must_fuse(*(node.name for node in graph.nodes))]
    for method in ("unfused", "exact"):
        with pytest.raises(UsageError, match=f"{method} finds no plan that does it .operands:"):
            fs.search(graph, narrow, method=method, constraints=constraints)


@pytest.mark.parametrize("method", ["exact", "unfused", "per-operator", "fuse-all"])
def test_every_method_keeps_to_it(method: str) -> None:
    graph = graph_of(layer_norm)
    names = [node.name for node in graph.nodes]
    constraints = [fs.must_fuse(names[0], names[1]), fs.never_fuse(names[-1], names[-2])]
    plan = fs.search(graph, fs.load_profile("raspberry-pi-5"), method=method, constraints=constraints)
    space = constrain(space_of(graph, "raspberry-pi-5"), constraints)
    assert isinstance(space, ConstrainedSpace)
    honoured(space, [space.program.mask(list(group.nodes)) for group in plan.groups])
    assert plan.space["constraints"] == [as_record(constraint) for constraint in constraints]
    assert fs.check(graph, plan) == []


def test_price_names_the_demand() -> None:
    graph = graph_of(softmax)
    names = [node.name for node in graph.nodes]
    h100 = fs.load_profile("nvidia-h100-sxm")
    found = fs.price(graph, [names], h100, constraints=[fs.never_fuse(names[1], names[2])])
    assert isinstance(found, list)
    assert [(reason.rule, reason.nodes) for reason in found] == [("user", (names[1], names[2]))]
    assert "never_fuse" in found[0].remedy
    apart = fs.price(graph, [[name] for name in names], h100, constraints=[fs.must_fuse(names[1], names[2])])
    assert isinstance(apart, list)
    assert {reason.rule for reason in apart} == {"user"}
