"""Raw memory for generated kernels: typed pointers, stack buffers, bulk copies.

Kernels receive plain int64 addresses (that is what makes them cacheable), so
every load goes through a pointer built here.  Offsets and indices count
elements; an index into a ``CPointer`` has no wrap-around test, which is what
lets the loops vectorise.
"""

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, F64, I8, I16, I32, I64, JIT


def _pointer(nb_type, ir_type):
    def typed_pointer(typingctx, addr, offset):
        def codegen(context, builder, signature, args):
            base = builder.inttoptr(args[0], ir_type.as_pointer())
            return builder.gep(base, [args[1]])

        return types.CPointer(nb_type)(types.int64, types.int64), codegen

    return intrinsic(typed_pointer)


p_f4 = _pointer(types.float32, F32)
p_f8 = _pointer(types.float64, F64)
p_i1 = _pointer(types.int8, I8)
p_i2 = _pointer(types.int16, I16)
p_i4 = _pointer(types.int32, I32)
p_i8 = _pointer(types.int64, I64)
p_u1 = _pointer(types.uint8, I8)
p_u2 = _pointer(types.uint16, I16)
p_u4 = _pointer(types.uint32, I32)
p_u8 = _pointer(types.uint64, I64)
#: Booleans are bytes, both half precisions their bits.
p_b1 = p_u1
p_f2 = p_u2
p_bf2 = p_u2


@intrinsic
def table(typingctx, addr):
    """View an argument table: ``table(addr)[i]`` is its int64 number `i`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], I64.as_pointer())

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def ptr_f32(typingctx, addr):
    """View an address as a pointer to float32."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], F32.as_pointer())

    return types.CPointer(types.float32)(types.int64), codegen


@intrinsic
def padd(typingctx, ptr, offset):
    """Advance a typed pointer by `offset` elements."""

    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return ptr(ptr, types.int64), codegen


@intrinsic
def addr_of(typingctx, ptr):
    """Return the address in a typed pointer as int64."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(args[0], I64)

    return types.int64(ptr), codegen


_IR = {
    types.float32: F32,
    types.float64: F64,
    types.int8: I8,
    types.uint8: I8,
    types.int16: I16,
    types.uint16: I16,
    types.int32: I32,
    types.uint32: I32,
    types.int64: I64,
    types.uint64: I64,
}


def make_stack(n, nb_type=types.float32, align=64):
    """Build an intrinsic that returns a pointer to `n` elements on the stack.

    Parameters
    ----------
    n : int
        Number of elements, a compile-time constant.
    nb_type : numba type
        Element type.
    align : int
        Alignment in bytes.

    Returns
    -------
    intrinsic
        Without arguments; each call site has its own buffer, allocated once
        per activation of the function even inside a loop.
    """
    ir_type = _IR[nb_type]

    def stack(typingctx):
        def codegen(context, builder, signature, args):
            p = cgutils.alloca_once(builder, ir.ArrayType(ir_type, n))
            p.align = align
            return builder.bitcast(p, ir_type.as_pointer())

        return types.CPointer(nb_type)(), codegen

    return intrinsic(stack)


@intrinsic
def mem_set(typingctx, addr, byte, n_bytes):
    """Fill `n_bytes` bytes at `addr` with the low byte of `byte`."""

    def codegen(context, builder, signature, args):
        dst = builder.inttoptr(args[0], I8.as_pointer())
        cgutils.memset(builder, dst, args[2], builder.trunc(args[1], I8))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def mem_copy(typingctx, dst, src, n_bytes):
    """Copy `n_bytes` bytes from address `src` to `dst`; they do not overlap."""

    def codegen(context, builder, signature, args):
        to = builder.inttoptr(args[0], I8.as_pointer())
        of = builder.inttoptr(args[1], I8.as_pointer())
        cgutils.raw_memcpy(builder, to, of, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


_TURN = 16


@intrinsic
def _turn16(typingctx, dst, src, src_step, dst_step):
    """Turn 16 x 16 elements of four bytes: ``dst[r * dst_step + c] = src[c * src_step + r]``, by four rounds of shuffles."""
    vector = ir.VectorType(I32, _TURN)

    def at(builder, ptr, step, k):
        base = builder.bitcast(ptr, I32.as_pointer())
        return builder.bitcast(builder.gep(base, [builder.mul(step, ir.Constant(I64, k))]), vector.as_pointer())

    def codegen(context, builder, signature, args):
        to, of, of_step, to_step = args
        rows = [builder.load(at(builder, of, of_step, k), align=4) for k in range(_TURN)]
        half = _TURN // 2
        while half:
            low = [c if not c & half else c - half + _TURN for c in range(_TURN)]
            high = [c + half if not c & half else c + _TURN for c in range(_TURN)]
            new = list(rows)
            for k in range(_TURN):
                if not k & half:
                    new[k] = builder.shuffle_vector(rows[k], rows[k + half], ir.Constant(vector, low))
                    new[k + half] = builder.shuffle_vector(rows[k], rows[k + half], ir.Constant(vector, high))
            rows = new
            half //= 2
        for k, row in enumerate(rows):
            builder.store(row, at(builder, to, to_step, k), align=4)
        return context.get_dummy_value()

    return types.void(dst, src, types.int64, types.int64), codegen


@njit(**JIT)
def turn(dst, src, rows, columns, src_step, dst_step):
    """Copy a block, turned: ``dst[r * dst_step + c] = src[c * src_step + r]`` for elements of four bytes.

    Tiles of 16 x 16 go through registers: read and write touch whole cache lines, also where a step is a power of two and the
    lines of a column share one cache set.
    """
    whole_rows, whole_columns = rows // 16 * 16, columns // 16 * 16
    for c in range(0, whole_columns, 16):
        for r in range(0, whole_rows, 16):
            _turn16(padd(dst, r * dst_step + c), padd(src, c * src_step + r), src_step, dst_step)
    for c in range(whole_columns, columns):
        for r in range(whole_rows):
            dst[r * dst_step + c] = src[c * src_step + r]
    for r in range(whole_rows, rows):
        for c in range(columns):
            dst[r * dst_step + c] = src[c * src_step + r]


@intrinsic
def _prefetch(typingctx, addr):
    def codegen(context, builder, signature, args):
        byte, number = I8.as_pointer(), I32
        fn_type = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fn = cgutils.get_or_insert_function(builder.module, fn_type, "llvm.prefetch.p0")
        builder.call(fn, [builder.inttoptr(args[0], byte), *(ir.Constant(number, i) for i in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@njit(**JIT)
def prefetch_rows(addr, rows, row_bytes, n_bytes):
    """Fetch `rows` pieces of `n_bytes` bytes, `row_bytes` apart, into the second-level cache."""
    for i in range(rows):
        for at in range(0, n_bytes, 64):
            _prefetch(addr + i * row_bytes + at)


@njit(**JIT)
def fetch(ptr, n_bytes):
    """Fetch bytes behind a pointer, which need not exist, into the second-level cache."""
    prefetch_rows(addr_of(ptr), 1, 0, n_bytes)


@intrinsic
def fetch_add(typingctx, addr, value):
    """Atomically add to the int64 at `addr`; return what it held before."""

    def codegen(context, builder, signature, args):
        p = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", p, args[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _add_ordered(typingctx, addr, value):
    def codegen(context, builder, signature, args):
        p = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", p, args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@njit(**JIT)
def arrive(addr, count):
    """Count an item as done; True for the last of `count`, which then sees what all others wrote. The count starts anew."""
    if _add_ordered(addr, 1) < count - 1:
        return False
    table(addr)[0] = 0
    return True


@intrinsic
def call_address(typingctx, fn, args):
    """Call the void C function at address `fn` with a tuple of int64.

    Addresses are data, so neither compiling nor caching a kernel involves the
    functions it calls.
    """
    if not isinstance(args, types.UniTuple) or args.dtype != types.int64:
        raise TypeError("call_address takes an address and a tuple of int64")
    count = args.count

    def codegen(context, builder, signature, values):
        fn_type = ir.FunctionType(ir.VoidType(), [I64] * count)
        unpacked = cgutils.unpack_tuple(builder, values[1], count)
        builder.call(builder.inttoptr(values[0], fn_type.as_pointer()), unpacked)
        return context.get_dummy_value()

    return types.void(types.int64, args), codegen


@intrinsic
def call_number(typingctx, fn):
    """Call the C function ``int f(void)`` at address `fn`."""

    def codegen(context, builder, signature, values):
        fn_type = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(builder.call(builder.inttoptr(values[0], fn_type.as_pointer()), []), I64)

    return types.int64(types.int64), codegen
