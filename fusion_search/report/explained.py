"""Explanations and replayed plans as flat data, units in the keys, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fusion_search.search.explain import Explanation
from fusion_search.search.overview import Overview
from fusion_search.search.replay import Replay

__all__ = ["facts", "replayed"]


def replayed(found: Replay) -> dict[str, Any]:
    """Return what became of a plan on a changed graph as plain data."""
    return {
        "groups": found.planned,
        "groups_kept": found.kept,
        "launches": found.plan.launches,
        "cost_then_s": found.cost_then_s,
        "cost_s": found.plan.cost_s,
        "mismatches": [asdict(mismatch) for mismatch in found.mismatches],
    }


def facts(found: Explanation | Overview) -> dict[str, Any]:
    """Return what an explanation says as plain data."""
    if isinstance(found, Overview):
        groups = found.plan.groups
        return {
            "fusions": [{"group": f.group, "gain_s": f.gain_s, "nodes": groups[f.group].nodes} for f in found.fusions],
            "dearest": [{"group": k, "cost_s": groups[k].cost_s, "nodes": groups[k].nodes} for k in found.dearest],
            "edges": [
                {"producer": e.producer, "consumer": e.consumer, "value": e.value, "group": e.group, "delta_cost_s": e.delta_cost_s}
                for e in found.edges
            ],
            "complete": found.complete,
        }
    forced = found.forced_plan
    return {
        "a": found.a,
        "b": found.b,
        "fused": found.fused,
        "shared_groups": found.shared,
        "reasons": [asdict(reason) for reason in found.reasons],
        "forced_cost_s": None if forced is None else forced.cost_s,
        "forced_launches": None if forced is None else forced.launches,
        "forced_status": None if forced is None else forced.status,
        "delta_cost_s": found.delta_cost_s,
        "delta_terms": {f"{name}_s": value for name, value in found.delta_terms.items()},
        "flips": {name: None if flip is None else asdict(flip) for name, flip in found.flips.items()},
        "bounds": asdict(found.bounds),
    }
