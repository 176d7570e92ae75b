"""A few seconds of fuzzing in every run, and every case that once failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusion_search.ir.graph import Node
from fusion_search.testing.agreement import node_error, same_bits
from fusion_search.testing.cases import Case, from_json, save, to_json
from fusion_search.testing.fuzz import check, draw, fuzz
from fusion_search.testing.fuzz_models import BINDINGS, check_model, check_symbolic
from fusion_search.testing.graphs import random_graph
from fusion_search.testing.models import random_model, symbolic_model
from fusion_search.testing.smaller import smaller

REGRESSIONS = sorted((Path(__file__).parents[1] / "regressions").glob("*.json"))


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_random_graphs_agree_in_the_interpreter(start: int) -> None:
    interpreted, _, failures = fuzz(100, start)
    assert failures == []
    assert interpreted == 100


def test_random_graphs_agree_compiled() -> None:
    _, compiled, failures = fuzz(0, 0, compiled=10)
    assert failures == []
    assert compiled == 10


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the reference evaluator
@pytest.mark.parametrize("special", [False, True])
def test_random_models_agree_with_the_reference(special: bool) -> None:
    found = [d for seed in range(60) for d in check_model(seed, runtime=False, special=special)]
    assert [d for d in found if d.who != "reference"] == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_models_agree_compiled() -> None:
    found = [d for seed in range(12) for d in check_model(seed, runtime=False, special=seed % 2 == 0, compiled=True)]
    assert [d for d in found if d.who != "reference"] == []


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_one_plan_serves_all_extents(compiled: bool) -> None:
    assert {0, 1} < set(BINDINGS)
    made = [(seed, found) for seed in range(8 if compiled else 60) if (found := check_symbolic(seed, compiled=compiled)) is not None]
    assert len(made) > (2 if compiled else 20)
    assert [d for _, found in made for d in found if d.who != "reference"] == []


def test_special_models_have_special_inputs() -> None:
    fed = [array for seed in range(40) for array in random_model(seed, special=True)[1].values() if array.dtype.kind == "f"]
    assert sum(np.isnan(array).any() for array in fed) > 5
    assert sum(np.isinf(array).any() for array in fed) > 5
    assert not any(np.isnan(array).any() for seed in range(40) for array in random_model(seed)[1].values() if array.dtype.kind == "f")


def test_a_symbolic_model_is_one_structure_for_all_extents() -> None:
    made = [found for seed in range(60) if (found := symbolic_model(seed)) is not None]
    assert len(made) > 20
    for proto, feeds in made:
        for n in (0, 1, 5):
            for value in proto.graph.input:
                want = [n if dim.dim_param else dim.dim_value for dim in value.type.tensor_type.shape.dim]
                assert list(feeds(n)[value.name].shape) == want
        assert any(dim.dim_param == "n" for value in proto.graph.input for dim in value.type.tensor_type.shape.dim)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_once_failed(path: Path) -> None:
    case, compiled = from_json(path.read_text(encoding="utf-8"))
    assert check(case, compiled=compiled) == []


def test_wide_graphs_draw_every_dtype_and_running_totals() -> None:
    graphs = [random_graph(seed, wide=True) for seed in range(150)]
    assert {"CumSum", "CumProd"} <= {node.op for graph in graphs for node in graph.nodes}
    dtypes = {value.dtype.name for graph in graphs for value in graph.values.values()}
    assert {"bfloat16", "float16", "int8", "uint8", "int16", "uint16", "uint32", "uint64", "bool"} <= dtypes


def test_a_case_survives_its_file(tmp_path: Path) -> None:
    cases = [case for seed in range(12) if (case := draw(seed)) is not None]
    for case in cases:
        again, compiled = from_json(save(case, tmp_path, compiled=True).read_text(encoding="utf-8"))
        assert compiled
        assert again.graph.nodes == case.graph.nodes
        assert again.groups == case.groups
        assert all(same_bits(again.feeds[name], feed) for name, feed in case.feeds.items())
        assert to_json(again) == to_json(case)


def test_a_failing_case_becomes_smaller() -> None:
    case = next(c for seed in range(60) if (c := draw(seed)) is not None and len(c.graph.nodes) > 5)
    op = case.graph.nodes[2].op
    found = smaller(case, lambda trial: [op] if any(node.op == op for node in trial.graph.nodes) else [])
    assert [node.op for node in found.graph.nodes] == [op]
    assert check(found) == []


@pytest.mark.parametrize("op", ["ReduceSum", "MatMul", "Conv", "Concat", "Slice", "Expand", "View", "GatherElements"])
def test_a_failing_case_becomes_smaller_in_its_extents(op: str) -> None:
    """As small as the failure allows: here it needs one operator, and a value of at least four elements."""

    def needs(trial: Case) -> list[str]:
        graph = trial.graph
        views = any(value.view_of is not None for value in graph.values.values())
        there = views if op == "View" else any(node.op == op for node in graph.nodes)
        return [op] if there and max(value.size for value in graph.values.values()) >= 4 else []

    cases = (case for seed in range(400) if (case := draw(seed)) is not None and needs(case))
    case = next(c for c in cases if max(value.size for value in c.graph.values.values()) > 60)
    found = smaller(case, needs)
    assert needs(found) == [op]
    assert max(value.size for value in found.graph.values.values()) <= 16
    assert check(found) == []


def test_agreement_is_as_close_as_the_operator_allows() -> None:
    x = np.array([1.0, 0.0, np.nan, np.inf], np.float32)
    neg, exp = Node("n", "Neg", ("x",), ("y",)), Node("n", "Exp", ("x",), ("y",))
    assert node_error(neg, [x], -x) == ""
    assert node_error(neg, [x], -x + np.float32(0)) != ""
    assert node_error(exp, [x], np.exp(x)) == ""
    assert node_error(exp, [x], np.exp(x) * np.float32(1.00001)) != ""
    total = Node("n", "ReduceSum", ("x",), ("y",), (("axes", (0,)),))
    big = np.array([1e8, 1.0, -1e8], np.float32)
    assert node_error(total, [big], np.array([0.0], np.float32)) == ""
    assert node_error(total, [big], np.array([1000.0], np.float32)) != ""
