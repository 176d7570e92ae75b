"""Named machine code: compiled once, called by name from other functions.

Numba links and optimises every function again in each of its callers.  For the
large micro-kernels that is seconds, so they are C functions registered with
the JIT linker under a name, and callers only declare that name.  Code cached
on disk keeps the name and is linked again when loaded.
"""

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fusion_search.codegen.rt.intrinsics import I64
from fusion_search.codegen.rt.loader import load_own


def ints(n):
    """Return the Numba signature of a void function of `n` int64."""
    return types.void(*[types.int64] * n)


def export(name, function):
    """Register a compiled cfunc under `name`."""
    binding.add_symbol(name, function.address)


def _provide(name):
    """Load the file of this package that exports `name`: code that names what is not there would abort the process."""
    if binding.address_of_symbol(name) is None:
        kernel = name.removeprefix("fs_rt_")
        suffix = kernel.rpartition("_")[2]
        load_own(f"gemm_{suffix}" if kernel.startswith("gemm") else f"kernels_{suffix}", kernel)


def external(name, n_args):
    """Build an intrinsic that calls the exported function `name`.

    Parameters
    ----------
    name : str
        A name given to `export`; the file that does so is loaded now if it has not been.
    n_args : int
        Number of int64 arguments.

    Returns
    -------
    intrinsic
        ``call(args)`` with a tuple of `n_args` int64.
    """

    _provide(name)

    def call_external(typingctx, args):
        def codegen(context, builder, signature, values):
            fn_type = ir.FunctionType(ir.VoidType(), [I64] * n_args)
            fn = cgutils.get_or_insert_function(builder.module, fn_type, name)
            builder.call(fn, cgutils.unpack_tuple(builder, values[0], n_args))
            return context.get_dummy_value()

        return types.void(types.UniTuple(types.int64, n_args)), codegen

    return intrinsic(call_external)


def named_kernels(dtype):
    """Return the intrinsics product, pack, transpose, axpy, dots and column of a type.

    They call what the module ``kernels_<dtype>`` exports; see `make_kernels`
    and `make_column` for their arguments, which they take as one tuple.
    """
    arities = {"product": 12, "pack": 5, "transpose": 4, "axpy": 8, "dots": 8, "column": 10}
    return tuple(external(f"fs_rt_{name}_{dtype}", n) for name, n in arities.items())
