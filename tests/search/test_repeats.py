"""Growth that is reused is the growth that would have been: on random spaces of repeated cells, and on repeated layers of operators."""

from __future__ import annotations

import random
from collections.abc import Hashable

import numpy as np
import pytest

import costmodels
import fusion_search as fs
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph
from fusion_search.search.enumerate import Enumeration, enumerate_groups
from fusion_search.search.exact import exact
from fusion_search.search.space import derive_facts
from tests.search.random_space import RandomSpace, members


class CountedSpace(RandomSpace):
    """Knows what its nodes look like, by the very words of the protocol, and counts what it is asked."""

    asked = 0

    def cost(self, group: int) -> int | None:
        self.asked += 1
        return super().cost(group)

    def descriptions(self, reach: int) -> list[int]:
        def near(v: int, mask: int) -> Hashable:
            return tuple(u - v for u in members(mask) if abs(u - v) <= reach)

        numbers: dict[Hashable, int] = {}
        found = []
        for v in range(self.n):
            blocked = sum(1 << u for u in members(self.preds[v]) if self.blocked(u, v))
            marks = (self.labels[v], self.heavy >> v & 1, self.solo >> v & 1)
            kin = tuple(near(v, family) for family in self.families if family >> v & 1)
            looks = (*marks, kin, near(v, self.preds[v]), near(v, self.neighbours[v]), near(v, blocked))
            found.append(numbers.setdefault(looks, len(numbers)))
        return found


def repeated_space(draw: random.Random) -> CountedSpace:
    """Cells of one random graph in a row, with random links between neighbours, far nodes that many read, and odd cells."""
    size, cells, before = draw.randint(2, 5), draw.randint(3, 6), draw.randint(0, 2)
    n = before + size * cells
    pairs = [(u, v) for u in range(size) for v in range(u + 1, size)]
    inner = [pair for pair in pairs if draw.random() < 0.5]
    beside = [pair for pair in pairs if draw.random() < 0.1]
    links = [(u, v) for u in range(size) for v in range(size) if draw.random() < 0.15]
    rates = {"heavy": draw.choice([0.3, 0.7]), "solo": 0.1, "far": 0.3}
    chosen = {kind: [v for v in range(size) if draw.random() < rate] for kind, rate in rates.items()}
    family = [v for v in chosen["heavy"] if draw.random() < 0.8]
    barred = [pair for pair in inner if draw.random() < 0.2]
    edges, siblings, blocked, families = [], [], [], []
    labels: list[Hashable] = [("before", v) for v in range(before)]
    marks = {"heavy": 0, "solo": 0}
    for cell in range(cells):
        at = before + cell * size
        odd = draw.random() < 0.15
        labels += [(cell if odd and v == 0 else "cell", v) for v in range(size)]
        edges += [(at + u, at + v) for u, v in inner]
        siblings += [(at + u, at + v) for u, v in beside]
        blocked += [(at + u, at + v) for u, v in barred]
        if cell:
            edges += [(at - size + u, at + v) for u, v in links]
        families.append(sum(1 << at + v for v in family))
        edges += [(far, at + v) for far in range(before) for v in chosen["far"]]
        for kind in marks:
            marks[kind] |= sum(1 << at + v for v in chosen[kind])
    return CountedSpace(
        n,
        edges,
        siblings=siblings,
        labels=labels,
        heavy=marks["heavy"],
        solo=marks["solo"],
        max_heavy=draw.choice([1, 2]),
        families=families,
        blocked=blocked,
        max_nodes=draw.choice([3, 4, 6]),
        seed=draw.randrange(1 << 30),
        hole_rate=draw.choice([0.0, 0.3]),
        flavour=draw.choice(["mixed", "sub", "super"]),
    )


def same_groups(one: Enumeration, two: Enumeration) -> None:
    assert one.groups == two.groups
    assert (one.complete, one.grown, one.dominated) == (two.complete, two.grown, two.dominated)


def test_reused_growth_is_growth() -> None:
    saved = 0
    for seed in range(400):
        space = repeated_space(random.Random(seed))
        facts, nodes = derive_facts(space), (1 << space.n) - 1
        for siblings in (True, False):
            space.asked = 0
            plain = enumerate_groups(space, facts, nodes, siblings=siblings, reuse=False)
            asked, space.asked = space.asked, 0
            same_groups(enumerate_groups(space, facts, nodes, siblings=siblings), plain)
            saved += asked > space.asked
    assert saved > 100


def test_what_lies_far_does_not_hinder_reuse() -> None:
    # A mask that all layers read, two products between its readers: no group holds two of them.
    layers, size = 24, 6
    edges = [(0, 1 + size * k) for k in range(layers)] + [(v, v + 1) for v in range(1, layers * size)]
    heavy = sum(1 << 1 + size * k + i for k in range(layers) for i in (2, 4))
    readers = [1 + size * k for k in range(layers)]
    space = CountedSpace(
        1 + layers * size,
        edges,
        siblings=[(u, v) for u in readers for v in readers if u < v],
        labels=["mask", *(i for _ in range(layers) for i in range(size))],
        heavy=heavy,
        hole_rate=0.0,
    )
    facts, nodes = derive_facts(space), (1 << space.n) - 1
    plain = enumerate_groups(space, facts, nodes, reuse=False)
    once, space.asked = space.asked, 0
    same_groups(enumerate_groups(space, facts, nodes), plain)
    assert space.asked - space.n < (once - space.n) / 2


def repeated_layers(seed: int) -> Graph:
    """A random layer of operators, several times one after the other, with a mask and sometimes a skip over two layers."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder("layers")
    x, mask = b.input("x", np.float32, (8, 16)), b.op("Exp", b.input("m", np.float32, (8, 16)))
    weight = b.constant(np.ones((16, 16), np.float32))
    recipe = [(str(rng.choice(["Relu", "Tanh", "Add", "Mul", "MatMul", "Max", "Mask"])), *rng.integers(0, 99, 2)) for _ in range(7)]
    skip = bool(rng.integers(2))
    ends = [x]
    for _ in range(10):
        made, read = [ends[-1]], set[str]()
        for kind, i, j in recipe:
            one, two = made[-1 - i % min(3, len(made))], made[-1 - j % min(4, len(made))]
            if kind == "MatMul":
                made.append(b.op("MatMul", one, weight))
            elif kind == "Max":
                made.append(b.op("Sub", one, b.op("ReduceMax", one, axes=(1,), keepdims=True)))
            elif kind == "Mask":
                made.append(b.op("Add", one, mask))
            else:
                made.append(b.op(kind, one) if kind in ("Relu", "Tanh") else b.op(kind, one, two))
            read |= {one, two} if kind in ("Add", "Mul") else {one}
        end = made.pop()
        for value in made:
            end = end if value in read else b.op("Add", end, value)
        ends.append(b.op("Add", end, ends[-2]) if skip and len(ends) > 1 else end)
    b.output("y", ends[-1])
    if rng.integers(2):
        b.output("z", ends[3])
    return b.build()


@pytest.mark.parametrize("profile", ["local", "nvidia-h100-sxm"])
@pytest.mark.parametrize("max_heavy", [1, 2])
def test_layers_of_operators(profile: str, max_heavy: int) -> None:
    saved = 0
    for seed in range(12):
        program = Program(repeated_layers(seed))
        results = []
        loaded = fs.load_profile(profile)
        for reuse in (True, False):
            space = CoarseSpace(GroupSpace(program, loaded, costmodels.model("weighted")))
            # The one rule of this space that speaks of products is about groups: legality may stay narrower than growth.
            space.max_heavy = max_heavy
            found = enumerate_groups(space, derive_facts(space), (1 << space.n) - 1, max_nodes=5, reuse=reuse)
            results.append((found, len(space.fine._costs)))
        same_groups(results[0][0], results[1][0])
        saved += results[0][1] < results[1][1]
    assert saved >= 10


@pytest.mark.parametrize("seed", range(6))
def test_plans_do_not_depend_on_reuse(seed: int) -> None:
    program = Program(repeated_layers(100 + seed))
    plans = []
    for reuse in (True, False):
        space = CoarseSpace(GroupSpace(program, fs.load_profile("local"), costmodels.model("weighted")))
        found = exact(space, floors_of=space.floors, reuse=reuse, time_limit_s=240.0)
        plans.append((found.status, found.cost, found.groups))
    assert plans[0] == plans[1]
    assert plans[0][0] == "optimal"
