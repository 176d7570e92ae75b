"""The dynamic program over down-sets: cheapest partition of a part whose groups can run one after another.

Where the relaxed cover (`lattice.cover`) returns groups that wait for each other, the parts they come from are solved
again here. A group *needs* the nodes of the part that reach it in the whole graph (paths through other parts count)
and that it does not hold. A state is the down-set of what has run, with a stack of groups that were chosen and wait:

* no group waits: the lowest node that has not run is covered by some group g. Run g if what it needs has run, else let
  it wait;
* else: the lowest node that the top of the stack needs and that has not run is covered by some group g. If g needs a
  node of a waiting group they wait for each other, so g is no option. Otherwise run it, and then every waiting group
  from the top that has all it needs; or let it wait on top.

Exactness: an acyclic partition of the part determines each choice (the group that holds the node), and never takes the
refused option, since a waiting group reaches everything above it on the stack; so it is one path through the states.
Conversely a path to the end runs all groups in an order that respects every need. The single node is
always an option: all that it needs has run, for otherwise it would not be the lowest, or the top of the stack would
need a waiting group. One partition being one path,
independent groups are not tried in all their orders, which a program over plain down-sets would do.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusion_search.search.lattice import Budget, Entry, Level, Outcome
from fusion_search.search.space import bits

__all__ = ["ordered_cover"]


def ordered_cover(
    groups: Sequence[tuple[int, int]],
    needs: Sequence[int],
    size: int,
    *,
    base: int = 0,
    ceiling: int | None = None,
    beam: int | None = None,
    budget: Budget | None = None,
) -> Outcome:
    """Partition nodes ``0..size-1`` into groups of least total weight that have an execution order.

    Parameters
    ----------
    groups : sequence of (int, int)
        Set and (reduced) weight of each group, weights at least 0.
    needs : sequence of int
        For each group the nodes outside it that reach it, as a set; closed under reaching.
    size, base, ceiling, beam, budget
        As for `lattice.cover`.

    Returns
    -------
    Outcome
        Exact when closed; otherwise `bound` is true as for `lattice.cover`. Level k holds the states in which k nodes
        have run or wait.
    """
    budget = budget or Budget()
    everything = (1 << size) - 1
    at_node: list[list[tuple[int, int]]] = [[] for _ in range(size)]
    for index, (group, weight) in enumerate(groups):
        for v in bits(group):
            at_node[v].append((weight, index))
    for options in at_node:
        options.sort()
    room = None if ceiling is None else ceiling - base
    levels: list[Level] = [{} for _ in range(size + 1)]
    levels[0][0, ()] = Entry(0, [])
    states, transitions, pruned, steps = 1, 0, 0, 0
    for at in range(size):
        if beam is not None and len(levels[at]) > beam:
            kept = sorted(levels[at].items(), key=lambda item: (item[1].value, item[0]))[:beam]
            levels[at] = dict(kept)
        for count, (state, entry) in enumerate(levels[at].items()):
            if not count & 15 and budget.spent(states, steps):
                bound = min(entry.value for later in levels[at:] for entry in later.values())
                return Outcome(False, None, base + bound, (), states, transitions, pruned)
            done, stack = state
            missing = (needs[stack[-1]] if stack else everything) & ~done
            waiting = 0
            for index in stack:
                waiting |= groups[index][0]
            taken = done | waiting
            options = at_node[(missing & -missing).bit_length() - 1]
            steps += len(options)
            left = beam or -1
            for tried, (weight, index) in enumerate(options):
                total = entry.value + weight
                if room is not None and total > room:
                    pruned += len(options) - tried
                    break
                group, need = groups[index][0], needs[index]
                if group & taken or need & waiting:
                    continue
                if not left:
                    break
                left -= 1
                transitions += 1
                if need & ~done:
                    reached = (done, (*stack, index))
                else:
                    ran, depth = done | group, len(stack)
                    while depth and not needs[stack[depth - 1]] & ~ran:
                        depth -= 1
                        ran |= groups[stack[depth]][0]
                    reached = (ran, stack[:depth])
                target = levels[at + group.bit_count()]
                known = target.get(reached)
                if known is None:
                    target[reached] = Entry(total, [(at, state, index)])
                    states += 1
                elif total < known.value:
                    known.value = total
                    known.origins = [(at, state, index)]
                elif total == known.value:
                    known.origins.append((at, state, index))
    final = levels[size].get((everything, ()))
    if final is None:  # every path is over the ceiling
        return Outcome(False, None, base if ceiling is None else ceiling, (), states, transitions, pruned, True)
    value = base + final.value
    bound = value if beam is None else base
    return Outcome(beam is None, value, bound, tuple(levels), states, transitions, pruned)
