"""The sizes of a group's items: which outer loops are blocked, and how, by what the group's members are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from fusion_search.codegen.access import GroupAccess, Linear, library_kernel
from fusion_search.codegen.extents import Extent, actual
from fusion_search.codegen.panels import KERNEL_ROWS, NOTHING, VECTOR, Again, panel_blocks
from fusion_search.codegen.work import reading_ns, serial_ns
from fusion_search.fusion.program import Member

#: Elements that one work item of a flat group should have: enough to pay for finding it, few enough to stay in L1.
ITEM_ELEMENTS = 4096
#: Sides of a block that is read across its rows, in elements of the result's rows and of the operand's. The operand's are long enough
#: for the processor to foresee their lines, which short ones of two threads are not; the block stays in L2.
TURN, TURN_LONG = 64, 512
#: A contraction's block, rows and columns of the result computed by one call: it and what it is made of stay in cache.
PANEL_ROWS, PANEL_COLUMNS = 144, 64
#: Columns of a block whose left side has to be laid out anew for each call, or whose right side is read but once.
WIDE_COLUMNS = 256
#: What it costs to lay out a row of the left side anew for one call, in vectors of the product's own work.
LAYING_OUT = 1.5
#: Elements of a sum that one item of a reduction to a single number takes: what the kernels sum in one go (STRIPS strips) anyway.
SHARE = 1 << 16
#: Terms that one accumulator of a float32 sum takes before it is added to a sum of chunks.
CHUNK_TERMS = 256
#: Blocks for each thread that keep all of them busy to the end.
BLOCKS_PER_THREAD = 2
#: What a block of a convolution's result may take of the second-level cache.
BLOCK_BYTES = 512 << 10
#: Output elements of an item of a depthwise convolution.
PLANE_ELEMENTS = 8192


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


def choose_blocks(group: GroupAccess, live_out: set[int], threads: int, forms: Forms) -> Blocks:
    """Choose which outer loops are blocked, which is structure, and the block sizes, which suit the run's extents and threads.

    Parameters
    ----------
    group : GroupAccess
    live_out : set of int
        Members that store their result.
    threads : int
    forms : mapping of int to str
        The form of each product and convolution, see `packing.packed_forms`.
    """
    panels = _panels(group, forms)
    given = Given(threads, forms, panels, frozenset(_whole(group, panels)), True)
    if not any(isinstance(n, Extent) for n in group.extents.values()):
        tiles = _tiles(group, live_out, given)
        return Blocks(tiles, given.uncut(tiles))
    structure = _tiles(group, live_out, replace(given, divisible=False))
    run = _tiles(_of_run(group), live_out, given)
    sizes = {a: run.get(a, 1) for a in structure} | {a: actual(group.extents[a]) for a in given.uncut(run)}
    return Blocks({a: Extent(tile, sizes[a]) for a, tile in structure.items()}, given.whole)


@dataclass(frozen=True, slots=True)
class Given:
    """What the blocks of a group are chosen for.

    Attributes
    ----------
    threads : int
    forms : mapping of int to str
    panels : tuple of tuple of int
    whole : frozenset of int
        Loops of which a block takes all steps, whatever the extents.
    divisible : bool
        A panel's inner loop may be cut where blocks have one step of those around it: any piece of it is one panel.
    """

    threads: int
    forms: Forms
    panels: Panels
    whole: frozenset[int]
    divisible: bool

    def uncut(self, tiles: Mapping[int, int]) -> frozenset[int]:
        """Return the loops to be taken whole with these tiles of the others."""
        if not self.divisible:
            return self.whole
        return self.whole - {a for panel in self.panels for k, a in enumerate(panel) if all(tiles.get(b, 1) == 1 for b in panel[:k])}


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


def _tiles(group: GroupAccess, live_out: set[int], given: Given) -> dict[int, int]:
    tiles = {a: max(tile, 1) for a, tile in _member_tiles(group, live_out, given).items()}  # an extent may be 0
    # A member that does not carry a loop is computed again for each of its blocks: best one block.
    # The blocks of a product weigh that against what they gain.
    partial = [a for a in sorted(group.outer) if any(a not in loops.all for loops in group.loops)]
    weighed = {a for panel in given.panels for a in panel}
    tiles |= {atom: max(group.extents[atom], 1) for atom in partial if atom not in weighed}
    heavy = _heavy(group)
    balanced = heavy is not None and library_kernel(group.members[heavy]) in ("product", "tile")  # chosen for the threads already
    wanted = given.threads if balanced else BLOCKS_PER_THREAD * given.threads
    for atoms in ([a for a in tiles if a not in partial], partial):
        for _ in range(2):  # a loop that is cut down to single steps lets the next one be cut
            fixed = given.uncut(tiles)
            _spread(group, tiles, [a for a in atoms if a not in fixed], wanted)
    return tiles


def _whole(group: GroupAccess, panels: Panels) -> set[int]:
    """Loops that a library kernel takes whole: a convolution's columns, and all but the first loop of a product's side."""
    found = {a for side in panels for a in side[1:]}
    for i, member in enumerate(group.members):
        if library_kernel(member) in ("tile", "pool"):
            found |= set(group.original[i][member.domain.rank - 1])
    return found


#: The loops of a product's columns and rows that one call may run through, outermost first.
Panels = tuple[tuple[int, ...], tuple[int, ...]]
#: How products run whose operand is packed beforehand, by member.
Forms = Mapping[int, str]


def _panels(group: GroupAccess, forms: Forms) -> Panels:
    """The last outer loops of each side of the group's product through which operand and result step as through one.

    The others take one step an item: the images of a batch in a convolution, whose pixels lie apart.
    """
    heavy = _heavy(group)
    if heavy is None or library_kernel(group.members[heavy]) != "product":
        return (), ()
    product = contraction_loops(group, heavy, forms.get(heavy, ""))
    return _panel(group, heavy, product.columns, product.right), _panel(group, heavy, product.rows, product.left)


def _panel(group: GroupAccess, heavy: int, side: tuple[int, ...], operand: int) -> tuple[int, ...]:
    addresses = (group.reads[(heavy, operand)].strides, group.writes[heavy].strides)
    panel: list[int] = []
    for atom in reversed([a for a in side if a in group.outer]):
        if panel and any(s.get(atom, 0) != s.get(panel[0], 0) * group.extents[panel[0]] for s in addresses):
            break
        panel.insert(0, atom)
    return tuple(panel)


def _heavy(group: GroupAccess) -> int | None:
    """The member that blocks are chosen for: the first contraction or window, or one after it that is more work and wants other blocks.

    A convolution wants several rows of pixels, a product no more than fill its panels. A pool wants whole planes, where items cut them.
    """
    kernels = [library_kernel(m) if m.spec.kind in ("contract", "window") else None for m in group.members]
    first = next((i for i, kernel in enumerate(kernels) if kernel is not None), None)
    if first is None or kernels[first] == "tile":
        return first
    others = [i for i, kernel in enumerate(kernels) if kernel == "tile"]
    if kernels[first] != "product" and group.outer.isdisjoint(a for atoms in group.original[first][2:] for a in atoms):
        others += [i for i, kernel in enumerate(kernels) if kernel == "product"][:1]
    elif kernels[first] != "product":
        return first
    return max((first, *others), key=lambda i: (prod(group.members[i].domain.extents), -i))


def _spread(group: GroupAccess, tiles: dict[int, int], atoms: list[int], wanted: int) -> None:
    """Cut the blocks along these loops, the longest first, until there are enough for every core."""
    for atom in sorted(atoms, key=lambda a: (-group.extents[a], a)):
        items = prod(-(-group.extents[a] // tiles.get(a, 1)) for a in group.outer)
        if items >= wanted or not items:
            return
        blocks = min(group.extents[atom], -(-wanted // items) * -(-group.extents[atom] // tiles[atom]))
        tiles[atom] = -(-group.extents[atom] // blocks)


def _member_tiles(group: GroupAccess, live_out: set[int], given: Given) -> dict[int, int]:
    heavy = _heavy(group)
    if heavy is not None:
        return _heavy_tiles(group, live_out, heavy, given)
    inner = [loops.all - group.outer for loops in group.loops]
    if not any(inner):
        return _flat_tiles(group, live_out, sorted(group.outer))
    if not any(is_reduce(member) for member in group.members):
        return _short_row_tiles(group, live_out)
    tiles: dict[int, int] = {}
    for i, member in enumerate(group.members):
        parallel = group.loops[i].parallel
        if is_reduce(member) and not by_lanes(member) and parallel and parallel[-1] in group.outer:
            tiles[parallel[-1]] = min(group.extents[parallel[-1]], 512)
        elif member.spec.kind == "scatter":  # whole rows of what lies behind the scattered dimension
            tiles |= {a: min(group.extents[a], 512) for a in group.original[i][2][-1:] if a in group.outer}
    return tiles


def _short_row_tiles(group: GroupAccess, live_out: set[int]) -> dict[int, int]:
    """Blocks of maps that run whole along some loop: several short rows an item, since finding an item costs as much as one."""
    within = max(prod(group.extents[a] for a in loops.all - group.outer) for loops in group.loops)
    lead = group.writes[min(live_out)] if live_out else group.writes[0]
    carried = [a for a in group.outer if all(a in loops.all for loops in group.loops)]
    if not carried or within >= ITEM_ELEMENTS // 4:
        return {}
    atom = min(carried, key=lambda a: (lead.strides.get(a, 0), a))
    return {atom: max(1, min(group.extents[atom], ITEM_ELEMENTS // 4 // max(within, 1)))}


def _flat_tiles(group: GroupAccess, live_out: set[int], atoms: list[int]) -> dict[int, int]:
    if not atoms:
        return {}
    tiles: dict[int, int] = {}
    elements = 1
    first = max(atoms, key=lambda a: (_unit_steps(group, live_out, a), group.extents[a], -a))
    lead = group.writes[min(live_out)] if live_out else group.writes[0]
    rest = sorted((a for a in atoms if a != first), key=lambda a: (lead.strides.get(a, 0), a))
    across = [a for a in rest if _read_across(group, first, a)]
    if across:
        return {a: max(1, min(group.extents[a], side)) for a, side in ((first, TURN), (across[0], TURN_LONG))}
    for atom in (first, *rest):
        if elements >= ITEM_ELEMENTS // 2:
            break
        tiles[atom] = max(1, min(group.extents[atom], ITEM_ELEMENTS // elements))
        elements *= tiles[atom]
    return tiles


def _read_across(group: GroupAccess, along: int, atom: int) -> bool:
    """True when a live-in lies contiguous along an atom while the nest walks it in larger steps."""
    return any(
        linear.strides.get(atom, 0) == 1 and linear.strides.get(along, 0) > 1
        for where, linear in group.reads.items()
        if where not in group.producers
    )


def _unit_steps(group: GroupAccess, live_out: set[int], atom: int) -> int:
    """How many addresses step by one element along an atom; writes count twice."""
    count = 0
    for where, linear in group.reads.items():
        if where not in group.producers:
            count += linear.strides.get(atom, 0) == 1
    for i in live_out:
        count += 2 * (group.writes[i].strides.get(atom, 0) == 1)
    return count


def _heavy_tiles(group: GroupAccess, live_out: set[int], heavy: int, given: Given) -> dict[int, int]:
    member, loops = group.members[heavy], group.loops[heavy]
    kernel = library_kernel(member)
    if kernel == "tile":
        return conv_tiles(group, heavy, given.threads, heavy in given.forms)
    if kernel == "pool":
        return _pool_tiles(group, heavy)
    if not kernel:
        return _flat_tiles(group, live_out, [a for a in loops.parallel if a in group.outer])
    return _product_tiles(group, heavy, given)


def _product_tiles(group: GroupAccess, heavy: int, given: Given) -> dict[int, int]:
    """Blocks of a product, of whole micro-kernels and such that all threads are done at the same time."""
    form, panels = given.forms.get(heavy, ""), given.panels
    product = contraction_loops(group, heavy, form)
    left = group.reads[(heavy, product.left)].strides
    plain = not product.depth or left.get(product.depth[-1], 0) == 1
    sides = (product.columns, panels[0]), (product.rows, panels[1])
    within = [{a for a in side if a in panel or a not in group.outer} for side, panel in sides]
    columns, rows = (actual(prod(group.extents[a] for a in atoms)) for atoms in within)
    others = actual(prod(group.extents[a] for a in group.outer if a not in within[0] | within[1]))
    # few rows do not pay for a copy of the right side: it is read once, best in long pieces
    width = PANEL_COLUMNS if form or (plain and rows > 2 * KERNEL_ROWS) else WIDE_COLUMNS
    cut = bool(panels[1]), bool(panels[0])  # what no outer loop cuts is one piece
    again = _computed_again(group, heavy, panels, (rows, columns))
    if not plain and again != NOTHING:
        again = replace(again, row=again.row + LAYING_OUT)
    limits = panel_blocks(rows, columns, others, (PANEL_ROWS, width), cut, given.threads, bool(form), again)
    tiles: dict[int, int] = {}
    for atoms, (_, panel), limit in zip(within, sides, reversed(limits), strict=True):
        if panel:
            tiles |= {a: group.extents[a] for a in panel}
            inside = prod(group.extents[a] for a in atoms)
            for atom in panel:
                inside //= max(group.extents[atom], 1)
                tiles[atom] = min(group.extents[atom], max(1, limit // max(1, inside)))
                if tiles[atom] > 1 or not given.divisible:
                    break
    return tiles


def _computed_again(group: GroupAccess, heavy: int, panels: Panels, shape: tuple[int, int]) -> Again:
    """What the members that do not carry a product's columns or rows cost in each of its blocks."""
    rows, vectors = max(shape[0], 1), max(-(-shape[1] // VECTOR), 1)
    unit = serial_ns(group.members[heavy]) / (rows * vectors)  # of all products of that shape, as the members' work is
    row = vector = block = 0.0
    for i, (member, loops) in enumerate(zip(group.members, group.loops, strict=True)):
        columns_missing, rows_missing = (bool(panel) and panel[0] not in loops.all for panel in panels)
        inside = {k for (reader, k) in group.producers if reader == i}
        work = (serial_ns(member) + reading_ns(member, inside)) / unit if unit else 0.0
        if columns_missing and rows_missing:
            block += work
        elif columns_missing:
            row += work / rows
        elif rows_missing:
            vector += work / vectors
    return Again(row, vector, block)


def _pool_tiles(group: GroupAccess, heavy: int) -> dict[int, int]:
    """Blocks of a pool: whole planes, as many as make an item worth finding."""
    _, channel, *plane = (next((a for a in atoms if a in group.outer), None) for atoms in group.original[heavy][:4])
    tiles = {a: max(group.extents[a], 1) for a in plane if a is not None}
    if channel is not None:
        tiles[channel] = min(max(group.extents[channel], 1), max(1, ITEM_ELEMENTS // max(1, prod(tiles.values()))))
    return tiles


def conv_tiles(group: GroupAccess, heavy: int, threads: int, turned: bool) -> dict[int, int]:
    """Blocks of a convolution: all columns, and rows and filters so that little is computed or copied in vain."""
    member = group.members[heavy]
    loops = group.original[heavy][1 : member.domain.rank]
    channel, filters, *positions = (next((a for a in atoms if a in group.outer), None) for atoms in loops)
    row = positions[0] if len(positions) > 1 else None
    tiles = {a: max(group.extents[a], 1) for a in (filters, *positions) if a is not None}
    x, w = member.operands[0].shape, member.operands[1].shape
    # a loop that is not outer runs inside the block, or has one step
    rows, width = (actual(n) for n in (member.shape[-2:] if len(positions) > 1 else (1, member.shape[-1])))
    if x[2] == 1 and w[1] == 1 and channel is not None:
        if row is not None:
            blocks = max(1, -(-rows * width // PLANE_ELEMENTS))
            tiles[row] = rows = max(1, -(-rows // blocks))
        tiles[channel] = min(max(group.extents[channel], 1), max(1, PLANE_ELEMENTS // max(1, rows * width)))
        return tiles
    # what runs inside the block is as wide as the widest member makes it
    widest = max(actual(prod(m.shape)) // max(1, actual(member.shape[0]) * rows * width) for m in group.members)
    count = actual(group.extents[filters]) if filters is not None else widest
    others = actual(prod(n for n, atoms in zip(member.shape[:2], group.original[heavy], strict=False) if group.outer.intersection(atoms)))
    row_block, blocks = dense_blocks(rows, width, count, others, (row is not None, filters is not None), threads, turned)
    if row is not None:
        tiles[row] = row_block
    if filters is not None:
        unit = PANEL_COLUMNS if turned else KERNEL_ROWS
        tiles[filters] = min(max(group.extents[filters], 1), -(-max(1, -(-count // blocks)) // unit) * unit)
    return tiles


def dense_blocks(
    rows: int, width: int, filters: int, others: int, cut: tuple[bool, bool], threads: int, turned: bool = False
) -> tuple[int, int]:
    """Choose a convolution's rows of a block, and into how many blocks its filters are cut.

    Parameters
    ----------
    rows, width : int
        Of the output.
    filters, others : int
        Of a group; images times groups.
    cut : tuple of bool
        Whether rows and filters may be cut.
    threads : int
        How many share the blocks.
    turned : bool
        Filters are the columns of the product, and pixels its rows.
    """
    best = (float("inf"), max(rows, 1), 1)
    for row_block in range(1, rows + 1) if cut[0] else (max(rows, 1),):
        pixels = max(1, row_block * width)
        for cuts in (1, 2, 4, 8) if cut[1] else (1,):
            mine = -(-filters // cuts)
            if cuts > 1 and mine < 4 * KERNEL_ROWS:
                break
            if 4 * mine * pixels > BLOCK_BYTES and (row_block > 1 and cut[0]):
                continue
            items = others * -(-rows // row_block) * cuts
            # lanes computed for nothing, rows of a last block that has fewer, windows copied for each block of filters,
            # weights that each block reads, and cores that wait
            lone = pixels % 16 == 1 and pixels > 16  # computed apart, at a third of a vector's cost
            lanes = (pixels + 5) / pixels if lone else -(-pixels // 16) * 16 / pixels
            if turned:
                panels = -(-mine // PANEL_COLUMNS) * PANEL_COLUMNS / max(mine, 1) if cuts > 1 else 1.0
                lanes = (pixels + (0.5 if pixels % KERNEL_ROWS else 0.0)) / pixels * panels
            uneven = -(-rows // row_block) * row_block / max(rows, 1)
            copies = 1 + 4 / max(mine, 1) + 1 / pixels
            idle = -(-items // threads) * threads / max(items, 1)
            # one block for each thread leaves nothing to share when one of them is held up
            idle *= 1 + 0.03 * max(0.0, 1 - items / (2 * BLOCKS_PER_THREAD * threads))
            best = min(best, (lanes * uneven * copies * idle, row_block, cuts))
    return best[1], best[2]


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


def contraction_loops(group: GroupAccess, heavy: int, form: str = "") -> Product:
    """Split a contraction's loops into rows, columns, batch and depth, so that the result's last loop is a column.

    In the form ``turned`` it is a row, and the result is stored by columns.
    """
    loops = group.loops[heavy]
    first, second = group.reads[(heavy, 0)].strides, group.reads[(heavy, 1)].strides
    only_first = tuple(a for a in loops.parallel if a in first and a not in second)
    only_second = tuple(a for a in loops.parallel if a in second and a not in first)
    batch = tuple(a for a in loops.parallel if (a in first) == (a in second))
    depth = tuple(loops.reduced)
    if loops.parallel and (loops.parallel[-1] in only_first) != (form == "turned"):
        return Product(1, 0, only_second, only_first, batch, depth)
    return Product(0, 1, only_first, only_second, batch, depth)
