"""Constant operands of contractions in the order in which the micro-kernels read them, packed once when a plan is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fusion_search.codegen.access import GroupAccess, library_kernel
from fusion_search.codegen.blocks import Product, contraction_loops
from fusion_search.codegen.extents import Extent, actual
from fusion_search.codegen.rt.ukernels import NV
from fusion_search.fusion.program import Member, Program
from fusion_search.ir.orders import row_major, turned

Array = np.ndarray[Any, Any]
#: Loops as extents and strides in elements, outermost first.
Loops = tuple[tuple[int, int], ...]
#: Bytes that packed operands are aligned to: rows of a panel are whole cache lines.
ALIGN = 64


@dataclass(frozen=True, slots=True)
class Packing:
    """How a constant is packed: as matrices in blocks of some rows or columns, ``[matrix, block, depth, width]``.

    What the last block lacks is zero.

    Attributes
    ----------
    width : int
        Rows or columns of a block.
    matrices, side, depth : tuple of (int, int)
        The loops of the matrices, of their rows or columns, and of what is summed over.
    offset : int
        Where in the constant the first element is.
    """

    width: int
    matrices: Loops
    side: Loops
    depth: Loops
    offset: int = 0

    def pack(self, array: Array) -> Array:
        """Return the packed constant, aligned."""
        count, side, depth = (prod(n for n, _ in loops) for loops in (self.matrices, self.side, self.depth))
        loops = (*self.matrices, *self.depth, *self.side)
        steps, offset = [step for _, step in loops], self.offset
        if turned(array) and self._within_columns(loops, array.shape[1]):  # read where it lies, with no copy in row-major order
            (rows, columns), flat = array.shape, array.T.reshape(-1)
            *steps, offset = (at // columns + at % columns * rows for at in (*steps, offset))
        else:
            flat = row_major(array).reshape(-1)
        size = flat.itemsize
        view = np.lib.stride_tricks.as_strided(flat[offset:], [n for n, _ in loops], [step * size for step in steps], writeable=False)
        matrices = view.reshape(count, depth, side)
        whole, rest = divmod(side, self.width)
        packed = _aligned((count, whole + (rest > 0), depth, self.width), flat.dtype)
        packed[:, :whole] = matrices[:, :, : whole * self.width].reshape(count, depth, whole, self.width).transpose(0, 2, 1, 3)
        if rest:
            packed[:, whole, :, :rest] = matrices[:, :, whole * self.width :]
        return packed.reshape(-1)

    def _within_columns(self, loops: Loops, columns: int) -> bool:
        """Whether no step along a loop runs from one row of a matrix into the next."""
        return self.offset % columns + sum((n - 1) * (step % columns) for n, step in loops) < columns


def panel_columns(itemsize: int) -> int:
    """Columns of one panel of a packed right side."""
    return NV * 64 // itemsize


#: Terms of a sum from which on a result that is stored by columns pays: turning it costs as much as some 16 terms.
TURNED_DEPTH = 128
#: Columns from which on it does: with fewer vectors of them at once the micro-kernel waits for its rows, which lie apart.
TURNED_COLUMNS = 48
#: Pixels up to which they are taken as rows: larger planes fill vectors as they are, and lines far apart would be read.
TURNED_PIXELS = 256
#: The same of convolutions, whose windows are copied side by side in any case.
WINDOW_PIXELS = 1024


def packed_forms(program: Program, group: GroupAccess) -> dict[int, str]:
    """Say which products and convolutions of a group have an operand that is packed beforehand: a constant of the model.

    Returns
    -------
    dict of int to str
        By member: ``packed``, its right side is; or ``turned``: its left side is, as the right side of the product of the
        transposed operands, whose columns are those that lie apart in the result (the filters of a convolution).
    """
    forms = {}
    for i, member in enumerate(group.members):
        kernel = library_kernel(member)
        if kernel == "tile":
            if _constant(program, group, i, 1) and _turned_windows(member):
                forms[i] = "turned"
        elif kernel == "product":
            product = contraction_loops(group, i)
            if _constant(program, group, i, product.right):
                if product.rows and product.columns and product.depth:
                    forms[i] = "packed"
            elif _constant(program, group, i, product.left) and _turns(group, i, product):
                forms[i] = "turned"
    return forms


def _turned_windows(member: Member) -> bool:
    """True for a convolution of small planes, in which all windows are alike to its kernel."""
    x, w = (operand.shape for operand in member.operands[:2])
    pixels = actual(prod(member.shape[3:]))
    return actual(x[2]) > 1 and w[1] >= TURNED_COLUMNS and actual(prod(w[2:])) >= TURNED_DEPTH and 1 < pixels <= WINDOW_PIXELS


def window_packing(member: Member) -> Packing:
    """Return how the weights of a convolution are packed: filters are columns, each group's a matrix."""
    groups, filters, *window = map(actual, member.operands[1].shape)
    depth = prod(window)
    return Packing(panel_columns(4), ((groups, filters * depth),), ((filters, depth),), ((depth, 1),))


def _constant(program: Program, group: GroupAccess, i: int, k: int) -> bool:
    operand = group.members[i].operands[k]
    if operand.parameter or (i, k) in group.producers or program.value_name[operand.base] not in program.graph.constants:
        return False
    return all(group.extents[a] > 0 for a in group.reads[(i, k)].strides)


def _turns(group: GroupAccess, i: int, product: Product) -> bool:
    """True when pixels, the columns of the result as it lies, are better taken as rows: they rarely fill vectors to the end."""
    pixels, depth = (prod(group.extents[a] for a in atoms) for atoms in (product.columns, product.depth))
    if prod(group.extents[a] for a in product.rows) < TURNED_COLUMNS or isinstance(pixels, Extent):
        return False
    return depth >= TURNED_DEPTH and 1 < pixels <= WINDOW_PIXELS


@dataclass(frozen=True, slots=True)
class PackedSide:
    """A packed right side as addresses see it.

    Attributes
    ----------
    packing : Packing
    at : dict of int to int
        Steps of its matrices and of what is summed over, by atom.
    column : dict of int to int
        The column that an atom's step moves to.
    panel : int
        Elements from one panel to the next.
    """

    packing: Packing
    at: dict[int, int]
    column: dict[int, int]
    panel: int


def packed_side(group: GroupAccess, i: int, product: Product) -> PackedSide:
    """Describe the packed right side of a product, for the group's extents."""
    linear, extents = group.reads[(i, product.right)], group.extents
    width = panel_columns(group.members[i].itemsize)
    matrices = [a for a in product.batch if linear.strides.get(a)]

    def steps(atoms: Sequence[int], step: int) -> tuple[dict[int, int], int]:
        found = {}
        for atom in reversed(atoms):
            found[atom] = step
            step *= extents[atom]
        return found, step

    column, columns = steps(product.columns, 1)
    at, panel = steps(product.depth, width)
    apart, _ = steps(matrices, -(-columns // width) * panel)

    def loops(atoms: Sequence[int]) -> Loops:
        return tuple((actual(extents[a]), actual(linear.strides.get(a, 0))) for a in atoms)

    packing = Packing(width, loops(matrices), loops(product.columns), loops(product.depth), actual(linear.offset))
    return PackedSide(packing, at | apart, column, panel)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    nbytes = prod(shape) * dtype.itemsize
    block = np.zeros(nbytes + ALIGN, np.uint8)
    start = -block.ctypes.data % ALIGN
    return block[start : start + nbytes].view(dtype).reshape(shape)
