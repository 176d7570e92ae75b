"""Models price groups: one tiling or many at once, in integers, and refuse weights that have no meaning."""

from __future__ import annotations

import dataclasses
import math
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels import (
    MODELS,
    CostModelError,
    Count,
    Flops,
    GroupFeatures,
    RecomputedFlops,
    Reread,
    Roofline,
    Weighted,
    attoseconds,
    model,
)
from hardware_profiles import Profile, load

LOCAL = load("local")
PROFILES = (load("nvidia-h100-sxm"), LOCAL, load("raspberry-pi-5"), load("amd-epyc-9654"))

LEAVE_OUT = "a weight of 0 leaves the term out, 1 is the default"

BASE = GroupFeatures(
    nodes=3,
    bytes_read=1 << 20,
    bytes_written=1 << 19,
    rereads=(),
    launches=1,
    blocks=1024,
    iterations=1 << 18,
    live=8,
    itemsize=4,
    scratch_bytes=0,
    flops=Flops(1 << 20, 0, 0),
    recomputed=RecomputedFlops(0, 0, 0),
)


def but(features: GroupFeatures = BASE, **changes: Any) -> GroupFeatures:
    return dataclasses.replace(features, **changes)


sizes = st.integers(0, 1 << 45)


@st.composite
def tilings(draw: st.DrawFn) -> list[GroupFeatures]:
    """One group under several tilings, each with plain numbers; what no tiling changes is equal in all."""
    operands = draw(st.lists(sizes, max_size=3))
    base = GroupFeatures(
        nodes=draw(st.integers(1, 5)),
        bytes_read=draw(sizes),
        bytes_written=draw(sizes),
        rereads=(),
        launches=draw(st.integers(1, 3)),
        blocks=1,
        iterations=draw(sizes),
        live=draw(st.integers(1, 600)),
        itemsize=draw(st.sampled_from([1, 2, 4, 8])),
        scratch_bytes=0,
        flops=Flops(draw(sizes), draw(sizes), draw(sizes)),
        recomputed=RecomputedFlops(0, 0, 0),
    )
    return [
        but(
            base,
            rereads=tuple(Reread(operand, draw(st.integers(0, 1 << 40))) for operand in operands),
            blocks=draw(st.integers(0, 4096)),
            scratch_bytes=draw(st.integers(0, 1 << 21)),
            recomputed=RecomputedFlops(draw(sizes), draw(sizes), draw(sizes)),
        )
        for _ in range(draw(st.integers(1, 8)))
    ]


def stacked(group: list[GroupFeatures]) -> GroupFeatures:
    """The same tilings as one record of arrays."""

    def column(values: list[Count]) -> Count:
        return np.array(values, dtype=np.int64)

    return but(
        group[0],
        rereads=tuple(
            Reread(again.operand_bytes, column([one.rereads[k].extra_reads for one in group])) for k, again in enumerate(group[0].rereads)
        ),
        blocks=column([one.blocks for one in group]),
        scratch_bytes=column([one.scratch_bytes for one in group]),
        recomputed=RecomputedFlops(
            column([one.recomputed.simple for one in group]),
            column([one.recomputed.special for one in group]),
            column([one.recomputed.contract for one in group]),
        ),
    )


@settings(derandomize=True, deadline=None)
@given(tilings(), st.sampled_from(PROFILES), st.sampled_from(list(MODELS)))
def test_arrays_price_as_their_entries_do(group: list[GroupFeatures], profile: Profile, name: str) -> None:
    priced = model(name)
    one_by_one = [priced.best(one, profile) for one in group]
    fitting = [(best[1], index) for index, best in enumerate(one_by_one) if best is not None]
    best = priced.best(stacked(group), profile)
    if not fitting:
        assert best is None
        return
    least, index = min(fitting)
    assert best == (index, least, priced.terms(group[index], profile))


@settings(derandomize=True)
@given(tilings(), st.sampled_from(PROFILES), st.sampled_from(list(MODELS)))
def test_all_paths_to_a_price_agree(group: list[GroupFeatures], profile: Profile, name: str) -> None:
    priced = model(name, {"traffic": 1.5, "recompute": 0.25})
    best = priced.best(group[0], profile)
    price = priced.best_scalar(group[0], profile)
    if best is None:
        assert price is None
        assert group[0].scratch_bytes > profile.fast_memory_bytes
    else:
        assert price == best[1] == attoseconds(priced.cost_s(best[2], profile))


@settings(derandomize=True)
@given(tilings(), st.sampled_from(PROFILES), st.sampled_from(list(MODELS)), st.integers(1, 1 << 30))
def test_more_never_costs_less(group: list[GroupFeatures], profile: Profile, name: str, more: int) -> None:
    priced = model(name)
    one = but(group[0], scratch_bytes=0)
    price = priced.best_scalar(one, profile)
    assert price is not None
    for dearer in (
        but(one, bytes_read=one.bytes_read + more),
        but(one, bytes_written=one.bytes_written + more),
        but(one, rereads=(*one.rereads, Reread(more, 1))),
        but(one, launches=one.launches + more),
        but(one, iterations=one.iterations + more),
        but(one, live=one.live + more),
        but(one, blocks=1),
    ):
        if dearer.blocks <= max(1, one.blocks):
            raised = priced.best_scalar(dearer, profile)
            assert raised is not None
            assert raised >= price


@settings(derandomize=True)
@given(tilings(), st.sampled_from(PROFILES), st.integers(-20, 20))
def test_weights_scale_the_price(group: list[GroupFeatures], profile: Profile, power: int) -> None:
    # Powers of two change no rounding.
    factor = 2.0**power
    for name, kind in MODELS.items():
        scaled = model(name, dict.fromkeys(kind.term_functions, factor))
        terms = scaled.terms(group[0], profile)
        assert scaled.cost_s(terms, profile) == factor * model(name).cost_s(terms, profile)


@settings(derandomize=True)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_attoseconds_are_the_nearest(seconds: float) -> None:
    exact = Fraction(seconds) * 10**18
    assert abs(attoseconds(seconds) - exact) <= Fraction(1, 2) + abs(exact) / 2**53


def test_attoseconds() -> None:
    assert attoseconds(0.0) == 0
    assert attoseconds(1.5e-6) == 1_500_000_000_000
    assert [attoseconds(halves * 1e-18) for halves in (0.5, 1.5, 2.5)] == [0, 2, 2]
    assert attoseconds(1e300) == int(1e300) * 10**18
    assert type(attoseconds(float(np.float64(1e-9)))) is int
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(CostModelError, match=r"^expected a finite time, got .* s \(a feature or a weight is out of range\)$"):
            attoseconds(wrong)


def test_weighted_by_hand() -> None:
    terms = {"traffic": 1.0, "launch": 10.0, "spill": 100.0, "recompute": 1000.0}
    assert Weighted().cost_s(terms) == 1111.0
    assert Weighted({"launch": 2, "spill": 0}).cost_s(terms) == 1021.0


def test_roofline_by_hand() -> None:
    profile = dataclasses.replace(LOCAL, overlap=0.75)
    terms = {"traffic": 8.0, "launch": 10.0, "spill": 100.0, "recompute": 1000.0, "compute": 4.0}
    assert Roofline().cost_s(terms, profile) == 10 + 8 + 0.25 * 4 + 100 + 1000
    assert Roofline({"compute": 4}).cost_s(terms, profile) == 10 + 16 + 0.25 * 8 + 100 + 1000


def test_the_cheapest_tiling_that_fits() -> None:
    blocks = np.array([1, 2, 4, 8, 16])
    tiled = but(blocks=blocks, scratch_bytes=np.array([0, 0, 0, 0, LOCAL.fast_memory_bytes + 1]))
    best = Weighted().best(tiled, dataclasses.replace(LOCAL, parallel_units=8))
    assert best is not None
    assert best[0] == 3
    assert all(type(seconds) is float for seconds in best[2].values())
    # From two blocks on both cores are busy, so the prices tie and the lowest index has it.
    best = Weighted().best(tiled, LOCAL)
    assert best is not None
    assert best[0] == 1
    assert Weighted().best(but(blocks=blocks, scratch_bytes=LOCAL.fast_memory_bytes + 1), LOCAL) is None
    assert Weighted().best(but(scratch_bytes=LOCAL.fast_memory_bytes + 1), LOCAL) is None
    assert Weighted().best_scalar(but(scratch_bytes=LOCAL.fast_memory_bytes + 1), LOCAL) is None
    assert Weighted().best(but(blocks=np.array([], dtype=np.int64)), LOCAL) is None


def test_only_the_scratch_differs() -> None:
    scratch = np.array([LOCAL.fast_memory_bytes + 1, LOCAL.fast_memory_bytes, 0])
    best = Weighted().best(but(scratch_bytes=scratch), LOCAL)
    assert best == (1, Weighted().best_scalar(BASE, LOCAL), Weighted().terms(BASE, LOCAL))


def test_inputs_are_not_written() -> None:
    extra, blocks = np.array([1, 2]), np.array([0, 3])
    Weighted().best(but(rereads=(Reread(64, extra), Reread(128, extra)), blocks=blocks), LOCAL)
    assert extra.tolist() == [1, 2]
    assert blocks.tolist() == [0, 3]


def test_a_price_that_is_no_number_is_an_error() -> None:
    with pytest.raises(CostModelError, match="finite"):
        Weighted().best(but(rereads=(Reread(64, np.array([math.nan, 1.0])),)), LOCAL)
    with pytest.raises(CostModelError, match="finite"):
        Weighted().best(but(rereads=(Reread(64, np.array([math.inf])),)), LOCAL)
    with pytest.raises(CostModelError, match="finite"):
        Weighted().best(but(rereads=(Reread(64, math.inf),)), LOCAL)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"lunch": 1.0}, "weights: unknown term 'lunch' (did you mean 'launch'? known terms: traffic, launch, spill, recompute)"),
        ({"xyz": 1.0}, "weights: unknown term 'xyz' (known terms: traffic, launch, spill, recompute)"),
        ({"compute": 1.0}, "weights: unknown term 'compute' (did you mean 'recompute'? known terms: traffic, launch, spill, recompute)"),
        ({"spill": -1}, f"weights: spill: expected a number from 0 to 1e+12, got -1 ({LEAVE_OUT})"),
        ({"spill": math.nan}, f"weights: spill: expected a number from 0 to 1e+12, got nan ({LEAVE_OUT})"),
        ({"spill": math.inf}, f"weights: spill: expected a number from 0 to 1e+12, got inf ({LEAVE_OUT})"),
        ({"spill": "1"}, f"weights: spill: expected a number from 0 to 1e+12, got '1' ({LEAVE_OUT})"),
        ({"spill": True}, f"weights: spill: expected a number from 0 to 1e+12, got True ({LEAVE_OUT})"),
        ({"spill": None}, f"weights: spill: expected a number from 0 to 1e+12, got None ({LEAVE_OUT})"),
        ([1, 2], "weights: expected a weight by term, got [1, 2] (known terms: traffic, launch, spill, recompute)"),
    ],
)
def test_wrong_weights(weights: Any, said: str) -> None:
    with pytest.raises(CostModelError) as caught:
        model("weighted", weights)
    assert str(caught.value) == said
    assert caught.value.hint


def test_models_by_name() -> None:
    assert list(MODELS) == ["weighted", "roofline"]
    for name, kind in MODELS.items():
        assert type(model(name)) is kind
        assert model(name).name == name
        assert model(name) == model(name, {}) == model(name, dict.fromkeys(kind.term_functions, 1))
    assert model() == Weighted()
    assert list(Roofline().weights) == ["traffic", "launch", "spill", "recompute", "compute"]
    with pytest.raises(CostModelError) as caught:
        model("rofline")
    assert str(caught.value) == "unknown cost model 'rofline' (did you mean 'roofline'? known models: weighted, roofline)"
    with pytest.raises(CostModelError, match=r"^unknown cost model 'x' \(known models: weighted, roofline\)$"):
        model("x")


def test_models_are_values() -> None:
    for kind in MODELS.values():
        priced = kind({"launch": 2})
        again = pickle.loads(pickle.dumps(priced))
        assert again == priced != kind()
        assert hash(again) == hash(priced)
        assert again.best(BASE, LOCAL) == priced.best(BASE, LOCAL)
        with pytest.raises(dataclasses.FrozenInstanceError):
            priced.weights = {}  # type: ignore[misc]
