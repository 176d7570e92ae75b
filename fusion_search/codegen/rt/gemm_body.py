"""The blocked matrix product, written once for float32 and float64.

Each element of C is the chain ``c = fma(a[i, k], b[k, j], c)`` over k in order,
starting from zero, from the old c, or from a number of its row.  Blocking, packing, edge code and the
paths for vectors leave that chain alone, so the bits do not depend on how a
caller cuts M and N.
"""

from fusion_search.codegen.rt.intrinsics import JIT, variant
from fusion_search.codegen.rt.memory import mem_set
from fusion_search.codegen.rt.symbols import ints
from fusion_search.codegen.rt.ukernels import MR, NV

#: Depth of a packed panel: 384 rows of 256 bytes stay in L2 beside A and C.
KC = 384
#: Depth of a panel that is used once: it stays in L1 between copy and use.
_THIN = 64
#: Bytes of packed A rows: a multiple of MR rows of KC elements.
_A_BYTES = 184320
_PANEL_BYTES = KC * 64 * NV
_TILE_BYTES = 4 * 64 * NV


def scratch_bytes(depth, copies):
    """Return the scratch that a call needs: a tile, a panel of B, and room for A only where its rows are copied.

    Parameters
    ----------
    depth : int
        What is summed over.
    copies : bool
        Whether the elements of a row of A lie apart.
    """
    return 64 + _TILE_BYTES + (_PANEL_BYTES + _A_BYTES if copies else 64 * NV * min(depth, KC))


#: M, N, K, A, row and column stride, B, row and column stride, C, row stride,
#: beta, scratch.  Addresses in bytes, strides in elements.  Beta is 0 or 1, or
#: the address of a vector of M numbers, which each row of C starts from.
GEMM_SIGNATURE = ints(13)


def make_gemm(kernels, pointer, size):
    """Build the compiled gemm of one element type.

    Parameters
    ----------
    kernels : tuple of intrinsics
        ``KERNELS`` of the element type's micro-kernel module.
    pointer : intrinsic
        Typed pointer of the element type.
    size : int
        Bytes of an element.

    Returns
    -------
    dispatcher
        Takes the 13 int64 of `GEMM_SIGNATURE`.
    """
    product, pack, transpose, axpy, _, column = kernels
    width = 64 // size
    panel = NV * width
    name = f"f{8 * size}"
    mc = _A_BYTES // (KC * size) // MR * MR

    @variant(name, JIT)
    def pack_columns(dst, src, row, col, n, cols):
        # B[k, j] at src + k * row + j * col (elements) into rows of `panel`.
        if row != 1:
            for k in range(n):
                d = pointer(dst, k * panel)
                s = pointer(src, k * row)
                for j in range(cols):
                    d[j] = s[j * col]
            return
        for j0 in range(0, cols, width):
            full = n // width * width if j0 + width <= cols else 0
            for k0 in range(0, full, width):
                to = dst + (k0 * panel + j0) * size
                transpose((to, panel * size, src + (j0 * col + k0) * size, col * size))
            for j in range(j0, min(j0 + width, cols)):
                s = pointer(src, j * col)
                d = pointer(dst, j)
                for k in range(full, n):
                    d[k * panel] = s[k]

    @variant(name, JIT)
    def pack_b(dst, src, row, col, n, cols):
        if col == 1:
            pack((dst, src, row * size, n, cols))
        else:
            pack_columns(dst, src, row, col, n, cols)

    @variant(name, JIT)
    def pack_a(dst, src, row, col, rows, n):
        # Blocks of MR rows, each [n][MR].
        for i0 in range(0, rows, MR):
            height = min(MR, rows - i0)
            d = pointer(dst, i0 * n)
            s = pointer(src, i0 * row)
            if height == MR and row == 1:
                for k in range(n):
                    for m in range(MR):
                        d[k * MR + m] = s[k * col + m]
            else:
                for k in range(n):
                    for m in range(height):
                        d[k * MR + m] = s[k * col + m * row]

    @variant(name, JIT)
    def row_times_matrix(n, k, a, a_col, b, b_row, c, add):
        # B is read once, whole rows at a time: memory bandwidth.
        done = 0
        while k - done >= 8:
            at = b + done * b_row * size
            axpy((8, n, a + done * a_col * size, a_col * size, at, b_row * size, c, add))
            add = 1
            done += 8
        while done < k:
            depth = 4 if k - done >= 4 else 1
            at = b + done * b_row * size
            axpy((depth, n, a + done * a_col * size, a_col * size, at, b_row * size, c, add))
            add = 1
            done += depth

    @variant(name, JIT)
    def narrow(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, add, scratch):
        # C has at most four columns: the transposed problem fills the vectors.
        tile = scratch - _TILE_BYTES
        t = pointer(tile, 0)
        for i0 in range(0, m, panel):
            rows = min(panel, m - i0)
            out = pointer(c, i0 * c_row)
            if add:
                for j in range(n):
                    for i in range(rows):
                        t[j * panel + i] = out[i * c_row + j]
            going = add
            for k0 in range(0, k, _THIN):
                depth = min(_THIN, k - k0)
                at = a + (i0 * a_row + k0 * a_col) * size
                pack_b(scratch, at, a_col, a_row, depth, rows)
                product(
                    (n, rows, depth, b + k0 * b_row * size, b_col * size, b_row * size, scratch, panel * size, tile, panel * size, going)
                )
                going = 1
            for j in range(n):
                for i in range(rows):
                    out[i * c_row + j] = t[j * panel + i]

    @variant(name, JIT)
    def blocked(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, add, scratch):
        # B rows of one panel side by side already, or too few rows of A to
        # repay a copy: read B where it is.
        direct = b_col == 1 and (m <= 2 * MR or b_row <= panel)
        copy_a = a_col != 1 and m > MR
        a_block = scratch + _PANEL_BYTES
        blocks = (k + KC - 1) // KC
        depth = (k + blocks - 1) // blocks
        if m <= MR and not direct:
            depth = _THIN
        height = mc if copy_a else m
        for i0 in range(0, m, height):
            rows = min(height, m - i0)
            for k0 in range(0, k, depth):
                kd = min(depth, k - k0)
                going = 1 if k0 > 0 else add
                at = a + (i0 * a_row + k0 * a_col) * size
                row_bytes, col_bytes = a_row * size, a_col * size
                block_bytes = MR * row_bytes
                if copy_a:
                    pack_a(a_block, at, a_row, a_col, rows, kd)
                    at = a_block
                    row_bytes, col_bytes, block_bytes = size, MR * size, MR * kd * size
                for j0 in range(0, n, panel):
                    cols = min(panel, n - j0)
                    right = b + (k0 * b_row + j0 * b_col) * size
                    right_row = b_row * size
                    if not direct:
                        pack_b(scratch, right, b_row, b_col, kd, cols)
                        right = scratch
                        right_row = panel * size
                    out = c + (i0 * c_row + j0) * size
                    if cols % width == 1 and cols > width and not copy_a and a_col == 1 and rows >= width:
                        # a vector for one element would cost as much as for all of them
                        cols -= 1
                        begin = going + i0 * size if going > 1 else going
                        last = right + cols * size
                        column(
                            (
                                rows,
                                kd,
                                at,
                                a_row,
                                last,
                                right_row // size,
                                out + cols * size,
                                c_row,
                                begin,
                                scratch - _TILE_BYTES,
                            )
                        )
                    for r in range(0, rows, MR):
                        begin = going + (i0 + r) * size if going > 1 else going
                        product(
                            (
                                min(MR, rows - r),
                                cols,
                                kd,
                                at + r // MR * block_bytes,
                                row_bytes,
                                col_bytes,
                                right,
                                right_row,
                                out + r * c_row * size,
                                c_row * size,
                                begin,
                            )
                        )

    @variant(name, JIT)
    def fill(row, value, n):
        for j in range(n):
            row[j] = value

    @variant(name, JIT)
    def gemm(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch):
        if m <= 0 or n <= 0:
            return
        if beta > 1 and (k <= 0 or m == 1 or 1 < n <= 4 or (n == 1 and a_col != 1)):
            # the other forms start from a vector themselves
            for i in range(m):
                fill(pointer(c, i * c_row), pointer(beta, i)[0], n)
            beta = 1
        if k <= 0:
            if beta == 0:
                for i in range(m):
                    mem_set(c + i * c_row * size, 0, n * size)
            return
        tile = (scratch + 63) & ~63
        scratch = tile + _TILE_BYTES
        if m == 1 and b_col == 1:
            row_times_matrix(n, k, a, a_col, b, b_row, c, beta)
        elif m == 1 and b_row == 1:
            column((n, k, b, b_col, a, a_col, c, 1, beta, tile))
        elif n == 1 and a_col == 1:
            column((m, k, a, a_row, b, b_row, c, c_row, beta, tile))
        elif n <= 4 and m > MR:
            narrow(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch)
        else:
            blocked(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch)

    return gemm
