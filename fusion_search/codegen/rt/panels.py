"""Panels of a dense convolution: the windows of up to 64 pixels, one row for each channel and tap.

A panel's vector of 16 pixels is put together from *pieces*, since neighbouring
pixels are neighbours in the strip only within an output row. The pieces of a
panel are the same for every channel and tap, so they are found once and copied
in loops without a test.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, I64, JIT
from fusion_search.codegen.rt.ukernels import VectorCode

#: Pixels of a panel, and bytes of its rows.
PANEL_PIXELS = 64
PANEL_ROW = 4 * PANEL_PIXELS
#: Numbers of a piece: its vector, its first lane, bytes from the strip's start.
PIECE = 3
#: Pieces of a panel at most: each pixel an output row of its own.
MOST_PIECES = PANEL_PIXELS


def _i64(value):
    return ir.Constant(I64, value)


def _make_copy(kw):
    """Build the copy of one piece for all channels and taps; `kw` taps a row are unrolled, 0 reads their number.

    ``copy(dst, src, first_lane, channels, channel_bytes, kh, row_bytes, n, columns)``: `columns` is the address of the
    int64 byte offset of each of the `n` taps of a row.
    """
    code = VectorCode(F32)

    def body(b, dst, src, first_lane, channels, channel_bytes, kh, row_bytes, n, columns):
        def offset(kx):
            return b.load(b.inttoptr(b.add(columns, b.mul(kx, _i64(8))), I64.as_pointer()))

        known = [offset(_i64(kx)) for kx in range(kw)]

        def loops(mask):
            slot = cgutils.alloca_once(b, I64)
            b.store(dst, slot)
            with cgutils.for_range(b, channels) as channel:
                plane = b.add(src, b.mul(channel.index, channel_bytes))
                with cgutils.for_range(b, kh) as ky:
                    row = b.add(plane, b.mul(ky.index, row_bytes))
                    if kw:
                        to = b.load(slot)
                        for kx in range(kw):
                            code.store(b, code.load(b, b.add(row, known[kx])), b.add(to, _i64(PANEL_ROW * kx)), mask)
                        b.store(b.add(to, _i64(PANEL_ROW * kw)), slot)
                    else:
                        with cgutils.for_range(b, n) as kx:
                            to = b.load(slot)
                            code.store(b, code.load(b, b.add(row, offset(kx.index))), to, mask)
                            b.store(b.add(to, _i64(PANEL_ROW)), slot)

        whole = b.icmp_signed("==", first_lane, _i64(0))
        with b.if_else(whole) as (then, otherwise):
            with then:
                loops(None)
            with otherwise:
                loops(b.not_(code.first_lanes(b, first_lane)))

    def copy(typingctx, args):
        def codegen(context, builder, signature, values):
            fn = code.outlined(builder.module, f"fs_piece_{kw}", 9, body)
            builder.call(fn, cgutils.unpack_tuple(builder, values[0], 9))
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, 9)), codegen

    return intrinsic(copy)


_copy1 = _make_copy(1)
_copy3 = _make_copy(3)
_copy_any = _make_copy(0)


@njit(**JIT)
def find_pieces(pieces, row, col, rows, out_w, row_bytes, joined):
    """Find the pieces of the panel that begins at an output pixel.

    Parameters
    ----------
    pieces : pointer to int64
        Room for `MOST_PIECES` times `PIECE` numbers.
    row, col : int64
        The pixel.
    rows, out_w : int64
        Output rows and columns of the strip.
    row_bytes : int64
        Bytes in the strip from an output row's first tap to the next one's.
    joined : bool
        Whether a panel may go on in the next row.

    Returns
    -------
    count, pixels, row, col : int64
        Number of pieces and pixels, and the pixel after them.
    """
    count, pixels = 0, 0
    while row < rows and pixels < PANEL_PIXELS:
        take = min(out_w - col, PANEL_PIXELS - pixels)
        at = row * row_bytes + (col - pixels) * 4
        for vector in range(pixels // 16, (pixels + take + 15) // 16):
            pieces[PIECE * count] = vector
            pieces[PIECE * count + 1] = max(pixels - 16 * vector, 0)
            pieces[PIECE * count + 2] = at + vector * 64
            count += 1
        pixels += take
        col += take
        if col == out_w:
            row, col = row + 1, 0
            if not joined:
                break
    return count, pixels, row, col


@njit(**JIT)
def fill_panel(panel, strip, pieces, count, channels, channel_bytes, kh, row_bytes, kw, columns):
    """Copy the pieces of a panel for all channels and taps; a piece's later lanes are those of the next one."""
    for i in range(count):
        dst = panel + pieces[PIECE * i] * 64
        args = (dst, strip + pieces[PIECE * i + 2], pieces[PIECE * i + 1], channels, channel_bytes, kh, row_bytes, kw, columns)
        if kw == 3:
            _copy3(args)
        elif kw == 1:
            _copy1(args)
        else:
            _copy_any(args)
