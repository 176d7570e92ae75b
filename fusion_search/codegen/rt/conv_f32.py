"""Convolution and pooling tiles of NCHW float32, called by generated kernels.

Like the matrix product these are functions behind an address.  One call
computes some channels of some output rows of one image into any buffer, so a
kernel can apply its epilogue while the tile is in cache.  Each output element
is the chain ``fma(weight, x, acc)`` over (channel, ky, kx) in order from zero,
padding included, whatever the tile.
"""

from numba import cfunc, njit
from numpy import float32, inf

from fusion_search.codegen.rt.intrinsics import JIT
from fusion_search.codegen.rt.memory import p_i8, table
from fusion_search.codegen.rt.symbols import export, external, ints, named_kernels
from fusion_search.codegen.rt.ukernels import MR
from fusion_search.codegen.rt.windows import (
    PANEL_DEPTH,
    STRIP_BYTES,
    copy_vector,
    fill_offsets,
    fill_strip,
    make_window,
    make_window_rows,
    strip_phases,
    strip_width,
)

_product = named_kernels("f32")[0]
_gemm = external("fs_rt_gemm_f32", 13)
_conv9 = make_window("conv", 9)
_conv25 = make_window("conv", 25)
_conv3x3 = make_window_rows(3, 3)
_conv5x5 = make_window_rows(5, 5)
_conv_any = make_window("conv")
_max4 = make_window("max", 4)
_max9 = make_window("max", 9)
_max_any = make_window("max")
_sum_any = make_window("sum")

_PIXELS = 64
_PANEL_ROW = 256
_SEGMENTS = 1 + _PIXELS
_MAX_POOL = 0
CONV_SIGNATURE = ints(13)
POOL_SIGNATURE = ints(12)


@njit(**JIT)
def _fill_panel(panel, strip, channels, channel_bytes, line, desc, phases, width, segs, n):
    # One row of 64 pixels for each (channel, tap).  A vector may run over the
    # end of its segment: the next segment, or the next row, overwrites it.
    kh, kw, sw, dh, dw = desc[6], desc[7], desc[9], desc[10], desc[11]
    to = panel
    for c in range(channels):
        for ky in range(kh):
            row = strip + c * channel_bytes + ky * dh * line
            for kx in range(kw):
                at = row + ((kx * dw % sw) * width + kx * dw // sw) * 4
                for s in range(n):
                    of = at + segs[3 * s]
                    out = to + segs[3 * s + 1]
                    for v in range(segs[3 * s + 2]):
                        copy_vector(out + v * 64, of + v * 64)
                to += _PANEL_ROW


@njit(**JIT)
def _dense(desc, x, w, dst, channels, h0, h1, dst_ch, dst_row, scratch):
    # x: the group's first channel; w: the block's first filter.
    n_ic, h, width_in, out_w = desc[0], desc[1], desc[2], desc[5]
    kh, kw, sh, sw, dh, dw = desc[6], desc[7], desc[8], desc[9], desc[10], desc[11]
    phases = strip_phases(kw, sw, dw)
    width = strip_width(out_w, kw, sw, dw)
    line = phases * width * 4
    taps = kh * kw
    depth = n_ic * taps
    passes = (depth + PANEL_DEPTH - 1) // PANEL_DEPTH
    step = max(1, (n_ic + passes - 1) // passes)
    if step * taps > PANEL_DEPTH:
        step = max(1, PANEL_DEPTH // taps)
    halo = (kh - 1) * dh + 1
    # Windows of one row skip the rows between: the strip keeps only theirs.
    gap = 1
    if kh == 1:
        gap, sh = sh, 1
    fit = STRIP_BYTES // (step * line)
    most = max(1, (fit - halo) // sh + 1)
    segs = p_i8(scratch, 0)
    panel = scratch + 3 * 8 * _SEGMENTS + 8
    strip = panel + (step * taps) * _PANEL_ROW + 64
    strip = (strip + 63) & ~63
    for y0 in range(h0, h1, most):
        rows = min(most, h1 - y0)
        in_rows = (rows - 1) * sh + halo
        channel_bytes = in_rows * line
        for c0 in range(0, n_ic, step):
            now = min(step, n_ic - c0)
            for c in range(now):
                fill_strip(
                    strip + c * channel_bytes,
                    x + (c0 + c) * desc[16] * 4,
                    desc[17],
                    h,
                    width_in,
                    y0 * sh * gap - desc[12],
                    in_rows,
                    gap,
                    desc[13],
                    sw,
                    phases,
                    width,
                    float32(0),
                )
            # Panels cross output rows only where those are contiguous.
            row, col = 0, 0
            while row < rows:
                out = dst + ((y0 - h0 + row) * dst_row + col) * 4
                pixels, n = 0, 0
                while row < rows and pixels < _PIXELS:
                    take = min(out_w - col, _PIXELS - pixels)
                    segs[3 * n] = row * sh * line + col * 4
                    segs[3 * n + 1] = pixels * 4
                    segs[3 * n + 2] = (take + 15) // 16
                    n += 1
                    pixels += take
                    col += take
                    if col == out_w:
                        row, col = row + 1, 0
                        if dst_row != out_w:
                            break
                _fill_panel(panel, strip, now, channel_bytes, line, desc, phases, width, segs, n)
                for o in range(0, channels, MR):
                    _product(
                        (
                            min(MR, channels - o),
                            pixels,
                            now * taps,
                            w + (o * depth + c0 * taps) * 4,
                            depth * 4,
                            4,
                            panel,
                            _PANEL_ROW,
                            out + o * dst_ch * 4,
                            dst_ch * 4,
                            1 if c0 > 0 else 0,
                        )
                    )


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
def _depthwise(desc, x, w, dst, channels, h0, h1, dst_ch, dst_row, scratch):
    # One input channel, `channels` filters of it.
    taps = desc[6] * desc[7]
    out_w = desc[5]
    _offsets(desc, scratch)
    most = _rows_that_fit(desc)
    square = (desc[6] == 3 and desc[7] == 3) or (desc[6] == 5 and desc[7] == 5)
    blocked = square and desc[8] == 1 and desc[10] == 1
    for y0 in range(h0, h1, most):
        rows = min(most, h1 - y0)
        strip, line = _strip_of_channel(desc, x, y0, rows, float32(0), scratch)
        step = line * desc[8]
        for o in range(channels):
            f = w + o * taps * 4
            out = dst + (o * dst_ch + (y0 - h0) * dst_row) * 4
            done = rows // 4 * 4 if blocked else 0
            if done > 0 and taps == 9:
                _conv3x3(done, out_w, taps, strip, step, scratch, f, out, dst_row * 4)
            elif done > 0:
                _conv5x5(done, out_w, taps, strip, step, scratch, f, out, dst_row * 4)
            of = strip + done * step
            out += done * dst_row * 4
            left = rows - done
            if left == 0:
                continue
            if taps == 9:
                _conv9(left, out_w, taps, of, step, scratch, f, out, dst_row * 4)
            elif taps == 25:
                _conv25(left, out_w, taps, of, step, scratch, f, out, dst_row * 4)
            else:
                _conv_any(left, out_w, taps, of, step, scratch, f, out, dst_row * 4)


@cfunc(CONV_SIGNATURE, cache=True, error_model="numpy")
def conv_tile_f32(desc_at, x, w, dst, image, group, oc0, oc1, h0, h1, dst_ch, dst_row, scratch):
    """One convolution tile, see `conv.call_conv_tile`."""
    desc = table(desc_at)
    if oc1 <= oc0 or h1 <= h0:
        return
    n_ic, kh, kw = desc[0], desc[6], desc[7]
    channels = oc1 - oc0
    scratch = (scratch + 63) & ~63
    x += (image * desc[15] + group * n_ic * desc[16]) * 4
    w += (group * desc[3] + oc0) * n_ic * kh * kw * 4
    out_w = desc[5]
    pointwise = kh * kw == 1 and desc[8] * desc[9] == 1 and desc[12] == 0 and desc[13] == 0
    inside = out_w == desc[2] and desc[4] == desc[1] and desc[17] == out_w
    if pointwise and inside:
        rows = h1 - h0 if dst_row == out_w else 1
        for y in range(h0, h1, rows):
            at = x + y * out_w * 4
            out = dst + (y - h0) * dst_row * 4
            n = rows * out_w
            _gemm((channels, n, n_ic, w, n_ic, 1, at, desc[16], 1, out, dst_ch, 0, scratch))
    elif n_ic == 1 and channels < 8:
        _depthwise(desc, x, w, dst, channels, h0, h1, dst_ch, dst_row, scratch)
    else:
        _dense(desc, x, w, dst, channels, h0, h1, dst_ch, dst_row, scratch)


export("fs_rt_conv_tile_f32", conv_tile_f32)
_conv_tile = external("fs_rt_conv_tile_f32", 13)


@cfunc(POOL_SIGNATURE, cache=True, error_model="numpy")
def pool_tile_f32(desc_at, x, dst, image, c0, c1, h0, h1, dst_ch, dst_row, kind, scratch):
    """One pooling tile, see `conv.call_pool_tile`."""
    desc = table(desc_at)
    scratch = (scratch + 63) & ~63
    taps = desc[6] * desc[7]
    out_w = desc[5]
    value = float32(-inf) if kind == _MAX_POOL else float32(0)
    _offsets(desc, scratch)
    most = _rows_that_fit(desc)
    for c in range(c0, c1):
        plane = x + (image * desc[15] + c * desc[16]) * 4
        for y0 in range(h0, h1, most):
            rows = min(most, h1 - y0)
            strip, line = _strip_of_channel(desc, plane, y0, rows, value, scratch)
            step = line * desc[8]
            out = dst + ((c - c0) * dst_ch + (y0 - h0) * dst_row) * 4
            if kind != _MAX_POOL:
                _sum_any(rows, out_w, taps, strip, step, scratch, 0, out, dst_row * 4)
            elif taps == 4:
                _max4(rows, out_w, taps, strip, step, scratch, 0, out, dst_row * 4)
            elif taps == 9:
                _max9(rows, out_w, taps, strip, step, scratch, 0, out, dst_row * 4)
            else:
                _max_any(rows, out_w, taps, strip, step, scratch, 0, out, dst_row * 4)


@cfunc(ints(4), cache=True, error_model="numpy")
def conv_items_f32(args_at, scratch, lo, hi):
    """Whole convolution as a driver kernel, see `conv.conv_argtable`."""
    args = table(args_at)
    desc = table(args[0])
    oc_block, row_block = args[4], args[5]
    n_oc, out_h, groups = desc[3], desc[4], desc[14]
    oc_blocks = (n_oc + oc_block - 1) // oc_block
    row_blocks = (out_h + row_block - 1) // row_block
    for item in range(lo, hi):
        rb = item % row_blocks
        rest = item // row_blocks
        ob = rest % oc_blocks
        rest //= oc_blocks
        group = rest % groups
        image = rest // groups
        oc0, h0 = ob * oc_block, rb * row_block
        dst = args[3] + (image * args[6] + (group * n_oc + oc0) * args[7] + h0 * args[8]) * 4
        _conv_tile(
            (
                args[0],
                args[1],
                args[2],
                dst,
                image,
                group,
                oc0,
                min(oc0 + oc_block, n_oc),
                h0,
                min(h0 + row_block, out_h),
                args[7],
                args[8],
                scratch,
            )
        )
