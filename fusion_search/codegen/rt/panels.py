"""Panels of a dense convolution: the windows of up to 64 pixels, one row for each channel and tap.

A panel's vector of 16 pixels is put together from *pieces*, since neighbouring
pixels see neighbouring columns only within an output row. A piece is read where
it lies, for all channels and taps; what would lie outside the image is masked
away.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, I1, I32, I64, JIT
from fusion_search.codegen.rt.ukernels import VectorCode

#: Pixels of a panel, and bytes of its rows.
PANEL_PIXELS = 64
PANEL_ROW = 4 * PANEL_PIXELS
#: Depth of a panel, when one channel's window is not deeper.
PANEL_DEPTH = 384
#: Numbers of a piece: its vector, its first lane, the input column and row of lane 0's first tap.
PIECE = 4
#: Pieces of a panel at most: each pixel an output row of its own.
MOST_PIECES = PANEL_PIXELS


def _i64(value):
    return ir.Constant(I64, value)


def _gather(code, b, addr, step, mask):
    """Load 16 numbers `step` elements apart under a mask."""
    index = ir.VectorType(I64, 16)
    spread = ir.VectorType(I32, 16)
    zeros = ir.Constant(spread, [0] * 16)

    def splat(value):
        one = b.insert_element(ir.Constant(index, ir.Undefined), value, ir.Constant(I32, 0))
        return b.shuffle_vector(one, ir.Constant(index, ir.Undefined), zeros)

    lanes = b.mul(ir.Constant(index, list(range(16))), splat(b.mul(step, _i64(4))))
    pointers = b.inttoptr(b.add(splat(addr), lanes), ir.VectorType(F32.as_pointer(), 16))
    masks = ir.VectorType(I1, 16)
    fn_type = ir.FunctionType(code.vec, [pointers.type, I32, masks, code.vec])
    fn = cgutils.get_or_insert_function(b.module, fn_type, "llvm.masked.gather.v16f32.v16p0")
    return b.call(fn, [pointers, ir.Constant(I32, 4), mask, code.const(0.0)])


def _make_copy(step, columns=0):
    """Build the copy of one piece, for a column stride of 1, of 2, or (0) of any.

    ``copy(dst, plane, next_plane, channels, first_lane, col, row, w, h, row_bytes, kh, kw, dh, dw, stride)``: `plane` is the
    address of the first channel's first element; the piece goes to `dst` and a panel row further for each tap. Windows of
    `columns` columns, side by side, are unrolled.
    """
    code = VectorCode(F32)
    nothing = ir.Constant(ir.VectorType(I1, 16), [0] * 16)

    def body(b, dst, plane, next_plane, channels, first_lane, col, row, w, h, row_bytes, kh, kw, dh, dw, stride):
        next_panel = b.mul(b.mul(kh, kw), _i64(PANEL_ROW))
        whole = b.icmp_signed("==", first_lane, _i64(0))
        kept = b.not_(code.first_lanes(b, first_lane))

        def inside(x, starts):
            low, high = b.sub(_i64(0), x), b.sub(w, x)
            return [code.lanes_between(b, b.sub(low, _i64(s)), b.sub(high, _i64(s))) for s in starts]

        def rows(x, kx, masks, values):
            """Copy the taps from column `kx` on, one or `columns`, of every row and channel."""
            with cgutils.for_range(b, kh) as ky:
                y = b.add(row, b.mul(ky.index, dh))
                known = b.icmp_unsigned("<", y, h)
                here = [b.select(known, mask, nothing) for mask in masks]
                of = b.add(plane, b.add(b.mul(y, row_bytes), b.mul(x, _i64(4))))
                to = b.add(dst, b.mul(b.add(b.mul(ky.index, kw), kx), _i64(PANEL_ROW)))

                def loop(mask):
                    with cgutils.for_range(b, channels) as channel:
                        at = b.add(of, b.mul(channel.index, next_plane))
                        into = b.add(to, b.mul(channel.index, next_panel))
                        for k, value in enumerate(values(at, here)):
                            code.store(b, value, b.add(into, _i64(PANEL_ROW * k)), mask)

                with b.if_else(whole) as (then, otherwise):
                    with then:
                        loop(None)
                    with otherwise:
                        loop(kept)

        starts = list(range(max(columns, 1))) if step == 1 else [0, 16] if columns < 2 else [0, 16, 32]

        def side_by_side(at, masks):
            loaded = [code.load(b, b.add(at, _i64(4 * s)), m) for s, m in zip(starts, masks, strict=True)]
            return loaded if step == 1 else code.every_other(b, loaded, max(columns, 1))

        if columns:
            rows(col, _i64(0), inside(col, starts), side_by_side)
            return
        with cgutils.for_range(b, kw) as kx:
            x = b.add(col, b.mul(kx.index, dw))
            if step:
                rows(x, kx.index, inside(x, starts), side_by_side)
            else:  # lanes i with 0 <= x + i * stride < w
                up = b.sub(stride, _i64(1))
                ends = [b.sdiv(b.add(b.sub(n, x), up), stride) for n in (_i64(0), w)]
                rows(x, kx.index, [code.lanes_between(b, *ends)], lambda at, masks: [_gather(code, b, at, stride, masks[0])])

    def copy(typingctx, args):
        def codegen(context, builder, signature, values):
            fn = code.outlined(builder.module, f"fs_piece_{step}_{columns}", 15, body)
            builder.call(fn, cgutils.unpack_tuple(builder, values[0], 15))
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, 15)), codegen

    return intrinsic(copy)


_copy1 = _make_copy(1)
_copy1x1 = _make_copy(1, 1)
_copy1x3 = _make_copy(1, 3)
_copy1x5 = _make_copy(1, 5)
_copy2 = _make_copy(2)
_copy2x1 = _make_copy(2, 1)
_copy2x3 = _make_copy(2, 3)
_copy2x7 = _make_copy(2, 7)
_copy_any = _make_copy(0)


@njit(**JIT)
def find_pieces(pieces, desc, row, col, end, joined):
    """Find the pieces of the panel that begins at an output pixel.

    Parameters
    ----------
    pieces : pointer to int64
        Room for `MOST_PIECES` times `PIECE` numbers.
    desc : pointer to int64
        `WindowShape.descriptor`.
    row, col : int64
        The pixel.
    end : int64
        The output row past the last one.
    joined : bool
        Whether a panel may go on in the next row.

    Returns
    -------
    count, pixels, row, col : int64
        Number of pieces and pixels, and the pixel after them.
    """
    out_w = desc[5]
    count, pixels = 0, 0
    while row < end and pixels < PANEL_PIXELS:
        take = min(out_w - col, PANEL_PIXELS - pixels)
        for vector in range(pixels // 16, (pixels + take + 15) // 16):
            pieces[PIECE * count] = vector
            pieces[PIECE * count + 1] = max(pixels - 16 * vector, 0)
            pieces[PIECE * count + 2] = (col - pixels + 16 * vector) * desc[9] - desc[13]
            pieces[PIECE * count + 3] = row * desc[8] - desc[12]
            count += 1
        pixels += take
        col += take
        if col == out_w:
            row, col = row + 1, 0
            if not joined:
                break
    return count, pixels, row, col


@njit(**JIT)
def fill_panel(panel, plane, pieces, count, channels, desc):
    """Copy the pieces of a panel from `channels` planes; the later lanes of one are those of the next."""
    for i in range(count):
        at = PIECE * i
        where = (panel + pieces[at] * 64, plane, desc[16] * 4, channels, pieces[at + 1], pieces[at + 2], pieces[at + 3])
        args = (*where, desc[2], desc[1], desc[17] * 4, desc[6], desc[7], desc[10], desc[11], desc[9])
        kind = desc[9] * 10 + desc[7] if desc[11] == 1 or desc[7] == 1 else 0
        if kind == 11:
            _copy1x1(args)
        elif kind == 13:
            _copy1x3(args)
        elif kind == 15:
            _copy1x5(args)
        elif kind == 21:
            _copy2x1(args)
        elif kind == 23:
            _copy2x3(args)
        elif kind == 27:
            _copy2x7(args)
        elif desc[9] == 1:
            _copy1(args)
        elif desc[9] == 2:
            _copy2(args)
        else:
            _copy_any(args)
