"""Placing a group's members into stages: loop nests that run one after the other for each block.

Members share a nest when they run over the same loops and no one needs another's finished result. What a later stage
needs lives in memory between them (or in a local variable when it spans no loop).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from fusion_search.codegen.access import GroupAccess, Linear, library_kernel
from fusion_search.codegen.extents import Extent, actual
from fusion_search.fusion.program import Member

#: Elements that one work item of a flat group should have: enough to pay for finding it, few enough to stay in L1.
ITEM_ELEMENTS = 4096
#: A contraction's block: rows and columns of the result computed by one call.
PANEL_ROWS, PANEL_COLUMNS = 128, 256
#: Terms that one accumulator of a float32 sum takes before it is added to a sum of chunks.
CHUNK_TERMS = 256
#: Blocks that give every core something to do.
SPREAD = 4
#: What a block of a convolution's result may take of the second-level cache.
BLOCK_BYTES = 256 << 10


@dataclass(slots=True)
class Stage:
    """One loop nest, or one call of a library kernel.

    Attributes
    ----------
    kind : str
        ``loop``, ``parts`` (concat, pad) or ``heavy`` (contraction, window).
    members : list of int
        In canonical order.
    space : frozenset of int
        The loops it runs over, fixed ones left out.
    order : list of int
        Those loops, outermost first.
    """

    kind: str
    members: list[int]
    space: frozenset[int]
    order: list[int] = field(default_factory=list)


def is_reduce(member: Member) -> bool:
    """True for a reduction over plain loops."""
    return member.spec.kind == "reduce"


def by_lanes(member: Member) -> bool:
    """True when a reduction runs in lanes along its last dimension, which is fixed by its shape alone."""
    shape = member.operands[0].shape
    last = max((d for d, n in enumerate(shape) if n != 1), default=-1)
    return last in member.node.attr("axes") and member.spec.combiner != "prod"


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which outer loops are blocked, and how.

    Attributes
    ----------
    tiles : dict of int to int
        Steps of one block along each blocked loop; every other outer loop takes one step an item.
    whole : frozenset of int
        Blocked loops of which a block always takes all steps, whatever the extents.
    """

    tiles: dict[int, int]
    whole: frozenset[int]


def choose_blocks(group: GroupAccess, live_out: set[int]) -> Blocks:
    """Choose which outer loops are blocked, which is structure, and the block sizes, which suit the extents of the run."""
    whole = frozenset(_whole(group))
    structure = _tiles(group, live_out, whole)
    if not any(isinstance(n, Extent) for n in group.extents.values()):
        return Blocks(structure, whole)
    run = _tiles(_of_run(group), live_out, whole)
    sizes = {a: actual(group.extents[a]) if a in whole else run.get(a, 1) for a in structure}
    return Blocks({a: Extent(tile, sizes[a]) for a, tile in structure.items()}, whole)


def _of_run(group: GroupAccess) -> GroupAccess:
    """The group with the extents of the run in place of the generic ones."""

    def plain(linear: Linear) -> Linear:
        return Linear({a: actual(step) for a, step in linear.strides.items()}, actual(linear.offset))

    return replace(
        group,
        extents={a: actual(n) for a, n in group.extents.items()},
        reads={where: plain(linear) for where, linear in group.reads.items()},
        writes=[plain(linear) for linear in group.writes],
    )


def _tiles(group: GroupAccess, live_out: set[int], whole: frozenset[int]) -> dict[int, int]:
    tiles = {a: max(tile, 1) for a, tile in _member_tiles(group, live_out).items()}  # an extent may be 0
    # A member that does not carry a loop is computed again for each of its blocks: best one block.
    partial = [a for a in sorted(group.outer) if any(a not in loops.all for loops in group.loops)]
    tiles |= {atom: max(group.extents[atom], 1) for atom in partial}
    _spread(group, tiles, [a for a in tiles if a not in partial and a not in whole])
    _spread(group, tiles, [a for a in partial if a not in whole])
    return tiles


def _whole(group: GroupAccess) -> set[int]:
    """Loops that a library kernel takes whole: a convolution's columns, and all but the first loop of a product's side."""
    found: set[int] = set()
    for i, member in enumerate(group.members):
        kernel = library_kernel(member)
        if kernel in ("tile", "pool"):
            found |= set(group.original[i][member.domain.rank - 1])
        elif kernel == "product":
            product = contraction_loops(group, i)
            for side in (product.rows, product.columns):
                found |= set([a for a in side if a in group.outer][1:])
    return found


def _spread(group: GroupAccess, tiles: dict[int, int], atoms: list[int]) -> None:
    """Cut the blocks along these loops, the longest first, until there are enough for every core."""
    for atom in sorted(atoms, key=lambda a: (-group.extents[a], a)):
        items = prod(-(-group.extents[a] // tiles.get(a, 1)) for a in group.outer)
        if items >= SPREAD or not items:
            return
        blocks = min(group.extents[atom], -(-SPREAD // items) * -(-group.extents[atom] // tiles[atom]))
        tiles[atom] = -(-group.extents[atom] // blocks)


def _member_tiles(group: GroupAccess, live_out: set[int]) -> dict[int, int]:
    heavy = next((i for i, m in enumerate(group.members) if m.spec.kind in ("contract", "window")), None)
    if heavy is not None:
        return _heavy_tiles(group, live_out, heavy)
    inner = [loops.all - group.outer for loops in group.loops]
    if not any(inner):
        return _flat_tiles(group, live_out, sorted(group.outer))
    tiles: dict[int, int] = {}
    for i, member in enumerate(group.members):
        parallel = group.loops[i].parallel
        if is_reduce(member) and not by_lanes(member) and parallel and parallel[-1] in group.outer:
            tiles[parallel[-1]] = min(group.extents[parallel[-1]], 512)
    return tiles


def _flat_tiles(group: GroupAccess, live_out: set[int], atoms: list[int]) -> dict[int, int]:
    if not atoms:
        return {}
    tiles: dict[int, int] = {}
    elements = 1
    first = max(atoms, key=lambda a: (_unit_steps(group, live_out, a), group.extents[a], -a))
    lead = group.writes[min(live_out)] if live_out else group.writes[0]
    rest = sorted((a for a in atoms if a != first), key=lambda a: (lead.strides.get(a, 0), a))
    for atom in (first, *rest):
        if elements >= ITEM_ELEMENTS // 2:
            break
        tiles[atom] = max(1, min(group.extents[atom], ITEM_ELEMENTS // elements))
        elements *= tiles[atom]
    return tiles


def _unit_steps(group: GroupAccess, live_out: set[int], atom: int) -> int:
    """How many addresses step by one element along an atom; writes count twice."""
    count = 0
    for where, linear in group.reads.items():
        if where not in group.producers:
            count += linear.strides.get(atom, 0) == 1
    for i in live_out:
        count += 2 * (group.writes[i].strides.get(atom, 0) == 1)
    return count


def _heavy_tiles(group: GroupAccess, live_out: set[int], heavy: int) -> dict[int, int]:
    member, loops = group.members[heavy], group.loops[heavy]
    kernel = library_kernel(member)
    if kernel == "tile":
        return conv_tiles(group, heavy)
    if kernel == "pool":
        return _pool_tiles(group, heavy)
    if not kernel:
        return _flat_tiles(group, live_out, [a for a in loops.parallel if a in group.outer])
    product = contraction_loops(group, heavy)
    tiles: dict[int, int] = {}
    for side, limit in ((product.columns, PANEL_COLUMNS), (product.rows, PANEL_ROWS)):
        outer = [a for a in side if a in group.outer]
        tiles |= {a: group.extents[a] for a in outer[1:]}
        if outer:
            inside = prod(group.extents[a] for a in side if a != outer[0])
            tiles[outer[0]] = min(group.extents[outer[0]], max(1, limit // max(1, inside)))
    return tiles


def _pool_tiles(group: GroupAccess, heavy: int) -> dict[int, int]:
    """Blocks of a pool: whole planes, as many as make an item worth finding."""
    _, channel, *plane = (next((a for a in atoms if a in group.outer), None) for atoms in group.original[heavy][:4])
    tiles = {a: max(group.extents[a], 1) for a in plane if a is not None}
    if channel is not None:
        tiles[channel] = min(max(group.extents[channel], 1), max(1, ITEM_ELEMENTS // max(1, prod(tiles.values()))))
    return tiles


def conv_tiles(group: GroupAccess, heavy: int) -> dict[int, int]:
    """Blocks of a convolution: all columns, rows enough to pay for their halo, channels so that the block stays in L2."""
    member = group.members[heavy]
    loops = group.original[heavy][2 : member.domain.rank]
    filters, *positions = (next((a for a in atoms if a in group.outer), None) for atoms in loops)
    row = positions[0] if len(positions) > 1 else None
    tiles = {a: max(group.extents[a], 1) for a in (filters, *positions) if a is not None}
    # a loop that is not outer runs inside the block, or has one step
    rows, width = (actual(n) for n in (member.shape[-2:] if len(positions) > 1 else (1, member.shape[-1])))
    if row is not None:
        tiles[row] = rows = max(1, -(-rows // max(1, min(rows // 7, 8))))
    if filters is not None:
        count = group.extents[filters]
        blocks = max(1, -(-count * rows * width * 4 // BLOCK_BYTES))
        if row is None or tiles[row] == group.extents[row]:
            blocks = max(blocks, min(SPREAD, count // 24 or 1))
        # whole panels of the micro-kernel's six rows
        tiles[filters] = min(max(count, 1), max(1, -(-count // blocks // 6)) * 6)
    return tiles


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction as a matrix product.

    Attributes
    ----------
    left, right : int
        Operands: rows are indexed by `left` only, columns by `right` only.
    rows, columns, batch, depth : tuple of int
        Loops, outermost first; the result's last dimension is the last column.
    """

    left: int
    right: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    batch: tuple[int, ...]
    depth: tuple[int, ...]


def contraction_loops(group: GroupAccess, heavy: int) -> Product:
    """Split a contraction's loops into rows, columns, batch and depth, so that the result's last loop is a column."""
    loops = group.loops[heavy]
    first, second = group.reads[(heavy, 0)].strides, group.reads[(heavy, 1)].strides
    only_first = tuple(a for a in loops.parallel if a in first and a not in second)
    only_second = tuple(a for a in loops.parallel if a in second and a not in first)
    batch = tuple(a for a in loops.parallel if (a in first) == (a in second))
    depth = tuple(loops.reduced)
    if loops.parallel and loops.parallel[-1] in only_first:
        return Product(1, 0, only_second, only_first, batch, depth)
    return Product(0, 1, only_first, only_second, batch, depth)


def absorbed(group: GroupAccess, live_out: set[int]) -> set[int]:
    """Return the members that a matrix product reads through: transposes of live-ins that nothing else needs."""
    found = set()
    for i, member in enumerate(group.members):
        if member.spec.name != "Transpose" or i in live_out or (i, 0) in group.producers:
            continue
        readers = [where for where, producer in group.producers.items() if producer == i]
        if readers and all(library_kernel(group.members[r]) == "product" and group.identity[(r, k)] for r, k in readers):
            found.add(i)
    return found


def place(group: GroupAccess, tiled: set[int], skip: set[int]) -> list[Stage]:
    """Assign members to stages, in order.

    Parameters
    ----------
    group : GroupAccess
    tiled : set of int
        Blocked outer atoms.
    skip : set of int
        Members that another member reads through (a transpose absorbed by a contraction): no stage of their own.
    """
    stages: list[Stage] = []
    stage_of: dict[int, int] = {}
    fixed = group.outer - tiled
    for i, member in enumerate(group.members):
        if i in skip:
            continue
        space = frozenset(group.loops[i].all - fixed)
        kind = _kind(member)
        first = 0
        for k in range(len(member.operands)):
            producer = group.producers.get((i, k))
            if producer is None or producer in skip:
                continue
            maker = group.members[producer]
            at = stage_of[producer]
            after = (
                stages[at].kind != "loop" or is_reduce(maker) or not group.identity[(i, k)] or stages[at].space != space or kind != "loop"
            )
            first = max(first, at + 1 if after else at)
        for at in range(first, len(stages)):
            if kind == "loop" and stages[at].kind == "loop" and stages[at].space == space and _compatible(group, stages[at], i):
                break
        else:
            at = len(stages)
            stages.append(Stage(kind, [], space))
        stages[at].members.append(i)
        stage_of[i] = at
    for stage in stages:
        stage.members.sort()
        stage.order = _order(group, stage)
    return stages


def _kind(member: Member) -> str:
    if member.spec.kind in ("contract", "window"):
        return "heavy"
    return "parts" if member.spec.kind == "layout" and member.spec.body is None else "loop"


def _compatible(group: GroupAccess, stage: Stage, i: int) -> bool:
    """Reductions of one nest must reduce the same loops in the same way."""
    if not is_reduce(group.members[i]):
        return True
    for other in stage.members:
        if is_reduce(group.members[other]):
            same = group.loops[other].reduced == group.loops[i].reduced
            if not same or by_lanes(group.members[other]) != by_lanes(group.members[i]):
                return False
    return True


def _order(group: GroupAccess, stage: Stage) -> list[int]:
    """Loops of a stage, outermost first."""
    reducers = [i for i in stage.members if is_reduce(group.members[i])]
    lead = _lead(group, stage)
    ordered = sorted(stage.space, key=lambda a: (-lead.strides.get(a, 0), a))
    if reducers:
        reduced = group.loops[reducers[0]].reduced
        parallel = [a for a in ordered if a not in reduced]
        if by_lanes(group.members[reducers[0]]) or not parallel:
            return parallel + reduced
        innermost = max(parallel, key=lambda a: (_stage_units(group, stage, a), group.extents[a], -a))
        return [a for a in parallel if a != innermost] + reduced + [innermost]
    if not ordered:
        return []
    innermost = max(ordered, key=lambda a: (_stage_units(group, stage, a), group.extents[a], -a))
    return [a for a in ordered if a != innermost] + [innermost]


def _lead(group: GroupAccess, stage: Stage) -> Linear:
    """The address whose order of loops the nest follows: the largest member's result."""
    best = max(stage.members, key=lambda i: (prod(group.extents[a] for a in group.loops[i].parallel), -i))
    reads = [group.reads[(best, k)] for k in range(len(group.members[best].operands)) if (best, k) in group.reads]
    if is_reduce(group.members[best]) and reads:
        return reads[0]
    return group.writes[best]


def _stage_units(group: GroupAccess, stage: Stage, atom: int) -> int:
    count = 0
    for i in stage.members:
        for k in range(len(group.members[i].operands)):
            linear = group.reads.get((i, k))
            count += linear is not None and linear.strides.get(atom, 0) == 1
        count += 2 * (group.writes[i].strides.get(atom, 0) == 1)
    return count
