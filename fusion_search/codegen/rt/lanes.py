"""Reductions over a fixed number of lanes: fast, and the same bits everywhere.

Element `i` belongs to lane ``i % 64``; each lane adds its elements in order,
then the lanes are halved: ``lane[l] += lane[l + h]`` for h = 32, 16, ..., 1.
Sums start at -0.0, the neutral element, so an empty sum is -0.0 and a short
one keeps the sign of zeros.  The order depends on the number of elements only.

Maxima and minima keep NaN (any NaN gives the canonical one); which of +0.0 and
-0.0 wins is decided by the same tree.

A kernel that computes its elements tile by tile keeps 64 running lanes in a
stack buffer: `lanes_fill`, then `lanes_add` (`lanes_max`, `lanes_min`) for each
tile (all tiles but the last a multiple of 64 elements), then `fold_sum`
(`fold_max`, `fold_min`); this gives the bits of one call over everything.
"""

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import F32, F64, I1, I32, I64, INLINE

#: Number of lanes of every reduction.
LANES = 64

_NEUTRAL = {"sum": -0.0, "max": float("-inf"), "min": float("inf")}


class _Scheme:
    """Vector types and operations of one element type and one reduction."""

    def __init__(self, nb_type, kind):
        self.nb_type = nb_type
        self.elem = F32 if nb_type == types.float32 else F64
        self.kind = kind
        self.width = 16 if nb_type == types.float32 else 8
        self.count = LANES // self.width
        self.size = 4 if nb_type == types.float32 else 8

    def splat(self, value, width):
        return ir.Constant(ir.VectorType(self.elem, width), [value] * width)

    def combine(self, builder, acc, x, width):
        """Reduce `x` into `acc`; the max of a NaN is a NaN whichever side it is."""
        if self.kind == "sum":
            return builder.fadd(acc, x)
        better = builder.fcmp_ordered(">" if self.kind == "max" else "<", x, acc)
        best = builder.select(better, x, acc)
        nan = builder.fcmp_unordered("uno", x, x)
        return builder.select(nan, self.splat(float("nan"), width), best)

    def pointer(self, builder, ptr, offset):
        vec = ir.VectorType(self.elem, self.width)
        return builder.bitcast(builder.gep(ptr, [offset]), vec.as_pointer())

    def load(self, builder, ptr, offset):
        return builder.load(self.pointer(builder, ptr, offset), align=self.size)

    def load_masked(self, builder, ptr, offset, first, rem):
        """Load lanes `first`... of the tail, neutral from element `rem` on."""
        width = self.width
        vec = ir.VectorType(self.elem, width)
        index = ir.VectorType(I64, width)
        undef = ir.Constant(index, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, width), [0] * width)
        limit = builder.insert_element(undef, rem, ir.Constant(I32, 0))
        limit = builder.shuffle_vector(limit, undef, zeros)
        lanes = ir.Constant(index, [first + i for i in range(width)])
        mask = builder.icmp_signed("<", lanes, limit)
        mask_type = ir.VectorType(I1, width)
        fn_type = ir.FunctionType(vec, [vec.as_pointer(), I32, mask_type, vec])
        suffix = f"v{width}f{8 * self.size}"
        name = f"llvm.masked.load.{suffix}.p0"
        fn = cgutils.get_or_insert_function(builder.module, fn_type, name)
        at = self.pointer(builder, ptr, offset)
        neutral = self.splat(_NEUTRAL[self.kind], width)
        return builder.call(fn, [at, ir.Constant(I32, self.size), mask, neutral])

    def accumulate(self, builder, ptr, n, start):
        """Reduce `n` elements into the vectors `start`; return the new vectors."""
        vec = ir.VectorType(self.elem, self.width)
        acc = [cgutils.alloca_once(builder, vec) for _ in range(self.count)]
        for slot, value in zip(acc, start, strict=True):
            builder.store(value, slot)
        lanes = ir.Constant(I64, LANES)
        blocks = builder.sdiv(n, lanes)
        with cgutils.for_range(builder, blocks) as loop:
            base = builder.mul(loop.index, lanes)
            for v in range(self.count):
                at = builder.add(base, ir.Constant(I64, v * self.width))
                x = self.load(builder, ptr, at)
                x = self.combine(builder, builder.load(acc[v]), x, self.width)
                builder.store(x, acc[v])
        base = builder.mul(blocks, lanes)
        rem = builder.sub(n, base)
        with builder.if_then(builder.icmp_signed(">", rem, ir.Constant(I64, 0))):
            for v in range(self.count):
                at = builder.add(base, ir.Constant(I64, v * self.width))
                x = self.load_masked(builder, ptr, at, v * self.width, rem)
                x = self.combine(builder, builder.load(acc[v]), x, self.width)
                builder.store(x, acc[v])
        return [builder.load(slot) for slot in acc]

    def fold(self, builder, vectors):
        """Halve the lanes until one is left."""
        while len(vectors) > 1:
            half = len(vectors) // 2
            vectors = [self.combine(builder, vectors[i], vectors[i + half], self.width) for i in range(half)]
        value, width = vectors[0], self.width
        while width > 1:
            half = width // 2
            undef = ir.Constant(ir.VectorType(self.elem, width), ir.Undefined)
            halves = []
            for lo in (0, half):
                picks = ir.Constant(ir.VectorType(I32, half), list(range(lo, lo + half)))
                halves.append(builder.shuffle_vector(value, undef, picks))
            value = self.combine(builder, halves[0], halves[1], half)
            width = half
        return builder.extract_element(value, ir.Constant(I32, 0))


def _make_reduce(nb_type, kind):
    """Build ``reduce(ptr, n)`` over `n` contiguous elements."""
    scheme = _Scheme(nb_type, kind)

    def lane_reduce(typingctx, ptr, n):
        def codegen(context, builder, signature, args):
            start = [scheme.splat(_NEUTRAL[kind], scheme.width)] * scheme.count
            return scheme.fold(builder, scheme.accumulate(builder, args[0], args[1], start))

        return nb_type(types.CPointer(nb_type), types.int64), codegen

    return intrinsic(lane_reduce)


def _make_update(nb_type, kind):
    """Build ``update(acc, ptr, n)``: reduce a tile into 64 running lanes."""
    scheme = _Scheme(nb_type, kind)

    def lanes_update(typingctx, acc, ptr, n):
        def codegen(context, builder, signature, args):
            at = [ir.Constant(I64, v * scheme.width) for v in range(scheme.count)]
            start = [scheme.load(builder, args[0], a) for a in at]
            out = scheme.accumulate(builder, args[1], args[2], start)
            for a, value in zip(at, out, strict=True):
                builder.store(value, scheme.pointer(builder, args[0], a), align=scheme.size)
            return context.get_dummy_value()

        pointer = types.CPointer(nb_type)
        return types.void(pointer, pointer, types.int64), codegen

    return intrinsic(lanes_update)


def _make_fold(nb_type, kind):
    """Build ``fold(acc)``: reduce 64 running lanes to a number."""
    scheme = _Scheme(nb_type, kind)

    def lanes_fold(typingctx, acc):
        def codegen(context, builder, signature, args):
            at = [ir.Constant(I64, v * scheme.width) for v in range(scheme.count)]
            return scheme.fold(builder, [scheme.load(builder, args[0], a) for a in at])

        return nb_type(types.CPointer(nb_type)), codegen

    return intrinsic(lanes_fold)


lane_sum_f32 = _make_reduce(types.float32, "sum")
lane_max_f32 = _make_reduce(types.float32, "max")
lane_min_f32 = _make_reduce(types.float32, "min")
lane_sum_f64 = _make_reduce(types.float64, "sum")
lane_max_f64 = _make_reduce(types.float64, "max")
lane_min_f64 = _make_reduce(types.float64, "min")

lanes_add_f32 = _make_update(types.float32, "sum")
lanes_max_f32 = _make_update(types.float32, "max")
lanes_min_f32 = _make_update(types.float32, "min")
lanes_add_f64 = _make_update(types.float64, "sum")
lanes_max_f64 = _make_update(types.float64, "max")
lanes_min_f64 = _make_update(types.float64, "min")

fold_sum_f32 = _make_fold(types.float32, "sum")
fold_max_f32 = _make_fold(types.float32, "max")
fold_min_f32 = _make_fold(types.float32, "min")
fold_sum_f64 = _make_fold(types.float64, "sum")
fold_max_f64 = _make_fold(types.float64, "max")
fold_min_f64 = _make_fold(types.float64, "min")


@njit(**INLINE)
def lanes_fill(acc, value):
    """Set 64 running lanes to `value`: -0.0, -inf or inf for sum, max, min."""
    for lane in range(64):
        acc[lane] = value


# Integer reductions need no lanes: they are exact in any order, and LLVM
# vectorises them by itself.
@njit(**INLINE)
def int_sum(ptr, n):
    """Sum `n` integers in int64, wrapping around."""
    total = 0
    for i in range(n):
        total += ptr[i]
    return total


@njit(**INLINE)
def int_max(ptr, n):
    """Return the largest of `n` >= 1 integers."""
    best = ptr[0]
    for i in range(1, n):
        best = ptr[i] if ptr[i] > best else best
    return best


@njit(**INLINE)
def int_min(ptr, n):
    """Return the smallest of `n` >= 1 integers."""
    best = ptr[0]
    for i in range(1, n):
        best = ptr[i] if ptr[i] < best else best
    return best
