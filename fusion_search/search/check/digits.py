"""Loops as digits of mixed-radix numbers.

A loop of extent n that reshapes cut at the points c1 < c2 < ... consists of the digits ``(index // step) % extent`` with
steps 1, c1, c2, ... A value's flat row-major index is the number that all digits of its producer's loops spell. So a
digit of the producer is one loop with a digit of a reader exactly when the flat index that the reader asks for has, at
that place, the reader's own digit: a statement about one affine form, which :func:`same_digit` decides exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple, TypeAlias

import networkx as nx

from fusion_search.ir.graph import Shape

from .facts import Operand, Step

#: Dimensions of a value and the reader's loops that run over the same elements, each as (owner, loop), outermost first.
Pair: TypeAlias = tuple[list[tuple[str, int]], list[tuple[str, int]]]


class Digit(NamedTuple):
    """``(index // step) % extent`` of one loop of a node (or of one dimension of a live-in)."""

    owner: str
    loop: int
    step: int
    extent: int


@dataclass(frozen=True, slots=True)
class Form:
    """A flat index: ``constant + sum(coefficient * loop) + sum(coefficient * free)``, each free index below its count."""

    constant: int
    loops: dict[int, int]
    free: tuple[tuple[int, int], ...]


def flat_form(operand: Operand, extents: Shape) -> Form:
    """Return the flat index of the element that a read asks for.

    An index from data, and one that may leave the operand (where nothing is read), may be any index of its dimension.
    """
    constant, stride = 0, 1
    loops: dict[int, int] = {}
    free = []
    for dim, n in zip(reversed(operand.access.dims), reversed(operand.shape), strict=True):
        moves = [c * (extents[loop] - 1) for loop, c in dim.terms]
        low, high = dim.offset + sum(min(0, m) for m in moves), dim.offset + sum(max(0, m) for m in moves)
        if n != 1 and (dim.indirect or low < 0 or high >= n):
            free.append((stride, n))
        elif n != 1:
            constant += stride * dim.offset
            for loop, c in dim.terms:
                loops[loop] = loops.get(loop, 0) + c * stride
        stride *= n
    return Form(constant, loops, tuple(free))


def same_digit(form: Form, extents: Shape, stride: int, mine: Digit) -> bool:
    """Decide whether ``(form // stride) % extent`` is the reader's digit `mine` at every point of the reader's loops.

    Subtract stride * digit from the form; what remains has to stay within [0, stride) modulo stride * extent. Each
    variable moves the remainder by its coefficient, taken to the nearest residue; a move by stride or more leaves the
    interval, smaller ones cannot wrap around, so the interval's ends decide: necessary and sufficient.
    """
    if mine.extent < 2:
        return True
    modulus = stride * mine.extent
    if not modulus or 0 in extents:
        return True  # there is no point at which they could differ
    moves = [(c, count - 1) for c, count in form.free]
    for loop, c in {mine.loop: 0, **form.loops}.items():
        if loop == mine.loop:
            whole = mine.step * mine.extent
            moves += [(c, mine.step - 1), (c * mine.step - stride, mine.extent - 1), (c * whole, extents[loop] // whole - 1)]
        else:
            moves.append((c, extents[loop] - 1))
    low = high = form.constant % modulus
    for c, most in moves:
        near = (c + modulus // 2) % modulus - modulus // 2
        if near and most > 0:
            low, high = low + min(0, near * most), high + max(0, near * most)
    return low >= 0 and high < stride


def strides(shape: Shape) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def _runs(shape: Shape) -> dict[int, int]:
    """Product of the dimensions behind, for each dimension that is no 1."""
    return {d: prod(max(n, 1) for n in shape[d + 1 :]) for d, n in enumerate(shape) if n != 1}


def _ends(runs: dict[int, int], shape: Shape) -> set[int]:
    return {1} | {run * max(shape[d], 1) for d, run in runs.items()}


def match(base: Shape, view: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of dimensions between the boundaries that two row-major shapes have in common."""
    if base.count(0) != view.count(0) or base.count(0) > 1:
        return []
    left, right = _runs(base), _runs(view)
    common = sorted(_ends(left, base) & _ends(right, view))
    if common[-1] != max(_ends(left, base) | _ends(right, view)):
        return []
    found = []
    for a, b in pairwise(common):
        segment = [[d for d, run in side.items() if a <= run < b] for side in (left, right)]
        found.append((segment[0], segment[1]))
    if 0 in base:  # an empty dimension has no boundary of its own
        found = [pair for pair in found if all(base[d] for d in pair[0]) and all(view[d] for d in pair[1])]
        found.append(([base.index(0)], [view.index(0)]))
    return found


class Digits:
    """The digits of a group's loops, and which of them are one loop.

    Parameters
    ----------
    steps : sequence of Step
        The members, in canonical order.
    line_bytes : int
        Live-ins of this size or less join no loops.

    Attributes
    ----------
    of : dict of (str, int) to list of Digit
        The digits of each loop of each member (and of each dimension of a shared live-in), outermost first.
    name : dict of Digit to int
        Digits with equal numbers are one loop of the group.
    twice : set of int
        Loops that some member would have to carry twice.
    """

    def __init__(self, steps: Sequence[Step], line_bytes: int) -> None:
        self.steps = {step.name: step for step in steps}
        makers = {value: step.name for step in steps for value in step.node.outputs}
        self.extents: dict[tuple[str, int], int] = {(s.name, loop): n for s in steps for loop, n in enumerate(s.extents) if n != 1}
        self.inner: dict[tuple[str, Operand], list[Pair]] = {}
        shared: dict[str, list[tuple[Step, Operand]]] = {}
        for step in steps:
            for operand in step.operands:
                if operand.base in makers:
                    self.inner[step.name, operand] = self._pairs(makers[operand.base], step, operand)
                elif not operand.parameter and operand.nbytes > line_bytes:
                    shared.setdefault(operand.base, []).append((step, operand))
        self.edges = self.inner
        joining = {base: reads for base, reads in shared.items() if len(reads) > 1}
        while True:
            self._settle(joining)
            tangled = {digit.owner for digit, name in self.name.items() if name in self.twice}
            guilty = {base for base in joining if f"{base}\0" in tangled}
            if not guilty:
                break
            # live-ins unify after the inner edges, and not where a member would carry one loop twice
            joining = {base: reads for base, reads in joining.items() if base not in guilty}

    def _settle(self, joining: dict[str, list[tuple[Step, Operand]]]) -> None:
        """Cut and name all digits, with these live-ins joining their readers' loops."""
        outer: list[Pair] = []
        self.inner = self.edges
        self.extents = {key: n for key, n in self.extents.items() if key[0] in self.steps}
        for base, reads in joining.items():
            owner = f"{base}\0"  # no node has this name
            self.extents.update({(owner, d): n for d, n in enumerate(reads[0][1].base_shape) if n != 1})
            for step, operand in reads:
                outer += self._pairs(owner, step, operand)
            outer += self._columns(reads)
        pairs = [*(pair for found in self.inner.values() for pair in found), *outer]
        cuts = self._cuts(pairs)
        if cuts is None:  # no common refinement: reshapes that cut a loop match nowhere
            self.inner = {edge: [pair for pair in found if _plain(pair)] for edge, found in self.inner.items()}
            pairs, cuts = [pair for pair in pairs if _plain(pair)], {}
        self.of: dict[tuple[str, int], list[Digit]] = {}
        for (owner, loop), n in self.extents.items():
            points = [1, *sorted(cuts.get((owner, loop), ())), n]
            self.of[owner, loop] = [Digit(owner, loop, a, b // a) for a, b in reversed(list(pairwise(points)))]
        self.name, self.twice = self._unify(pairs)

    def member(self, name: str) -> list[Digit]:
        """Return all digits of a member, loop by loop."""
        return [digit for loop in range(len(self.steps[name].extents)) for digit in self.of.get((name, loop), ())]

    def parallel(self, digit: Digit) -> bool:
        """Whether a member's digit belongs to a parallel loop."""
        return digit.loop < self.steps[digit.owner].domain.rank

    def _pairs(self, owner: str, step: Step, operand: Operand) -> list[Pair]:
        """Match the owner's dimensions with the reader's loops, where the reader uses these as they are."""
        found = []
        for base_dims, view_dims in match(operand.base_shape, operand.shape):
            loops = [operand.access.dims[d].loop for d in view_dims]
            whole = all(loop is not None and step.extents[loop] == operand.shape[d] for loop, d in zip(loops, view_dims, strict=True))
            ends = [_ends(_runs(shape), shape) for shape in (_pick(operand.base_shape, base_dims), _pick(operand.shape, view_dims))]
            if whole and _chain(ends[0] | ends[1]):
                found.append(([(owner, d) for d in base_dims], [(step.name, loop) for loop in loops if loop is not None]))
        return found

    def _columns(self, reads: list[tuple[Step, Operand]]) -> list[Pair]:
        """Pair the loops of equal extents by which three contractions or more do not read what all of them read as one does."""
        heads = [step for step in self.steps.values() if step.spec.kind in ("contract", "window")]
        found: list[Pair] = []
        for read in {operand for step, operand in reads if step in heads[:1]} if len(heads) > 2 else ():
            rank = heads[0].domain.rank
            if all((step, read) in reads and step.domain.rank == rank for step in heads):
                walked = {loop for dim in read.access.dims for loop, _ in dim.terms}
                for loop in set(range(rank)) - walked:
                    if {step.extents[loop] for step in heads} == {heads[0].extents[loop]} != {1}:
                        found += [([(heads[0].name, loop)], [(step.name, loop)]) for step in heads[1:]]
        return found

    def _cuts(self, pairs: list[Pair]) -> dict[tuple[str, int], set[int]] | None:
        """Return the points at which each loop is cut, or None when they do not divide each other."""
        cuts: dict[tuple[str, int], set[int]] = {}
        if all(map(_plain, pairs)):
            return cuts
        grown = True
        while grown:
            grown = False
            for sides in pairs:
                points: set[int] = set()
                for side in sides:
                    run = 1
                    for key in reversed(side):
                        points |= {run, *(run * c for c in cuts.get(key, ()))}
                        run *= self.extents[key]
                for side in sides:
                    run = 1
                    for key in reversed(side):
                        n = self.extents[key]
                        inside = [p for p in points if run < p < run * n]
                        if any(p % run or (run * n) % p for p in inside):
                            return None
                        new = {p // run for p in inside} - cuts.get(key, set())
                        if new:
                            cuts.setdefault(key, set()).update(new)
                            grown = True
                        run *= n
        return cuts if all(_chain({*found, self.extents[key]}) for key, found in cuts.items()) else None

    def tangled(self, edges: Iterable[tuple[str, Operand]]) -> set[Digit]:
        """Return the digits that some member would have to carry twice if these reads alone were in one loop nest."""
        names, twice = self._unify([pair for edge in edges for pair in self.inner[edge]])
        return {digit for digit, name in names.items() if name in twice}

    def _unify(self, pairs: list[Pair]) -> tuple[dict[Digit, int], set[int]]:
        """Number the classes of digits that pairs of loops join, and find those that a member has twice."""
        joined: nx.Graph[Digit] = nx.Graph()
        joined.add_nodes_from(digit for digits in self.of.values() for digit in digits)
        for left, right in pairs:
            a, b = ([digit for key in side for digit in self.of[key]] for side in (left, right))
            joined.add_edges_from(zip(a, b, strict=True))
        names = {digit: k for k, part in enumerate(nx.connected_components(joined)) for digit in part}
        twice = set()
        for member in self.steps:
            mine = [names[digit] for digit in self.member(member)]
            twice |= {name for name in mine if mine.count(name) > 1}
        return names, twice


def _plain(pair: Pair) -> bool:
    """Whether one whole loop stands against one."""
    return len(pair[0]) == len(pair[1]) == 1


def _pick(shape: Shape, dims: Iterable[int]) -> Shape:
    return tuple(shape[d] for d in dims)


def _chain(points: set[int]) -> bool:
    return all(b % a == 0 for a, b in pairwise(sorted(points)))
