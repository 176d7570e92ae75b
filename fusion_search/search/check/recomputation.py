"""Which nodes may be computed by several groups."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from .facts import Facts, Violation

#: Times that a node is computed, at most; and one that a contraction or a window reads.
MOST, MOST_HEAVY = 4, 2
_POINTWISE = ("map", "layout", "gather")


def unfit_for_recomputation(facts: Facts, name: str, times: int) -> Iterator[Violation]:
    """Yield why a node may not be computed so many times."""
    step = facts.steps[name]
    if step.spec.kind not in _POINTWISE or len(step.node.outputs) != 1:
        yield Violation("recomputation", name, f"is computed {times} times, and is no elementwise node, layout or gather")
    elif times > (most := _most(facts, step.node.outputs[0])):
        yield Violation("recomputation", name, f"is computed {times} times, at most {most} are allowed")
    elif _statistic_meets_other_copy(facts, name):
        yield Violation("recomputation", name, f"is computed {times} times, but a reduction of one copy meets another copy")


def _most(facts: Facts, value: str) -> int:
    heavy = any(facts.steps[reader].spec.kind in ("contract", "window") for reader in facts.readers.get(value, ()))
    return MOST_HEAVY if heavy else MOST


def _statistic_meets_other_copy(facts: Facts, name: str) -> bool:
    """Walk from each reader through elementwise nodes, layouts, gathers and reductions; look for a node where two walks meet."""
    value = facts.steps[name].node.outputs[0]
    readers = sorted(facts.readers.get(value, ()))
    flow: nx.DiGraph[str] = nx.DiGraph()
    flow.add_nodes_from(readers)
    todo = list(readers)
    while todo:
        at = todo.pop()
        if facts.steps[at].spec.kind not in (*_POINTWISE, "reduce"):
            continue
        for out in facts.steps[at].node.outputs:
            for reader in facts.readers.get(out, ()):
                if reader not in flow:
                    todo.append(reader)
                flow.add_edge(at, reader)
    behind = {reader: {reader, *nx.descendants(flow, reader)} for reader in readers}
    reductions = {v for v in flow if facts.steps[v].spec.kind == "reduce"}
    through = {reader: {w for v in nodes & reductions for w in (v, *nx.descendants(flow, v))} for reader, nodes in behind.items()}
    for one in readers:
        for other in readers:
            if one == other:
                continue
            for w in behind[one]:
                sources = {facts.maker[o.base] for o in facts.steps[w].operands if o.base in facts.maker}
                statistics = sources & through[one]
                copies = {s for s in sources if s in behind[other] or (s == name and w == other)}
                if statistics and copies and len(statistics | copies) > 1:
                    return True
    return False
