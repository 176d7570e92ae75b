"""Stores past the caches, for results that no cache will hold.

A plain store reads the line that it writes to into the cache first, and what it makes room for is lost. A store past the caches does
neither, if a whole line is written at once. Other threads see it as soon as they see that the kernel is done: on x86 the atomic
additions of the driver empty the buffers that such stores wait in.
"""

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import I32, I64, INLINE
from fusion_search.codegen.rt.lanes import LANES, scheme_of
from fusion_search.codegen.rt.memory import addr_of

#: Bytes of a cache line.
_LINE = 64


@njit(**INLINE)
def before_line(ptr, size):
    """Return how many elements of `size` bytes lie before the next cache line; 0 when one begins here."""
    return -addr_of(ptr) % _LINE // size


@njit(**INLINE)
def last_line(ptr, count, size):
    """Return where the last whole cache line of a row of elements of `size` bytes ends."""
    before = before_line(ptr, size)
    return before + (count - before) * size // _LINE * _LINE // size


@njit(**INLINE)
def piece_end(at, before, last, count):
    """Return the end of the piece of a row that begins `at`: what lies before a line, whole lines of 64 elements or the last, the rest."""
    if at < before:
        return before
    return min(at + LANES, last) if at < last else count


def _make_past(element):
    """Build ``past(ptr, source, first, last)``: copy elements `first` to `last` of a buffer of 64, whole cache lines past the caches."""
    scheme = scheme_of(element)
    vector = ir.VectorType(scheme.elem, scheme.width)

    def put_line(builder, value, ptr):
        temporary = builder.module.add_metadata([ir.Constant(I32, 1)])
        builder.store(value, ptr, align=_LINE).set_metadata("nontemporal", temporary)

    def put_part(builder, value, ptr, first, last):
        """Write single elements: the rest of the line is written right before or right behind it, often enough."""
        held = cgutils.alloca_once(builder, vector)
        builder.store(value, held)
        elements = builder.bitcast(held, scheme.elem.as_pointer())
        with cgutils.for_range_slice(builder, first, last, ir.Constant(I64, 1), I64) as (lane, _):
            kind = ir.IntType(8 * scheme.size)
            bits = builder.load(builder.bitcast(builder.gep(elements, [lane]), kind.as_pointer()))
            target = builder.bitcast(builder.gep(ptr, [lane]), kind.as_pointer())
            temporary = builder.module.add_metadata([ir.Constant(I32, 1)])
            builder.store(bits, target, align=scheme.size).set_metadata("nontemporal", temporary)

    def put(builder, values, to, first, last):
        """Write whole lines and parts of lines; of a line without a part not even a masked store, which would fetch it."""
        for v, value in enumerate(values):
            start, end = ir.Constant(I64, v * scheme.width), ir.Constant(I64, (v + 1) * scheme.width)
            inside = builder.and_(builder.icmp_signed("<=", first, start), builder.icmp_signed("<=", end, last))
            touched = builder.and_(builder.icmp_signed("<", first, end), builder.icmp_signed("<", start, last))
            ptr = scheme.pointer(builder, to, start)
            with builder.if_else(builder.and_(inside, at_line(builder, to))) as (then, otherwise):
                with then:
                    put_line(builder, value, ptr)
                with otherwise, builder.if_then(touched):
                    low = builder.select(builder.icmp_signed(">", first, start), builder.sub(first, start), ir.Constant(I64, 0))
                    high = builder.select(builder.icmp_signed("<", last, end), builder.sub(last, start), ir.Constant(I64, scheme.width))
                    put_part(builder, value, builder.bitcast(ptr, scheme.elem.as_pointer()), low, high)

    def at_line(builder, ptr):
        return builder.icmp_signed("==", builder.and_(builder.ptrtoint(ptr, I64), ir.Constant(I64, _LINE - 1)), ir.Constant(I64, 0))

    def lanes_past(typingctx, ptr, source, first, last):
        def codegen(context, builder, signature, args):
            to, of, low, high = args
            values = [scheme.load(builder, of, scheme.first(v)) for v in range(scheme.count)]
            full = builder.icmp_signed("==", builder.sub(high, low), ir.Constant(I64, LANES))
            with builder.if_else(builder.and_(full, at_line(builder, to)), likely=True) as (then, otherwise):
                with then:
                    for v, value in enumerate(values):
                        put_line(builder, value, scheme.pointer(builder, to, scheme.first(v)))
                with otherwise:
                    put(builder, values, to, low, high)
            return context.get_dummy_value()

        return types.void(types.CPointer(element), types.CPointer(element), types.int64, types.int64), codegen

    return intrinsic(lanes_past)


lanes_past_f32, lanes_past_f64 = _make_past(types.float32), _make_past(types.float64)
