"""Convolution and pooling tiles of NCHW float32, called by generated kernels.

Like the matrix product these are functions behind an address.  One call
computes some channels of some output rows of one image into any buffer, so a
kernel can apply its epilogue while the tile is in cache.  Each output element
is the chain ``fma(weight, x, acc)`` over (channel, ky, kx) in order from the
bias, padding included, whatever the tile.
"""

from numba import cfunc, njit
from numpy import float32, inf

from fusion_search.codegen.rt.conv import COLUMNS_PACKED
from fusion_search.codegen.rt.gemm_body import make_turn_out
from fusion_search.codegen.rt.intrinsics import JIT
from fusion_search.codegen.rt.memory import p_f4, p_i8, table
from fusion_search.codegen.rt.panels import MOST_PIECES, PANEL_DEPTH, PANEL_PIXELS, PANEL_ROW, PIECE, fill_panel, find_pieces
from fusion_search.codegen.rt.planes import make_planes
from fusion_search.codegen.rt.symbols import external, ints, named_kernels
from fusion_search.codegen.rt.ukernels import MR, NV
from fusion_search.codegen.rt.windows import (
    fill_offsets,
    fill_strip,
    make_window,
    strip_phases,
    strip_width,
)

_product, _, _transpose, _, _, _column = named_kernels("f32")
_gemm = external("fs_rt_gemm_f32", 13)
_gemm_turned = external("fs_rt_gemm_turned_f32", 13)
_turn_out = make_turn_out(_transpose, p_f4, 4)
_conv9 = make_window("conv", 9)
_conv_any = make_window("conv")
_max_any = make_window("max")
_sum_any = make_window("sum")
_conv3x3 = make_planes("conv", (3, 3), 1)
_conv3x3_2 = make_planes("conv", (3, 3), 2)
_conv5x5 = make_planes("conv", (5, 5), 1)
_conv5x5_2 = make_planes("conv", (5, 5), 2)
_conv7x7 = make_planes("conv", (7, 7), 1)
_max2x2_2 = make_planes("max", (2, 2), 2)
_max3x3 = make_planes("max", (3, 3), 1)
_max3x3_2 = make_planes("max", (3, 3), 2)
_sum3x3 = make_planes("sum", (3, 3), 1)
_sum2x2_2 = make_planes("sum", (2, 2), 2)

_MAX_POOL = 0
CONV_SIGNATURE = ints(16)
POOL_SIGNATURE = ints(12)


@njit(**JIT)
def _channels_of_panel(n_ic, taps):
    # Input channels whose windows one panel holds, about as many each time.
    passes = (n_ic * taps + PANEL_DEPTH - 1) // PANEL_DEPTH
    step = max(1, (n_ic + passes - 1) // passes)
    return step if step * taps <= PANEL_DEPTH else max(1, PANEL_DEPTH // taps)


@njit(**JIT)
def _dense(desc, x, w, first, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch):
    # x: the group's first channel; w: its weights, where the block begins at filter `first`; bias: of that filter on.
    n_ic, out_w, taps = desc[0], desc[5], desc[6] * desc[7]
    depth = n_ic * taps
    step = _channels_of_panel(n_ic, taps)
    pieces = p_i8(scratch, 0)
    spare = (scratch + 8 * PIECE * MOST_PIECES + 63) & ~63
    panel = spare + 64
    for c0 in range(0, n_ic, step):
        now = min(step, n_ic - c0)
        row, col = h0, 0
        while row < h1:
            out = dst + ((row - h0) * dst_row + col) * 4
            # Panels cross output rows only where those are contiguous.
            count, pixels, row, col = find_pieces(pieces, desc, row, col, h1, dst_row == out_w)
            fill_panel(panel, x + c0 * desc[16] * 4, pieces, count, now, desc)
            filters = w + (first * depth + c0 * taps) * 4
            if pixels % 16 == 1 and pixels > 16 and channels >= 16:
                # a vector for one pixel would cost as much as for sixteen
                pixels -= 1
                start = 1 if c0 > 0 else bias
                _column((channels, now * taps, filters, depth, panel + pixels * 4, PANEL_PIXELS, out + pixels * 4, dst_ch, start, spare))
            for o in range(0, channels, MR):
                begin = bias + o * 4 if bias != 0 else 0
                _product(
                    (
                        min(MR, channels - o),
                        pixels,
                        now * taps,
                        filters + o * depth * 4,
                        depth * 4,
                        4,
                        panel,
                        PANEL_ROW,
                        out + o * dst_ch * 4,
                        dst_ch * 4,
                        1 if c0 > 0 else begin,
                        panel,
                    )
                )


@njit(**JIT)
def _dense_turned(desc, x, w, first, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch):
    # Pixels are the rows and filters the columns, whose vectors are full whatever the size of the plane.
    n_ic, out_w, taps = desc[0], desc[5], desc[6] * desc[7]
    depth = n_ic * taps
    step = _channels_of_panel(n_ic, taps)
    pieces = p_i8(scratch, 0)
    panel = (scratch + 8 * PIECE * MOST_PIECES + 63) & ~63
    tiles = panel + step * taps * PANEL_ROW
    width = 16 * NV
    row, col = h0, 0
    while row < h1:
        out = dst + ((row - h0) * dst_row + col) * 4
        count, pixels, row, col = find_pieces(pieces, desc, row, col, h1, dst_row == out_w)
        for c0 in range(0, n_ic, step):
            now = min(step, n_ic - c0)
            fill_panel(panel, x + c0 * desc[16] * 4, pieces, count, now, desc)
            o, tile = 0, tiles
            while o < channels:
                inner = (first + o) % width
                block = min(width - inner, channels - o)
                if c0 == 0 and bias != 0:
                    start = p_f4(bias, o)
                    t = p_f4(tile, 0)
                    for i in range(pixels):
                        for j in range(block):
                            t[i * width + j] = start[j]
                filters = w + ((first + o - inner) * depth + c0 * taps * width + inner) * 4
                ahead = filters + depth * width * 4
                add = 1 if c0 > 0 or bias != 0 else 0
                for r in range(0, pixels, MR):
                    rows = min(MR, pixels - r)
                    to = tile + r * width * 4
                    _product((rows, block, now * taps, panel + r * 4, 4, PANEL_ROW, filters, width * 4, to, width * 4, add, ahead))
                    ahead = ahead + now * taps * 64 if r < NV * MR else filters
                o += block
                tile += PANEL_PIXELS * width * 4
        o, tile = 0, tiles
        while o < channels:
            block = min(width - (first + o) % width, channels - o)
            _turn_out(out + o * dst_ch * 4, dst_ch, tile, pixels, block)
            o += block
            tile += PANEL_PIXELS * width * 4


@njit(**JIT)
def _strip_of_channel(desc, x, h0, rows, value, scratch):
    # Fill the strip of one channel; return its address and bytes a row.
    phases = strip_phases(desc[7], desc[9], desc[11])
    width = strip_width(desc[5], desc[7], desc[9], desc[11])
    taps = desc[6] * desc[7]
    strip = (scratch + taps * 8 + 63) & ~63
    in_rows = (rows - 1) * desc[8] + (desc[6] - 1) * desc[10] + 1
    top = h0 * desc[8] - desc[12]
    h, w, left, sw = desc[1], desc[2], desc[13], desc[9]
    fill_strip(strip, x, desc[17], h, w, top, in_rows, 1, left, sw, phases, width, value)
    return strip, phases * width * 4


@njit(**JIT)
def _rows_that_fit(desc):
    # Output rows whose one-channel strip stays in half of L1.
    phases = strip_phases(desc[7], desc[9], desc[11])
    line = phases * strip_width(desc[5], desc[7], desc[9], desc[11]) * 4
    rows = (16384 // line - (desc[6] - 1) * desc[10]) // desc[8]
    return max(4, rows // 4 * 4)


@njit(**JIT)
def _offsets(desc, scratch):
    phases = strip_phases(desc[7], desc[9], desc[11])
    width = strip_width(desc[5], desc[7], desc[9], desc[11])
    fill_offsets(p_i8(scratch, 0), desc[6], desc[7], desc[9], desc[10], desc[11], phases, width)


@njit(**JIT)
def _pad_row(desc, scratch, value):
    # A row of padding for windows that read planes where they lie.
    row = p_f4(scratch, 0)
    for i in range(desc[2]):
        row[i] = value


@njit(**JIT)
def _plain(desc):
    # The window's shape as one number where it is read in place, else 0.
    square = desc[6] == desc[7] and desc[8] == desc[9] and desc[10] == 1 and desc[11] == 1
    return desc[6] * 10 + desc[8] if square else 0


@njit(**JIT)
def _convolve_planes(desc, count, x, x_next, w, bias, dst, dst_next, h0, rows, dst_row, scratch):
    # Some planes, each by its own filter; False where no code is made for the window.
    kind = _plain(desc)
    _pad_row(desc, scratch, float32(0))
    w_next = desc[6] * desc[7] * 4
    where = (count, x, x_next * 4, w, w_next, bias, dst, dst_next * 4)
    args = (*where, desc[1], desc[2], desc[17] * 4, h0, rows, desc[5], desc[12], desc[13], dst_row * 4, scratch)
    if kind == 31:
        _conv3x3(args)
    elif kind == 32:
        _conv3x3_2(args)
    elif kind == 51:
        _conv5x5(args)
    elif kind == 52:
        _conv5x5_2(args)
    elif kind == 71:
        _conv7x7(args)
    else:
        return False
    return True


@njit(**JIT)
def _single(desc, x, w, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch):
    # One input channel, `channels` filters of it, from its strip.
    taps = desc[6] * desc[7]
    out_w = desc[5]
    _offsets(desc, scratch)
    most = _rows_that_fit(desc)
    for y0 in range(h0, h1, most):
        rows = min(most, h1 - y0)
        strip, line = _strip_of_channel(desc, x, y0, rows, float32(0), scratch)
        step = line * desc[8]
        for o in range(channels):
            f = w + o * taps * 4
            out = dst + (o * dst_ch + (y0 - h0) * dst_row) * 4
            begin = bias + o * 4 if bias != 0 else 0
            if taps == 9:
                _conv9(rows, out_w, taps, strip, step, scratch, f, begin, out, dst_row * 4)
            else:
                _conv_any(rows, out_w, taps, strip, step, scratch, f, begin, out, dst_row * 4)


@njit(**JIT)
def _pointwise(desc, x, w, first, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch):
    # The image itself is the product's right side, or its left side where filters are columns.
    n_ic, out_w = desc[0], desc[5]
    rows = h1 - h0 if dst_row == out_w else 1
    for y in range(h0, h1, rows):
        at = x + y * out_w * 4
        out = dst + (y - h0) * dst_row * 4
        n = rows * out_w
        if desc[18] == COLUMNS_PACKED:
            _gemm_turned((n, channels, n_ic, at, 1, desc[16], w, n_ic * 16 * NV, first, out, dst_ch, bias, scratch))
        else:
            mine = w + first * n_ic * 4
            _gemm((channels, n, n_ic, mine, n_ic, 1, at, desc[16], 1, out, dst_ch, bias, scratch))


@cfunc(CONV_SIGNATURE, cache=True, error_model="numpy")
def conv_tile_f32(desc_at, x, w, bias, dst, image, g0, g1, oc0, oc1, h0, h1, dst_group, dst_ch, dst_row, scratch):
    """One convolution tile, see `conv.CONV_ARGUMENTS`."""
    desc = table(desc_at)
    if g1 <= g0 or oc1 <= oc0 or h1 <= h0:
        return
    scratch = (scratch + 63) & ~63
    n_ic, n_oc, taps, out_w = desc[0], desc[3], desc[6] * desc[7], desc[5]
    channels = oc1 - oc0
    x += (image * desc[15] + g0 * n_ic * desc[16]) * 4
    of_group = desc[19]  # elements from one group's weights to the next one's
    w += g0 * of_group * 4
    if bias != 0:
        bias += (g0 * n_oc + oc0) * 4
    plain = w + oc0 * n_ic * taps * 4
    if n_ic == 1 and n_oc == 1 and _convolve_planes(desc, g1 - g0, x, desc[16], plain, bias, dst, dst_group, h0, h1 - h0, dst_row, scratch):
        return
    pointwise = taps == 1 and desc[8] * desc[9] == 1 and desc[12] == 0 and desc[13] == 0
    inside = out_w == desc[2] and desc[4] == desc[1] and desc[17] == out_w
    for _ in range(g0, g1):
        if pointwise and inside:
            _pointwise(desc, x, w, oc0, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch)
        elif desc[18] == COLUMNS_PACKED:
            _dense_turned(desc, x, w, oc0, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch)
        elif n_ic > 1 or channels >= 8:
            _dense(desc, x, w, oc0, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch)
        elif not _convolve_planes(desc, channels, x, 0, plain, bias, dst, dst_ch, h0, h1 - h0, dst_row, scratch):
            _single(desc, x, plain, bias, dst, channels, h0, h1, dst_ch, dst_row, scratch)
        x += n_ic * desc[16] * 4
        w += of_group * 4
        plain += of_group * 4
        dst += dst_group * 4
        if bias != 0:
            bias += n_oc * 4


@njit(**JIT)
def _pool_planes(desc, kind, count, x, dst, dst_next, h0, rows, dst_row, scratch):
    # False where no code is made for the window.
    shape = _plain(desc)
    _pad_row(desc, scratch, float32(-inf) if kind == _MAX_POOL else float32(0))
    where = (count, x, desc[16] * 4, 0, 0, 0, dst, dst_next * 4)
    args = (*where, desc[1], desc[2], desc[17] * 4, h0, rows, desc[5], desc[12], desc[13], dst_row * 4, scratch)
    if kind == _MAX_POOL and shape == 22:
        _max2x2_2(args)
    elif kind == _MAX_POOL and shape == 31:
        _max3x3(args)
    elif kind == _MAX_POOL and shape == 32:
        _max3x3_2(args)
    elif kind != _MAX_POOL and shape == 31:
        _sum3x3(args)
    elif kind != _MAX_POOL and shape == 22:
        _sum2x2_2(args)
    else:
        return False
    return True


@cfunc(POOL_SIGNATURE, cache=True, error_model="numpy")
def pool_tile_f32(desc_at, x, dst, image, c0, c1, h0, h1, dst_ch, dst_row, kind, scratch):
    """One pooling tile, see `conv.POOL_ARGUMENTS`."""
    desc = table(desc_at)
    if c1 <= c0 or h1 <= h0:
        return
    scratch = (scratch + 63) & ~63
    x += (image * desc[15] + c0 * desc[16]) * 4
    if _pool_planes(desc, kind, c1 - c0, x, dst, dst_ch, h0, h1 - h0, dst_row, scratch):
        return
    taps = desc[6] * desc[7]
    out_w = desc[5]
    value = float32(-inf) if kind == _MAX_POOL else float32(0)
    _offsets(desc, scratch)
    most = _rows_that_fit(desc)
    for c in range(c1 - c0):
        plane = x + c * desc[16] * 4
        for y0 in range(h0, h1, most):
            rows = min(most, h1 - y0)
            strip, line = _strip_of_channel(desc, plane, y0, rows, value, scratch)
            step = line * desc[8]
            out = dst + (c * dst_ch + (y0 - h0) * dst_row) * 4
            if kind != _MAX_POOL:
                _sum_any(rows, out_w, taps, strip, step, scratch, 0, 0, out, dst_row * 4)
            else:
                _max_any(rows, out_w, taps, strip, step, scratch, 0, 0, out, dst_row * 4)
