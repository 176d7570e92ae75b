"""Small tables that vectorised loops look up in registers.

A vector register of AVX-512 holds 16 float32, and one instruction permutes one or two of them by a vector of indices in about a
cycle, where a gather takes one for each element. LLVM's vectoriser makes gathers of table reads. So a lookup is a call here that
names its own vector forms (the attribute ``vector-function-abi-variant``); the compilers of `interleave` inline them behind the
vectoriser. AVX2 permutes 8 at a time and selects among four such; elsewhere a lookup is a read from memory. The value is the same.
"""

from hashlib import blake2b

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_search.codegen.rt import target
from fusion_search.codegen.rt.intrinsics import F32, I32

#: Elements of the vectors that the processor can permute; 0 when it cannot.
HOST_WIDTH = 16 if target.has("avx512f") else 8 if target.has("avx2") else 0
_PURE = ("nounwind", "willreturn", "memory(none)")


def _declared(builder, name, result, arguments):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def _int(value, bits=32):
    return ir.Constant(ir.IntType(bits), value)


def _resized(builder, vector, size):
    """Repeat or cut a vector to a size."""
    picks = ir.Constant(ir.VectorType(I32, size), [k % vector.type.count for k in range(size)])
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), picks)


def _define(module, name, signature, scalar, vector, width):
    """Define a pure function and its forms for whole and half vectors; `scalar` and `vector` write the bodies."""
    found = module.globals.get(name)
    if found is not None:
        return found
    function = ir.Function(module, signature, name)
    function.linkage = "weak_odr"  # kept, also the forms that nothing calls yet
    sizes = (width, width // 2)
    forms = ",".join(f"_ZGV_LLVM_N{n}{'v' * len(signature.args)}_{name}({name}_v{n})" for n in sizes)
    # inlined before the vectoriser sees it, a table would be gathered
    _mark(function, "noinline", "speculatable", *_PURE, f'"vector-function-abi-variant"="{forms}"')
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(scalar(builder, *function.args))
    for n in sizes:
        arguments = [ir.VectorType(kind, n) for kind in signature.args]
        form = ir.Function(module, ir.FunctionType(ir.VectorType(signature.return_type, n), arguments), f"{name}_v{n}")
        form.linkage = "weak_odr"
        _mark(form, "alwaysinline", *_PURE)
        builder = ir.IRBuilder(form.append_basic_block())
        builder.ret(_resized(builder, vector(builder, *(_resized(builder, arg, width) for arg in form.args)), n))
    return function


def _mark(function, *attributes):
    for attribute in attributes:
        set.add(function.attributes, attribute)  # llvmlite knows few of LLVM's attributes by name


def _permuted(builder, values, index):
    """Look up a vector of indices in a table by permuting registers."""
    width = index.type.count
    vector = ir.VectorType(F32, width)
    parts = [ir.Constant(vector, values[k : k + width]) for k in range(0, len(values), width)]
    if width == 16 and len(parts) == 2:
        permute = _declared(builder, "llvm.x86.avx512.vpermi2var.ps.512", vector, [vector, index.type, vector])
        return builder.call(permute, [parts[0], index, parts[1]])
    name = "llvm.x86.avx512.permvar.sf.512" if width == 16 else "llvm.x86.avx2.permps"
    permute = _declared(builder, name, vector, [vector, index.type])
    found = [builder.call(permute, [part, index]) for part in parts]
    bit = width
    while len(found) > 1:  # the next bit of the index chooses among them by pairs
        zero, mask = (ir.Constant(index.type, [number] * width) for number in (0, bit))
        upper = builder.icmp_signed("!=", builder.and_(index, mask), zero)
        found = [builder.select(upper, high, low) for low, high in zip(found[::2], found[1::2], strict=True)]
        bit *= 2
    return found[0]


def make_lookup(values, width=HOST_WIDTH):
    """Build an intrinsic ``lookup(index)`` that reads a table of float32.

    Parameters
    ----------
    values : sequence of float
        16 or 32 numbers.
    width : int
        16 to permute by AVX-512, 8 by AVX2, 0 to read from memory.

    Returns
    -------
    intrinsic
        Takes an int32, of which only the bits below the table's size count.
    """
    table = np.asarray(values, np.float32)
    if table.size not in (16, 32):
        raise ValueError(f"a table of {table.size} values does not fit the registers")
    numbers = [float(v) for v in table]
    # by its content: what has one name in one process is one function
    name = f"fs_lookup{width}_{blake2b(table.tobytes(), digest_size=8).hexdigest()}"

    def scalar(builder, index):
        array = ir.ArrayType(F32, table.size)
        found = builder.module.globals.get(f"{name}_table")
        if found is None:
            found = ir.GlobalVariable(builder.module, array, f"{name}_table")
            found.linkage, found.global_constant, found.initializer = "private", True, ir.Constant(array, numbers)
        at = builder.and_(index, _int(table.size - 1))
        return builder.load(builder.gep(found, [_int(0), at]))

    def vector(builder, index):
        return _permuted(builder, numbers, index)

    def lookup(typingctx, index):
        def codegen(context, builder, signature, args):
            if not width:
                return scalar(builder, args[0])
            return builder.call(_define(builder.module, name, ir.FunctionType(F32, [I32]), scalar, vector, width), args)

        return types.float32(types.int32), codegen

    return intrinsic(lookup)


def make_scale_floor(width=HOST_WIDTH):
    """Build an intrinsic ``scale(x, k)``: `x` times 2**floor(`k`), rounded once.

    `k` is a float32 between -250 and 250, `x` is between 1 and 2, or both are NaN.

    Parameters
    ----------
    width : int
        16 for the one instruction of AVX-512; otherwise two multiplications by powers of two.
    """
    native = width == 16

    def product(builder, x, k):
        floor = _declared(builder, "llvm.floor.f32", F32, [F32])
        whole = builder.call(_declared(builder, "llvm.fptosi.sat.i32.f32", I32, [F32]), [builder.call(floor, [k])])
        half = builder.ashr(whole, _int(1))
        for part in (half, builder.sub(whole, half)):  # one alone would overflow for subnormal results
            x = builder.fmul(x, builder.bitcast(builder.shl(builder.add(part, _int(127)), _int(23)), F32))
        return x

    def vector(builder, x, k):
        kind = x.type
        scale = _declared(builder, "llvm.x86.avx512.mask.scalef.ps.512", kind, [kind, kind, kind, ir.IntType(16), I32])
        return builder.call(scale, [x, k, x, _int(-1, 16), _int(4)])

    def scale_floor(typingctx, x, k):
        def codegen(context, builder, signature, args):
            if not native:
                return product(builder, *args)
            return builder.call(_define(builder.module, "fs_scale_floor", ir.FunctionType(F32, [F32, F32]), product, vector, 16), args)

        return types.float32(types.float32, types.float32), codegen

    return intrinsic(scale_floor)


def _clamped(builder, x, least, most):
    """Clamp a float32; NaN stays."""
    low, high = ir.Constant(F32, least), ir.Constant(F32, most)
    x = builder.select(builder.fcmp_ordered(">", x, high), high, x)
    return builder.select(builder.fcmp_ordered("<", x, low), low, x)


def make_ends(least, most, small, width=HOST_WIDTH):
    """Build intrinsics ``ends(x)`` and ``rest(r)`` for a function that scales by powers of two what it makes of a small rest.

    Outside of `least` to `most` the scale alone decides, if only the rest stays small. AVX-512 sees to that by one instruction on the
    rest, also where it is NaN because `x` is infinite (of a NaN the scale makes NaN), in the place of two on `x`.

    Parameters
    ----------
    least, most : float
        Beyond these the function of a float32 is 0 or infinite.
    small : float
        More than any rest between them.
    width : int
        16 for the instruction of AVX-512, where the processor has it (the first to have AVX-512 did not); otherwise `ends` clamps, and
        `rest` does nothing.
    """
    native = width == 16 and target.has("avx512dq")

    def clamp(builder, x):
        return _clamped(builder, x, least, most)

    def same(builder, x):
        return x

    def nearest(builder, r):
        kind = r.type
        smaller = _declared(
            builder, "llvm.x86.avx512.mask.range.ps.512", kind, [kind, kind, I32, kind, ir.IntType(16), I32]
        )  # the smaller magnitude, with the sign of the first
        bound, nothing = ir.Constant(kind, [small] * kind.count), ir.Constant(kind, ir.Undefined)
        return builder.call(smaller, [r, bound, _int(2), nothing, _int(-1, 16), _int(4)])

    def build(name, scalar, vector):
        def intrinsic_of(typingctx, x):
            def codegen(context, builder, signature, args):
                if not native:
                    return scalar(builder, *args)
                return builder.call(_define(builder.module, name, ir.FunctionType(F32, [F32]), scalar, vector, 16), args)

            return types.float32(types.float32), codegen

        return intrinsic(intrinsic_of)

    bits = blake2b(np.asarray([least, most, small], np.float32).tobytes(), digest_size=8).hexdigest()
    return build(f"fs_ends_{bits}", clamp, same), build(f"fs_rest_{bits}", same, nearest)


scale_floor32 = make_scale_floor()
