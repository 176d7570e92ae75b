"""Explicit vector code of the matrix micro-kernels, as outlined LLVM functions.

Every function here is emitted ``noinline``: inlined, an innocent change in the
caller can spill the accumulators and halve the speed.  Vectors are 64 bytes
wide; LLVM splits them on narrower machines, with the same bits.

All addresses are int64, all strides int64 numbers of bytes.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, F64, I1, I32, I64

#: Rows and vectors of the largest micro-kernel: 24 accumulators, 4 vectors of
#: B and the broadcasts fit the 32 registers.
MR = 6
NV = 4
#: Rows that packing fetches ahead of itself: short pieces far apart, which no hardware foresees.
PACK_AHEAD = 16


def _i64(value):
    return ir.Constant(I64, value)


class VectorCode:
    """Emits the functions of one element type."""

    def __init__(self, elem):
        self.elem = elem
        self.width = 16 if elem is F32 else 8
        self.size = 4 if elem is F32 else 8
        self.name = "f32" if elem is F32 else "f64"
        self.vec = ir.VectorType(elem, self.width)
        self.suffix = f"v{self.width}{self.name}"

    # -- pieces
    def splat(self, b, scalar):
        undef = ir.Constant(self.vec, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, self.width), [0] * self.width)
        one = b.insert_element(undef, scalar, ir.Constant(I32, 0))
        return b.shuffle_vector(one, undef, zeros)

    def const(self, value):
        return ir.Constant(self.vec, [value] * self.width)

    def fma(self, b, x, y, z):
        fn_type = ir.FunctionType(self.vec, [self.vec] * 3)
        name = f"llvm.fma.{self.suffix}"
        return b.call(cgutils.get_or_insert_function(b.module, fn_type, name), [x, y, z])

    def first_lanes(self, b, count):
        """Return the mask of the first `count` lanes (int64, below 2**31; may be >= width)."""
        # In 32 bits, half the vectors; lengths that large do not occur.
        index = ir.VectorType(I32, self.width)
        undef = ir.Constant(index, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, self.width), [0] * self.width)
        limit = b.insert_element(undef, b.trunc(count, I32), ir.Constant(I32, 0))
        limit = b.shuffle_vector(limit, undef, zeros)
        return b.icmp_signed("<", ir.Constant(index, list(range(self.width))), limit)

    def lanes_between(self, b, low, high):
        """Return the mask of the lanes i with low <= i < high (int64 of any sign)."""
        return b.and_(self.first_lanes(b, high), b.not_(self.first_lanes(b, low)))

    def every_other(self, b, loaded, count):
        """Return `count` vectors: every other element of three neighbouring vectors, from each of the first ones on."""

        def pick(first, second, lanes):
            return b.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, self.width), lanes))

        width = self.width
        values = [pick(loaded[0], loaded[1], [2 * i + k for i in range(width)]) for k in range(min(count, 2))]
        for k in range(2, count):
            ends = [i + k // 2 for i in range(width)]
            lanes = [i if i < width else width + 2 * (i - width) + k % 2 for i in ends]
            values.append(pick(values[k % 2], loaded[2], lanes))
        return values

    def load(self, b, addr, mask=None, other=None):
        ptr = b.inttoptr(addr, self.vec.as_pointer())
        if mask is None:
            return b.load(ptr, align=self.size)
        mask_type = ir.VectorType(I1, self.width)
        fn_type = ir.FunctionType(self.vec, [self.vec.as_pointer(), I32, mask_type, self.vec])
        name = f"llvm.masked.load.{self.suffix}.p0"
        fn = cgutils.get_or_insert_function(b.module, fn_type, name)
        return b.call(fn, [ptr, ir.Constant(I32, self.size), mask, other or self.const(0.0)])

    def store(self, b, value, addr, mask=None):
        ptr = b.inttoptr(addr, self.vec.as_pointer())
        if mask is None:
            b.store(value, ptr, align=self.size)
            return
        mask_type = ir.VectorType(I1, self.width)
        args = [self.vec, self.vec.as_pointer(), I32, mask_type]
        fn_type = ir.FunctionType(ir.VoidType(), args)
        name = f"llvm.masked.store.{self.suffix}.p0"
        fn = cgutils.get_or_insert_function(b.module, fn_type, name)
        b.call(fn, [value, ptr, ir.Constant(I32, self.size), mask])

    def transposed(self, b, rows):
        """Transpose a square of vectors in registers."""
        width = self.width
        mask_type = ir.VectorType(I32, width)
        step = width // 2
        while step:
            lo = [ln if not ln & step else width + ln - step for ln in range(width)]
            hi = [ln + step if not ln & step else width + ln for ln in range(width)]
            out = list(rows)
            for i in range(width):
                if not i & step:
                    j = i | step
                    out[i] = b.shuffle_vector(rows[i], rows[j], ir.Constant(mask_type, lo))
                    out[j] = b.shuffle_vector(rows[i], rows[j], ir.Constant(mask_type, hi))
            rows = out
            step //= 2
        return rows

    def prefetch(self, b, addr, write=False):
        """Fetch a cache line into L2, to be read or written; any address is allowed."""
        byte = ir.IntType(8).as_pointer()
        fn_type = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
        fn = cgutils.get_or_insert_function(b.module, fn_type, "llvm.prefetch.p0")
        b.call(fn, [b.inttoptr(addr, byte), *(ir.Constant(I32, i) for i in (int(write), 2, 1))])

    def outlined(self, module, name, n_args, body):
        """Return the module's function `name`, emitting it on first use."""
        fn = module.globals.get(name)
        if fn is None:
            fn = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * n_args), name)
            fn.linkage = "internal"
            fn.attributes.add("noinline")
            fn.attributes.add("nounwind")
            b = ir.IRBuilder(fn.append_basic_block("entry"))
            body(b, *fn.args)
            b.ret_void()
        return fn

    # -- C (+)= A B on one register tile
    def product(self, module, rows, vectors, masked):
        name = f"fs_product_{self.name}_{rows}x{vectors}{'m' if masked else ''}"

        def body(b, k, a, a_row, a_col, bp, b_row, c, c_row, add, ahead, last):
            mask = self.first_lanes(b, last) if masked else None
            masks = [None] * (vectors - 1) + [mask]
            acc = [[cgutils.alloca_once(b, self.vec) for _ in range(vectors)] for _ in range(rows)]
            at = [b.add(c, b.mul(c_row, _i64(m))) for m in range(rows)]
            for m in range(rows):  # the rows of C lie apart, which no hardware foresees; the product hides their way
                for v in range(vectors):
                    self.prefetch(b, b.add(at[m], _i64(64 * v)), write=True)
            with b.if_else(b.icmp_signed("==", add, _i64(1))) as (then, otherwise):
                with then:
                    for m in range(rows):
                        for v in range(vectors):
                            addr = b.add(at[m], _i64(64 * v))
                            b.store(self.load(b, addr, masks[v]), acc[m][v])
                with otherwise:
                    # from zero, or from a number for each row; A is there to be read in any case
                    given = b.icmp_signed("!=", add, _i64(0))
                    for m in range(rows):
                        ptr = b.inttoptr(b.select(given, b.add(add, _i64(self.size * m)), a), self.elem.as_pointer())
                        begin = b.select(given, self.splat(b, b.load(ptr, align=self.size)), self.const(0.0))
                        for v in range(vectors):
                            b.store(begin, acc[m][v])
            row = [b.add(a, b.mul(a_row, _i64(m))) for m in range(rows)]
            with cgutils.for_range(b, k) as loop:
                b_at = b.add(bp, b.mul(loop.index, b_row))
                a_at = b.mul(loop.index, a_col)
                self.prefetch(b, b.add(ahead, b.mul(loop.index, _i64(64))))
                right = [self.load(b, b.add(b_at, _i64(64 * v)), masks[v]) for v in range(vectors)]
                for m in range(rows):
                    ptr = b.inttoptr(b.add(row[m], a_at), self.elem.as_pointer())
                    left = self.splat(b, b.load(ptr, align=self.size))
                    for v in range(vectors):
                        b.store(self.fma(b, left, right[v], b.load(acc[m][v])), acc[m][v])
            for m in range(rows):
                for v in range(vectors):
                    addr = b.add(at[m], _i64(64 * v))
                    self.store(b, b.load(acc[m][v]), addr, masks[v])

        return self.outlined(module, name, 11, body)

    # -- gather `vectors` vectors a row into a packed panel of NV vectors
    def pack(self, module, vectors, masked):
        name = f"fs_pack_{self.name}_{vectors}{'m' if masked else ''}"

        def body(b, dst, src, src_row, n, last):
            mask = self.first_lanes(b, last) if masked else None
            with cgutils.for_range(b, n) as loop:
                to = b.add(dst, b.mul(loop.index, _i64(64 * NV)))
                of = b.add(src, b.mul(loop.index, src_row))
                ahead = b.add(of, b.mul(src_row, _i64(PACK_AHEAD)))
                for v in range(vectors):
                    self.prefetch(b, b.add(ahead, _i64(64 * v)))
                for v in range(vectors):
                    m = mask if v == vectors - 1 else None
                    self.store(b, self.load(b, b.add(of, _i64(64 * v)), m), b.add(to, _i64(64 * v)))

        return self.outlined(module, name, 5, body)

    # -- square in-register transpose
    def transpose(self, module):
        width = self.width

        def body(b, dst, dst_row, src, src_row):
            rows = [self.load(b, b.add(src, b.mul(src_row, _i64(i)))) for i in range(width)]
            for i, row in enumerate(self.transposed(b, rows)):
                self.store(b, row, b.add(dst, b.mul(dst_row, _i64(i))))

        return self.outlined(module, f"fs_transpose_{self.name}", 4, body)

    # -- c[j] (+)= sum of a[k] b[k, j] over 8 rows of b
    def axpy(self, module, depth):
        def body(b, n, a, a_col, bp, b_row, c, add):
            width = self.width
            left = []
            for q in range(depth):
                ptr = b.inttoptr(b.add(a, b.mul(a_col, _i64(q))), self.elem.as_pointer())
                left.append(self.splat(b, b.load(ptr, align=self.size)))
            row = [b.add(bp, b.mul(b_row, _i64(q))) for q in range(depth)]
            fresh = b.icmp_signed("==", add, _i64(0))

            def step(offset, mask):
                at = b.add(c, offset)
                acc = b.select(fresh, self.const(0.0), self.load(b, at, mask))
                for q in range(depth):
                    of = b.add(row[q], offset)
                    if depth == 8:  # the next call's rows: B is read once, and only pieces of its rows
                        self.prefetch(b, b.add(of, b.mul(b_row, _i64(depth))))
                    acc = self.fma(b, left[q], self.load(b, of, mask), acc)
                self.store(b, acc, at, mask)

            blocks = b.sdiv(n, _i64(width))
            with cgutils.for_range(b, blocks) as loop:
                step(b.mul(loop.index, _i64(64)), None)
            rest = b.sub(n, b.mul(blocks, _i64(width)))
            with b.if_then(b.icmp_signed(">", rest, _i64(0))):
                step(b.mul(blocks, _i64(64)), self.first_lanes(b, rest))

        return self.outlined(module, f"fs_axpy_{self.name}_{depth}", 7, body)

    # -- c[i] (+)= sum of a[i, k] x[k] over whole vectors of k, one vector of rows
    def dots(self, module):
        width = self.width

        def body(b, rows, blocks, a, a_row, x, x_col, c, add):
            # Rows past the end repeat the last one; the caller ignores them.
            last = b.sub(rows, _i64(1))
            starts = []
            for i in range(width):
                beyond = b.icmp_signed("<", last, _i64(i))
                row = b.select(beyond, last, _i64(i))
                starts.append(b.add(a, b.mul(a_row, row)))
            acc = cgutils.alloca_once(b, self.vec)
            fresh = b.icmp_signed("==", add, _i64(0))
            b.store(b.select(fresh, self.const(0.0), self.load(b, c)), acc)
            with cgutils.for_range(b, blocks) as loop:
                at = b.mul(loop.index, _i64(64))
                columns = self.transposed(b, [self.load(b, b.add(s, at)) for s in starts])
                # A vector width of streams is more than the hardware follows;
                # into L2 only, since streams a power of two apart evict each
                # other from L1.
                for s in starts:
                    self.prefetch(b, b.add(b.add(s, at), _i64(512)))
                x_at = b.add(x, b.mul(loop.index, b.mul(x_col, _i64(width))))
                total = b.load(acc)
                for q in range(width):
                    addr = b.add(x_at, b.mul(x_col, _i64(q)))
                    ptr = b.inttoptr(addr, self.elem.as_pointer())
                    scalar = self.splat(b, b.load(ptr, align=self.size))
                    total = self.fma(b, columns[q], scalar, total)
                b.store(total, acc)
            self.store(b, b.load(acc), c)

        return self.outlined(module, f"fs_dots_{self.name}", 8, body)


def _dispatch(b, index, functions, args):
    """Call ``functions[index]``; an index out of range calls nothing."""
    done = b.append_basic_block("dispatched")
    switch = b.switch(index, done)
    for value, fn in functions.items():
        block = b.append_basic_block(f"case{value}")
        switch.add_case(_i64(value), block)
        with b.goto_block(block):
            b.call(fn, args)
            b.branch(done)
    b.position_at_end(done)


def make_kernels(nb_type):
    """Build the intrinsics of float32 or float64.

    Parameters
    ----------
    nb_type : numba type
        ``types.float32`` or ``types.float64``.

    Returns
    -------
    product : intrinsic
        ``product(rows, cols, k, a, a_row, a_col, b, b_row, c, c_row, add, ahead)``:
        C (+)= A B for 1 <= rows <= MR and 1 <= cols <= NV vectors.  Each
        element of C is the chain ``c = fma(a, b, c)`` over k in order, from
        zero (`add` 0), from what C holds (1), or from its row's number in a
        vector (`add` is its address).  One cache line from `ahead` on is fetched
        for each k: what the next calls read.
    pack : intrinsic
        ``pack(dst, src, src_row, n, cols)``: copy `n` rows of `cols` elements
        into rows of NV vectors; the rest of the last vector is zero.
    transpose : intrinsic
        ``transpose(dst, dst_row, src, src_row)`` of one vector width squared.
    axpy : intrinsic
        ``axpy(depth, n, a, a_col, b, b_row, c, add)``: one row of C from 1, 4
        or 8 rows of B, as the same chain as `product`.
    dots : intrinsic
        ``dots(rows, blocks, a, a_row, x, x_col, c, add)``: `c`, one vector,
        (+)= up to one vector of rows of A times x, `blocks` vectors long; the
        same chain again.
    """
    code = VectorCode(F32 if nb_type == types.float32 else F64)
    width = code.width

    def product_intrinsic(typingctx, rows, cols, k, a, a_row, a_col, bp, b_row, c, c_row, add, ahead):
        def codegen(context, builder, signature, args):
            module = builder.module
            rows, cols, *rest = args
            vectors = builder.sdiv(builder.add(cols, _i64(width - 1)), _i64(width))
            last = builder.sub(cols, builder.mul(builder.sub(vectors, _i64(1)), _i64(width)))
            rest.append(last)
            full = builder.and_(
                builder.icmp_signed("==", rows, _i64(MR)),
                builder.icmp_signed("==", cols, _i64(NV * width)),
            )
            index = builder.add(builder.mul(rows, _i64(16)), vectors)
            index = builder.select(full, _i64(0), index)
            functions = {0: code.product(module, MR, NV, False)}
            for r in range(1, MR + 1):
                for v in range(1, NV + 1):
                    functions[16 * r + v] = code.product(module, r, v, True)
            _dispatch(builder, index, functions, rest)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), codegen

    def pack_intrinsic(typingctx, dst, src, src_row, n, cols):
        def codegen(context, builder, signature, args):
            dst, src, src_row, n, cols = args
            vectors = builder.sdiv(builder.add(cols, _i64(width - 1)), _i64(width))
            last = builder.sub(cols, builder.mul(builder.sub(vectors, _i64(1)), _i64(width)))
            full = builder.icmp_signed("==", cols, _i64(NV * width))
            functions = {0: code.pack(builder.module, NV, False)}
            for v in range(1, NV + 1):
                functions[v] = code.pack(builder.module, v, True)
            index = builder.select(full, _i64(0), vectors)
            _dispatch(builder, index, functions, [dst, src, src_row, n, last])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    def transpose_intrinsic(typingctx, dst, dst_row, src, src_row):
        def codegen(context, builder, signature, args):
            builder.call(code.transpose(builder.module), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    def axpy_intrinsic(typingctx, depth, n, a, a_col, bp, b_row, c, add):
        def codegen(context, builder, signature, args):
            functions = {d: code.axpy(builder.module, d) for d in (1, 4, 8)}
            _dispatch(builder, args[0], functions, list(args[1:]))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), codegen

    def dots_intrinsic(typingctx, rows, blocks, a, a_row, x, x_col, c, add):
        def codegen(context, builder, signature, args):
            builder.call(code.dots(builder.module), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8), codegen

    return (
        intrinsic(product_intrinsic),
        intrinsic(pack_intrinsic),
        intrinsic(transpose_intrinsic),
        intrinsic(axpy_intrinsic),
        intrinsic(dots_intrinsic),
    )
