"""A matrix times a vector, for matrices contiguous along their rows."""

from fusion_search.codegen.rt.intrinsics import JIT, variant


def make_column(dots, pointer, fma, size):
    """Build ``column(m, k, a, a_row, x, x_col, c, c_step, add, tile)`` of one element type.

    ``c[i] (+)= sum of a[i, k] x[k]``, each the chain of the matrix product: from zero (`add` 0), from what c holds (1), or from
    a vector (its address). Strides are in elements; `tile` is the address of one vector of scratch.

    Parameters
    ----------
    dots : intrinsic
        The micro-kernel, see `ukernels.make_kernels`.
    pointer, fma : intrinsic
        Typed pointer and scalar fma of the element type.
    size : int
        Bytes of an element.
    """
    width = 64 // size

    @variant(f"f{8 * size}", JIT)
    def column(m, k, a, a_row, x, x_col, c, c_step, add, tile):
        t = pointer(tile, 0)
        whole = k // width * width
        xs = pointer(x, 0)
        for i0 in range(0, m, width):
            rows = min(width, m - i0)
            out = pointer(c, i0 * c_step)
            if add > 1:
                start = pointer(add, i0)
                for i in range(rows):
                    t[i] = start[i]
            else:
                for i in range(rows):
                    t[i] = out[i * c_step] if add else 0.0
            at = a + i0 * a_row * size
            if whole > 0:
                dots(rows, k // width, at, a_row * size, x, x_col * size, tile, add)
            for i in range(rows):
                row = pointer(at, i * a_row)
                total = t[i]
                for q in range(whole, k):
                    total = fma(row[q], xs[q * x_col], total)
                out[i * c_step] = total

    return column
