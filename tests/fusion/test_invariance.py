"""What must not depend on names, on the order of nodes, or on the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest

import fusion_search as fs
import hardware_profiles
from fusion_search.fusion.program import Program, bits
from fusion_search.fusion.space import GroupSpace, Priced
from fusion_search.ir.graph import Graph
from fusion_search.ir.verify import verify_graph
from fusion_search.search.space import derive_facts, structurally_fit
from fusion_search.testing.graphs import random_graph, random_partition
from tests.fusion.programs import graph_of, layer_norm, mutual_wait, shuffled, softmax, space_of, two_blocks

H100 = hardware_profiles.load("nvidia-h100-sxm")
PROGRAMS = {build.__name__: graph_of(build) for build in (softmax, layer_norm, mutual_wait, two_blocks)}


def outcome(graph: Graph) -> tuple[int, list[tuple[object, ...]]]:
    """J, and what of each group does not name anything."""
    plan = fs.search(graph, H100, time_limit_s=20)
    assert plan.status == "optimal"
    ops = {node.name: node.op for node in graph.nodes}
    digests = [
        (group.cost_as, group.bytes_read, group.bytes_written, tuple(ops[name] for name in group.nodes), tuple(group.terms.items()))
        for group in plan.groups
    ]
    return plan.cost_as, sorted(digests)


def described(program: Program) -> list[tuple[object, ...]]:
    return [
        (m.node.op, m.node.attrs, m.signature, m.shape, tuple((o.producer, o.shape) for o in m.operands), m.outputs)
        for m in program.members
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_canonical_order_does_not_depend_on_node_order_or_names(name: str) -> None:
    graph = PROGRAMS[name]
    expected = described(Program(graph))
    orders = set()
    for seed in range(6):
        other = shuffled(graph, seed)
        verify_graph(other)
        orders.add(tuple(node.op for node in other.nodes))
        assert described(Program(other)) == expected
    if name == "mutual_wait":
        assert len(orders) > 1


@pytest.mark.parametrize("seed", range(12))
def test_canonical_order_is_topological(seed: int) -> None:
    program = Program(shuffled(random_graph(seed, size=8), seed))
    for p, member in enumerate(program.members):
        assert all(operand.producer < p for operand in member.operands)
        assert not program.ancestors[p] >> p
        assert all(program.descendants[a] >> p & 1 for a in bits(program.ancestors[p]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_optimum_does_not_depend_on_node_order_or_names(name: str) -> None:
    expected = outcome(PROGRAMS[name])
    assert [outcome(shuffled(PROGRAMS[name], seed)) for seed in range(3)] == [expected] * 3


@pytest.mark.parametrize("seed", range(10))
def test_the_optimum_of_a_random_graph_does_not_depend_on_node_order_or_names(seed: int) -> None:
    graph = random_graph(200 + seed, size=6)
    assert outcome(shuffled(graph, seed)) == outcome(graph)


def test_the_optimum_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from tests.fusion.test_invariance import PROGRAMS, outcome, shuffled\n"
        "import sys\n"
        "sys.stdout.write(repr([outcome(shuffled(graph, 5)) for graph in PROGRAMS.values()]))"
    )
    root = Path(__file__).parents[2]
    texts = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        run = subprocess.run(
            [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr
        texts.append(run.stdout)
    assert texts == [repr([outcome(graph) for graph in PROGRAMS.values()])] * 3


def judged(space: GroupSpace, group: int) -> tuple[object, ...]:
    """The verdict on a group from a space that has seen no other."""
    found = GroupSpace(space.program, space.profile, space.model).priced(group)
    return (found.cost, found.tiling, tuple(found.terms.values())) if isinstance(found, Priced) else (found.rule,)


def connected_groups(space: GroupSpace, rng: np.random.Generator, count: int) -> list[int]:
    """Random sets of the form that a search asks about, legal or not."""
    found, facts = [], derive_facts(space)
    for _ in range(count):
        group = 1 << int(rng.integers(space.n))
        for _ in range(int(rng.integers(6))):
            near = 0
            for p in bits(group):
                near |= space.neighbours[p]
            if fresh := bits(near & ~group):
                group |= 1 << fresh[int(rng.integers(len(fresh)))]
        if structurally_fit(space, facts, group):
            found.append(group)
    return found


def assert_keys_decide(space: GroupSpace, groups: list[int]) -> int:
    verdicts: dict[Hashable, tuple[object, ...]] = {}
    repeated = 0
    for group in dict.fromkeys(groups):
        key, verdict = space.key(group), judged(space, group)
        repeated += key in verdicts
        assert verdicts.setdefault(key, verdict) == verdict
        assert space.cost(group) == (verdict[0] if len(verdict) > 1 else None)
    return repeated


def test_equal_keys_mean_equal_verdicts_in_repeated_blocks() -> None:
    space = space_of(PROGRAMS["two_blocks"])
    assert assert_keys_decide(space, connected_groups(space, np.random.default_rng(0), 600)) > 20


def test_equal_keys_mean_equal_verdicts_in_random_graphs() -> None:
    repeated = 0
    for seed in range(40):
        space = space_of(random_graph(seed, size=8, ops=["Add", "Mul", "Exp", "ReduceSum", "Transpose", "Slice", "View", "MatMul"]))
        rng = np.random.default_rng(seed)
        repeated += assert_keys_decide(space, [*connected_groups(space, rng, 60), *random_partition(space, rng)])
    assert repeated > 0


def test_a_value_that_others_read_changes_the_key() -> None:
    space = space_of(PROGRAMS["softmax"])
    inner = space.program.mask(["Sub_1", "Exp_2"])
    assert space.key(inner) != space.key(space.program.mask(["Exp_2", "ReduceSum_3"]))
    assert len({space.key(1 << p) for p in range(space.n)}) == space.n
