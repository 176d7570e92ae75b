"""Why a group is illegal: a value that names the rule, the place and the remedy."""

from __future__ import annotations

from dataclasses import dataclass

#: Rule name -> what it means. The order is the order in which a group is examined.
RULES: dict[str, str] = {
    "unknown-node": "every name in a group is a node of the graph",
    "cover": "every node is computed by some group",
    "order": "the quotient graph of the groups is acyclic",
    "convex": "no path leaves a group and comes back",
    "opaque": "an operator without a spec runs alone",
    "scatter": "a node that writes where data says runs alone",
    "nodes": "a group holds at most so many core nodes",
    "contractions": "a group holds at most so many contractions and windows, or some that read one value alike",
    "horizontal": "more contractions than that, which read one value alike, share a group with chains of maps behind them only",
    "own-copy": "a group reads from memory nothing that it computes",
    "recomputation": "several groups may compute a node only where the space of the search has copies of it",
    "shared-loops": "members are connected by inner edges or by live-ins of more than a cache line",
    "operands": "the profile limits the tensors that one kernel may touch",
    "shared-outer-loop": "several contractions of a group, and a value read through a window, each carry an outer loop of the group",
    "capacity": "the scratch of one block fits the profile's fast memory",
    "dtype": "the profile supports the dtypes",
    "forbidden": "the profile forbids the combination",
    "emit": "the kernel generator can emit the group",
    "memory": "the stored values that are still needed, and scratch, stay within the limit on live memory",
    "user": "the plan keeps to what the user demands",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One refusal.

    Attributes
    ----------
    rule : str
        A key of :data:`RULES`.
    nodes : tuple of str
        The nodes concerned.
    tensors : tuple of str
        The values concerned.
    remedy : str
        What would make it legal.
    """

    rule: str
    nodes: tuple[str, ...]
    tensors: tuple[str, ...] = ()
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.rule}: {RULES[self.rule]}; nodes {', '.join(self.nodes[:6])}{' ...' if len(self.nodes) > 6 else ''}"
        if self.tensors:
            text += f"; tensors {', '.join(self.tensors[:6])}"
        return text + (f" ({self.remedy})" if self.remedy else "")
