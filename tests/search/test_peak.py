"""The limit on live memory: exact against brute force over partitions and orders, checked by other code, refused by name."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

import fusion_search as fs
from fusion_search.errors import UsageError
from fusion_search.fusion.constraints import ConstrainedSpace, constrain
from fusion_search.fusion.demands import PeakBytes
from fusion_search.fusion.memory import LiveMemory
from fusion_search.fusion.program import bits
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.search import peak
from fusion_search.search.explain import Explanation
from fusion_search.search.methods import METHODS, NoPlanError
from fusion_search.search.peak import fitting_order, peak_of
from fusion_search.testing.graphs import random_graph
from tests.fusion.programs import F32, graph_of, layer_norm, softmax, space_of, two_blocks, weight

H100 = fs.load_profile("nvidia-h100-sxm")


def by_force(space: GroupSpace, demanded: GroupSpace) -> tuple[dict[int, int], int]:
    """Least cost for every limit at which it changes, by running every legal group next from every down-set; and the least peak."""
    memory, n = LiveMemory(space), space.n
    groups = [g for g in range(1, 1 << n) if not demanded.reasons(g)]
    needs = {}
    for group in groups:
        read = 0
        for p in bits(group):
            read |= space.preds[p]
        needs[group] = read & ~group
    # For each down-set the undominated (peak, cost) of the ways to it.
    front: dict[int, list[tuple[int, int]]] = {0: [(0, 0)]}
    for done in range(1 << n):
        for worst, cost in front.get(done, ()):
            alive = sum(
                size
                for value, size in memory.nbytes.items()
                if done >> memory.owner[value] & 1 and (value in space.program.kept or space.program.readers[value] & ~done)
            )
            for group in groups:
                if not group & done and not needs[group] & ~done:
                    during = alive + memory.stored_bytes(group) + memory.scratch_bytes(group)
                    entry = (max(worst, during), cost + (space.cost(group) or 0))
                    known = front.setdefault(done | group, [])
                    if not any(a <= entry[0] and b <= entry[1] for a, b in known):
                        known[:] = [(a, b) for a, b in known if not (entry[0] <= a and entry[1] <= b)] + [entry]
    ends = sorted(front[(1 << n) - 1])
    return dict(ends), ends[0][0]


def small_graphs(count: int) -> list[tuple[int, fs.Graph]]:
    found = []
    for seed in range(count):
        graph = random_graph(seed, size=4)
        known = all(value.dtype.kind != "O" for value in graph.values.values())
        if 3 <= len(graph.nodes) <= 7 and known:
            found.append((seed, graph))
    return found


def test_equals_force_at_every_limit() -> None:
    met = refused = bound = 0
    for seed, graph in small_graphs(70):
        base = space_of(graph, random.Random(seed).choice(["nvidia-h100-sxm", "raspberry-pi-5"]))
        steps, least = by_force(base, base)
        free = METHODS["exact"](base, 60.0).cost_as
        for limit in sorted({max(least - 1, 0), *steps, *(n + 1 for n in steps), *(n - 1 for n in steps)}):
            space = constrain(base, [fs.peak_bytes(limit)])
            assert isinstance(space, ConstrainedSpace)
            if limit < least:
                with pytest.raises(NoPlanError, match="no plan keeps within the memory") as caught:
                    METHODS["exact"](space, 60.0)
                assert f"needs least needs {least} bytes" in str(caught.value)
                assert [reason.rule for reason in caught.value.reasons] == ["memory"]
                refused += 1
                continue
            plan = METHODS["exact"](space, 60.0)
            assert plan.status == "optimal"
            assert plan.cost_as == min(cost for needs, cost in steps.items() if needs <= limit), (seed, limit)
            assert plan.statistics["peak_bytes"] <= limit
            if all(value.size for value in graph.values.values()):
                assert fs.check(graph, plan) == []
            met += 1
            bound += plan.cost_as > free
    assert met > 40
    assert refused > 20
    assert bound > 10


def test_together_with_other_demands() -> None:
    met = 0
    for seed, graph in small_graphs(50):
        draw = random.Random(seed)
        base = space_of(graph, "raspberry-pi-5")
        names = [node.name for node in graph.nodes]
        demands = [draw.choice([fs.must_fuse, fs.never_fuse])(*draw.sample(names, 2))]
        try:
            demanded = constrain(base, demands)
            METHODS["exact"](demanded, 60.0)
        except UsageError:
            continue
        steps, _ = by_force(base, demanded)
        for limit in steps:
            space = constrain(base, [*demands, fs.peak_bytes(limit)])
            assert METHODS["exact"](space, 60.0).cost_as == min(cost for needs, cost in steps.items() if needs <= limit), (
                seed,
                demands,
                limit,
            )
            met += 1
    assert met > 20


def test_the_checker_counts_for_itself() -> None:
    found = 0
    for _, graph in small_graphs(60):
        if not all(value.size for value in graph.values.values()):
            continue
        for method in ("exact", "unfused"):
            # As under a limit: no value is computed twice.
            plan = fs.search(graph, H100, method=method, constraints=[fs.fusion_off(rule="recomputation")])
            space = space_of(graph)
            most = peak_of(LiveMemory(space), [space.program.mask(list(group.nodes)) for group in plan.groups])
            for limit in (most, most - 1):
                claim = {"constraints": [{"kind": "peak_bytes", "limit_bytes": limit}]}
                claimed = fs.Plan(*(getattr(plan, f) if f != "space" else claim for f in plan.__dataclass_fields__))
                assert {v.rule for v in fs.check(graph, claimed)} == ({"memory"} if limit < most else set())
                found += 1
    assert found > 40


def test_an_order_of_fixed_groups_is_found_exactly_when_there_is_one() -> None:
    found = none = 0
    for seed, graph in small_graphs(60):
        space = space_of(graph)
        memory = LiveMemory(space)
        groups = [1 << p for p in range(space.n)]
        best: dict[int, int] = {0: 0}
        for done in range(1 << space.n):
            for p in range(space.n):
                if done in best and not done >> p & 1 and not space.preds[p] & ~done:
                    alive = sum(
                        size
                        for value, size in memory.nbytes.items()
                        if done >> memory.owner[value] & 1 and (value in space.program.kept or space.program.readers[value] & ~done)
                    )
                    worst = max(best[done], alive + memory.stored_bytes(1 << p) + memory.scratch_bytes(1 << p))
                    after = done | 1 << p
                    best[after] = min(best.get(after, worst), worst)
        least = best[(1 << space.n) - 1]
        for limit in (least, least + 3):
            order, proved = fitting_order(memory, space.preds, groups, limit)
            assert proved
            assert order is not None, seed
            assert peak_of(memory, order) <= limit
            found += 1
        assert fitting_order(memory, space.preds, groups, least - 1) == (None, True)
        none += 1
    assert found > 40
    assert none > 20


def diamond(width: int, rows: int) -> fs.Graph:
    """Branches that each blow one small input up, reduce it again, and are added: one after the other they need little."""
    b = GraphBuilder("diamond")
    x = b.input("x", F32, (rows, 32))
    total = ""
    for _ in range(width):
        wide = b.op("MatMul", x, weight(b, 32, 512))
        narrow = b.op("MatMul", wide, weight(b, 512, 32))
        total = b.op("Add", total, narrow) if total else narrow
    b.output("y", total)
    return b.build()


def test_branches_run_one_after_the_other() -> None:
    graph = diamond(4, 1024)
    wide, narrow = 1024 * 512 * 4, 1024 * 32 * 4
    plan = fs.search(graph, H100, constraints=[fs.fusion_off(rule="contraction"), fs.peak_bytes(wide + 2 * narrow)])
    assert plan.status == "optimal"
    assert plan.statistics["peak_bytes"] <= wide + 2 * narrow
    assert fs.check(graph, plan) == []


def test_out_of_budget_the_bound_stays_true(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(two_blocks)
    names = [node.name for node in graph.nodes]
    base = space_of(graph)
    steps, _ = by_force_of_layers(base)
    monkeypatch.setattr(peak, "_STATES", 3)
    closed = 0
    for limit, cost in steps.items():
        plan = METHODS["exact"](constrain(base, [fs.peak_bytes(limit)]), 60.0)
        assert plan.lower_bound_as <= cost <= plan.cost_as
        assert plan.status == ("optimal" if plan.lower_bound_as == plan.cost_as else "feasible")
        closed += plan.status == "optimal"
    assert len(names) == 15
    assert closed < len(steps)


def by_force_of_layers(space: GroupSpace) -> tuple[dict[int, int], int]:
    """The same as `by_force`, limit by limit, by the search itself with all the states it wants."""
    steps: dict[int, int] = {}
    unfused = [1 << p for p in range(space.n)]
    limit = peak_of(LiveMemory(space), unfused) * 4
    while True:
        try:
            plan = METHODS["exact"](constrain(space, [fs.peak_bytes(limit)]), 60.0)
        except NoPlanError:
            return steps, limit
        steps[plan.statistics["peak_bytes"]] = plan.cost_as
        limit = plan.statistics["peak_bytes"] - 1


def test_j_falls_as_the_limit_rises() -> None:
    steps, _ = by_force_of_layers(space_of(graph_of(layer_norm)))
    by_limit = sorted(steps.items())
    assert all(a[1] > b[1] for a, b in pairwise(by_limit))


def test_price_and_baselines_keep_to_it() -> None:
    graph = graph_of(softmax)
    names = [[node.name] for node in graph.nodes]
    priced = fs.price(graph, names, H100, constraints=[fs.peak_bytes(1 << 20)])
    assert isinstance(priced, fs.Plan)
    assert fs.check(graph, priced) == []
    refused = fs.price(graph, names, H100, constraints=[fs.peak_bytes(40_000)])
    assert isinstance(refused, list)
    assert [reason.rule for reason in refused] == ["memory"]
    with pytest.raises(UsageError, match="unfused finds no order in which its plan keeps within the memory"):
        fs.search(graph, H100, method="unfused", constraints=[fs.peak_bytes(40_000)])
    # One kernel stores its result only; it needs scratch for the rows in flight.
    assert fs.search(graph, H100, constraints=[fs.peak_bytes(120_000)]).launches == 1


def test_memory_is_named_as_the_reason() -> None:
    def branches(b: GraphBuilder) -> None:
        bias = b.input("bias", F32, (1024,))
        for k, rows in ((1, 16384), (2, 24576)):
            made = b.op("Add", b.input(f"x{k}", F32, (rows, 1024)), bias)
            with b.origin(f"scan{k}", "CumSum"):
                run = b.op("CumSum", made, axis=0, exclusive=0, reverse=0)
            b.output(f"y{k}", b.op("ReduceMax", run, axes=(0,)))

    graph = graph_of(branches)
    adds = [node.name for node in graph.nodes if node.op == "Add"]
    alone = fs.fusion_off(op="CumSum")
    assert any(set(adds) <= set(group.nodes) for group in fs.search(graph, H100, constraints=[alone]).groups)
    plan = fs.search(graph, H100, constraints=[alone, fs.peak_bytes((96 + 96 + 1) << 20)])
    assert fs.check(graph, plan) == []
    found = fs.explain(plan, *adds, flips=False)
    assert isinstance(found, Explanation)
    assert not found.fused
    assert {reason.rule for reason in found.reasons} == {"memory"}


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "all", None])
def test_malformed(wrong: object) -> None:
    with pytest.raises(UsageError, match="peak_bytes: expected a whole number of bytes from 0"):
        fs.peak_bytes(wrong)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    assert fs.peak_bytes(np.int64(7)) == PeakBytes(7)
