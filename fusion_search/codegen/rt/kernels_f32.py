"""The float32 micro-kernels, compiled and exported by name."""

from numba import cfunc, types

from fusion_search.codegen.rt.column import make_column
from fusion_search.codegen.rt.intrinsics import fma32
from fusion_search.codegen.rt.memory import p_f4
from fusion_search.codegen.rt.symbols import export, ints
from fusion_search.codegen.rt.ukernels import make_kernels

_product, _pack, _transpose, _axpy, _dots = make_kernels(types.float32)


@cfunc(ints(12), cache=True, error_model="numpy")
def product_f32(rows, cols, k, a, a_row, a_col, b, b_row, c, c_row, add, ahead):
    """C (+)= A B of one register tile, see `make_kernels`."""
    _product(rows, cols, k, a, a_row, a_col, b, b_row, c, c_row, add, ahead)


@cfunc(ints(5), cache=True, error_model="numpy")
def pack_f32(dst, src, src_row, n, cols):
    """Copy rows into a panel, see `make_kernels`."""
    _pack(dst, src, src_row, n, cols)


@cfunc(ints(4), cache=True, error_model="numpy")
def transpose_f32(dst, dst_row, src, src_row):
    """Transpose one square of vectors, see `make_kernels`."""
    _transpose(dst, dst_row, src, src_row)


@cfunc(ints(8), cache=True, error_model="numpy")
def axpy_f32(depth, n, a, a_col, b, b_row, c, add):
    """One row of C from `depth` rows of B, see `make_kernels`."""
    _axpy(depth, n, a, a_col, b, b_row, c, add)


@cfunc(ints(8), cache=True, error_model="numpy")
def dots_f32(rows, blocks, a, a_row, x, x_col, c, add):
    """One vector of rows times a vector, see `make_kernels`."""
    _dots(rows, blocks, a, a_row, x, x_col, c, add)


_column = make_column(_dots, p_f4, fma32, 4)


@cfunc(ints(10), cache=True, error_model="numpy")
def column_f32(m, k, a, a_row, x, x_col, c, c_step, add, tile):
    """A matrix times a vector, see `make_column`."""
    _column(m, k, a, a_row, x, x_col, c, c_step, add, tile)


for _function in (product_f32, pack_f32, transpose_f32, axpy_f32, dots_f32, column_f32):
    export(f"fs_rt_{_function.__name__}", _function)
