"""Whether a plan keeps to `fusion_off`: each rule from what it says, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import networkx as nx

from fusion_search.search.plan import Plan, PlanGroup

from .facts import Facts, Violation, shown
from .legality import MAX_CONTRACTIONS, slides


def fused_anyway(facts: Facts, plan: Plan, demand: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield every group that holds what one `fusion_off` keeps apart."""
    for k, group in enumerate(plan.groups):
        names = [name for name in group.nodes if name in facts.steps]
        what = _held(facts, names, group, demand)
        if what:
            yield Violation("demand", f"group {k} ({shown(group.nodes)})", f"{what}, which fusion_off forbids")
    if demand.get("rule") == "recomputation":
        seen: set[str] = set()
        for group in plan.groups:
            for name in seen & set(group.nodes):
                yield Violation("demand", name, "is computed by more than one group, which fusion_off forbids")
            seen.update(group.nodes)


def _held(facts: Facts, names: list[str], group: PlanGroup, demand: Mapping[str, Any]) -> str:
    """What a group holds that it must not, in words."""
    if len(names) < 2:
        return ""
    if demand.get("everything"):
        return "holds several nodes"
    op = demand.get("op")
    if op is not None:
        return _operator(facts, names, str(op))
    rule = _RULES.get(str(demand.get("rule")))
    return rule(facts, names, group) if rule else ""


def _operator(facts: Facts, names: list[str], op: str) -> str:
    """The nodes of one node of the model share kernels with each other only; core nodes of that name with none."""
    homes = set()
    for name in names:
        node = facts.steps[name].node
        if node.origin and node.origin_op == op:
            homes.add(node.origin)
        else:
            homes.add("")
            if node.op == op:
                return f"holds {name} with another node"
    return f"holds nodes of {op} with others" if len(homes) > 1 else ""


def _siblings(facts: Facts, names: list[str], _: PlanGroup) -> str:
    """Without what they read from memory, the nodes hang together."""
    made = {value: name for name in names for value in facts.steps[name].node.outputs}
    ties: nx.Graph[str] = nx.Graph()
    ties.add_nodes_from(names)
    ties.add_edges_from((name, made[o.base]) for name in names for o in facts.steps[name].operands if o.base in made)
    parts = list(nx.connected_components(ties))
    return f"holds {shown(sorted(min(parts, key=sorted)))} for a shared input only" if len(parts) > 1 else ""


def _multi_output(_: Facts, __: list[str], group: PlanGroup) -> str:
    return f"stores {shown(group.stores)}" if len(group.stores) > 1 else ""


def _alone(*kinds: str) -> Callable[[Facts, list[str], PlanGroup], str]:
    """The rule that nodes of some kinds run alone."""

    def rule(facts: Facts, names: list[str], _: PlanGroup) -> str:
        found = [name for name in names if facts.steps[name].spec.kind in kinds]
        return f"holds {shown(found)} with another node" if found else ""

    return rule


def _cross_block(facts: Facts, names: list[str], _: PlanGroup) -> str:
    heavy = [name for name in names if facts.steps[name].spec.kind in ("contract", "window")]
    if len(heavy) > 1:
        return f"holds {shown(heavy)}"
    made = {value for name in names for value in facts.steps[name].node.outputs}
    for name in heavy:
        if facts.steps[name].spec.kind == "window" and any(o.base in made and slides(o) for o in facts.steps[name].operands):
            return f"holds {name}, whose window slides over a value of the group"
    return ""


def _horizontal(facts: Facts, names: list[str], _: PlanGroup) -> str:
    heavy = [name for name in names if facts.steps[name].spec.kind in ("contract", "window")]
    return f"holds {shown(heavy)}" if len(heavy) > MAX_CONTRACTIONS else ""


_RULES: dict[str, Callable[[Facts, list[str], PlanGroup], str]] = {
    "siblings": _siblings,
    "multi-output": _multi_output,
    "contraction": _alone("contract", "window"),
    "reduction": _alone("reduce"),
    "cross-block": _cross_block,
    "horizontal": _horizontal,
}
