"""Sliding windows over planes read where they lie: depthwise convolutions and pools.

No copy is made. A vector is 16 neighbouring outputs of a row; what a tap would
read to the left or right of the plane is masked away, and rows above or below
it are read from a row of padding. Blocks of several output rows share their
loads.
"""

from functools import partial, reduce

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, I64
from fusion_search.codegen.rt.ukernels import VectorCode
from fusion_search.codegen.rt.windows import combined

#: Output rows of a block; most planes have a multiple of seven.
HEIGHTS = (7, 4, 1)
_ARGUMENTS = 18


def _i64(value):
    return ir.Constant(I64, value)


def make_planes(kind, kernel, stride):
    """Build the loop over planes for one window without dilation.

    Parameters
    ----------
    kind : str
        "conv", "max" or "sum".  "max" keeps NaN as NumPy does.
    kernel : tuple of int
        Height and width.
    stride : int
        Of rows and columns: 1 or 2.

    Returns
    -------
    intrinsic
        ``planes(args)`` with a tuple of int64: number of planes; address of
        the first input plane and bytes to the next; weights, bytes to the next
        plane's; address of the planes' biases or 0; output, bytes to the next
        plane; rows and columns of the input; bytes of an input row; first
        output row and how many; output columns; padding rows and columns;
        bytes of an output row; address of a row of padding as long as an input
        row.  Taps are combined in order from the bias (0 for sums, -inf for
        max), padding included; those of a maximum row by row, each row's in
        order: the last of the largest stays, so that the bits are the same.
    """
    code = VectorCode(F32)
    kh, kw = kernel
    fill = code.const(float("-inf") if kind == "max" else 0.0)
    combine = partial(combined, code, kind)

    def body(b, count, x, x_next, w, w_next, bias, dst, dst_next, h, w_in, x_row, y0, rows, cols, top, left, dst_row, pad):
        def scalar(at):
            return code.splat(b, b.load(b.inttoptr(at, F32.as_pointer()), align=4))

        blocks = b.sdiv(b.add(cols, _i64(15)), _i64(16))
        slot = cgutils.alloca_once(b, I64)
        with cgutils.for_range(b, blocks) as column:
            first = b.mul(column.index, _i64(16))
            inside = code.first_lanes(b, b.sub(cols, first))
            origin = b.sub(b.mul(first, _i64(stride)), left)  # input column of the first lane's first tap
            low = b.sub(_i64(0), origin)
            high = b.sub(w_in, origin)
            # with a step of 2, three vectors hold the columns of all taps
            starts = range(kw) if stride == 1 else (0, 16, 32)
            masks = [code.lanes_between(b, b.sub(low, _i64(s)), b.sub(high, _i64(s))) for s in starts]
            offset = b.mul(origin, _i64(4))
            with cgutils.for_range(b, count) as plane:
                of = b.add(b.add(x, b.mul(plane.index, x_next)), offset)
                to = b.add(b.add(dst, b.mul(plane.index, dst_next)), b.mul(first, _i64(4)))
                taps = []
                start = fill
                if kind == "conv":
                    mine = b.add(w, b.mul(plane.index, w_next))
                    taps = [scalar(b.add(mine, _i64(4 * t))) for t in range(kh * kw)]
                    given = b.icmp_signed("!=", bias, _i64(0))
                    some = b.select(given, b.add(bias, b.mul(plane.index, _i64(4))), mine)
                    start = b.select(given, scalar(some), fill)
                blank = b.add(pad, offset)
                b.store(_i64(0), slot)
                for height in HEIGHTS:
                    done = b.load(slot)
                    times = b.sdiv(b.sub(rows, done), _i64(height))
                    with cgutils.for_range(b, times) as step:
                        y = b.add(done, b.mul(step.index, _i64(height)))
                        row = b.sub(b.mul(b.add(y0, y), _i64(stride)), top)
                        acc = [start] * height
                        for i in range((height - 1) * stride + kh):
                            at = b.add(row, _i64(i))
                            known = b.icmp_unsigned("<", at, h)
                            line = b.select(known, b.add(of, b.mul(at, x_row)), blank)
                            loaded = [code.load(b, b.add(line, _i64(4 * s)), m, fill) for s, m in zip(starts, masks, strict=True)]
                            values = loaded if stride == 1 else code.every_other(b, loaded, kw)
                            if kind == "max":  # a row is in several windows: its own maximum is taken once
                                values = [reduce(lambda a, x: combine(b, a, x, None), values)]
                            for kx, value in enumerate(values):
                                for r in range(height):
                                    ky = i - r * stride
                                    if kind == "max" and ky == 0:
                                        acc[r] = value
                                    elif 0 <= ky < kh:
                                        acc[r] = combine(b, acc[r], value, taps[ky * kw + kx] if taps else None)
                        out = b.add(to, b.mul(y, dst_row))
                        for r in range(height):
                            code.store(b, acc[r], b.add(out, b.mul(dst_row, _i64(r))), inside)
                    b.store(b.add(done, b.mul(times, _i64(height))), slot)

    def planes(typingctx, args):
        def codegen(context, builder, signature, values):
            name = f"fs_planes_{kind}_{kh}x{kw}_{stride}"
            unpacked = cgutils.unpack_tuple(builder, values[0], _ARGUMENTS)
            builder.call(code.outlined(builder.module, name, _ARGUMENTS, body), unpacked)
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, _ARGUMENTS)), codegen

    return intrinsic(planes)
