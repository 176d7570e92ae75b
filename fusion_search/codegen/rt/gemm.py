"""Matrix products for generated kernels: address, scratch and call.

The functions are compiled on first request, then cached on disk.
"""

from numba import njit

from fusion_search.codegen.rt.gemm_body import TURNED_BYTES, scratch_bytes
from fusion_search.codegen.rt.intrinsics import INLINE
from fusion_search.codegen.rt.loader import load_own
from fusion_search.codegen.rt.memory import call_address

_SUFFIXES = {"float32": "f32", "float64": "f64"}


def gemm_scratch_bytes(depth: int, *, copies: bool = True, form: str = "gemm") -> int:
    """Return the scratch that calls of a gemm function need.

    Parameters
    ----------
    depth : int
        What is summed over: K.
    copies : bool
        Whether the elements of a row of A lie apart, so that they are copied.
    form : str
        See `gemm_address`; of a packed B nothing is copied.
    """
    if form == "gemm_turned":
        return TURNED_BYTES
    return 64 if form == "gemm_packed" and not copies else scratch_bytes(depth, copies)


def gemm_address(dtype: str = "float32", form: str = "gemm") -> int:
    """Return the address of the gemm of `dtype` ("float32" or "float64"), or of its form "gemm_packed" or "gemm_turned"."""
    suffix = _SUFFIXES[dtype]
    load_own(f"kernels_{suffix}", f"product_{suffix}")
    return load_own(f"gemm_{suffix}", f"{form}_{suffix}")


@njit(**INLINE)
def call_gemm(fn, m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch):
    """Compute C = beta C + A B by the gemm at address `fn`.

    Parameters
    ----------
    fn : int64
        `gemm_address`.
    m, n, k : int64
        A is m by k, B is k by n; any may be 0.
    a, a_row, a_col : int64
        Address of A and its strides in elements; likewise `b` and `c`, whose
        columns are contiguous.
    beta : int64
        0 to overwrite C, 1 to add to it, or the address of a vector: a number
        for each row of C, to which the product is added.
    scratch : int64
        Address of `gemm_scratch_bytes` bytes.
    """
    args = (m, n, k, a, a_row, a_col, b, b_row, b_col, c, c_row, beta, scratch)
    call_address(fn, args)
