"""Values alive together never overlap; the others may."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fusion_search.runtime.buffers import ALIGN, Arena, Lifetime, plan_buffers


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
