"""Convolution and pooling for generated kernels: descriptors, blocks, calls.

Weights are float32 ``[OC, IC / groups * KH * KW]`` row-major, exactly as ONNX
stores them: nothing is packed.  One-dimensional windows are those of height 1.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fusion_search.codegen.rt.gemm import gemm_address
from fusion_search.codegen.rt.gemm_body import SCRATCH_BYTES
from fusion_search.codegen.rt.intrinsics import INLINE
from fusion_search.codegen.rt.loader import load_own
from fusion_search.codegen.rt.memory import call_address
from fusion_search.codegen.rt.windows import PANEL_DEPTH, STRIP_BYTES

#: Kinds of `call_pool_tile`.
POOL_MAX, POOL_SUM = 0, 1
#: Tasks a thread should get, so that the slowest hardly matters.
_TASKS_PER_THREAD = 4
#: Bytes of an output tile that should still be in cache for its epilogue.
_TILE_BYTES = 262144
#: Weights of a task that stay in L2 beside the rest.
_L2_WEIGHTS = 524288


@dataclass(frozen=True)
class WindowShape:
    """Shape of a convolution or pooling over NCHW data.

    Attributes
    ----------
    in_channels, out_channels : int
        Of the whole operator; for pooling both are the channels.
    in_height, in_width, out_height, out_width : int
        Planes.
    kernel, strides, dilations : tuple of int
        Height and width.
    pad_top, pad_left : int
        Padding before the first row and column; that after the last follows
        from the output's size.
    groups : int
        Of the channels.
    image_stride, channel_stride, row_stride : int
        Input strides in elements, 0 for a contiguous input; columns are
        contiguous.
    """

    in_channels: int
    out_channels: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pad_top: int = 0
    pad_left: int = 0
    groups: int = 1
    image_stride: int = 0
    channel_stride: int = 0
    row_stride: int = 0

    def descriptor(self) -> NDArray[np.int64]:
        """Return the 18 numbers a tile function reads; keep the array alive."""
        row = self.row_stride or self.in_width
        channel = self.channel_stride or self.in_height * row
        image = self.image_stride or self.in_channels * channel
        fields = (
            self.in_channels // self.groups,
            self.in_height,
            self.in_width,
            self.out_channels // self.groups,
            self.out_height,
            self.out_width,
            *self.kernel,
            *self.strides,
            *self.dilations,
            self.pad_top,
            self.pad_left,
            self.groups,
            image,
            channel,
            row,
        )
        return np.array(fields, np.int64)


def _strip_line(shape: WindowShape) -> int:
    """Return the bytes of one row of a padded strip."""
    kw, sw, dw = shape.kernel[1], shape.strides[1], shape.dilations[1]
    width = (shape.out_width + (kw - 1) * dw // sw + 16 + 15) // 16 * 16
    return 4 * width * min(sw, (kw - 1) * dw + 1)


def conv_scratch_bytes(shape: WindowShape) -> int:
    """Return the scratch that any tile of a convolution or pooling needs."""
    line = _strip_line(shape)
    taps = shape.kernel[0] * shape.kernel[1]
    halo = (shape.kernel[0] - 1) * shape.dilations[0] + 1
    channels = max(1, min(shape.in_channels // shape.groups, PANEL_DEPTH // taps))
    dense = 2048 + channels * taps * 256 + max(STRIP_BYTES, channels * halo * line)
    single = taps * 8 + max(65536, (halo + 3 * shape.strides[0]) * line)
    return max(SCRATCH_BYTES, dense, single) + 256


def choose_blocks(shape: WindowShape, images: int, threads: int) -> tuple[int, int]:
    """Choose the tile of a convolution.

    Parameters
    ----------
    shape : WindowShape
        The convolution.
    images, threads : int
        Batch and number of threads.

    Returns
    -------
    oc_block, row_block : int
        Output channels of one group, and output rows, of a task.  Channels are
        cut only when rows give too few tasks: every block of channels copies
        the input again.
    """
    oc = shape.out_channels // shape.groups
    rows, width = shape.out_height, shape.out_width
    wanted = _TASKS_PER_THREAD * threads
    outer = images * shape.groups
    halo = (shape.kernel[0] - 1) * shape.dilations[0] + 1
    if shape.in_channels == shape.groups and oc < 8:
        return oc, rows if outer >= wanted else max(1, -(-rows // -(-wanted // outer)))
    depth = shape.in_channels // shape.groups * shape.kernel[0] * shape.kernel[1]
    best = (float("inf"), oc, rows)
    for row_block in range(1, rows + 1):
        pixels = row_block * width
        if row_block > 1 and pixels * 4 * oc > 2 * _TILE_BYTES:
            break
        padded = -(-pixels // 16) * 16
        row_tasks = -(-rows // row_block)
        oc_block = oc
        while outer * row_tasks * -(-oc // oc_block) < wanted and oc_block > 96:
            oc_block = -(-oc_block // 2 // 6) * 6
        tasks = outer * row_tasks * -(-oc // oc_block)
        # Lanes computed for nothing, the im2col of each block of channels, rows
        # read by two tasks, weights read by each task, and threads waiting.
        waste = padded / pixels * (row_tasks * row_block / rows)
        weights = (4 if 4 * depth * oc_block < _L2_WEIGHTS else 20) / pixels
        copies = 1 + 5 / oc_block + 0.1 * (halo - 1) / row_block + weights
        idle = -(-tasks // threads) * threads / tasks * (1 + 0.06 * max(0, wanted / tasks - 1))
        best = min(best, (waste * copies * idle, oc_block, row_block))
    return best[1], best[2]


def conv_items(shape: WindowShape, images: int, oc_block: int, row_block: int) -> int:
    """Return the number of items of `conv_argtable`."""
    oc = shape.out_channels // shape.groups
    return images * shape.groups * -(-oc // oc_block) * -(-shape.out_height // row_block)


def conv_argtable(
    descriptor: NDArray[np.int64],
    x: int,
    w: int,
    out: int,
    oc_block: int,
    row_block: int,
) -> NDArray[np.int64]:
    """Return the argument table of the kernel "conv_items".

    Item ``((image * groups + group) * oc_blocks + oc) * row_blocks + row`` is
    one tile of a contiguous output.

    Parameters
    ----------
    descriptor : int64 array
        `WindowShape.descriptor`; must outlive the table.
    x, w, out : int
        Addresses of input, weights and output.
    oc_block, row_block : int
        The tile, see `choose_blocks`.
    """
    n_oc, out_h, out_w, groups = (int(descriptor[i]) for i in (3, 4, 5, 14))
    plane = out_h * out_w
    strides = (groups * n_oc * plane, plane, out_w)
    fields = (descriptor.ctypes.data, x, w, out, oc_block, row_block, *strides)
    return np.array(fields, np.int64)


def conv_address(name: str = "conv_tile") -> int:
    """Return the address of "conv_tile", "pool_tile" or "conv_items"."""
    gemm_address()  # exports what the tiles call
    return load_own("conv_f32", f"{name}_f32")


@njit(**INLINE)
def call_conv_tile(fn, desc, x, w, dst, image, group, oc0, oc1, h0, h1, dst_ch, dst_row, scratch):
    """Compute a convolution tile by the function at address `fn`.

    Parameters
    ----------
    fn, desc : int64
        ``conv_address("conv_tile")`` and the address of the descriptor.
    x, w : int64
        Addresses of the whole input and of all the weights.
    dst : int64
        Where output channel `oc0` of the group, row `h0`, column 0 goes.
    image, group : int64
        Which.
    oc0, oc1, h0, h1 : int64
        Output channels within the group, and output rows.
    dst_ch, dst_row : int64
        Strides of `dst` in elements; columns are contiguous.  Fastest where
        ``dst_row`` is the output's width.
    scratch : int64
        Address of `conv_scratch_bytes` bytes.
    """
    call_address(fn, (desc, x, w, dst, image, group, oc0, oc1, h0, h1, dst_ch, dst_row, scratch))


@njit(**INLINE)
def call_pool_tile(fn, desc, x, dst, image, c0, c1, h0, h1, dst_ch, dst_row, kind, scratch):
    """Compute a pooling tile by the function at address `fn`.

    Parameters
    ----------
    fn, desc : int64
        ``conv_address("pool_tile")`` and the address of the descriptor.
    x, dst : int64
        The whole input; where channel `c0`, row `h0`, column 0 goes.
    image, c0, c1, h0, h1 : int64
        The tile.
    dst_ch, dst_row : int64
        Strides of `dst` in elements.
    kind : int64
        `POOL_MAX` or `POOL_SUM`; padding counts as -inf or 0.
    scratch : int64
        Address of `conv_scratch_bytes` bytes.
    """
    call_address(fn, (desc, x, dst, image, c0, c1, h0, h1, dst_ch, dst_row, kind, scratch))
