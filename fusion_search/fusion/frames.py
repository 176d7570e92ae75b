"""What is known of nodes and of starts of groups while groups of one lowest node are counted: records that `fusion.starts` fills.

A *frame* is the tables from a lowest node on: sets of pieces, of members and of values are bit masks relative to it. A *start* is the first
members of a group, up to some node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Frame", "Node", "Operand", "Start"]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a node in a frame.

    Attributes
    ----------
    base, producer : int
        Number of its value, position of its producer.
    source : int
        The producer's bit in `Start.members`.
    used : int
        Pieces that decide what is read.
    barred : int
        Pieces of the producer along which the value is read at other places than the reader's own.
    joins : tuple of (int, int)
        Pieces of the value, numbered, and the piece of the reader that steps through the same elements.
    wide : bool
        Whether it unifies loops as a live-in.
    shares : bool
        Whether the reader can take it in the iteration that computes it, as far as the two nodes decide that.
    buffered : bool
        Whether it is a scratch buffer in every group.
    in_part, in_place : bool
        Whether its producer may be evaluated where it is read, in a part (`fusion.parts`); whether it is read at the reader's own point.
    loops, indirect : tuple of int, bool
        Loops of the reader that decide what is read; whether data does, too.
    slides : bool
        Whether it is read through a window.
    region, nbytes, full, size : tuple, int, int, int
        What is read of it and the bytes of that; the bytes of all of it; the lesser of the two.
    """

    base: int
    producer: int
    source: int
    used: int
    barred: int
    joins: tuple[tuple[int, int], ...]
    wide: bool
    shares: bool
    buffered: bool
    in_part: bool
    in_place: bool
    loops: tuple[int, ...]
    indirect: bool
    slides: bool
    region: Any
    nbytes: int
    full: int
    size: int


@dataclass(frozen=True, slots=True)
class Node:
    """One position in a frame.

    Attributes
    ----------
    position, signature : int
    bit : int
        Its bit among members; copies of a node have the same.
    pieces : tuple of int
        Its pieces, each as a mask.
    mask, parallel, refused, reduced : int
        All of them; those of parallel loops; those that are no outer loop; those of reductions.
    operands : tuple of Operand
        Without parameters.
    names, own : int
        Values that it reads, and its own, as bits.
    always, readers : bool, int
        Whether its value leaves every group, and else who reads it.
    written, itemsize, points, span, flop_class, work : int
        Bytes of its value in whole lines, and of a scalar; points of all loops, and of the parallel ones; operations, by class.
    heavy, expression : bool
        Whether it is a contraction or window; whether it may be evaluated at any one point of its result.
    loops : tuple of int
        The pieces of each of its loops.
    """

    position: int
    signature: int
    bit: int
    pieces: tuple[int, ...]
    mask: int
    parallel: int
    refused: int
    reduced: int
    operands: tuple[Operand, ...]
    names: int
    own: int
    always: bool
    readers: int
    written: int
    itemsize: int
    points: int
    span: int
    flop_class: int
    work: int
    heavy: bool
    expression: bool
    loops: tuple[int, ...]


class Start:
    """The first members of a group, and what is known of them alone.

    Attributes
    ----------
    parent, last : Start, Node
        What it was built from.
    nodes, places : tuple of Node
        The members; all positions, copies of one node among them.
    members, heavy, window : int
        Masks of members: all; contractions and windows; those that a window reads.
    active, barred, refused : int
        Masks of pieces: all; along which a member is read elsewhere; that are no outer loop.
    inner, live : tuple
        Reads of members, and of live-ins.
    outside, shared : dict, tuple
        Live-ins with their number; those that unify loops, being read twice.
    shape : int
        Equal for starts of equal structure.
    parted : bool
        Whether a pad or a concat reads a member that may be evaluated there, as far as the two say.
    atoms, carriers, tangled : list of int, list of int, bool
        Filled in by `Starts.unify`: the atoms, and the members that carry each; whether one carries an atom twice.
    """

    __slots__ = (
        "active", "atoms", "barred", "carriers", "heavy", "inner", "last", "live", "members", "nodes", "outside", "parent", "parted",
        "places", "refused", "shape", "shared", "tangled", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parent: Start | None = None
        self.last: Node | None = None
        self.nodes: tuple[Node, ...] = ()
        self.places: tuple[Node, ...] = ()
        self.members = self.active = self.barred = self.refused = self.heavy = self.window = 0
        self.inner: tuple[tuple[Node, Operand], ...] = ()
        self.live: tuple[Operand, ...] = ()
        self.outside: dict[int, int] = {}
        self.shared: tuple[int, ...] = ()
        self.shape = 0
        self.parted = False
        self.atoms: list[int] | None = []
        self.carriers: list[int] = []
        self.tangled = False


class Frame:
    """Tables of the nodes from a lowest one on.

    Attributes
    ----------
    first_piece, first_home : int
        The lowest piece and position; bits are relative to them.
    nodes : dict of int to Node
    hyper : dict of int to list of int
        For each value and each of its pieces a mask of the pieces of loops that step through the same elements.
    names : dict of int to int
        A bit for each value.
    starts : dict
        Starts by the live-ins that unify nothing (None for all), and by mask of positions.
    """

    def __init__(self, first_piece: int, first_home: int) -> None:
        self.first_piece, self.first_home = first_piece, first_home
        self.nodes: dict[int, Node] = {}
        self.hyper: dict[int, list[int]] = {}
        self.names: dict[int, int] = {}
        self.starts: dict[frozenset[int] | None, dict[int, Start]] = {}
