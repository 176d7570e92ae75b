"""Sliding windows over one channel, and the padded strip they read.

The strip is a copy of some input rows with their padding, the columns split by
their phase modulo the column stride.  In it every tap of every window reads
contiguous columns whatever the stride, dilation and padding, so convolution
and pooling need no case distinction and no bounds test in their inner loops.
"""

from functools import partial

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, I32, I64, JIT, f32_bits
from fusion_search.codegen.rt.memory import p_f4
from fusion_search.codegen.rt.ukernels import VectorCode

#: Elements a vector load may read past the last column of a strip row.
STRIP_MARGIN = 16


def _i64(value):
    return ir.Constant(I64, value)


def combined(code, kind, b, acc, x, weight):
    """Reduce one tap of a window into `acc`: a product with its weight, a sum, or a maximum that keeps NaN."""
    if kind == "conv":
        return code.fma(b, weight, x, acc)
    if kind == "sum":
        return b.fadd(acc, x)
    best = b.select(b.fcmp_ordered(">", acc, x), acc, x)
    keep = b.select(b.fcmp_unordered("uno", acc, acc), acc, code.const(-0.0))
    return b.fadd(best, keep)


def make_window(kind, taps=0):
    """Build the loop over the output pixels of one channel.

    Parameters
    ----------
    kind : str
        "conv", "max" or "sum".  "max" keeps NaN as NumPy does.
    taps : int
        Number of taps if known, to unroll; 0 to read it from the arguments.

    Returns
    -------
    intrinsic
        ``window(rows, cols, n_taps, src, src_row, offsets, weights, start,
        dst, dst_row)``; strides in bytes, `offsets` the address of the int64
        byte offset of each tap, `start` that of what to start from, or 0: then
        taps are reduced in order from 0 (-inf for max).
    """
    code = VectorCode(F32)
    combine = partial(combined, code, kind)

    def body(b, rows, cols, n_taps, src, src_row, offsets, weights, given, dst, dst_row):
        start = code.const(float("-inf") if kind == "max" else 0.0)
        if kind == "conv":
            some = b.icmp_signed("!=", given, _i64(0))
            at = b.inttoptr(b.select(some, given, weights), F32.as_pointer())
            start = b.select(some, code.splat(b, b.load(at, align=4)), start)

        def offset_of(t):
            at = b.add(offsets, b.mul(t, _i64(8)))
            return b.load(b.inttoptr(at, I64.as_pointer()))

        def weight_of(t):
            if kind != "conv":
                return None
            at = b.inttoptr(b.add(weights, b.mul(t, _i64(4))), F32.as_pointer())
            return code.splat(b, b.load(at, align=4))

        known = [(offset_of(_i64(t)), weight_of(_i64(t))) for t in range(taps)]
        slot = cgutils.alloca_once(b, code.vec)

        def pixels(of, to, mask):
            if taps:
                acc = start
                for offset, weight in known:
                    acc = combine(b, acc, code.load(b, b.add(of, offset)), weight)
            else:
                b.store(start, slot)
                with cgutils.for_range(b, n_taps) as loop:
                    x = code.load(b, b.add(of, offset_of(loop.index)))
                    b.store(combine(b, b.load(slot), x, weight_of(loop.index)), slot)
                acc = b.load(slot)
            code.store(b, acc, to, mask)

        blocks = b.sdiv(cols, _i64(16))
        rest = b.sub(cols, b.mul(blocks, _i64(16)))
        mask = code.first_lanes(b, rest)
        with cgutils.for_range(b, rows) as row:
            of = b.add(src, b.mul(row.index, src_row))
            to = b.add(dst, b.mul(row.index, dst_row))
            with cgutils.for_range(b, blocks) as block:
                at = b.mul(block.index, _i64(64))
                pixels(b.add(of, at), b.add(to, at), None)
            with b.if_then(b.icmp_signed(">", rest, _i64(0))):
                at = b.mul(blocks, _i64(64))
                pixels(b.add(of, at), b.add(to, at), mask)

    def window(typingctx, rows, cols, n_taps, src, src_row, offsets, weights, start, dst, dst_row):
        def codegen(context, builder, signature, args):
            fn = code.outlined(builder.module, f"fs_window_{kind}_{taps}", 10, body)
            builder.call(fn, args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), codegen

    return intrinsic(window)


@njit(**JIT)
def strip_width(out_w, kw, sw, dw):
    """Return the elements of one phase of one strip row, a multiple of 16."""
    return (out_w + (kw - 1) * dw // sw + STRIP_MARGIN + 15) // 16 * 16


@njit(**JIT)
def strip_phases(kw, sw, dw):
    """Return how many phases, from 0 on, the taps of a row can touch."""
    return min(sw, (kw - 1) * dw + 1)


def _make_fill(step):
    """Build ``fill(dst, dst_row, src, src_row, rows, first, count, width, bits)``.

    Each row of `width` elements, a multiple of 16, becomes padding, then
    `count` elements of its source, `step` apart, from element `first` on, then
    padding: at least 16 elements of it, or nothing but padding.  Row strides
    are bytes, `bits` are those of the padding.
    """
    code = VectorCode(F32)

    def body(b, dst, dst_row, src, src_row, rows, first, count, width, bits):
        value = code.splat(b, b.bitcast(b.trunc(bits, I32), F32))
        left_blocks = b.sdiv(b.add(first, _i64(15)), _i64(16))
        blocks = b.sdiv(count, _i64(16))
        done = b.mul(blocks, _i64(16))
        rest = b.sub(count, done)
        # With a step of 2 the last element of a block has no partner to read,
        # so the last block is always read under a mask.
        if step == 2:
            spare = b.icmp_signed("==", rest, _i64(0))
            spare = b.and_(spare, b.icmp_signed(">", blocks, _i64(0)))
            blocks = b.select(spare, b.sub(blocks, _i64(1)), blocks)
            done = b.mul(blocks, _i64(16))
            rest = b.sub(count, done)
        span = b.sub(b.mul(rest, _i64(step)), _i64(step - 1))
        masks = [code.first_lanes(b, b.sub(span, _i64(16 * p))) for p in range(step)]
        end = b.add(first, b.mul(b.sdiv(b.add(count, _i64(15)), _i64(16)), _i64(16)))
        right_blocks = b.sdiv(b.add(b.sub(width, end), _i64(15)), _i64(16))
        right_blocks = b.sub(right_blocks, _i64(1))
        last = b.mul(b.sub(width, _i64(16)), _i64(4))

        def gather(of, masks):
            parts = [code.load(b, b.add(of, _i64(64 * p)), masks[p], value) for p in range(step)]
            if step == 1:
                return parts[0]
            even = ir.Constant(ir.VectorType(I32, 16), [2 * i for i in range(16)])
            return b.shuffle_vector(parts[0], parts[1], even)

        with cgutils.for_range(b, rows) as row:
            to = b.add(dst, b.mul(row.index, dst_row))
            of = b.add(src, b.mul(row.index, src_row))
            with cgutils.for_range(b, left_blocks) as loop:
                code.store(b, value, b.add(to, b.mul(loop.index, _i64(64))))
            data = b.add(to, b.mul(first, _i64(4)))
            with cgutils.for_range(b, blocks) as loop:
                at = b.mul(loop.index, _i64(64))
                x = gather(b.add(of, b.mul(at, _i64(step))), [None] * step)
                code.store(b, x, b.add(data, at))
            with b.if_then(b.icmp_signed(">", rest, _i64(0))):
                at = b.mul(done, _i64(4))
                x = gather(b.add(of, b.mul(at, _i64(step))), masks)
                code.store(b, x, b.add(data, at))
            right = b.add(to, b.mul(end, _i64(4)))
            with cgutils.for_range(b, right_blocks) as loop:
                code.store(b, value, b.add(right, b.mul(loop.index, _i64(64))))
            # Placed from the row's end, so that nothing is written beyond it.
            code.store(b, value, b.add(to, last))

    def fill(typingctx, dst, dst_row, src, src_row, rows, first, count, width, bits):
        def codegen(context, builder, signature, args):
            fn = code.outlined(builder.module, f"fs_fill_{step}", 9, body)
            builder.call(fn, args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return intrinsic(fill)


_fill1 = _make_fill(1)
_fill2 = _make_fill(2)


@njit(**JIT)
def fill_strip(strip, x, x_row, h, w, top, rows, row_step, left, sw, phases, width, value):
    """Copy padded rows `top`, ``top + row_step``... of one channel into a strip.

    Parameters
    ----------
    strip : int64
        Address; row `r`, phase `p` starts ``(r * phases + p) * width`` elements
        further.
    x, x_row : int64
        Address of the channel and its row stride in elements.
    h, w : int64
        Rows and columns of the channel.
    top, rows, row_step : int64
        First input row, maybe negative, the number of rows, their distance.
    left : int64
        Padding columns on the left.
    sw, phases, width : int64
        Column stride, phases kept, elements of a phase.
    value : float32
        The padding.
    """
    bits = np.int64(f32_bits(value))
    line = phases * width * 4
    # Rows before `lo` and from `hi` on are padding only.
    lo = min(max(0, (row_step - 1 - top) // row_step), rows)
    hi = max(lo, min(rows, (h - 1 - top) // row_step + 1 if top < h else 0))
    for p in range(phases):
        # Padded column q * sw + p is input column q * sw + p - left; the last
        # 16 columns of the strip are read by no tap.
        first = max(left - p + sw - 1, 0) // sw
        end = min(max(w + left - p + sw - 1, 0) // sw, width - 16)
        count = end - first
        to = strip + p * width * 4
        if count <= 0:
            _fill1(to, line, x, 0, rows, width, 0, width, bits)
            continue
        _fill1(to, line, x, 0, lo, width, 0, width, bits)
        _fill1(to + hi * line, line, x, 0, rows - hi, width, 0, width, bits)
        to += lo * line
        n = hi - lo
        step = x_row * row_step
        of = x + ((top + lo * row_step) * x_row + first * sw + p - left) * 4
        if sw == 1:
            _fill1(to, line, of, step * 4, n, first, count, width, bits)
        elif sw == 2:
            _fill2(to, line, of, step * 4, n, first, count, width, bits)
        else:
            _fill1(to, line, x, 0, n, width, 0, width, bits)
            for r in range(n):
                d = p_f4(to + r * line, first)
                s = p_f4(of, r * step)
                for q in range(count):
                    d[q] = s[q * sw]


@njit(**JIT)
def fill_offsets(table, kh, kw, sw, dh, dw, phases, width):
    """Write the byte offset in a strip of each tap (int64 pointer `table`)."""
    for ky in range(kh):
        row = ky * dh * phases
        phase, column = 0, 0
        for kx in range(kw):
            table[ky * kw + kx] = ((row + phase) * width + column) * 4
            phase += dw
            while phase >= sw:
                phase -= sw
                column += 1
