"""Convolution and pooling tiles against NumPy."""

from dataclasses import replace
from functools import reduce
from itertools import product

import numpy as np

from fusion_search.codegen.packing import Packing
from fusion_search.codegen.rt import conv
from tests.codegen.rt.helpers import call, same_bits


def windows(x, kernel, strides, dilations, top, left, out, value):
    """Return [n, c, oh, ow, kh, kw] windows of padded `x`."""
    n, c, h, w = x.shape
    need = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, strides, kernel, dilations, strict=True)]
    padded = np.full((n, c, max(need[0], top + h), max(need[1], left + w)), value, x.dtype)
    padded[:, :, top : top + h, left : left + w] = x

    def tap(i, j):
        rows = slice(i * dilations[0], i * dilations[0] + (out[0] - 1) * strides[0] + 1, strides[0])
        cols = slice(j * dilations[1], j * dilations[1] + (out[1] - 1) * strides[1] + 1, strides[1])
        return padded[:, :, rows, cols]

    return np.stack([np.stack([tap(i, j) for j in range(kernel[1])], -1) for i in range(kernel[0])], -2)


def scratch_for(shape):
    size = conv.conv_scratch_bytes(shape)
    scratch = np.full(size + 4096, 0xA5, np.uint8)
    return scratch, lambda: (scratch[size:] == 0xA5).all()


def cut(rng, n):
    """Return the parts of a random cut of range(n) into at most two."""
    at = int(rng.integers(n + 1))
    return [(lo, hi) for lo, hi in ((0, at), (at, n)) if hi > lo]


def random_case(rng, trial):
    pick = lambda values, n: tuple(int(v) for v in rng.choice(values, n))  # noqa: E731
    kernel, strides = pick([1, 1, 2, 3, 3, 5, 7], 2), pick([1, 1, 2, 3], 2)
    dilations, size = pick([1, 1, 2, 3], 2), pick([1, 5, 7, 14, 19, 56, 70], 2)
    if trial % 2:  # the shapes that have code of their own
        side = int(rng.choice([1, 2, 3, 5, 7]))
        kernel, strides, dilations = (side, side), (int(rng.integers(1, 3)),) * 2, (1, 1)
    if trial % 10 == 0:  # one-dimensional
        kernel, strides, dilations, size = (1, kernel[1]), (1, strides[1]), (1, dilations[1]), (1, size[1])
    pads = (0, 0, 0, 0) if trial % 4 == 0 else pick([0, 1, 2, 3], 4)
    out = [(size[i] + pads[i] + pads[i + 2] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2)]
    return kernel, strides, dilations, size, pads, out


def test_random_convolutions():
    rng = np.random.default_rng(1)
    tile = call(conv.conv_address("conv_tile"), conv.CONV_ARGUMENTS)
    done = 0
    for trial in range(300):
        groups, ic, oc = (int(rng.choice(v)) for v in ([1, 1, 2, 3, 8], [1, 1, 2, 5, 16, 33], [1, 1, 2, 6, 13, 64]))
        kernel, strides, dilations, size, pads, (oh, ow) = random_case(rng, trial)
        if oh <= 0 or ow <= 0:
            continue
        done += 1
        images = int(rng.integers(1, 3))
        x = rng.standard_normal((images, groups * ic, *size)).astype(np.float32)
        w = rng.standard_normal((groups * oc, ic, *kernel)).astype(np.float32)
        shape = conv.WindowShape(groups * ic, groups * oc, *size, oh, ow, kernel, strides, dilations, pads[0], pads[1], groups)
        desc = shape.descriptor()
        scratch, intact = scratch_for(shape)
        view = windows(x, kernel, strides, dilations, pads[0], pads[1], (oh, ow), 0).astype(np.float64)
        reference = np.einsum(
            "ngchwij,gocij->ngohw",
            view.reshape(images, groups, ic, oh, ow, *kernel),
            w.reshape(groups, oc, ic, *kernel).astype(np.float64),
            optimize=True,
        )
        bias = rng.standard_normal(groups * oc).astype(np.float32)
        given = bias.ctypes.data if trial % 3 else 0
        if given:
            reference += bias.reshape(groups, oc, 1, 1)
        out = np.full((images, groups, oc, oh, ow), np.nan, np.float32)
        wide = np.full((images, groups, oc, oh, ow + 3), np.nan, np.float32)

        def run(into, image, g, o, h, row, desc=desc, x=x, w=w, given=given, scratch=scratch, oh=oh, oc=oc):
            dst = into[image, g[0], o[0] :, h[0] :].ctypes.data
            addresses = desc.ctypes.data, x.ctypes.data, w.ctypes.data, given, dst
            tile(*addresses, image, *g, *o, *h, oc * oh * row, oh * row, row, scratch.ctypes.data)

        for image in range(images):
            run(out, image, (0, groups), (0, oc), (0, oh), ow)
            for g in cut(rng, groups):
                for o in cut(rng, oc):
                    for h in cut(rng, oh):
                        run(wide, image, g, o, h, ow + 3)
        np.testing.assert_allclose(out, reference, rtol=1e-4, atol=2e-4, err_msg=str(shape))
        if ic > 1:  # weights packed as columns: the same bits
            flat = ic * kernel[0] * kernel[1]
            packed = Packing(64, ((groups, oc * flat),), ((oc, flat),), ((flat, 1),)).pack(w)
            columns = replace(shape, packed=conv.COLUMNS_PACKED)
            room, untouched = scratch_for(columns)
            turned = np.full((images, groups, oc, oh, ow), np.nan, np.float32)
            for image in range(images):
                for g, o in product(cut(rng, groups), cut(rng, oc)):
                    run(turned, image, g, o, (0, oh), ow, desc=columns.descriptor(), w=packed, scratch=room)
            assert same_bits(out, turned), shape
            assert untouched()
        assert same_bits(out, wide[..., :ow]), shape
        assert np.isnan(wide[..., ow:]).all()
        assert intact()
    assert done > 100


def test_random_pools():
    rng = np.random.default_rng(2)
    tile = call(conv.conv_address("pool_tile"), conv.POOL_ARGUMENTS)
    for trial in range(150):
        kernel, strides, dilations, size, pads, (oh, ow) = random_case(rng, trial)
        if oh <= 0 or ow <= 0:
            continue
        x = rng.standard_normal((2, 3, *size)).astype(np.float32)
        x = np.round(x) if trial % 3 else x  # zeros of both signs
        x[rng.random(x.shape) < 0.01] = np.nan
        shape = conv.WindowShape(3, 3, *size, oh, ow, kernel, strides, dilations, pads[0], pads[1])
        desc = shape.descriptor()
        scratch, intact = scratch_for(shape)
        for kind, value in ((conv.POOL_MAX, -np.inf), (conv.POOL_SUM, 0)):
            out = np.full((2, 3, oh, ow + 1), 7, np.float32)
            for image in range(2):
                for h in cut(rng, oh):
                    dst = out[image, :, h[0] :].ctypes.data
                    addresses = desc.ctypes.data, x.ctypes.data, dst
                    strides_out = oh * (ow + 1), ow + 1
                    tile(*addresses, image, 0, 3, *h, *strides_out, kind, scratch.ctypes.data)
            view = windows(x, kernel, strides, dilations, pads[0], pads[1], (oh, ow), value)
            view = view.reshape(2, 3, oh, ow, -1)
            if kind == conv.POOL_MAX:
                np.testing.assert_array_equal(out[..., :ow], view.max(-1))
                last = reduce(lambda best, tap: np.where(best > tap, best, tap), np.moveaxis(view, -1, 0))  # of equal ones, whatever is cut
                known = ~np.isnan(view).any(-1)
                np.testing.assert_array_equal(np.signbit(out[..., :ow])[known], np.signbit(last)[known])
            else:
                np.testing.assert_allclose(out[..., :ow], view.sum(-1), rtol=1e-5, atol=1e-5)
            assert (out[..., ow] == 7).all()
            assert intact()
