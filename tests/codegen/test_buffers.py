"""Values alive together never overlap; the others may."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fusion_search.codegen.buffers import ALIGN, Arena, Lifetime, Piece, cut, plan_buffers
from fusion_search.codegen.kernel import scratch_apart
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.steps import KernelStep, make_steps


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    found = []
    for k in range(draw(st.integers(0, 25))):
        first = draw(st.integers(0, 12))
        found.append(Lifetime(f"v{k}", draw(st.integers(0, 1000)), first, first + draw(st.integers(0, 6))))
    return found


def together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def overlap(arena: Arena, a: Lifetime, b: Lifetime) -> bool:
    start_a, start_b = arena.offsets[a.name], arena.offsets[b.name]
    return start_a < start_b + b.nbytes and start_b < start_a + a.nbytes


@given(lifetimes())
def test_values_alive_together_do_not_overlap(values: list[Lifetime]) -> None:
    arena = plan_buffers(values)
    assert set(arena.offsets) == {value.name for value in values}
    for value in values:
        assert arena.offsets[value.name] % ALIGN == 0
        assert 0 <= arena.offsets[value.name] <= arena.nbytes - value.nbytes
    assert not any(together(a, b) and overlap(arena, a, b) for a, b in combinations(values, 2) if a.nbytes and b.nbytes)


@given(lifetimes())
def test_no_more_memory_than_all_values_and_no_less_than_is_alive_at_once(values: list[Lifetime]) -> None:
    arena = plan_buffers(values)
    alive = [sum(v.nbytes for v in values if v.first <= step <= v.last) for step in range(20)]
    assert max(alive) <= arena.nbytes <= sum(-(-max(v.nbytes, 1) // ALIGN) * ALIGN for v in values)


@given(lifetimes(), st.randoms(use_true_random=False))
def test_the_order_of_values_does_not_matter(values: list[Lifetime], random: object) -> None:
    mixed = list(values)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert plan_buffers(mixed) == plan_buffers(values)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Lifetime(f"v{k}", 640, k, k + 1) for k in range(10)]
    assert plan_buffers(chain).nbytes == 2 * 640


def test_a_small_value_fits_into_a_gap() -> None:
    values = [Lifetime("a", 640, 0, 1), Lifetime("b", 320, 1, 3), Lifetime("c", 640, 2, 3)]
    assert plan_buffers(values).nbytes == 640 + 320


def test_no_values() -> None:
    assert plan_buffers([]) == Arena({}, 0)


def test_parts_of_a_kernel_s_scratch_share_what_no_stage_uses_together() -> None:
    b = GraphBuilder("stages")
    x = b.input("x", np.float32, (64, 300))
    for _ in range(6):
        e = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x, axes=(1,))))
        x = b.op("Div", e, b.op("ReduceSum", e, axes=(1,)))
    b.output("y", b.op("MatMul", x, b.constant(np.ones((300, 40), np.float32))))
    graph = b.build()
    (step,) = make_steps(graph, [[node.name for node in graph.nodes]], 2)
    assert isinstance(step, KernelStep)
    kernel, apart = step.kernel, scratch_apart(step.kernel)
    assert len(kernel.reserved) >= 6
    library = max(part.nbytes for part in kernel.reserved)  # what the product needs for itself
    assert kernel.scratch_bytes - library < (apart.scratch_bytes - library) / 2
    for made, clash in ((kernel, together), (apart, lambda a, b: True)):
        parts = [Lifetime(str(p.slot), p.nbytes, p.first, p.last) for p in made.reserved]
        arena = Arena({str(p.slot): made.slots[p.slot].number for p in made.reserved}, made.scratch_bytes)
        assert all(arena.offsets[p.name] + p.nbytes <= arena.nbytes for p in parts)
        assert not any(clash(a, b) and overlap(arena, a, b) for a, b in combinations(parts, 2))


# ---------------------------------------------------------------------- values in pieces


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        start, first = draw(st.integers(0, 600)), draw(st.integers(0, 12))
        found.append(Piece(start, start + draw(st.integers(1, 300)), first, first + draw(st.integers(0, 6))))
    return found


@given(pieces())
def test_cutting_keeps_every_byte_as_long_as_any_value_over_it(values: list[Piece]) -> None:
    made = cut(values)
    assert all(a.stop <= b.start for a, b in pairwise(made))
    for byte in range(0, 900, 7):
        over = [v for v in values if v.start <= byte < v.stop]
        held = [p for p in made if p.start <= byte < p.stop]
        assert [(p.first, p.last) for p in held] == ([(min(v.first for v in over), max(v.last for v in over))] if over else [])


@given(st.lists(pieces(), max_size=4), lifetimes())
def test_pieces_alive_together_do_not_overlap(in_pieces: list[list[Piece]], others: list[Lifetime]) -> None:
    values = list(others)
    for k, found in enumerate(in_pieces):
        made = cut(found)
        nbytes = max(p.stop for p in made)
        values.append(Lifetime(f"p{k}", nbytes, min(p.first for p in made), max(p.last for p in made), made))
    arena = plan_buffers(values)
    spans = [
        (v.name, arena.offsets[v.name] + p.start, arena.offsets[v.name] + p.stop, p.first, p.last)
        for v in values
        if v.nbytes
        for p in (v.pieces or (Piece(0, v.nbytes, v.first, v.last),))
    ]
    assert all(arena.offsets[v.name] % ALIGN == 0 and arena.offsets[v.name] + v.nbytes <= arena.nbytes for v in values)
    for a, b in combinations(spans, 2):
        assert a[0] == b[0] or a[2] <= b[1] or b[2] <= a[1] or a[4] < b[3] or b[4] < a[3]


def test_what_comes_later_fits_into_a_piece_that_is_not_there_yet() -> None:
    joined = Lifetime("joined", 1280, 0, 5, (Piece(0, 640, 0, 5), Piece(640, 1280, 4, 5)))
    assert plan_buffers([joined, Lifetime("between", 640, 1, 3)]).nbytes == 1280
