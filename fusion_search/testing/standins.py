"""What generated kernels may name, in NumPy: scalars, lanes, maths and library functions for the loop-nest interpreter.

The names and the order of arguments are those of :mod:`fusion_search.codegen.rt`; integers come back as plain ints, which the
``T_`` conversions wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from fusion_search.codegen.packing import panel_columns
from fusion_search.codegen.rt.conv import COLUMNS_PACKED, POOL_MAX, WindowShape, conv_scratch_bytes
from fusion_search.codegen.rt.gemm import gemm_scratch_bytes
from fusion_search.testing.checked import ELEMENTS, AccessError, Array, Buffer, Memory, Pointer, stack

#: Elements of a strip: the fewest, so that small tensors have several. Results do not depend on it.
STRIP = 64
_F32, _F64 = np.float32, np.float64
_BITS = np.arange(1 << 16, dtype=np.uint16)
with np.errstate(all="ignore"):
    _FROM_F16 = list(_BITS.view(np.float16).astype(np.float32))
    _FROM_BF16 = list(_BITS.view(ml_dtypes.bfloat16).astype(np.float32))


def _integer(code: str) -> Callable[[Any], Any]:
    kind, size = np.dtype(code).type, 8 * int(code[1])
    top = 1 << (size - 1) if code[0] == "i" else 1 << size

    def convert(x: Any) -> Any:
        if type(x) is kind:
            return x
        x = int(x) & ((1 << size) - 1)
        return kind(x - (1 << size) if x >= top else x)

    return convert


# ---------------------------------------------------------------------- scalars


def _int_div(a: Any, b: Any) -> int:
    a, b = int(a), int(b)
    if not b:
        return 0
    q: int = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _int_mod(a: Any, b: Any) -> int:
    return int(a) % int(b) if b else 0


def _int_fmod(a: Any, b: Any) -> int:
    return int(a) - _int_div(a, b) * int(b) if b else 0


def _int_pow(x: Any, y: Any) -> int:
    x, y = int(x), int(y)
    if y < 0:
        return {1: 1, -1: 1 if y % 2 == 0 else -1}.get(x, 0)
    power: int = pow(x, y, 1 << 64)
    return power


def _shift_left(x: Any, n: Any, bits: Any) -> int:
    return int(x) << int(n) if 0 <= n < bits else 0


def _shift_right(x: Any, n: Any, bits: Any) -> int:
    return int(x) >> (int(n) if 0 <= n < bits else 64)


def _sign(x: Any) -> Any:
    return x if x != x else type(x)(int(x > 0) - int(x < 0))


def _select(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _to(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x).astype(dtype)[()]


def _view(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x.view(dtype)


def _f32_to_bf16(x: Any) -> Any:
    return np.asarray(x, ml_dtypes.bfloat16).view(np.uint16)[()]


def _nearly_f32(x: Any) -> Any:
    y = _F32(x)
    if _F64(y) == x or not abs(y) < np.inf:
        return y
    bits = int(y.view(np.int32)) - (1 if abs(_F64(y)) > abs(x) else 0)
    return np.int32(bits | 1).view(np.float32)


def checked_index(index: Any, size: int, flag: list[int]) -> int:
    """Wrap a negative index; one outside raises the flag and reads element 0."""
    at = int(index) + size if index < 0 else int(index)
    if 0 <= at < size:
        return at
    flag[0] = 1
    return 0


def _pow(x: Any, y: Any) -> Any:
    return np.power(np.array([x, x]), np.array([y, y]))[0]  # of a number, NumPy takes the root where the exponent is a half


def _sigmoid(x: Any) -> Any:
    return special.expit(_F64(x)).astype(x.dtype)  # the float32 form loses subnormal results


def _exp_neg(x: Any) -> Any:
    if x > 0:
        raise ValueError(f"the exponential of {x}, which the kernel takes to be at most 0")
    return np.exp(x)


def _maths() -> dict[str, Any]:
    one: dict[str, Any] = {name: getattr(np, name) for name in ("exp", "log", "tanh", "sin", "cos", "tan", "sinh", "cosh", "log1p")}
    one |= {f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
    one |= {"sigmoid": _sigmoid, "erf": special.erf, "rint": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
    one |= {"sqrt": np.sqrt, "fabs": np.abs}
    two: dict[str, Any] = {"pow": _pow, "mod": np.mod, "fmod": np.fmod, "copysign": np.copysign}
    return {"exp32_neg": _exp_neg} | {f"{name}{bits}": function for name, function in {**one, **two}.items() for bits in (32, 64)}


def _turn(dst: Pointer, src: Pointer, rows: int, columns: int, src_step: int, dst_step: int) -> None:
    for r in range(rows):
        for c in range(columns):
            dst[r * dst_step + c] = src[c * src_step + r]


# ---------------------------------------------------------------------- reductions in lanes

_JOIN = {"add": np.add, "max": np.maximum, "min": np.minimum}
_START = {"add": -0.0, "max": -math.inf, "min": math.inf}


def _lanes(word: str) -> Callable[[Array, Pointer], Array]:
    join = _JOIN[word]
    return lambda lanes, pointer: join(lanes, pointer.take(64))


def _rest(word: str) -> Callable[[Array, Pointer, int], Array]:
    join = _JOIN[word]

    def rest(lanes: Array, pointer: Pointer, n: int) -> Array:
        padded = np.full(64, _START[word], lanes.dtype)
        padded[:n] = pointer.take(n)
        return np.asarray(join(lanes, padded))

    return rest


def _store(pointer: Pointer, lanes: Array) -> None:
    for lane in range(64):
        pointer[lane] = lanes[lane]


def _put(pointer: Pointer, source: Pointer, count: int = 64) -> None:
    for lane, value in enumerate(source.take(count)):
        pointer[lane] = value


def _before_line(pointer: Pointer, size: int) -> int:
    """Tensors begin with a line here, their rows anywhere."""
    return -pointer.start % (64 // size)


def _lines(pointer: Pointer, source: Pointer, waiting: Array, before: int, at: int) -> Array:
    """Write up to the end of the last whole line; before the first 64 elements of a row nothing waits."""
    values = source.take(64)
    if at:
        _last(pointer, waiting, before)
    for lane, value in enumerate(values[: 64 + before - 64 // values.itemsize]):
        pointer[lane] = value
    return values


def _last(pointer: Pointer, waiting: Array, before: int) -> None:
    held = 64 // waiting.itemsize - before
    for lane, value in enumerate(waiting[-held:]):
        pointer[lane - held] = value


def _last_line(pointer: Pointer, count: int, size: int) -> int:
    before = _before_line(pointer, size)
    return before + (count - before) // (64 // size) * (64 // size)


def _piece_end(at: int, before: int, last: int, count: int) -> int:
    if at < before:
        return before
    return min(at + 64, last) if at < last else count


def _past(pointer: Pointer, source: Pointer, first: int, last: int) -> None:
    for lane, value in list(enumerate(source.take(64)))[first:last]:
        pointer[lane] = value


def _fold(word: str) -> Callable[[Array], Any]:
    join = _JOIN[word]

    def fold(lanes: Array) -> Any:
        while lanes.size > 1:
            lanes = join(lanes[: lanes.size // 2], lanes[lanes.size // 2 :])
        return lanes[0]

    return fold


# ---------------------------------------------------------------------- library functions


def _scratch(memory: Memory, address: int, nbytes: int) -> None:
    buffer, start = memory.find(address, ELEMENTS["u1"])
    if start or buffer.nbytes < nbytes:
        raise AccessError(f"{buffer.name} has {buffer.nbytes} bytes, a library function needs {nbytes}")


def make_gemm(memory: Memory, code: str, form: str = "") -> Callable[..., None]:
    """C = beta C + A B: each element is one chain of additions in the order of k, so that no block changes its bits.

    In the forms ``packed`` and ``turned`` B is packed, with the step of its panels and C's first column in place of its strides; turned,
    C has a column stride.
    """
    dtype = ELEMENTS[code]
    panel = panel_columns(dtype.itemsize)

    def gemm(m: int, n: int, k: int, a: int, a_row: int, a_col: int, b: int, b_row: int, b_col: int, c: int, c_step: int, beta: int,
             scratch: int) -> None:  # fmt: skip
        _scratch(memory, scratch, gemm_scratch_bytes(k, copies=a_col != 1, form=f"gemm_{form}" if form else "gemm"))
        left = memory.read(*memory.indices(a, dtype, ((m, a_row), (k, a_col))))
        if form:
            source, start = memory.find(b, dtype)
            columns = b_col + np.arange(n)
            index = start + np.arange(k)[:, None] * panel + columns // panel * b_row + columns % panel
            memory.check(source, index)
            right = memory.read(source, index)
        else:
            right = memory.read(*memory.indices(b, dtype, ((k, b_row), (n, b_col))))
        turned = form == "turned"
        target, where = memory.indices(c, dtype, ((n, c_step), (m, 1)) if turned else ((m, c_step), (n, 1)))
        where = where.T if turned else where
        if beta == 1:
            total = memory.read(target, where)
        elif beta:  # the address of a number for each row, or for each column that lies apart
            given = memory.read(*memory.indices(beta, dtype, ((n if turned else m, 1),)))
            total = np.broadcast_to(given if turned else given[:, None], (m, n))
        else:
            total = np.zeros((m, n), dtype)
        for step in range(k):
            total = total + left[:, step, None] * right[step]
        memory.write(target, where, total)

    return gemm


def make_conv(memory: Memory) -> Callable[..., None]:
    """One tile of a float32 convolution; each element is one chain over (channel, ky, kx), padding included."""
    dtype = ELEMENTS["f4"]

    def conv(at: int, x: int, w: int, bias: int, dst: int, image: int, g0: int, g1: int, oc0: int, oc1: int, h0: int, h1: int,
             dst_group: int, dst_ch: int, dst_row: int, scratch: int) -> None:  # fmt: skip
        d = memory.table(at)
        (
            inner,
            height,
            width,
            filters,
            out_h,
            out_w,
            kh,
            kw,
            sh,
            sw,
            dh,
            dw,
            top,
            left,
            groups,
            by_image,
            by_channel,
            by_row,
            packed,
            of_group,
        ) = d[:20]
        shape = WindowShape(
            inner * groups, filters * groups, height, width, out_h, out_w, (kh, kw), (sh, sw), (dh, dw), top, left, groups, packed=packed
        )
        _scratch(memory, scratch, conv_scratch_bytes(shape))
        if oc0 < 0 or oc1 > filters or h0 < 0 or h1 > out_h or g0 < 0 or g1 > groups:
            raise AccessError(f"filters {oc0} .. {oc1} of {filters}, rows {h0} .. {h1} of {out_h}, groups {g0} .. {g1} of {groups}")
        if oc1 <= oc0 or h1 <= h0:
            return
        for group in range(g0, g1):
            plane = x + (image * by_image + group * inner * by_channel) * 4
            first = group * filters + oc0
            weights = memory.read(*_filters(memory, w + group * of_group * 4, np.arange(oc0, oc1), inner * kh * kw, packed))
            source, start = memory.find(plane, dtype)
            total = np.zeros((oc1 - oc0, h1 - h0, out_w), dtype)
            if bias:
                total += memory.read(*memory.indices(bias + first * 4, dtype, ((oc1 - oc0, 1),)))[:, None, None]
            for tap in range(inner * kh * kw):
                c, ky, kx = tap // (kh * kw), tap // kw % kh, tap % kw
                ys, xs = np.arange(h0, h1) * sh - top + ky * dh, np.arange(out_w) * sw - left + kx * dw
                rows, columns = (ys >= 0) & (ys < height), (xs >= 0) & (xs < width)
                seen = np.zeros((h1 - h0, out_w), dtype)
                index = start + c * by_channel + ys[rows][:, None] * by_row + xs[columns]
                memory.check(source, index)
                seen[np.ix_(rows, columns)] = memory.read(source, index)
                total = total + weights[:, tap, None, None] * seen
            into = dst + (group - g0) * dst_group * 4
            target, where = memory.indices(into, dtype, ((oc1 - oc0, dst_ch), (h1 - h0, dst_row), (out_w, 1)))
            memory.write(target, where, total)

    return conv


def _filters(memory: Memory, address: int, filters: Array, depth: int, packed: int) -> tuple[Buffer, Array]:
    """The elements of some filters of a group, which are rows, or columns of panels."""
    panel = panel_columns(4)
    source, start = memory.find(address, ELEMENTS["f4"])
    if packed == COLUMNS_PACKED:
        index = start + (filters // panel * depth * panel + filters % panel)[:, None] + np.arange(depth) * panel
    else:
        index = start + filters[:, None] * depth + np.arange(depth)
    memory.check(source, index)
    return source, index


def make_pool(memory: Memory) -> Callable[..., None]:
    """One tile of a float32 pool: the padding counts as -inf or 0."""
    dtype = ELEMENTS["f4"]

    def pool(at: int, x: int, dst: int, image: int, c0: int, c1: int, h0: int, h1: int, dst_ch: int, dst_row: int, kind: int,
             scratch: int) -> None:  # fmt: skip
        d = memory.table(at)
        _, height, width, _, out_h, out_w, kh, kw, sh, sw, dh, dw, top, left, channels, by_image, by_channel, by_row = d[:18]
        shape = WindowShape(channels, channels, height, width, out_h, out_w, (kh, kw), (sh, sw), (dh, dw), top, left, channels)
        _scratch(memory, scratch, conv_scratch_bytes(shape))
        if c0 < 0 or c1 > channels or h0 < 0 or h1 > out_h:
            raise AccessError(f"channels {c0} .. {c1} of {channels}, rows {h0} .. {h1} of {out_h}")
        if c1 <= c0 or h1 <= h0:
            return
        source, start = memory.find(x + (image * by_image + c0 * by_channel) * 4, dtype)
        fill = dtype.type(-math.inf if kind == POOL_MAX else 0)
        total = np.full((c1 - c0, h1 - h0, out_w), fill)
        for ky, kx in np.ndindex(kh, kw):
            ys, xs = np.arange(h0, h1) * sh - top + ky * dh, np.arange(out_w) * sw - left + kx * dw
            rows, columns = (ys >= 0) & (ys < height), (xs >= 0) & (xs < width)
            seen = np.full(total.shape, fill)
            index = start + np.arange(c1 - c0)[:, None, None] * by_channel + ys[rows][:, None] * by_row + xs[columns]
            memory.check(source, index)
            seen[np.ix_(np.ones(c1 - c0, bool), rows, columns)] = memory.read(source, index)
            total = np.maximum(total, seen) if kind == POOL_MAX else total + seen
        memory.write(*memory.indices(dst, dtype, ((c1 - c0, dst_ch), (h1 - h0, dst_row), (out_w, 1))), total)

    return pool


class _Np:
    """The part of NumPy that kernels use; its int64 are plain ints."""

    int64 = staticmethod(int)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def namespace(memory: Memory) -> dict[str, Any]:
    """Return everything that a kernel's text may name."""
    names: dict[str, Any] = {f"T_{code}": _integer(code) for code in ELEMENTS if code[0] in "iu"}
    names |= {"T_f4": _F32, "T_f8": _F64, "np": _Np(), "STRIP": STRIP, "KERNEL_SIGNATURE": None, "Interleaved": None, "Folded": None}
    names |= {"cfunc": lambda *args, **options: lambda function: function}
    names |= {f"p_{code}": memory.pointer(code) for code in ELEMENTS}
    names |= {f"lanes_{code}": partial(np.full, 64) for code in ("f4", "f8")}
    names |= {f"next_{code}": stack(code, 64, memory) for code in ("f4", "f8")}
    names["padd"] = lambda pointer, n: Pointer(pointer.buffer, pointer.start + n, pointer.now, pointer.first)
    names |= {"table": memory.table, "select": _select, "checked_index": checked_index}
    names["turn"] = _turn
    names |= {"prefetch_rows": lambda address, rows, row_bytes, n_bytes: None, "fetch": lambda pointer, n_bytes: None}
    names |= {"before_line": _before_line, "last_line": _last_line, "piece_end": _piece_end}
    for bits in ("f32", "f64"):
        names |= {f"lanes_{word}_{bits}": _lanes(word) for word in _JOIN}
        names |= {f"lanes_rest_{word}_{bits}": _rest(word) for word in _JOIN}
        names |= {f"lanes_join_add_{bits}": np.add, f"lanes_store_{bits}": _store, f"lanes_put_{bits}": _put}
        names |= {f"lanes_past_{bits}": _past, f"lanes_lines_{bits}": _lines, f"lanes_last_{bits}": _last}
        names |= {f"fold_{'sum' if word == 'add' else word}_{bits}": _fold(word) for word in _JOIN}
    names["vector_put_f32"] = partial(_put, count=16)
    names |= _maths()
    names |= dict.fromkeys(("relu32", "relu64"), lambda x: np.maximum(x, type(x)(0)) + type(x)(0))
    names |= {"np_maximum": np.maximum, "np_maximum64": np.maximum, "np_minimum": np.minimum, "np_minimum64": np.minimum}
    names |= {"int_maximum": max, "int_minimum": min, "int_div": _int_div, "uint_div": _int_div, "int_mod": _int_mod}
    names |= {"uint_mod": _int_mod, "int_fmod": _int_fmod, "int_pow": _int_pow, "uint_pow": _int_pow, "sign": _sign}
    names |= {"not_": lambda x: not x, "shift_left": _shift_left, "shift_right": _shift_right, "nearly_f32": _nearly_f32}
    names |= {"to_int32": _to(np.int32), "float_to_int": _to(np.int64), "float_to_uint": _to(np.uint64)}
    names |= {"f32_bits": _view(np.int32), "f64_bits": _view(np.int64), "bits_f32": _view(np.float32), "bits_f64": _view(np.float64)}
    names |= {"f16_to_f32": _FROM_F16.__getitem__, "bf16_to_f32": _FROM_BF16.__getitem__, "f32_to_bf16": _f32_to_bf16}
    names["f32_to_f16"] = lambda x: np.float16(x).view(np.uint16)
    return names


_PRODUCTS = {"f32": "f4", "f64": "f8"}


def library(memory: Memory) -> dict[str, Callable[..., None]]:
    """Return the library functions under the names that argument tables use."""
    return {
        **{f"gemm_{name}": make_gemm(memory, code) for name, code in _PRODUCTS.items()},
        **{f"gemm_{form}_{name}": make_gemm(memory, code, form) for form in ("packed", "turned") for name, code in _PRODUCTS.items()},
        "conv_tile_f32": make_conv(memory),
        "pool_tile_f32": make_pool(memory),
    }


__all__ = ["STRIP", "Array", "checked_index", "library", "namespace"]
