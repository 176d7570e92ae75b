"""The contract that other programs rely on: names, types, errors, and plans on disk."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import fusion_search as fs
from fusion_search import errors
from fusion_search.errors import FusionSearchError, ModelError, PlanError, ProfileError, UsageError
from tests.frontends.modeling import info, model, node, random

GOLDEN_KEYS = (
    "model, profile, method, group, alias, nodes, origin, cost_s, traffic_s, launch_s, spill_s, recompute_s, read_bytes, written_bytes"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"]), node("Softmax", ["r"], ["y"], axis=1)]
    where = tmp_path_factory.mktemp("models") / "small.onnx"
    onnx.save(model(nodes, [info("x", ["batch", 12])], constants={"w": random((12, 20))}), where)
    return where


@pytest.fixture(scope="module")
def graph(path: Path) -> fs.Graph:
    return fs.load(path, dims={"batch": 4})


@pytest.fixture(scope="module")
def h100() -> fs.Profile:
    return fs.load_profile("nvidia-h100-sxm")


@pytest.fixture(scope="module")
def plan(graph: fs.Graph, h100: fs.Profile) -> fs.Plan:
    return fs.search(graph, h100)


# ---------------------------------------------------------------------- what there is


def test_every_public_name_is_there_and_documented() -> None:
    for name in fs.__all__:
        assert inspect.getdoc(getattr(fs, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fs.nothing


def test_search_is_the_function_even_when_the_subpackage_was_imported() -> None:
    from fusion_search.search.plan import Plan

    assert inspect.isfunction(fs.search)
    assert Plan is fs.Plan


def test_options_are_keyword_only() -> None:
    for function in (fs.load, fs.search, fs.price):
        options = [p for p in inspect.signature(function).parameters.values() if p.default is not inspect.Parameter.empty]
        assert options
        assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in options)


def test_graph(graph: fs.Graph) -> None:
    assert [(v.name, v.dtype, v.shape) for v in graph.inputs] == [("x", np.float32, (4, 12))]
    assert [(v.name, v.dtype, v.shape) for v in graph.outputs] == [("y", np.float32, (4, 20))]
    assert {n.origin for n in graph.nodes} == {"n_m", "n_r", "n_y"}
    assert len({n.name for n in graph.nodes}) == len(graph.nodes)


def test_profiles() -> None:
    names = fs.list_profiles()
    assert "local" in names
    assert all(fs.load_profile(name).name == name for name in names)


def test_exact_comes_first_and_the_oracle_is_no_method() -> None:
    assert fs.methods()[0] == "exact"
    assert {"exact", "unfused", "per-operator", "fuse-all"} <= set(fs.methods())
    assert "oracle" not in fs.methods()


# ---------------------------------------------------------------------- plans


def test_plan(plan: fs.Plan, graph: fs.Graph) -> None:
    assert plan.status == "optimal"
    assert plan.cost_s == plan.lower_bound_s > 0
    assert plan.gap == 0
    assert set(plan.terms) == {"traffic", "launch", "spill", "recompute"}
    assert plan.cost_as == sum(group.cost_as for group in plan.groups)
    assert sum(plan.terms.values()) == pytest.approx(plan.cost_s)
    assert plan.launches == len(plan.groups)
    assert plan.bytes_moved == sum(group.bytes_read + group.bytes_written for group in plan.groups)
    assert sorted(name for group in plan.groups for name in group.nodes) == sorted(n.name for n in graph.nodes)
    assert plan.groups[-1].stores == ("y",)
    assert {"name", "recomputation", "refused", "max_nodes"} <= set(plan.space)


@pytest.mark.parametrize("cost_model", ["weighted", "roofline"])
@pytest.mark.parametrize("profile", ["local", "nvidia-h100-sxm", "raspberry-pi-5"])
def test_every_method_gives_a_sound_plan_and_none_beats_exact(graph: fs.Graph, profile: str, cost_model: str) -> None:
    loaded = fs.load_profile(profile)
    plans = {name: fs.search(graph, loaded, method=name, cost_model=cost_model) for name in fs.methods()}
    assert [violation for found in plans.values() for violation in fs.check(graph, found)] == []
    assert min(plans.values(), key=lambda found: found.cost_as).cost_as == plans["exact"].cost_as
    assert plans["unfused"].launches == len(graph.nodes)
    assert all(found.method == name for name, found in plans.items())


def test_weights_change_the_plan_s_cost_but_not_its_terms(graph: fs.Graph, h100: fs.Profile) -> None:
    once = fs.search(graph, h100, method="unfused")
    twice = fs.search(graph, h100, method="unfused", weights={"launch": 2})
    assert twice.terms == once.terms
    assert twice.cost_s == pytest.approx(once.cost_s + once.terms["launch"])
    assert dict(twice.weights) == {"traffic": 1, "launch": 2, "spill": 1, "recompute": 1}


def test_price(graph: fs.Graph, h100: fs.Profile, plan: fs.Plan) -> None:
    priced = fs.price(graph, [list(group.nodes) for group in plan.groups], h100)
    assert isinstance(priced, fs.Plan)
    assert (priced.cost_as, priced.method) == (plan.cost_as, "price")
    reasons = fs.price(graph, [["nowhere"]], h100)
    assert isinstance(reasons, list)
    assert [(reason.rule, reason.nodes) for reason in reasons] == [("unknown-node", ("nowhere",))]


def test_records_are_flat_and_their_keys_are_golden(plan: fs.Plan) -> None:
    records = plan.records()
    assert len(records) == len(plan.groups)
    for record in records:
        assert ", ".join(record) == GOLDEN_KEYS
        assert all(isinstance(value, (str, int, float)) for value in record.values())
    assert sum(record["cost_s"] for record in records) == pytest.approx(plan.cost_s)
    assert [record["group"] for record in records] == list(range(len(records)))


def test_compile_verify_measure(graph: fs.Graph) -> None:
    plan = fs.search(graph, fs.load_profile("local"))
    run = fs.compile(plan)
    x = random((7, 12))
    y = run({"x": x})["y"]
    assert y.shape == (7, 20)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
    assert fs.verify(plan).ok
    assert fs.measure(plan).median_s > 0


def test_a_plan_for_another_machine_runs_here_too(plan: fs.Plan) -> None:
    assert fs.verify(plan).ok


def test_an_empty_graph_has_an_empty_plan(h100: fs.Profile) -> None:
    from fusion_search.ir.builder import GraphBuilder

    b = GraphBuilder("empty")
    b.output("y", b.input("x", np.float32, (3,)))
    graph = b.build()
    plan = fs.search(graph, h100)
    assert (plan.groups, plan.cost_as, plan.gap, plan.status) == ((), 0, 0.0, "optimal")
    assert isinstance(fs.price(graph, [], h100), fs.Plan)
    np.testing.assert_array_equal(fs.compile(plan)({"x": np.ones(3, np.float32)})["y"], np.ones(3))


# ---------------------------------------------------------------------- plans on disk


def test_a_plan_survives_the_disk(plan: fs.Plan, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    again = fs.Plan.load(file, fs.load(path, dims={"batch": 4}))
    for name in ("profile", "cost_model", "weights", "method", "groups", "status", "cost_as", "lower_bound_as", "space", "terms"):
        assert getattr(again, name) == getattr(plan, name), name
    assert fs.check(again.graph, again) == []
    assert again.records() == plan.records()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    again.save(file)
    assert fs.Plan.load(file, plan.graph).groups == plan.groups


def test_a_plan_file_holds_no_weights(plan: fs.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    record = json.loads((tmp_path / "plan.json").read_text())
    assert list(record) == [
        "format", "model", "dims", "profile", "cost_model", "weights", "method", "space", "status", "cost_as", "lower_bound_as",
        "statistics", "groups", "nodes",
    ]  # fmt: skip
    assert record["format"] == "fusion-search-plan/2"
    assert record["dims"] == {"batch": 4}


def test_a_diff_of_plan_files_shows_what_changed(plan: fs.Plan, graph: fs.Graph, h100: fs.Profile, tmp_path: Path) -> None:
    files = []
    for k, constraints in enumerate(((), (), [fs.never_fuse("n_m", "n_r")])):
        files.append(tmp_path / f"{k}.json")
        fs.search(graph, h100, constraints=constraints).save(files[-1])
    once, again, other = (file.read_text() for file in files)
    assert once == again  # nothing of the run that found it is in it
    lines, changed = once.splitlines(), other.splitlines()
    assert all(line in changed for line in lines if line.startswith('  {"name":'))  # the program
    assert sum(line not in changed for line in lines if line.startswith('  {"nodes":')) == 1  # the group that was cut
    assert len(lines) < 80 + 5 * len(plan.groups)


def test_a_plan_that_cannot_be_written_leaves_nothing(plan: fs.Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be written"):
        plan.save(tmp_path / "missing" / "plan.json")
    (tmp_path / "taken").mkdir()
    with pytest.raises(PlanError, match="cannot be written"):
        plan.save(tmp_path / "taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_a_plan_for_other_extents_is_named(plan: fs.Plan, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    with pytest.raises(PlanError, match="it was made for batch=4, the graph has batch=5"):
        fs.Plan.load(file, fs.load(path, dims={"batch": 5}))


def test_mismatches_are_named(plan: fs.Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    graph = plan.graph
    renamed = replace(graph, nodes=tuple(replace(n, name="other") if n.name == "n_r" else n for n in graph.nodes))
    with pytest.raises(PlanError) as caught:
        fs.Plan.load(file, renamed)
    text = str(caught.value)
    assert "nodes that the graph does not have: n_r" in text
    assert "nodes that the plan does not have: other" in text
    assert "(fs.replay(path, graph) keeps the groups that still fit)" in text
    values = {name: value for name, value in graph.values.items() if name != "y"}
    with pytest.raises(PlanError, match="values that the graph does not have: y"):
        fs.Plan.load(file, replace(graph, values=values))


def _edited(change: Any) -> Any:
    def edit(text: str) -> str:
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return edit


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda text: text[: len(text) // 2], "is no plan"),
        (lambda text: "[]", "is no plan"),
        (_edited(lambda r: r.update(format="fusion-search-plan/0")), "has format 'fusion-search-plan/0', expected 'fusion-search-plan/2'"),
        (_edited(lambda r: r.update(extra=1)), "unknown field `extra`"),
        (_edited(lambda r: r.pop("groups")), "missing required field `groups`"),
        (_edited(lambda r: r["groups"][0].update(cost_as="cheap")), "Expected `int`, got `str`"),
        (_edited(lambda r: r["profile"].update(registers="many")), "its profile is damaged"),
    ],
)
def test_a_damaged_plan_file_is_refused(plan: fs.Plan, tmp_path: Path, edit: Any, text: str) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    file.write_text(edit(file.read_text()))
    with pytest.raises(PlanError) as caught:
        fs.Plan.load(file, plan.graph)
    assert text in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_missing_plan_file_is_refused(plan: fs.Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"nothing.json: cannot be read: No such file"):
        fs.Plan.load(tmp_path / "nothing.json", plan.graph)


def test_a_plan_whose_cost_was_edited_does_not_pass_its_check(plan: fs.Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(file)
    file.write_text(_edited(lambda r: r.update(cost_as=r["cost_as"] - 1, lower_bound_as=r["cost_as"] - 1))(file.read_text()))
    assert fs.check(plan.graph, fs.Plan.load(file, plan.graph)) != []


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"method": "best"}, "unknown method 'best' (known methods: exact, "),
        ({"cost_model": "guess"}, "unknown cost model 'guess' (known models: weighted, roofline"),
        ({"weights": {"traffik": 1}}, "weights: unknown term 'traffik' (did you mean 'traffic'? known terms: "),
        ({"weights": {"launch": -1}}, "weights: launch: expected a number from 0 to 1e+12, got -1"),
        ({"constraints": ("never_fuse",)}, "unknown constraint 'never_fuse'"),
        ({"time_limit_s": 0}, "time_limit_s: expected a number > 0, got 0"),
        ({"time_limit_s": float("nan")}, "time_limit_s: expected a number > 0, got nan"),
    ],
)
def test_a_wrong_option_is_named(graph: fs.Graph, h100: fs.Profile, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        fs.search(graph, h100, **options)
    assert str(caught.value).startswith(line)


def test_missing_files_and_names_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such file"):
        fs.load(tmp_path / "nothing.onnx")
    with pytest.raises(ProfileError, match=r"unknown hardware profile 'h1000' \(known profiles: .*local"):
        fs.load_profile("h1000")
    with pytest.raises(UsageError, match="dimension 'batch' of input 'x'"):
        fs.load(path)


def test_there_is_one_tree_of_errors() -> None:
    assert fs.FusionSearchError is FusionSearchError
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), FusionSearchError)
