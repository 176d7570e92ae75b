"""TVM's operator fusion: groups between an operator and its post-dominator, by the pattern of what lies between.

Published rule (Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, on operator fusion;
the project's description of FuseOps, https://tvm.apache.org/docs/arch/fusion.html): operators have a pattern, elementwise <
broadcast < injective < reduction < contraction with a fusible output < opaque. In post-order, each operator looks at its immediate
post-dominator in the tree of post-dominators and at the worst pattern on all ways there. First, a contraction joins a
post-dominator that is elementwise to it, when all between is at most broadcast; an operator that is at most broadcast joins one
that is injective, a reduction or a contraction's epilogue, when all between is injective. Then, in a second round, injective
operators join what is injective. A group holds at most 256 operators. Costs play no part.

Adapted: a softmax is one opaque operator there and a group of its own here. A group is cut where the space refuses it.
"""

from __future__ import annotations

from collections.abc import Callable

from fusion_search.fusion.space import GroupSpace
from fusion_search.search.policies.rules import Board, reads_evenly
from fusion_search.search.space import bits

__all__ = ["tvm"]

ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, CONTRACTION, OPAQUE = range(6)
MAX_NODES = 256
_PATTERN_OF_KIND = {"layout": INJECTIVE, "gather": INJECTIVE, "reduce": REDUCTION, "contract": CONTRACTION, "window": CONTRACTION}
_WHOLE = ("Softmax", "LogSoftmax")
_NOWHERE = -1


def tvm(space: GroupSpace, deadline: float = float("inf")) -> tuple[int, ...]:
    """Fuse operators into their post-dominators by pattern.

    Returns
    -------
    tuple of int
        The groups in execution order. O(n * depth of the post-dominator tree) before the merges.
    """
    fuser = _Fuser(Board(space, deadline))
    for injective_round in (False, True):
        for v in range(space.n):
            fuser.fuse(v, injective_round)
    return fuser.board.groups()


class _Fuser:
    def __init__(self, board: Board) -> None:
        self.board, self.space = board, board.space
        members = board.program.members
        self.pattern = [self._pattern_of(v) for v in range(self.space.n)]
        wholes: dict[str, int] = {}
        for v, member in enumerate(members):
            if member.node.origin_op in _WHOLE:
                wholes[member.node.origin] = wholes.get(member.node.origin, 0) | 1 << v
                self.pattern[v] = OPAQUE
        for whole in wholes.values():
            board.partition.merge_maximally(whole)
        self.parent, self.way = self._post_dominators()
        #: The pattern of a group, by the name that the partition has for it: its sink's, or its contraction's.
        self.group_pattern = dict(enumerate(self.pattern))

    def _pattern_of(self, v: int) -> int:
        member = self.board.program.members[v]
        kind = member.spec.kind
        if kind == "map":
            even = all(operand.parameter or operand.shape == member.shape for operand in member.operands)
            return ELEMENTWISE if even else BROADCAST
        return _PATTERN_OF_KIND.get(kind, OPAQUE)

    def _post_dominators(self) -> tuple[list[int], list[int]]:
        """Immediate post-dominator of each node, and the worst pattern of an edge on the ways there."""
        n, members = self.space.n, self.board.program.members
        parent, way, depth = [_NOWHERE] * n, [OPAQUE] * n, [0] * n

        def edge(u: int, v: int) -> int:
            found = self.pattern[v]
            return ELEMENTWISE if found == BROADCAST and reads_evenly(members[v], u) else found

        for u in reversed(range(n)):
            readers = list(bits(self.space.succs[u]))
            if not readers or self.board.leaves(u):
                continue
            meet, worst = readers[0], edge(u, readers[0])
            for reader in readers[1:]:
                other, worst = reader, max(worst, edge(u, reader))
                while meet != other and _NOWHERE not in (meet, other):
                    # The deeper of the two goes up; of two at one depth, both in turn.
                    if depth[meet] >= depth[other]:
                        worst, meet = max(worst, way[meet]), parent[meet]
                    else:
                        worst, other = max(worst, way[other]), parent[other]
                if _NOWHERE in (meet, other):
                    meet = _NOWHERE
                    break
            if meet != _NOWHERE:
                parent[u], way[u], depth[u] = meet, worst, depth[meet] + 1
        return parent, way

    def fuse(self, v: int, injective_round: bool) -> None:
        """Join one operator's group with its post-dominator's, and all between, if the patterns allow it."""
        partition, sink = self.board.partition, self.parent[v]
        if sink == _NOWHERE or partition.owner(v) == partition.owner(sink):
            return
        mine, way = self.group_pattern[partition.owner(v)], self.way[v]
        inside: Callable[[int], bool]
        end: Callable[[int], bool]
        if mine == CONTRACTION:
            if injective_round or way != ELEMENTWISE:
                return
            inside = end = _at_most(BROADCAST)
        elif mine <= BROADCAST:
            if way > REDUCTION:
                return
            inside, end = _at_most(INJECTIVE), _at_most(CONTRACTION)
        elif mine == INJECTIVE:
            if not injective_round:
                return
            inside = end = _at_most(INJECTIVE)
        else:
            return
        between = self._between(v, sink)
        if between is not None and all(inside(self._pattern(w)) for w in bits(between)) and end(self._pattern(sink)):
            self._commit(v, sink, between)

    def _between(self, v: int, sink: int) -> int | None:
        """Nodes on the ways from a node to its post-dominator, ends excluded; None when they are more than a group may hold."""
        found, fresh = 0, self.space.succs[v] & ~(1 << sink)
        while fresh:
            found |= fresh
            if found.bit_count() > MAX_NODES - 2:
                return None
            further = 0
            for w in bits(fresh):
                further |= self.space.succs[w]
            fresh = further & ~(found | 1 << sink)
        return found

    def _pattern(self, v: int) -> int:
        return self.group_pattern[self.board.partition.owner(v)]

    def _commit(self, v: int, sink: int, between: int) -> None:
        partition = self.board.partition
        names = sorted({partition.owner(w) for w in (v, sink, *bits(between))})
        patterns = [self.group_pattern[name] for name in names]
        if patterns.count(CONTRACTION) > 1:
            return
        mask = partition.joint_of(names)
        if mask and mask.bit_count() <= MAX_NODES:
            result = CONTRACTION if CONTRACTION in patterns else self._pattern(sink)
            self.group_pattern[partition.merge(mask)] = result


def _at_most(pattern: int) -> Callable[[int], bool]:
    return lambda found: found <= pattern
