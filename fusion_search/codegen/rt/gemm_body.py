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
#: The same of a panel that is packed already, so that nothing stays in cache but itself, the next one and A.
KC_PACKED = 768
#: Depth of a panel that is used once: it stays in L1 between copy and use.
_THIN = 64
#: Most rows of a block that is computed by rows and stored by columns: it and what it is made of stay in L2.
_TURNED = 144
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


#: The same of the form that stores C by columns.
TURNED_BYTES = _TURNED * 64 * NV + 64

#: M, N, K, A, row and column stride, B, row and column stride, C, row stride,
#: beta, scratch.  Addresses in bytes, strides in elements.  Beta is 0 or 1, or
#: the address of a vector of M numbers, which each row of C starts from.
GEMM_SIGNATURE = ints(13)
#: The same with a packed B, panels of NV vectors of columns: in place of its
#: strides elements from one panel to the next, and the column that C begins at.
PACKED_SIGNATURE = ints(13)
#: The same again with C by columns: in place of its row stride the column stride.
#: Beta is 0 or 1, or the address of a vector of N numbers, which each column of
#: C starts from.
TURNED_SIGNATURE = ints(13)


def make_turn_out(transpose, pointer, size):
    """Build ``turn_out(c, c_col, tile, rows, cols)``: ``c[i + j * c_col] = tile[i, j]``, the rows of the tile one panel apart.

    Parameters
    ----------
    transpose, pointer : intrinsic
    size : int
        Of the element type, see `make_gemm`.
    """
    width = 64 // size
    panel = NV * width

    @variant(f"f{8 * size}", JIT)
    def turn_out(c, c_col, tile, rows, cols):
        whole_rows, whole_cols = rows // width * width, cols // width * width
        for j in range(0, whole_cols, width):
            for i in range(0, whole_rows, width):
                transpose((c + (j * c_col + i) * size, c_col * size, tile + (i * panel + j) * size, panel * size))
        for j in range(cols):
            out = pointer(c, j * c_col)
            t = pointer(tile, j)
            for i in range(whole_rows if j < whole_cols else 0, rows):
                out[i] = t[i * panel]

    return turn_out


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
    tuple of dispatchers
        For `GEMM_SIGNATURE`, `PACKED_SIGNATURE` and `TURNED_SIGNATURE`.
    """
    product, pack, transpose, axpy, _, column = kernels
    width = 64 // size
    panel = NV * width
    name = f"f{8 * size}"
    mc = _A_BYTES // (KC * size) // MR * MR
    turn_out = make_turn_out(transpose, pointer, size)

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
                left = b + k0 * b_row * size
                product((n, rows, depth, left, b_col * size, b_row * size, scratch, panel * size, tile, panel * size, going, scratch))
                going = 1
            for j in range(n):
                for i in range(rows):
                    out[i * c_row + j] = t[j * panel + i]

    @variant(name, JIT)
    def blocked(m, n, k, a, a_row, a_col, b, b_row, b_col, b_next, j_first, c, c_row, add, scratch):
        # B is packed where `b_next` is not 0: then C begins at its column `j_first`.
        # B rows of one panel side by side already, or too few rows of A to
        # repay a copy: read B where it is.
        direct = b_next != 0 or (b_col == 1 and (m <= 2 * MR or b_row <= panel))
        copy_a = a_col != 1 and m > MR and not (b_next != 0 and a_row == 1)
        a_block = scratch + _PANEL_BYTES
        deepest = KC_PACKED if b_next != 0 and not copy_a else KC
        blocks = (k + deepest - 1) // deepest
        depth = (k + blocks - 1) // blocks
        if m <= MR and not direct:
            depth = _THIN
        height = mc if copy_a else m
        lone = b_next == 0 and not copy_a and a_col == 1
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
                j0 = 0
                while j0 < n:
                    right_row = b_row * size
                    if b_next != 0:
                        inner = (j_first + j0) % panel
                        cols = min(panel - inner, n - j0)
                        right = b + (k0 * b_row + (j_first + j0) // panel * b_next + inner) * size
                        ahead = right + b_next * size
                    else:
                        cols = min(panel, n - j0)
                        right = b + (k0 * b_row + j0 * b_col) * size
                        if not direct:
                            pack_b(scratch, right, b_row, b_col, kd, cols)
                            right = scratch
                            right_row = panel * size
                        ahead = right
                    out = c + (i0 * c_row + j0) * size
                    j0 += cols
                    if lone and cols % width == 1 and cols > width and rows >= width:
                        # a vector for one element would cost as much as for all of them
                        cols -= 1
                        begin = going + i0 * size if going > 1 else going
                        last = right + cols * size
                        tile = scratch - _TILE_BYTES
                        column((rows, kd, at, a_row, last, right_row // size, out + cols * size, c_row, begin, tile))
                    for r in range(0, rows, MR):
                        begin = going + (i0 + r) * size if going > 1 else going
                        left, to = at + r // MR * block_bytes, out + r * c_row * size
                        product((min(MR, rows - r), cols, kd, left, row_bytes, col_bytes, right, right_row, to, c_row * size, begin, ahead))
                        # the panel after this one is fetched while this one is used: it comes from far away
                        ahead = ahead + kd * 64 if b_next != 0 and r < NV * MR else right

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
            blocked(m, n, k, a, a_row, a_col, b, b_row, b_col, 0, 0, c, c_row, beta, scratch)

    @variant(name, JIT)
    def gemm_packed(m, n, k, a, a_row, a_col, b, b_next, j_first, c, c_row, beta, scratch):
        if m <= 0 or n <= 0:
            return
        if m > 1:
            blocked(m, n, k, a, a_row, a_col, b, panel, 1, b_next, j_first, c, c_row, beta, (scratch + 63) & ~63)
            return
        if beta > 1:
            fill(pointer(c, 0), pointer(beta, 0)[0], n)
        j0 = 0
        while j0 < n:
            inner = (j_first + j0) % panel
            cols = min(panel - inner, n - j0)
            right = b + ((j_first + j0) // panel * b_next + inner) * size
            row_times_matrix(cols, k, a, a_col, right, panel, c + j0 * size, min(beta, 1))
            j0 += cols

    @variant(name, JIT)
    def gemm_turned(m, n, k, a, a_row, a_col, b, b_next, j_first, c, c_col, beta, scratch):
        # C lies by columns: a block of it is computed by rows in scratch, then turned.
        if m <= 0 or n <= 0:
            return
        tile = (scratch + 63) & ~63
        t = pointer(tile, 0)
        blocks = (m + _TURNED - 1) // _TURNED
        height = ((m + blocks - 1) // blocks + MR - 1) // MR * MR
        for i0 in range(0, m, height):
            rows = min(height, m - i0)
            j0 = 0
            while j0 < n:
                inner = (j_first + j0) % panel
                cols = min(panel - inner, n - j0)
                going = 0
                out = c + (j0 * c_col + i0) * size
                if beta == 1:
                    for j in range(cols):
                        given = pointer(out, j * c_col)
                        for i in range(rows):
                            t[i * panel + j] = given[i]
                    going = 1
                elif beta != 0:
                    start = pointer(beta, j0)
                    for i in range(rows):
                        for j in range(cols):
                            t[i * panel + j] = start[j]
                    going = 1
                for k0 in range(0, k, KC):
                    kd = min(KC, k - k0)
                    right = b + (k0 * panel + (j_first + j0) // panel * b_next + inner) * size
                    # the rows of the same panel that come next, or those of the next panel
                    ahead = right + kd * panel * size
                    for r in range(0, rows, MR):
                        left = a + ((i0 + r) * a_row + k0 * a_col) * size
                        to, block = tile + r * panel * size, min(MR, rows - r)
                        product((block, cols, kd, left, a_row * size, a_col * size, right, panel * size, to, panel * size, going, ahead))
                        ahead = ahead + kd * 64 if r < NV * MR else right
                    going = 1
                turn_out(out, c_col, tile, rows, cols)
                j0 += cols

    return gemm, gemm_packed, gemm_turned
