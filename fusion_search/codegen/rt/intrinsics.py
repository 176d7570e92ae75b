"""LLVM intrinsics that generated kernels are written with.

Numba's own operators promote integers, branch on ternaries with dear arms and
know neither float16 nor raw addresses.  The intrinsics below emit exactly one
LLVM instruction (or a short fixed sequence) without any fast-math flag, so a
value has the same bits in scalar code, in a vectorised loop and for any number
of threads.
"""

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

#: Options of every helper compiled with :func:`numba.njit`.
JIT = {"error_model": "numpy", "boundscheck": False, "nogil": True}
#: The same for helpers that must disappear in the caller: left as calls they
#: keep the caller's loop scalar, six times slower.
INLINE = {**JIT, "forceinline": True}


def variant(name, options):
    """Compile a function that is made anew for each of several types, under a name that says for which.

    Machine code on disk keeps the names of its functions, and the numbers that Numba adds to them count what one process has
    defined. Two functions of one name and one signature, each cached by a process of its own, may so be one function to a third
    process that loads both: the linker keeps the first.

    Parameters
    ----------
    name : str
        Added to the function's own name.
    options : dict
        `JIT` or `INLINE`.
    """

    def compile_variant(function):
        function.__qualname__ = f"{function.__qualname__}_{name}"
        return njit(**options)(function)

    return compile_variant


F32 = ir.FloatType()
F64 = ir.DoubleType()
F16 = ir.HalfType()
I1 = ir.IntType(1)
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)


# ------------------------------------------------------------------ floats
def _llvm_op(name, nb_type, ir_type, n_args):
    """Wrap the overloaded LLVM intrinsic `name` of one type."""
    fn_type = ir.FunctionType(ir_type, [ir_type] * n_args)

    def codegen(context, builder, signature, args):
        fn = builder.module.declare_intrinsic(name, [ir_type], fn_type)
        return builder.call(fn, args)

    if n_args == 1:

        def unary(typingctx, x):
            return nb_type(nb_type), codegen

        return intrinsic(unary)
    if n_args == 2:

        def binary(typingctx, x, y):
            return nb_type(nb_type, nb_type), codegen

        return intrinsic(binary)

    def ternary(typingctx, x, y, z):
        return nb_type(nb_type, nb_type, nb_type), codegen

    return intrinsic(ternary)


fma32 = _llvm_op("llvm.fma", types.float32, F32, 3)
fma64 = _llvm_op("llvm.fma", types.float64, F64, 3)
fabs32 = _llvm_op("llvm.fabs", types.float32, F32, 1)
fabs64 = _llvm_op("llvm.fabs", types.float64, F64, 1)
sqrt32 = _llvm_op("llvm.sqrt", types.float32, F32, 1)
sqrt64 = _llvm_op("llvm.sqrt", types.float64, F64, 1)
copysign32 = _llvm_op("llvm.copysign", types.float32, F32, 2)
copysign64 = _llvm_op("llvm.copysign", types.float64, F64, 2)
rint32 = _llvm_op("llvm.rint", types.float32, F32, 1)
rint64 = _llvm_op("llvm.rint", types.float64, F64, 1)
floor32 = _llvm_op("llvm.floor", types.float32, F32, 1)
floor64 = _llvm_op("llvm.floor", types.float64, F64, 1)
ceil32 = _llvm_op("llvm.ceil", types.float32, F32, 1)
ceil64 = _llvm_op("llvm.ceil", types.float64, F64, 1)
trunc32 = _llvm_op("llvm.trunc", types.float32, F32, 1)
trunc64 = _llvm_op("llvm.trunc", types.float64, F64, 1)


@intrinsic
def ldexp32(typingctx, x, k):
    """Scale float32 `x` by 2**`k` with one rounding (one instruction on AVX-512)."""

    def codegen(context, builder, signature, args):
        fn_type = ir.FunctionType(F32, [F32, I32])
        fn = cgutils.get_or_insert_function(builder.module, fn_type, "llvm.ldexp.f32.i32")
        return builder.call(fn, args)

    return types.float32(types.float32, types.int32), codegen


@intrinsic
def select(typingctx, cond, a, b):
    """Choose `a` or `b` without a branch; both must have the same type."""

    def codegen(context, builder, signature, args):
        return builder.select(*args)

    return a(types.boolean, a, a), codegen


# ---------------------------------------------------------- casts and bits
def _bitcast(src, dst, ir_dst):
    def bitcast(typingctx, x):
        def codegen(context, builder, signature, args):
            return builder.bitcast(args[0], ir_dst)

        return dst(src), codegen

    return intrinsic(bitcast)


f32_bits = _bitcast(types.float32, types.int32, I32)
bits_f32 = _bitcast(types.int32, types.float32, F32)
f64_bits = _bitcast(types.float64, types.int64, I64)
bits_f64 = _bitcast(types.int64, types.float64, F64)


def _int32_op(method):
    """Build an int32 operation that stays int32 (Numba's operators promote)."""

    def int32_op(typingctx, x, y):
        def codegen(context, builder, signature, args):
            return getattr(builder, method)(args[0], args[1])

        return types.int32(types.int32, types.int32), codegen

    return intrinsic(int32_op)


iadd = _int32_op("add")
isub = _int32_op("sub")
imul = _int32_op("mul")
ishl = _int32_op("shl")
iashr = _int32_op("ashr")
ilshr = _int32_op("lshr")
iand = _int32_op("and_")
ior = _int32_op("or_")
ixor = _int32_op("xor")


@intrinsic
def f16_to_f32(typingctx, x):
    """Widen float16 bits (uint16) to float32, exactly."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], F16), F32)

    return types.float32(types.uint16), codegen


@intrinsic
def f32_to_f16(typingctx, x):
    """Round float32 to float16 bits, ties to even."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], F16), I16)

    return types.uint16(types.float32), codegen


@intrinsic
def f64_to_f16(typingctx, x):
    """Round float64 to float16 bits in one step, ties to even."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(builder.fptrunc(args[0], F16), I16)

    return types.uint16(types.float64), codegen


@intrinsic
def bf16_to_f32(typingctx, x):
    """Widen bfloat16 bits (uint16) to float32, exactly."""

    def codegen(context, builder, signature, args):
        wide = builder.zext(args[0], I32)
        return builder.bitcast(builder.shl(wide, ir.Constant(I32, 16)), F32)

    return types.float32(types.uint16), codegen


@intrinsic
def f32_to_bf16(typingctx, x):
    """Round float32 to bfloat16 bits, ties to even, NaN made quiet."""

    def codegen(context, builder, signature, args):
        sixteen = ir.Constant(I32, 16)
        bits = builder.bitcast(args[0], I32)
        high = builder.lshr(bits, sixteen)
        odd = builder.and_(high, ir.Constant(I32, 1))
        biased = builder.add(builder.add(bits, ir.Constant(I32, 0x7FFF)), odd)
        quiet = builder.or_(high, ir.Constant(I32, 0x40))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.trunc(builder.select(is_nan, quiet, builder.lshr(biased, sixteen)), I16)

    return types.uint16(types.float32), codegen


# --------------------------------------------------- NumPy-exact max and min
# Python's max, np.maximum in compiled code and llvm.maximum all differ from
# NumPy on signed zeros or NaN.  This form does not and is one vmaxps, one
# compare and one masked add.  -0.0 is the neutral element of the addition.
@njit(**INLINE)
def np_maximum(a, b):
    """Return what ``np.maximum(a, b)`` returns, bit for bit (float32)."""
    m = a if a > b else b
    return m + (a if a != a else np.float32(-0.0))


@njit(**INLINE)
def np_minimum(a, b):
    """Return what ``np.minimum(a, b)`` returns, bit for bit (float32)."""
    m = a if a < b else b
    return m + (a if a != a else np.float32(-0.0))


@njit(**INLINE)
def np_maximum64(a, b):
    """Return what ``np.maximum(a, b)`` returns, bit for bit (float64)."""
    m = a if a > b else b
    return m + (a if a != a else np.float64(-0.0))


@njit(**INLINE)
def np_minimum64(a, b):
    """Return what ``np.minimum(a, b)`` returns, bit for bit (float64)."""
    m = a if a < b else b
    return m + (a if a != a else np.float64(-0.0))


@njit(**INLINE)
def maximum_const(a, c):
    """Return ``np.maximum(a, c)`` for a constant `c` neither NaN nor zero."""
    return c if c > a else a


@njit(**INLINE)
def minimum_const(a, c):
    """Return ``np.minimum(a, c)`` for a constant `c` neither NaN nor zero."""
    return c if c < a else a


@njit(**INLINE)
def relu32(a):
    """Return ``np.maximum(a, float32(0))``: NaN kept, -0.0 becomes +0.0."""
    return (np.float32(0) if np.float32(0) > a else a) + np.float32(0)


@njit(**INLINE)
def relu64(a):
    """Return ``np.maximum(a, 0.0)``: NaN kept, -0.0 becomes +0.0."""
    return (np.float64(0) if np.float64(0) > a else a) + np.float64(0)


@njit(**INLINE)
def floordiv_i32(a, b):
    """Divide int32 rounding down, as NumPy does; 0 for a zero divisor.

    Through float64, which holds every int32 quotient and vectorises.
    """
    zero = b == np.int32(0)
    d = select(zero, np.float64(1), np.float64(b))
    q = floor64(np.float64(a) / d)
    return select(zero, np.int32(0), np.int32(np.int64(q)))
