"""Functions of different meaning have different names in machine code, whichever processes compiled them.

Numba numbers functions by process, so code that two processes cached may use one name twice; the linker then keeps the first.
"""

import ast
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

from numba.core.dispatcher import Dispatcher

from fusion_search.codegen import rt
from fusion_search.codegen.rt import scalars
from fusion_search.codegen.rt.column import make_column
from fusion_search.codegen.rt.gemm_body import make_gemm
from fusion_search.codegen.rt.memory import p_f4, p_f8

ROOT = Path(__file__).resolve().parents[3]

COLUMN = """
from numba import cfunc, types
from fusion_search.codegen.rt.column import make_column
from fusion_search.codegen.rt.intrinsics import fma{bits}
from fusion_search.codegen.rt.memory import p_f{size}
from fusion_search.codegen.rt.symbols import ints
from fusion_search.codegen.rt.ukernels import make_kernels

column = make_column(make_kernels(types.float{bits})[4], p_f{size}, fma{bits}, {size})

@cfunc(ints(10), cache=True, error_model="numpy")
def column{bits}(m, k, a, a_row, x, x_col, c, c_step, add, tile):
    column(m, k, a, a_row, x, x_col, c, c_step, add, tile)
"""

CHILD = f"""
import ctypes, sys
import numpy as np
from fusion_search.codegen.rt import loader
directory, *wanted = sys.argv[1:]
for bits in map(int, wanted):
    source = {COLUMN!r}.format(bits=bits, size=bits // 8)
    address = loader.load(source, [f"column{{bits}}"], directory)[f"column{{bits}}"]
    a, x, c, tile = (np.arange(1, n + 1, dtype=f"f{{bits // 8}}") for n in (33, 3, 11, 16))
    arguments = (11, 3, a.ctypes.data, 3, x.ctypes.data, 1, c.ctypes.data, 1, 0, tile.ctypes.data)
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10)(address)(*arguments)
    assert np.array_equal(c, a.reshape(11, 3) @ x), (bits, c)
sys.stdout.write(str(loader.stats().compiled))
"""


def compiled_functions(function):
    """Names of the compiled functions that one is made of, by module, of those that are made inside another function."""
    found, todo = set(), [function]
    while todo:
        f = todo.pop().py_func
        if "<locals>" in f.__qualname__ and (name := (f.__module__, f.__qualname__)) not in found:
            found.add(name)
            todo += [cell.cell_contents for cell in f.__closure__ or () if isinstance(cell.cell_contents, Dispatcher)]
    return found


def test_variants_share_no_names():
    columns = [make_column(None, pointer, None, size) for pointer, size in ((p_f4, 4), (p_f8, 8))]
    gemms = zip(*(make_gemm([None] * 6, pointer, size) for pointer, size in ((p_f4, 4), (p_f8, 8))), strict=True)
    plain, packed, turned = (list(variants) for variants in gemms)
    assert len(compiled_functions(plain[0])) > 5
    for variants in (columns, plain, packed, turned, [scalars.tan32, scalars.tan64, scalars.asin32, scalars.asin64]):
        assert all(compiled_functions(f) for f in variants)
        assert not any(compiled_functions(f) & compiled_functions(g) for f, g in combinations(variants, 2))


def test_functions_made_in_functions_are_named_as_variants():
    found = 0
    for path in sorted(Path(rt.__file__).parent.glob("*.py")):
        for outer in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for inner in ast.walk(outer) if isinstance(outer, ast.FunctionDef) else ():
                if isinstance(inner, ast.FunctionDef) and inner is not outer:
                    makers = {name.id for d in inner.decorator_list for name in ast.walk(d) if isinstance(name, ast.Name)}
                    assert not makers & {"njit", "cfunc", "jit"}, f"{path.name}: {inner.name}"
                    found += "variant" in makers
    assert found > 5


def test_code_of_two_processes_is_not_mixed_up_in_a_third(tmp_path):
    def child(*bits):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), *bits], capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert child("32") == child("64") == 1
    assert child("32", "64") == 0
    assert child("64", "32") == 0
