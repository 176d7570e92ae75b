"""ONNX Runtime's graph optimisations: a list of patterns of operators, each replaced by one fused operator.

Published rule ("Graph Optimizations in ONNX Runtime", basic and extended level,
https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html; the patterns spell out what it names):
patterns over the model's own operators, tried one after the other: convolution with bias, scale, residual and activation; product
with bias and activation; GELU, layer normalisation, bias with GELU, skip connection with layer normalisation, mask with softmax.
Every value inside a pattern must be read by the pattern alone. What matches nothing runs operator by operator.

Adapted: patterns are matched on the operators that nodes come from, so that each operator is a kernel before and after. Those that
hold several products (attention) are outside the space. A match whose nodes may not be one group here is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusion_search.fusion.space import GroupSpace
from fusion_search.search.policies.rules import Board
from fusion_search.search.space import bits

__all__ = ["ort_patterns"]

_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish"})


def _kinds(text: str) -> tuple[frozenset[str], ...]:
    """Read a pattern: operators in order, alternatives with a bar, ``*`` for any activation."""
    return tuple(_ACTIVATIONS if step == "*" else frozenset(step.split("|")) for step in text.split())


@dataclass(frozen=True, slots=True)
class _Pattern:
    """Operators in an order in which each reads one of those before it, and the name of what takes their place."""

    fused: str
    steps: tuple[frozenset[str], ...]


PATTERNS: tuple[_Pattern, ...] = tuple(
    _Pattern(fused, _kinds(text))
    for fused, text in (
        # The longest of a family first.
        ("LayerNormalization", "ReduceMean Sub Pow|Mul ReduceMean Add Sqrt Div Mul Add"),
        ("LayerNormalization", "ReduceMean Sub Cast Pow|Mul ReduceMean Add Sqrt Div Mul Add"),
        ("SimplifiedLayerNormalization", "Pow|Mul ReduceMean Add Sqrt Div Mul Mul"),
        ("SimplifiedLayerNormalization", "Pow|Mul ReduceMean Add Sqrt Reciprocal Mul Mul"),
        ("Gelu", "Div|Mul Erf Add Mul Mul"),
        ("QuickGelu", "Mul Sigmoid Mul"),
        ("QuickGelu", "Sigmoid Mul"),
        ("Relu", "Relu Clip"),
        ("FusedConv", "Conv Add|Sum *"),
        ("FusedConv", "Conv Mul *"),
        ("FusedConv", "Conv *"),
        ("FusedConv", "Conv Add|Sum"),
        ("FusedConv", "Conv Mul"),
        ("BiasGelu", "Add Gelu"),
        ("FusedGemm", "Gemm *"),
        ("FusedGemm", "MatMul Add *"),
        ("SkipLayerNormalization", "Add Add LayerNormalization|SimplifiedLayerNormalization"),
        ("SkipLayerNormalization", "Add LayerNormalization|SimplifiedLayerNormalization"),
        ("BiasSoftmax", "Add Softmax"),
        ("Gemm", "MatMul Add"),
        ("FusedMatMul", "MatMul Mul|Div"),
        ("FusedMatMul", "Transpose MatMul"),
    )
)


def ort_patterns(space: GroupSpace, deadline: float = float("inf")) -> tuple[int, ...]:
    """Fuse what a list of patterns finds.

    Returns
    -------
    tuple of int
        The groups in execution order. O(patterns * operators), times the branching of a match.
    """
    board = Board(space, deadline)
    operators = _Operators(board)
    for pattern in PATTERNS:
        for first in operators.starting(pattern.steps[0]):
            for match in operators.matches(pattern, first):
                if operators.fuse(pattern.fused, match):
                    break
    return board.groups()


class _Operators:
    """The model's operators as sets of nodes, with what each is called after the fusions so far."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.masks: list[int] = []
        self.names: list[str] = []
        origins: dict[str, int] = {}
        self.operator_of: list[int] = []
        for v, member in enumerate(board.program.members):
            node = member.node
            k = origins.setdefault(node.origin or node.name, len(origins))
            if k == len(self.masks):
                self.masks.append(0)
                self.names.append(node.origin_op or node.op)
            self.masks[k] |= 1 << v
            self.operator_of.append(k)
        for mask in self.masks:
            if not self._merge(mask):
                board.partition.merge_maximally(mask)

    def _merge(self, mask: int) -> bool:
        partition = self.board.partition
        names = sorted({partition.owner(v) for v in bits(mask)})
        if len(names) == 1:
            return True
        whole = partition.joint_of(names)
        if whole == mask:
            partition.merge(whole)
        return whole == mask

    def starting(self, kinds: frozenset[str]) -> list[int]:
        """Operators of some kind, in order."""
        return [k for k, name in enumerate(self.names) if name in kinds and self.masks[k]]

    def matches(self, pattern: _Pattern, first: int) -> Iterator[list[int]]:
        """Yield the matches of a pattern that begin with one operator, inner values read inside only."""
        if self.names[first] not in pattern.steps[0] or not self.masks[first]:
            return
        todo = [[first]]
        while todo:
            match = todo.pop()
            if len(match) == len(pattern.steps):
                if self._closed(match):
                    yield match
                continue
            following = {k: None for taken in match for k in self._readers(taken)}
            for k in sorted(following, reverse=True):
                if k not in match and self.names[k] in pattern.steps[len(match)]:
                    todo.append([*match, k])

    def _readers(self, k: int) -> list[int]:
        outputs = 0
        for v in bits(self.masks[k]):
            outputs |= self.board.space.succs[v]
        return sorted({self.operator_of[v] for v in bits(outputs & ~self.masks[k])})

    def _closed(self, match: list[int]) -> bool:
        inside = 0
        for k in match:
            inside |= self.masks[k]
        succs = self.board.space.succs
        return not any(succs[v] & ~inside or self.board.leaves(v) for k in match[:-1] for v in bits(self.masks[k]))

    def fuse(self, fused: str, match: list[int]) -> bool:
        """Make one operator of several if the space allows the group."""
        mask = 0
        for k in match:
            mask |= self.masks[k]
        if not self._merge(mask):
            return False
        for k in match:
            self.masks[k] = 0
        last = match[-1]
        self.masks[last], self.names[last] = mask, fused
        for v in bits(mask):
            self.operator_of[v] = last
        return True
