"""Reductions over a fixed number of lanes: fast, and the same bits everywhere.

Element `i` belongs to lane ``i % 64``; each lane adds its elements in order,
then the lanes are halved: ``lane[l] += lane[l + h]`` for h = 32, 16, ..., 1.
Sums start at -0.0, the neutral element, so an empty sum is -0.0 and a short
one keeps the sign of zeros.  The order depends on the number of elements only.

Maxima and minima keep NaN (any NaN gives the canonical one); which of +0.0 and
-0.0 wins is decided by the same tree.

A kernel that computes its elements as it goes keeps 64 running lanes in a variable of type `Lanes`, whose vectors are
registers: `lanes_f4` (`lanes_f8`) starts it, `lanes_add` (`lanes_max`, `lanes_min`) reduces 64 elements into it,
`lanes_rest_add` the last ones when they are fewer, `fold_sum` (`fold_max`, `fold_min`) ends it. The 64 elements come from
memory; where the kernel has just written them to a buffer of its own, LLVM hands them over in registers.
"""

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

from fusion_search.codegen.rt.intrinsics import F32, F64, I1, I32, I64, INLINE
from fusion_search.codegen.rt.target import has

#: Number of lanes of every reduction.
LANES = 64

_NEUTRAL = {"sum": -0.0, "max": float("-inf"), "min": float("inf")}


class Lanes(types.Type):
    """Type of 64 running lanes of float32 or float64."""

    def __init__(self, element):
        self.element = element
        super().__init__(f"lanes of {element}")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        scheme = _Scheme(lanes.element, "sum")
        super().__init__(manager, lanes, ir.LiteralStructType([ir.VectorType(scheme.elem, scheme.width)] * scheme.count))


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

    def spread(self, builder, value, vector):
        """Return a vector all of whose elements are one value."""
        undef = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
        return builder.shuffle_vector(builder.insert_element(undef, value, ir.Constant(I32, 0)), undef, zeros)

    def load_masked(self, builder, ptr, offset, first, rem):
        """Load lanes `first`... of the tail, neutral from element `rem` on."""
        width = self.width
        vec = ir.VectorType(self.elem, width)
        index = ir.VectorType(I64, width)
        lanes = ir.Constant(index, [first + i for i in range(width)])
        mask = builder.icmp_signed("<", lanes, self.spread(builder, rem, index))
        mask_type = ir.VectorType(I1, width)
        fn_type = ir.FunctionType(vec, [vec.as_pointer(), I32, mask_type, vec])
        suffix = f"v{width}f{8 * self.size}"
        name = f"llvm.masked.load.{suffix}.p0"
        fn = cgutils.get_or_insert_function(builder.module, fn_type, name)
        at = self.pointer(builder, ptr, offset)
        neutral = self.splat(_NEUTRAL[self.kind], width)
        return builder.call(fn, [at, ir.Constant(I32, self.size), mask, neutral])

    @property
    def joins(self):
        """Whether the processor joins two vectors at any element in one instruction."""
        return has("avx512f")

    def join(self, builder, low, high, first):
        """Return a vector that begins at element `first` of one and ends in another."""
        index, bits = (I32, "ps") if self.size == 4 else (I64, "pd")
        vec, indices = ir.VectorType(self.elem, self.width), ir.VectorType(index, self.width)
        start = first if index == I64 else builder.trunc(first, I32)
        picks = builder.add(ir.Constant(indices, list(range(self.width))), self.spread(builder, start, indices))
        name = f"llvm.x86.avx512.vpermi2var.{bits}.512"
        fn = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vec, [vec, indices, vec]), name)
        return builder.call(fn, [low, picks, high])

    def store_masked(self, builder, vector, pointer, first):
        """Store the elements of a vector from `first` on."""
        vec, indices, mask_type = vector.type, ir.VectorType(I64, self.width), ir.VectorType(I1, self.width)
        lanes = ir.Constant(indices, list(range(self.width)))
        mask = builder.icmp_signed(">=", lanes, self.spread(builder, first, indices))
        fn_type = ir.FunctionType(ir.VoidType(), [vec, vec.as_pointer(), I32, mask_type])
        fn = cgutils.get_or_insert_function(builder.module, fn_type, f"llvm.masked.store.v{self.width}f{8 * self.size}.p0")
        builder.call(fn, [vector, pointer, ir.Constant(I32, self.size), mask])

    def unpack(self, builder, lanes):
        """Return the vectors of a value of type `Lanes`."""
        return [builder.extract_value(lanes, v) for v in range(self.count)]

    def pack(self, builder, vectors):
        """Return a value of type `Lanes`."""
        lanes = ir.Constant(ir.LiteralStructType([vectors[0].type] * self.count), ir.Undefined)
        for v, vector in enumerate(vectors):
            lanes = builder.insert_value(lanes, vector, v)
        return lanes

    def first(self, v):
        """Return the lane at which a vector begins."""
        return ir.Constant(I64, v * self.width)

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


def scheme_of(element):
    """Return how 64 elements of a type lie in vectors."""
    return _Scheme(element, "sum")


_F4, _F8 = Lanes(types.float32), Lanes(types.float64)


def _make_start(lanes):
    """Build ``start(value)``: all lanes of one value, -0.0, -inf or inf for sum, max, min."""
    scheme = _Scheme(lanes.element, "sum")

    def lanes_start(typingctx, value):
        def codegen(context, builder, signature, args):
            return scheme.pack(builder, [scheme.spread(builder, args[0], ir.VectorType(scheme.elem, scheme.width))] * scheme.count)

        return lanes(lanes.element), codegen

    return intrinsic(lanes_start)


def _make_update(lanes, kind):
    """Build ``update(lanes, ptr)``: reduce 64 elements into running lanes."""
    scheme = _Scheme(lanes.element, kind)

    def lanes_update(typingctx, acc, ptr):
        def codegen(context, builder, signature, args):
            old = scheme.unpack(builder, args[0])
            new = [scheme.load(builder, args[1], scheme.first(v)) for v in range(scheme.count)]
            return scheme.pack(builder, [scheme.combine(builder, a, x, scheme.width) for a, x in zip(old, new, strict=True)])

        return lanes(lanes, types.CPointer(lanes.element)), codegen

    return intrinsic(lanes_update)


def _make_rest(lanes, kind):
    """Build ``rest(lanes, ptr, n)``: reduce the last elements, fewer than 64, into running lanes."""
    scheme = _Scheme(lanes.element, kind)

    def lanes_rest(typingctx, acc, ptr, n):
        def codegen(context, builder, signature, args):
            vectors = scheme.unpack(builder, args[0])
            for v, old in enumerate(vectors):
                x = scheme.load_masked(builder, args[1], scheme.first(v), v * scheme.width, args[2])
                vectors[v] = scheme.combine(builder, old, x, scheme.width)
            return scheme.pack(builder, vectors)

        return lanes(lanes, types.CPointer(lanes.element), types.int64), codegen

    return intrinsic(lanes_rest)


def _make_join(lanes, kind):
    """Build ``join(lanes, more)``: reduce running lanes into others."""
    scheme = _Scheme(lanes.element, kind)

    def lanes_join(typingctx, acc, more):
        def codegen(context, builder, signature, args):
            pairs = zip(*(scheme.unpack(builder, arg) for arg in args), strict=True)
            return scheme.pack(builder, [scheme.combine(builder, a, x, scheme.width) for a, x in pairs])

        return lanes(lanes, lanes), codegen

    return intrinsic(lanes_join)


def _make_fold(lanes, kind):
    """Build ``fold(lanes)``: reduce 64 running lanes to a number."""
    scheme = _Scheme(lanes.element, kind)

    def lanes_fold(typingctx, acc):
        def codegen(context, builder, signature, args):
            return scheme.fold(builder, scheme.unpack(builder, args[0]))

        return lanes.element(lanes), codegen

    return intrinsic(lanes_fold)


def _make_store(lanes):
    """Build ``store(ptr, lanes)``: write 64 running lanes to memory."""
    scheme = _Scheme(lanes.element, "sum")

    def lanes_store(typingctx, ptr, acc):
        def codegen(context, builder, signature, args):
            for v, vector in enumerate(scheme.unpack(builder, args[1])):
                builder.store(vector, scheme.pointer(builder, args[0], scheme.first(v)), align=scheme.size)
            return context.get_dummy_value()

        return types.void(types.CPointer(lanes.element), lanes), codegen

    return intrinsic(lanes_store)


def _make_put(lanes, count):
    """Build ``put(ptr, source)``: copy 64 elements, or so many vectors of 64 bytes, from a buffer.

    A loop that writes to a buffer of its own only needs no test that what it reads does not overlap with it.
    """
    scheme = _Scheme(lanes.element, "sum")

    def lanes_put(typingctx, ptr, source):
        def codegen(context, builder, signature, args):
            for v in range(count or scheme.count):
                vector = scheme.load(builder, args[1], scheme.first(v))
                builder.store(vector, scheme.pointer(builder, args[0], scheme.first(v)), align=scheme.size)
            return context.get_dummy_value()

        return types.void(types.CPointer(lanes.element), types.CPointer(lanes.element)), codegen

    return intrinsic(lanes_put)


def _make_lines(lanes):
    """Build ``lines(ptr, source, carry, before, at)``: copy 64 elements from a buffer to a row, whole cache lines at a time.

    The first line begins `before` elements into the row. The last elements of a call wait in what it returns for the line that they
    share with the first ones of the next; `at` is 0 in the first call, which writes nothing before the row. A vector across two
    lines would be stored in two steps.
    """
    scheme = _Scheme(lanes.element, "sum")

    def lanes_lines(typingctx, ptr, source, carry, before, at):
        def codegen(context, builder, signature, args):
            to, of, waiting, first, start = args
            vectors = [scheme.load(builder, of, scheme.first(v)) for v in range(scheme.count)]
            if scheme.joins:
                line = builder.gep(to, [builder.sub(first, ir.Constant(I64, scheme.width))])
                begins = builder.icmp_signed("==", start, ir.Constant(I64, 0))
                outside = builder.select(begins, builder.sub(ir.Constant(I64, scheme.width), first), ir.Constant(I64, 0))
                rows = zip([scheme.unpack(builder, waiting)[-1], *vectors], vectors, strict=False)
                joined = [scheme.join(builder, low, high, first) for low, high in rows]
                scheme.store_masked(builder, joined[0], scheme.pointer(builder, line, scheme.first(0)), outside)
                for v in range(1, scheme.count):
                    builder.store(joined[v], scheme.pointer(builder, line, scheme.first(v)), align=scheme.size)
            else:
                for v, vector in enumerate(vectors):
                    builder.store(vector, scheme.pointer(builder, to, scheme.first(v)), align=scheme.size)
            return scheme.pack(builder, vectors)

        element = types.CPointer(lanes.element)
        return lanes(element, element, lanes, types.int64, types.int64), codegen

    return intrinsic(lanes_lines)


def _make_last(lanes):
    """Build ``last(ptr, carry, before)``: write the elements that wait for the rest of their line, which end at a pointer."""
    scheme = _Scheme(lanes.element, "sum")

    def lanes_last(typingctx, ptr, carry, before):
        def codegen(context, builder, signature, args):
            if scheme.joins:
                to = builder.gep(args[0], [ir.Constant(I64, -scheme.width)])
                waiting = scheme.unpack(builder, args[1])[-1]
                scheme.store_masked(builder, waiting, scheme.pointer(builder, to, scheme.first(0)), args[2])
            return context.get_dummy_value()

        return types.void(types.CPointer(lanes.element), lanes, types.int64), codegen

    return intrinsic(lanes_last)


lanes_f4, lanes_f8 = _make_start(_F4), _make_start(_F8)
lanes_store_f32, lanes_store_f64 = _make_store(_F4), _make_store(_F8)
lanes_put_f32, lanes_put_f64 = _make_put(_F4, 0), _make_put(_F8, 0)
vector_put_f32 = _make_put(_F4, 1)
lanes_lines_f32, lanes_lines_f64 = _make_lines(_F4), _make_lines(_F8)
lanes_last_f32, lanes_last_f64 = _make_last(_F4), _make_last(_F8)

lanes_add_f32, lanes_add_f64 = _make_update(_F4, "sum"), _make_update(_F8, "sum")
lanes_max_f32, lanes_max_f64 = _make_update(_F4, "max"), _make_update(_F8, "max")
lanes_min_f32, lanes_min_f64 = _make_update(_F4, "min"), _make_update(_F8, "min")

lanes_rest_add_f32, lanes_rest_add_f64 = _make_rest(_F4, "sum"), _make_rest(_F8, "sum")
lanes_rest_max_f32, lanes_rest_max_f64 = _make_rest(_F4, "max"), _make_rest(_F8, "max")
lanes_rest_min_f32, lanes_rest_min_f64 = _make_rest(_F4, "min"), _make_rest(_F8, "min")

# only sums are long enough to be summed anew
lanes_join_add_f32, lanes_join_add_f64 = _make_join(_F4, "sum"), _make_join(_F8, "sum")

fold_sum_f32, fold_sum_f64 = _make_fold(_F4, "sum"), _make_fold(_F8, "sum")
fold_max_f32, fold_max_f64 = _make_fold(_F4, "max"), _make_fold(_F8, "max")
fold_min_f32, fold_min_f64 = _make_fold(_F4, "min"), _make_fold(_F8, "min")


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
