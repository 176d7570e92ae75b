"""The checker asks whether a plan keeps to the demands that it names; live memory is tested in `test_peak`."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fusion_search as fs
from fusion_search.fusion.demands import Constraint, as_record
from tests.fusion.programs import graph_of, softmax


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (fs.must_fuse("ReduceMax_0", "Exp_2"), "no group holds Exp_2, ReduceMax_0 together"),
        (fs.never_fuse("Sub_1", "Exp_2"), "holds nodes of Sub_1, Exp_2"),
        (fs.keep("Exp.exp"), "Exp.exp does not reach memory"),
        (fs.keep("ReduceMax.reducemax", "y", "x"), ""),
    ],
)
def test_a_demand_that_is_claimed_is_checked(demand: Constraint, said: str) -> None:
    graph = graph_of(softmax)
    plan = fs.price(graph, [["ReduceMax_0"], ["Sub_1", "Exp_2", "ReduceSum_3", "Div_4"]], fs.load_profile("nvidia-h100-sxm"))
    assert isinstance(plan, fs.Plan)
    found = fs.check(graph, replace(plan, space={"constraints": [as_record(demand)]}))
    assert [violation.rule for violation in found] == (["demand"] if said else [])
    assert all(said in str(violation) for violation in found)
