"""The exact search: least cost over all partitions into legal groups with an acyclic quotient graph.

1. Enumerate the groups (`enumerate`), split the nodes where none of them crosses, solve each part without the order
   between groups (`parts`, `lattice`). The sum is a lower bound on every plan.
2. Put the parts together. If some groups wait for each other, solve the parts they come from again as one, now with the
   order (`ordered`); repeat until nothing waits. Each round joins parts or adds the order to one, so rounds end; a part
   solved with its order has no cycle of its own, because paths through single outside nodes count there.
3. Every step is a relaxation of the whole problem, so once the quotient graph is acyclic the plan is optimal.

Out of budget, the best plan found is repaired, improved (`improve`) and returned with the bound that was proved. What
could not be enumerated is planned with fewer groups (producer with consumer only, then small groups only), and counts
in the bound with no more than the caller's floors.

Components of very many nodes come first to `runs`: where all nodes wait for each other the best runs are the best plan;
elsewhere runs whose cost is the floor of every plan are. Narrow components are planned over down-sets (`narrow`), grids of
nodes by moving the borders between groups (`borders`), with a floor that knows how many values a group of limited size moves at least
(`lattice_floor`). Only what is still open is enumerated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fusion_search.search.borders import border_plan
from fusion_search.search.enumerate import enumerate_groups, join_components
from fusion_search.search.grow import grow_plan
from fusion_search.search.improve import improve, plan_cost, repair
from fusion_search.search.lattice_floor import lattice_floor, places
from fusion_search.search.narrow import narrow_path
from fusion_search.search.parts import Part, Solved, Work, solve_jointly, solve_parts, split_parts
from fusion_search.search.quotient import cyclic_components, execution_order
from fusion_search.search.result import SearchResult, Statistics
from fusion_search.search.runs import Floors, RunPath, in_line
from fusion_search.search.space import Facts, GroupSpace, Tiebreak, bits, derive_facts, structurally_fit

__all__ = ["exact"]

# A longer line of nodes is cut into runs, a larger component is tried with runs before its groups are enumerated.
_LONG, _LARGE = 48, 256
# A still larger one, if it is a grid of nodes, is planned by moving borders, and so many of its groups are enumerated.
_MOVED, _MOVED_SETS = 2048, 20_000
# Runs of a line that may be priced: minutes.
_LINE_PRICED = 200_000
# A floor so near to a cost, relative to it, differs by rounding only.
SAME = 1e-9


def _plan_roughly(
    space: GroupSpace,
    facts: Facts,
    nodes: int,
    floors: Sequence[int] | None,
    floors_of: Callable[[Sequence[int]], Floors] | None,
    max_sets: int,
    deadline: float,
) -> Solved:
    """Plan nodes whose groups are too many to enumerate: grown, with runs, and with the groups of ever narrower spaces."""
    bound = 0 if floors is None else sum(floors[v] for v in bits(nodes))
    now = time.monotonic()
    plans = [grow_plan(space, facts, nodes, now + (deadline - now) / 2)]
    for limit in (space.max_nodes, 8, 3, 1):
        now = time.monotonic()
        # Single nodes are listed whatever the time.
        until = now + (deadline - now) / 4 if limit > 1 else float("inf")
        found = enumerate_groups(space, facts, nodes, siblings=False, max_nodes=limit, max_sets=max_sets, deadline=until)
        if found.complete:
            parts = split_parts(nodes, found)
            solved = solve_parts(parts, Tiebreak(space), until, Work())
            plans.append([group for answer in solved for group in answer.groups])
            break
    if floors_of is not None:
        sequence = list(bits(nodes))
        known = floors_of(sequence)
        runs = RunPath(space, facts, sequence, known).solve(most_priced=4 * len(sequence), deadline=deadline)
        borders = known.borders()
        bound = max(bound, known.whole(), 0 if borders is None else lattice_floor(borders, places(borders)))
        plans.append(list(runs.groups))
    costs = [plan_cost(space, groups) for groups in plans]
    cost = min(costs)
    return Solved(Part(nodes, ()), tuple(plans[costs.index(cost)]), min(bound, cost), False)


def _cut(
    space: GroupSpace, facts: Facts, nodes: int, floors_of: Callable[[Sequence[int]], Floors] | None, deadline: float
) -> Solved | None:
    """Cut a component into runs, when it is large and they may be the best plan. Closed when no plan of it is cheaper, but for rounding."""
    if floors_of is None or nodes.bit_count() < _LONG:
        return None
    sequence = list(bits(nodes))
    line = in_line(facts, sequence)
    if not line and len(sequence) < _LARGE:
        return None
    floors = floors_of(sequence)
    path = RunPath(space, facts, sequence, floors)
    if line:
        now = time.monotonic()
        found = path.solve(most_priced=_LINE_PRICED, deadline=now + (deadline - now) * (1.0 if len(sequence) < _MOVED else 0.5))
        return Solved(Part(nodes, ()), found.groups, found.bound, found.cost - found.bound <= found.cost * SAME)
    bound = floors.whole()
    if path.least - bound > bound * SAME:  # no runs attain the floor
        return _by_borders(space, facts, sequence, floors, bound, deadline)
    now = time.monotonic()
    found = path.solve(most_priced=4 * len(sequence), deadline=now + (deadline - now) / 8)
    bound = min(bound, found.cost)
    return Solved(Part(nodes, ()), found.groups, bound, found.cost - bound <= found.cost * SAME)


def _by_borders(space: GroupSpace, facts: Facts, sequence: list[int], floors: Floors, bound: int, deadline: float) -> Solved | None:
    """Plan a large component by what crosses the borders of its groups: narrow ones over down-sets, others with moving borders."""
    borders = floors.borders()
    if borders is None:
        return None
    nodes = sum(1 << v for v in sequence)
    now = time.monotonic()
    narrow = narrow_path(space, sequence, borders, now + (deadline - now) / 2)
    if narrow is not None:
        bound = max(bound, narrow.bound)
        if narrow.groups and all(structurally_fit(space, facts, group) and space.cost(group) is not None for group in narrow.groups):
            cost = plan_cost(space, narrow.groups)
            return Solved(Part(nodes, ()), narrow.groups, min(bound, cost), cost - bound <= cost * SAME)
    if len(sequence) < _MOVED:
        return None
    where = places(borders)
    if len(where) * 2 <= len(sequence):
        return None
    bound = max(bound, lattice_floor(borders, where))
    groups = border_plan(space, facts, sequence, borders, where, deadline, bound)
    if groups is None:
        return None
    cost = plan_cost(space, groups)
    return Solved(Part(nodes, ()), tuple(groups), min(bound, cost), False)


def _resolve(
    space: GroupSpace, facts: Facts, pieces: list[Solved], tiebreak: Tiebreak, deadline: float, work: Work
) -> tuple[list[Solved], int]:
    """Join and solve again the pieces that wait for each other, until none does or the rest cannot be solved."""
    joined = 0
    while True:
        groups = [group for piece in pieces for group in piece.groups]
        components = cyclic_components(space.preds, groups)
        if not components:
            return pieces, joined
        home = {group: i for i, piece in enumerate(pieces) for group in piece.groups}
        # Pieces that one cycle touches go together, and so do cycles that touch one piece.
        sets: list[set[int]] = []
        for component in components:
            touched = {home[group] for group in component}
            apart = [other for other in sets if not other & touched]
            for other in sets:
                if other & touched:
                    touched |= other
            sets = [*apart, touched]
        acyclic = repair(space, groups)
        changed = False
        replaced: dict[int, Solved] = {}
        gone: set[int] = set()
        for touched in sets:
            members = sorted(touched)
            involved = [pieces[i] for i in members]
            # A piece without groups was never enumerated; one with its order that still waits ran out of time.
            if any(not piece.part.groups for piece in involved) or (len(members) == 1 and involved[0].ordered):
                continue
            nodes = sum(piece.part.nodes for piece in involved)
            attained = tuple(group for group in acyclic if group & nodes)
            replaced[members[0]] = solve_jointly(involved, facts, attained, tiebreak, deadline, work)
            gone.update(members[1:])
            joined += len(members)
            changed = True
        pieces = [replaced.get(i, piece) for i, piece in enumerate(pieces) if i not in gone]
        if not changed:
            return pieces, joined


def exact(
    space: GroupSpace,
    *,
    time_limit_s: float = 60.0,
    max_sets: int = 500_000,
    floors: Sequence[int] | None = None,
    plan_floor: int = 0,
    floors_of: Callable[[Sequence[int]], Floors] | None = None,
    reuse: bool = True,
) -> SearchResult:
    """Find a plan of least cost, or the best plan that the budget allows with a true lower bound.

    Parameters
    ----------
    space : GroupSpace
        The groups and their costs.
    time_limit_s : float
        Wall-clock budget. Overrun by at most the steps that any plan needs, and the last call of `cost`.
    max_sets : int
        Most connected convex sets to visit in one connected piece of the graph.
    floors : sequence of int, optional
        For each node, attoseconds that may be charged to it such that no legal group costs less than the floors of its
        nodes together. Only used for the bound where enumeration does not finish.
    plan_floor : int
        A lower bound on every plan that the caller knows.
    floors_of : callable, optional
        Gives the floors of an ascending sequence of nodes; without them no runs are tried.
    reuse : bool
        Solve equal parts once. Never changes the result.

    Returns
    -------
    SearchResult
        Exact when the status is "optimal".

    Notes
    -----
    Deterministic as long as the time limit does not bind. Among plans of least cost one with fewest groups is returned
    and among those the multiset of structural keys with the smallest fingerprint, whatever the numbering of the nodes.
    Time grows with groups times states; the worst case is exponential in the width of the graph.
    """
    started = time.monotonic()
    facts, tiebreak, work = derive_facts(space), Tiebreak(space), Work()
    everything = (1 << space.n) - 1

    parts: list[Part] = []
    pieces: list[Solved] = []
    rough: list[int] = []
    lines: list[Solved] = []
    grown = dominated = kept = 0
    # Small components first, so that one that explodes takes no time from those that can be closed.
    for nodes in sorted(join_components(facts.joins, everything), key=lambda mask: (mask.bit_count(), mask & -mask)):
        cut = _cut(space, facts, nodes, floors_of, started + time_limit_s * (0.3 if nodes.bit_count() < _MOVED else 0.65))
        if cut is not None and cut.closed:
            lines.append(cut)
            continue
        until, sets = started + time_limit_s * 0.4, max_sets
        if cut is not None and nodes.bit_count() >= _MOVED:
            until, sets = time.monotonic() + time_limit_s * 0.05, min(max_sets, _MOVED_SETS)
        found = enumerate_groups(space, facts, nodes, max_sets=sets, deadline=until, reuse=reuse)
        grown, dominated, kept = grown + found.grown, dominated + found.dominated, kept + len(found.groups)
        if found.complete:
            parts.extend(split_parts(nodes, found))
        elif cut is not None:
            lines.append(cut)
        else:
            rough.append(nodes)
    solving = started + time_limit_s * 0.7
    parts.sort(key=lambda part: (part.nodes.bit_count(), part.nodes & -part.nodes))
    pieces = solve_parts(parts, tiebreak, solving, work, reuse=reuse)
    pieces += lines
    pieces += [_plan_roughly(space, facts, nodes, floors, floors_of, max_sets, solving) for nodes in rough]
    pieces, joined = _resolve(space, facts, pieces, tiebreak, solving, work)

    groups = [group for piece in pieces for group in piece.groups]
    cost = plan_cost(space, groups)
    bound = max(plan_floor, sum(piece.bound for piece in pieces))
    order = execution_order(space.preds, groups)
    if order is None or cost - bound > cost * SAME:
        groups = repair(space, groups)
        # Some improvement is always due, even when the search took all the time there was, and little of it where borders were moved.
        until = time.monotonic() + time_limit_s * 0.05
        open_pieces = sum(piece.bound < plan_cost(space, piece.groups) for piece in pieces)
        moved = not rough and open_pieces <= sum(not line.closed for line in lines)
        groups = improve(space, facts, groups, until if moved else max(started + time_limit_s * 0.9, until))
        order = execution_order(space.preds, groups)
        assert order is not None, "improvement keeps the quotient graph acyclic"
        cost = plan_cost(space, order)
    if bound > cost:
        raise ValueError(f"a lower bound of {bound} was given or derived for a plan that costs {cost}")
    statistics = Statistics(
        grown=grown,
        groups=kept,
        dominated=dominated,
        states=work.states,
        transitions=work.transitions,
        pruned=work.pruned,
        parts=sum(part.nodes.bit_count() > 1 for part in parts),
        parts_reused=work.reused,
        parts_joined=joined,
        enumeration_complete=not rough and all(line.closed for line in lines),
        seconds=time.monotonic() - started,
    )
    return SearchResult(tuple(order), cost, bound, "optimal" if bound == cost else "feasible", statistics)
