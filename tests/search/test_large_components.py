"""What large components are planned by: chains of down-sets, places of grids of nodes, moving borders."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import costmodels
import fusion_search as fs
from fusion_search.fusion.coarse import CoarseSpace
from fusion_search.fusion.program import Program
from fusion_search.fusion.space import GroupSpace
from fusion_search.search import narrow
from fusion_search.search.borders import border_plan
from fusion_search.search.exact import exact
from fusion_search.search.improve import plan_cost
from fusion_search.search.lattice_floor import crossing_floor, lattice_floor, places
from fusion_search.search.narrow import linear_price, narrow_path
from fusion_search.search.oracle import exhaustive
from fusion_search.search.quotient import execution_order
from fusion_search.search.space import bits, derive_facts
from fusion_search.testing.graphs import random_graph
from tests.cases.harness import load, model, node, value

NEVER = float("inf")


def braid(steps: int) -> fs.Graph:
    """Two strands that cross at every step, where an operand comes from outside."""
    nodes, a, b = [], "x", "x"
    for i in range(steps):
        nodes += [node("Mul", f"{a} w{i}", f"a{i}"), node("Add", f"{b} a{i}", f"b{i}")]
        a, b = f"b{i}", f"a{i}"
    inputs = [value("x", [32, 64]), *(value(f"w{i}", [32, 64]) for i in range(steps))]
    return load(model(nodes, inputs, f"{a} {b}"))


def space_of(graph: fs.Graph, most: int, profile: str = "local") -> CoarseSpace:
    space = GroupSpace(Program(graph), fs.load_profile(profile), costmodels.model("weighted"))
    space.max_nodes = most
    return CoarseSpace(space)


def grid(rows: int, columns: int) -> fs.Graph:
    """Every node reads the one above and the one to its left."""
    nodes, above = [], ["x"] * columns
    for i in range(rows):
        row = []
        for j in range(columns):
            left = row[-1] if row else "x"
            row.append(f"v{i}_{j}")
            nodes.append(node("Add", f"{above[j]} {left}", row[-1]))
        above = row
    return load(model(nodes, [value("x", [32, 64])], above[-1]))


def ladder(steps: int) -> fs.Graph:
    """Two rails that read each other at every step."""
    nodes, a, b = [node("Tanh", "x", "a"), node("Exp", "x", "b")], "a", "b"
    for i in range(steps):
        nodes += [node("Relu", a, f"p{i}"), node("Neg", b, f"q{i}")]
        nodes += [node("Add", f"p{i} {b}", f"a{i}"), node("Mul", f"{a} q{i}", f"b{i}")]
        a, b = f"a{i}", f"b{i}"
    return load(model(nodes, [value("x", [32, 64])], f"{a} {b}"))


@pytest.mark.parametrize("most", [2, 3, 256])
def test_no_plan_is_cheaper_than_the_floors(most: int) -> None:
    tried = 0
    for seed in range(40):
        space = space_of(random_graph(seed, size=7), most, ["local", "nvidia-h100-sxm"][seed % 2])
        if not 0 < space.n <= 9:
            continue  # nothing for the oracle
        borders = space.floors(range(space.n)).borders()
        assert borders is not None
        best, _ = exhaustive(space)
        path = narrow_path(space, range(space.n), borders, NEVER)
        assert path is not None
        assert path.bound <= best, seed
        assert not path.groups or sum(path.groups) == (1 << space.n) - 1, seed
        rng = np.random.default_rng(seed)
        anywhere = [(int(p), int(q)) for p, q in product(range(3), range(3))]
        for where in (places(borders), {v: anywhere[k] for v, k in enumerate(rng.permutation(9)[: space.n])}):
            assert lattice_floor(borders, where) <= best, seed
        tried += 1
    assert tried > 25


@pytest.mark.parametrize("most", [4, 7, 12])
def test_a_ladder_is_planned_over_down_sets(most: int) -> None:
    space = space_of(ladder(6), most)
    borders = space.floors(range(space.n)).borders()
    assert borders is not None
    found, best = narrow_path(space, range(space.n), borders, NEVER), exact(space)
    assert found is not None
    assert best.status == "optimal"
    assert plan_cost(space, found.groups) == best.cost
    assert best.cost - 3 * len(found.groups) - 3 <= found.bound <= best.cost


@pytest.mark.parametrize(("rows", "columns", "most"), [(3, 3, 2), (3, 3, 4), (4, 4, 3), (3, 5, 4), (4, 4, 5)])
def test_a_grid_is_found_and_has_a_floor(rows: int, columns: int, most: int) -> None:
    space = space_of(grid(rows, columns), most)
    floors = space.floors(range(space.n))
    borders = floors.borders()
    assert borders is not None
    where = places(borders)
    assert len(set(where.values())) == len(where) == space.n
    best = exact(space)
    assert best.status == "optimal"
    assert floors.whole() <= lattice_floor(borders, where) <= best.cost
    path = narrow_path(space, range(space.n), borders, NEVER)
    assert path is not None
    assert lattice_floor(borders, where) <= path.bound <= best.cost


def test_two_nodes_at_one_place_are_refused() -> None:
    borders = space_of(grid(2, 2), 4).floors(range(4)).borders()
    assert borders is not None
    with pytest.raises(ValueError, match="one place"):
        lattice_floor(borders, {0: (0, 0), 1: (0, 0)})


def test_no_set_of_places_is_on_fewer_lines() -> None:
    cells = list(product(range(4), range(4)))
    least = [99] * 17
    for mask in range(1, 1 << 16):
        chosen = [cells[k] for k in bits(mask)]
        lines = len({p for p, _ in chosen}) + len({q for _, q in chosen}) + len({p + q for p, q in chosen})
        least[len(chosen)] = min(least[len(chosen)], lines)
    floor = crossing_floor(16)
    assert all(floor[k] <= least[k] for k in range(1, 17))
    assert floor[1:13] == least[1:13]  # a hexagon of twelve still fits


@pytest.mark.parametrize("profile", ["local", "nvidia-h100-sxm"])
def test_moved_borders_make_a_plan(profile: str) -> None:
    space = space_of(grid(24, 24), 48, profile)
    facts, sequence = derive_facts(space), list(range(space.n))
    borders = space.floors(sequence).borders()
    assert borders is not None
    where = places(borders)
    groups = border_plan(space, facts, sequence, borders, where, NEVER)
    assert groups is not None
    assert groups == border_plan(space, facts, sequence, borders, where, NEVER)
    assert sorted(v for group in groups for v in bits(group)) == sequence
    assert execution_order(space.preds, groups) is not None
    floor = lattice_floor(borders, where)
    assert floor <= plan_cost(space, groups) <= 1.25 * floor


def test_prices_that_are_no_sum_of_launches_and_bytes_are_told_apart() -> None:
    class Curved:
        lengths, most, operand_limit = (1,), 4, 9

        def crossings(self) -> list[object]:
            return []

        def price(self, nbytes: np.ndarray) -> np.ndarray:
            return (1e6 + nbytes**1.5).astype(np.int64)

    assert linear_price(Curved()) is None
    borders = space_of(grid(2, 2), 4).floors(range(4)).borders()
    assert borders is not None
    assert linear_price(borders) is not None


@pytest.mark.parametrize("steps", [8, 40])
def test_what_one_node_needs_from_outside_is_alive_nowhere(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a component as deep as it has operands would hold all of them in each of its down-sets."""
    alive: list[int] = []
    made = narrow._down_sets

    def seen(*args: Any) -> list[narrow._DownSet] | None:
        downs = made(*args)
        alive.extend(len(down.alive) for down in downs or ())
        return downs

    monkeypatch.setattr(narrow, "_down_sets", seen)
    space = space_of(braid(steps), 4)
    borders = space.floors(range(space.n)).borders()
    assert borders is not None
    best = narrow_path(space, range(space.n), borders, NEVER)
    assert best is not None
    assert best.bound > 0
    assert 0 < max(alive) <= 4
