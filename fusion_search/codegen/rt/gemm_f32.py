"""Single-threaded float32 matrix product, called by generated kernels.

One separately compiled function serves every shape; kernels reach it through
its address in their argument table, so none of them compiles it.  The driver
is the only parallelism: no BLAS, no thread pool.
"""

from numba import cfunc

from fusion_search.codegen.rt.gemm_body import GEMM_SIGNATURE, PACKED_SIGNATURE, TURNED_SIGNATURE, make_gemm
from fusion_search.codegen.rt.memory import p_f4
from fusion_search.codegen.rt.symbols import export, named_kernels

_gemm, _packed, _turned = make_gemm(named_kernels("f32"), p_f4, 4)


@cfunc(GEMM_SIGNATURE, cache=True, error_model="numpy")
def gemm_f32(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch):
    """C = beta C + A B in float32, see `GEMM_SIGNATURE`."""
    _gemm(m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch)


@cfunc(PACKED_SIGNATURE, cache=True, error_model="numpy")
def gemm_packed_f32(m, n, k, a, a_row, a_col, b, b_next, b_first, c, c_row, beta, scratch):
    """C = beta C + A B with a packed B, see `PACKED_SIGNATURE`."""
    _packed(m, n, k, a, a_row, a_col, b, b_next, b_first, c, c_row, beta, scratch)


@cfunc(TURNED_SIGNATURE, cache=True, error_model="numpy")
def gemm_turned_f32(m, n, k, a, a_row, a_col, b, b_next, b_first, c, c_col, beta, scratch):
    """C = beta C + A B, C by columns and B packed, see `TURNED_SIGNATURE`."""
    _turned(m, n, k, a, a_row, a_col, b, b_next, b_first, c, c_col, beta, scratch)


for _function in (gemm_f32, gemm_packed_f32, gemm_turned_f32):
    export(f"fs_rt_{_function.__name__}", _function)
