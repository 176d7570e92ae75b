"""The benchmark's harness: the same numbers from everybody, honest ratios, lines that fail when they should. Nothing is timed."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from experiments.benchmarks import __main__ as command
from experiments.benchmarks import report, session, timing
from experiments.benchmarks.case import Case
from experiments.benchmarks.figure import draw
from experiments.benchmarks.lines import Line, check_lines
from experiments.benchmarks.machine import describe
from experiments.benchmarks.models import encoder, family_of, from_model, gated, with_batch
from experiments.benchmarks.onnx_language import to_model
from experiments.benchmarks.peers import PEERS, load_peers
from experiments.benchmarks.peers.base import Runner
from experiments.benchmarks.peers.numpy_peer import Library as Numpy
from experiments.benchmarks.run import FUSED, UNFUSED, Entry, Row, difference
from experiments.benchmarks.startup import Start
from experiments.benchmarks.workloads import WORKLOADS, Workload, chain
from fusion_search.frontends.light import seeded_light


def small(workload: Workload) -> Workload:
    """The same workload on fewer rows or elements, where its form allows that."""
    if len(workload.shapes) and all(len(shape) == 1 for shape in workload.shapes.values()):
        return dataclasses.replace(workload, shapes=dict.fromkeys(workload.shapes, (1000,)))
    return workload


SMALL = [name for name, w in WORKLOADS.items() if small(w) is not w or w.flops or name in ("rope", "horiz8")]


@pytest.mark.parametrize("name", SMALL)
def test_a_workload_is_the_same_in_numpy_and_as_a_model(name: str) -> None:
    case = small(WORKLOADS[name]).case(name)
    made = Numpy(1).prepare(case)
    assert isinstance(made, Runner)
    want = made.arrays(made.fresh())
    run = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert difference(run.run(None, dict(case.feeds)), want, case)[1]


def test_every_workload_is_a_valid_model_that_names_what_it_moves() -> None:
    assert len(WORKLOADS) == 40  # thirty rows of the table, the chains once for each length and size
    for name in ("softmax_mask", "layernorm", "permute_ew", "concat_relu", "slice_pad", "colsum", "outer_exp"):
        case = WORKLOADS[name].case(name)
        sizes = [int(np.prod([d.dim_value for d in v.type.tensor_type.shape.dim])) for v in case.model.graph.output]
        assert case.nbytes == 4 * sum(sizes) + sum(array.nbytes for array in case.feeds.values())


@pytest.mark.parametrize("length", [4, 8, 16, 32])
def test_a_chain_has_so_many_operators_and_stays_small(length: int) -> None:
    feeds = {"x": np.ones(9, np.float32), "y": np.ones(9, np.float32)}
    model = to_model("chain", chain(length), feeds)
    assert len(model.graph.node) == length
    run = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert float(np.abs(run.run(None, feeds)[0]).max()) < 8


# ---------------------------------------------------------------- rivals


def test_absent_rivals_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "ghost", "no_such_module")
    peers, absent = load_peers(["numpy", "ghost"], 1)
    assert list(peers) == ["numpy"]
    assert [(gone.name, "no_such_module" in gone.reason) for gone in absent] == [("ghost", True)]


def test_rivals_that_take_no_models_say_so() -> None:
    case = from_model("squeezenet", seeded_light("squeezenet"), 1)
    assert Numpy(1).prepare(case) == "takes no ONNX models"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # the compiler of torch warns of torch's own older one
@pytest.mark.parametrize("name", list(PEERS))
def test_every_rival_that_is_here_agrees_in_both_ways_to_get_outputs(name: str) -> None:
    peers, absent = load_peers([name], 1)
    if absent:
        pytest.skip(f"{name}: {absent[0].reason}")
    case = small(WORKLOADS["chain8_2p16"]).case("chain8")
    reference = Numpy(1).prepare(case)
    made = peers[name].prepare(case)
    assert isinstance(reference, Runner)
    assert isinstance(made, Runner)
    want = reference.arrays(reference.fresh())
    for call in (made.fresh, made.preallocated):
        if call is not None:
            assert difference(list(made.arrays(call())), want, case)[1]


def test_a_wrong_output_is_found_and_said() -> None:
    case = small(WORKLOADS["tanh"]).case("tanh")
    want = [np.tanh(case.feeds["x"])]
    assert difference(want, want, case) == (0.0, True)
    off = [want[0] + np.float32(1e-3)]
    error, fine = difference(off, want, case)
    assert not fine
    assert error == pytest.approx(1e-3 / float(want[0].max()), rel=0.1)
    assert not difference([want[0][:-1]], want, case)[1]
    assert not difference([np.full_like(want[0], np.nan)], want, case)[1]


# ---------------------------------------------------------------- models


def test_a_model_at_another_batch_size_gives_the_same_rows() -> None:
    for name in ("squeezenet", "shufflenet"):
        model = seeded_light(name)
        one, three = (from_model(name, model, batch) for batch in (1, 3))
        key = next(iter(one.feeds))
        feeds = np.concatenate([one.feeds[key]] * 3)
        run = [onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"]) for case in (one, three)]
        first, second = run[0].run(None, {key: one.feeds[key]})[0], run[1].run(None, {key: feeds})[0]
        np.testing.assert_allclose(second, np.concatenate([first] * 3), rtol=1e-3, atol=1e-5)
        assert three.name == f"{name}_b3"


@pytest.mark.parametrize(("make", "family"), [(encoder, "transformer"), (gated, "pointwise")])
def test_generated_models(make: Any, family: str) -> None:
    case: Case = make(2, layers=1)
    assert case.whole_model
    assert case.family == family_of(case.model) == family
    made = Numpy(1).prepare(case)
    assert isinstance(made, Runner)
    run = onnxruntime.InferenceSession(case.model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert difference(run.run(None, dict(case.feeds)), made.arrays(made.fresh()), case)[1]


def test_a_model_without_a_leading_dimension_has_no_batch() -> None:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "scalar", [value], [out])
    with pytest.raises(ValueError, match="no leading dimension"):
        with_batch(onnx.helper.make_model(graph), 8)


# ---------------------------------------------------------------- timing, without a clock


def test_candidates_take_turns_in_another_order_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(timing, "wait_until_quiet", lambda limit_s: order.append("quiet"))
    monkeypatch.setattr(timing, "turn", lambda call, schedule: call())
    calls = {name: (lambda name=name: order.append(name) or float(len(order))) for name in "abc"}
    times = timing.interleave(calls, timing.Schedule(rounds=4))
    assert [x for x in order if x != "quiet"] == [*"abc", *"bca", *"cab", *"abc"]
    assert order[::2] == ["quiet"] * 12
    assert {name: len(found) for name, found in times.items()} == {"a": 4, "b": 4, "c": 4}


def test_ratios_are_taken_round_by_round() -> None:
    found = timing.ratio([2.0, 4.0, 9.0], [1.0, 4.0, 3.0])
    assert (found.median, found.low, found.high) == (2.0, 1.5, 2.5)
    assert timing.geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


# ---------------------------------------------------------------- results


def row(name: str, times: Mapping[str, float], **rules: Any) -> Row:
    entries = {n: Entry("ok", 0.0, {"preallocated": [t] * 3, "fresh": [2 * t] * 3}) for n, t in times.items()}
    entries |= rules.pop("entries", {})
    fields: dict[str, Any] = {
        "family": "pointwise", "bound": "cache", "nbytes": 1000, "flops": 0, "entries": entries, "triad_bytes_per_s": [],
        "copy_bytes_per_s": [], "fill_bytes_per_s": [], "past_bytes_per_s": [], "past_alone_bytes_per_s": [],
        "product_flops_per_s": [], "peak_bytes": {FUSED: 90, UNFUSED: 100}, "kernels": 1, "plan_status": "optimal", "foreign": 0.0,
    }  # fmt: skip
    return Row(name, **{**fields, **rules})


def test_the_best_peer_is_the_fastest_that_agrees() -> None:
    found = row("r", {"slow": 4.0, "fast": 2.0, FUSED: 1.0, UNFUSED: 3.0}, entries={"wrong": Entry("differs by 1e-01", 0.1)})
    assert found.best("preallocated") == "fast"
    speed, fusion = found.speedup("preallocated"), found.fusion()
    assert speed is not None
    assert fusion is not None
    assert (speed.median, fusion.median) == (2.0, 3.0)
    assert found.of_triad() is None


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({}, ""),
        ({"times": {"p": 0.85, FUSED: 1.0, UNFUSED: 4.0}}, "each workload against the best peer"),
        (
            {"family": "chain", "name": "chain8_2p16", "times": {"p": 2.0, FUSED: 1.0, UNFUSED: 2.9}},
            "each fused against unfused: chains of 8 and more",
        ),
        ({"family": "softmax", "times": {"p": 2.0, FUSED: 1.0, UNFUSED: 1.9}}, "each fused against unfused: softmax and layer norm"),
        ({"bound": "memory", "triad_bytes_per_s": [1300.0] * 3}, "each memory-bound workload against triad at its size"),
        ({"peak_bytes": {FUSED: 101, UNFUSED: 100}}, "planned peak memory over the unfused plan's"),
        ({"peak_bytes": {FUSED: 95, UNFUSED: 100}}, "planned peak memory over the unfused plan's"),
        (
            {"whole_model": True, "family": "transformer", "times": {"p": 0.9, FUSED: 1.0}},
            "geometric mean, transformer and pointwise models",
        ),
        ({"whole_model": True, "family": "convolutional", "times": {"p": 0.6, FUSED: 1.0}}, "geometric mean, convolutional models"),
        ({"entries": {FUSED: Entry("differs by 1e-01", 0.1)}}, "our outputs agree with the peers'"),
    ],
)  # fmt: skip
def test_each_line_fails_by_what_it_says(changed: dict[str, Any], what: str) -> None:
    times = changed.pop("times", {"p": 2.0, FUSED: 1.0, UNFUSED: 4.0})
    name = changed.pop("name", "case")
    good = row("good", {"p": 4.0, FUSED: 1.0, UNFUSED: 4.0})
    lines = check_lines([good, row(name, times, **changed)], [Start("m", 500, 10.0, 0.4)])
    assert [line.what for line in lines if not line.holds] == ([what] if what else [])


def test_starts_are_held_to_a_second_for_a_thousand_nodes() -> None:
    lines = {line.what: line for line in check_lines([], [Start("big", 3000, 61.0, 2.9), Start("small", 10, 1.0, 1.1)])}
    assert lines["warm start, compile() in s for 1,000 nodes"].missed == ("small 1.10",)
    assert lines["cold start, compile() in s"].missed == ("big 61.00",)


def test_results_as_data_table_and_figure(tmp_path: Path) -> None:
    rows = [row("win", {"p": 2.0, FUSED: 1.0, UNFUSED: 3.0}), row("loss", {"p": 0.5, FUSED: 1.0}, entries={"q": Entry("has no gelu")})]
    lines = [Line("l", "1", "2", False, ("loss 0.50",))]
    report.write_json(tmp_path / "r.json", describe(2), {"p": "1"}, rows, [Start("m", 1, 2.0, 0.1)], lines)
    report.write_csv(tmp_path / "r.csv", rows)
    whole = json.loads((tmp_path / "r.json").read_text())
    assert [entry["name"] for entry in whole["rows"]] == ["win", "loss"]
    assert whole["lines"][0]["missed"] == ["loss 0.50"]
    assert str(Path.home()) not in json.dumps(whole)
    table = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert {entry["status"] for entry in table if entry["candidate"] == "q"} == {"has no gelu"}
    assert report.table(rows).splitlines()[2] == "| win | 1000.0 | p | 2000.0 | 2.00 | 2.00 to 2.00 | 3.00 |  |"
    assert report.peers_table(rows).splitlines()[3] == "| loss | 500.0 | - | - | 1000.0 |"
    limits = {"triad_bytes_per_s": [3e9], "copy_bytes_per_s": [2e9], "fill_bytes_per_s": [1e9], "nbytes": 500_000_000}
    limits |= {"past_bytes_per_s": [9e8], "past_alone_bytes_per_s": [8e8]}
    shown = report.limits_table([*rows, row("wide", {FUSED: 0.2}, **limits)])
    assert shown.splitlines()[2:] == ["| wide | 2.5 | 3.0 | 2.0 | 1.0 | 0.9 | 0.8 |"]
    draw(tmp_path / "r.png", rows)
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.csv", "r.json", "r.png"]


# ---------------------------------------------------------------- the command line


def test_the_short_form_fails_when_a_line_does(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bool] = []

    def run_with(holds: bool, *words: str) -> int:
        monkeypatch.setattr(session, "run", lambda request: [Line("l", "1", "2", holds)])
        return command.main(words)

    monkeypatch.setattr(command, "hold_threads", lambda threads: None)
    monkeypatch.setattr(command, "take_precedence", lambda: taken.append(True))
    assert run_with(False, "--quick") == 1
    assert run_with(True, "--quick") == 0
    assert run_with(False) == 0
    assert len(taken) == 3
    run_with(True, "--usual-priority")
    assert len(taken) == 3


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="the system has no real time")
@pytest.mark.parametrize("before", ["other", "idle"])
def test_precedence_is_taken_from_the_usual_scheduling_alone_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    asked = []

    def refuse(process: int, policy: int, rules: os.sched_param) -> None:
        asked.append((process, policy, rules.sched_priority))
        raise PermissionError

    monkeypatch.setattr(os, "sched_getscheduler", lambda process: {"other": os.SCHED_OTHER, "idle": os.SCHED_IDLE}[before])
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    command.take_precedence()
    assert asked == ([(0, os.SCHED_RR, 1)] if before == "other" else [])
    assert describe(1)["scheduling"] == "usual"


def test_names_are_checked_before_anything_runs() -> None:
    with pytest.raises(SystemExit, match="unknown nonsense; workloads: chain4_2p24"):
        session.run(session.Request(only=("nonsense",)))
    with pytest.raises(SystemExit, match="unknown peer nonsense; there are numpy"):
        session.run(session.Request(only=("exp",), peers=("nonsense",)))


def test_everybody_gets_the_same_threads_before_anything_is_imported() -> None:
    code = (
        "import os, sys; from experiments.benchmarks.__main__ import hold_threads; hold_threads(1);"
        "assert 'numpy' not in sys.modules;"
        "print(len(os.sched_getaffinity(0)), os.environ['OPENBLAS_NUM_THREADS'], 'OPENBLAS_CORETYPE' in os.environ)"
    )
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1", "False"]
