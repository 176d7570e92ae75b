"""Sliding windows over one channel, and the padded strip they read.

The strip is a copy of some input rows with their padding, the columns split by
their phase modulo the column stride.  In it every tap of every window reads
contiguous columns whatever the stride, dilation and padding, so convolution
and pooling need no case distinction and no bounds test in their inner loops.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, I64, JIT
from fusion_search.codegen.rt.memory import mem_copy, p_f4
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


@njit(**JIT)
def fill_strip(strip, x, x_row, h, w, top, rows, left, sw, phases, width, value):
    """Copy padded rows `top`... of one channel into a strip.

    Parameters
    ----------
    strip : int64
        Address; row `r`, phase `p` starts ``(r * phases + p) * width`` elements
        further.
    x, x_row : int64
        Address of the channel and its row stride in elements.
    h, w : int64
        Rows and columns of the channel.
    top, rows : int64
        First input row, maybe negative, and the number of rows.
    left : int64
        Padding columns on the left.
    sw, phases, width : int64
        Column stride, phases kept, elements of a phase.
    value : float32
        The padding.
    """
    for r in range(rows):
        y = top + r
        for p in range(phases):
            d = p_f4(strip, (r * phases + p) * width)
            if y < 0 or y >= h:
                for q in range(width):
                    d[q] = value
                continue
            # Padded column q * sw + p is input column q * sw + p - left.
            first = max(0, (left - p + sw - 1) // sw)
            end = min(width, max(first, (w + left - p + sw - 1) // sw))
            first = min(first, width)
            for q in range(first):
                d[q] = value
            at = y * x_row + first * sw + p - left
            if sw == 1:
                if end > first:
                    to = strip + ((r * phases + p) * width + first) * 4
                    mem_copy(to, x + at * 4, (end - first) * 4)
            elif sw == 2:
                s = p_f4(x, at)
                for q in range(end - first):
                    d[first + q] = s[q * 2]
            else:
                s = p_f4(x, at)
                for q in range(end - first):
                    d[first + q] = s[q * sw]
            for q in range(end, width):
                d[q] = value


@njit(**JIT)
def fill_offsets(table, kh, kw, sw, dh, dw, phases, width):
    """Write the byte offset in a strip of each tap (int64 pointer `table`)."""
    for ky in range(kh):
        for kx in range(kw):
            c = kx * dw
            row = ky * dh * phases + c % sw
            table[ky * kw + kx] = (row * width + c // sw) * 4
