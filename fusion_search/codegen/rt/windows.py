"""Sliding windows over one channel, and the padded strip they read.

The strip is a copy of some input rows with their padding, the columns split by
their phase modulo the column stride.  In it every tap of every window reads
contiguous columns whatever the stride, dilation and padding, so convolution
and pooling need no case distinction and no bounds test in their inner loops.
"""

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
        ``window(rows, cols, n_taps, src, src_row, offsets, weights, dst,
        dst_row)``; strides in bytes, `offsets` the address of the int64 byte
        offset of each tap.  Taps are reduced in order from 0 (-inf for max).
    """
    code = VectorCode(F32)

    def combine(b, acc, x, weight):
        if kind == "conv":
            return code.fma(b, weight, x, acc)
        if kind == "sum":
            return b.fadd(acc, x)
        best = b.select(b.fcmp_ordered(">", acc, x), acc, x)
        keep = b.select(b.fcmp_unordered("uno", acc, acc), acc, code.const(-0.0))
        return b.fadd(best, keep)

    def body(b, rows, cols, n_taps, src, src_row, offsets, weights, dst, dst_row):
        start = code.const(float("-inf") if kind == "max" else 0.0)

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

    def window(
        typingctx, rows, cols, n_taps, src, src_row, offsets, weights, dst, dst_row
    ):
        def codegen(context, builder, signature, args):
            fn = code.outlined(builder.module, f"fs_window_{kind}_{taps}", 9, body)
            builder.call(fn, args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return intrinsic(window)


@intrinsic
def copy_vector(typingctx, dst, src):
    """Copy 16 float32 between addresses."""
    code = VectorCode(F32)

    def codegen(context, builder, signature, args):
        code.store(builder, code.load(builder, args[1]), args[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@njit(**JIT)
def strip_width(out_w, kw, sw, dw):
    """Return the elements of one phase of one strip row, a multiple of 16."""
    return (out_w + (kw - 1) * dw // sw + STRIP_MARGIN + 15) // 16 * 16


@njit(**JIT)
def strip_phases(kw, sw, dw):
    """Return how many phases, from 0 on, the taps of a row can touch."""
    return min(sw, (kw - 1) * dw + 1)


def _make_fill_row(step):
    """Build ``fill_row(dst, src, first, count, width, value_bits)``.

    Row of `width` elements: padding, then `count` elements of `src`, `step`
    apart, from element `first` on, then padding.  Writes whole vectors, up to
    15 elements past the row; reads only what it copies.
    """
    code = VectorCode(F32)

    def body(b, dst, src, first, count, width, bits):
        value = code.splat(b, b.bitcast(b.trunc(bits, I32), F32))
        with cgutils.for_range(b, b.sdiv(b.add(first, _i64(15)), _i64(16))) as loop:
            code.store(b, value, b.add(dst, b.mul(loop.index, _i64(64))))
        to = b.add(dst, b.mul(first, _i64(4)))
        blocks = b.sdiv(count, _i64(16))

        def gather(of, left):
            # `left` elements of the source remain; None if a full block does.
            parts = []
            for part in range(step):
                mask = None
                if left is not None:
                    mask = code.first_lanes(b, b.sub(left, _i64(16 * part)))
                parts.append(code.load(b, b.add(of, _i64(64 * part)), mask, value))
            if step == 1:
                return parts[0]
            even = ir.Constant(ir.VectorType(I32, 16), [2 * i for i in range(16)])
            return b.shuffle_vector(parts[0], parts[1], even)

        # The last element of a full block has no partner to read, so with a
        # step of 2 even full blocks are read under a mask.
        def whole(index):
            return None if step == 1 else b.sub(b.mul(b.sub(count, index), _i64(2)), _i64(1))

        with cgutils.for_range(b, blocks) as loop:
            at = b.mul(loop.index, _i64(64))
            left = whole(b.mul(loop.index, _i64(16)))
            x = gather(b.add(src, b.mul(at, _i64(step))), left)
            code.store(b, x, b.add(to, at))
        done = b.mul(blocks, _i64(16))
        rest = b.sub(count, done)
        with b.if_then(b.icmp_signed(">", rest, _i64(0))):
            left = b.sub(b.mul(rest, _i64(step)), _i64(step - 1))
            at = b.mul(done, _i64(4))
            x = gather(b.add(src, b.mul(at, _i64(step))), left)
            code.store(b, x, b.add(to, at))
        filled = b.mul(b.sdiv(b.add(count, _i64(15)), _i64(16)), _i64(16))
        end = b.add(first, filled)
        more = b.sdiv(b.add(b.sub(width, end), _i64(15)), _i64(16))
        with cgutils.for_range(b, more) as loop:
            at = b.add(b.mul(end, _i64(4)), b.mul(loop.index, _i64(64)))
            code.store(b, value, b.add(dst, at))

    def fill_row(typingctx, dst, src, first, count, width, bits):
        def codegen(context, builder, signature, args):
            fn = code.outlined(builder.module, f"fs_fill_row_{step}", 6, body)
            builder.call(fn, args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), codegen

    return intrinsic(fill_row)


_fill_row1 = _make_fill_row(1)
_fill_row2 = _make_fill_row(2)


@njit(**JIT)
def fill_strip(strip, x, x_row, h, w, top, rows, row_step, left, sw, phases, width, value):
    """Copy padded rows `top`, ``top + row_step``... of one channel into a strip.

    Parameters
    ----------
    strip : int64
        Address; row `r`, phase `p` starts ``(r * phases + p) * width`` elements
        further.  Up to 15 elements past the end are overwritten.
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
    to = strip
    # In address order, because each row overwrites the start of the next.
    for r in range(rows):
        y = top + r * row_step
        for p in range(phases):
            # Padded column q * sw + p is input column q * sw + p - left.
            first, end = left, w + left
            if sw > 1:
                first = max(left - p + sw - 1, 0) // sw
                end = max(w + left - p + sw - 1, 0) // sw
            first = min(first, width)
            count = min(end, width) - first
            of = x + (y * x_row + first * sw + p - left) * 4
            if y < 0 or y >= h or count <= 0:
                _fill_row1(to, x, width, 0, width, bits)
            elif sw == 1:
                _fill_row1(to, of, first, count, width, bits)
            elif sw == 2:
                _fill_row2(to, of, first, count, width, bits)
            else:
                _fill_row1(to, x, width, 0, width, bits)
                d = p_f4(to, first)
                s = p_f4(of, 0)
                for q in range(count):
                    d[q] = s[q * sw]
            to += width * 4


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
