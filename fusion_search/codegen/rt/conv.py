"""Convolution and pooling for generated kernels: descriptors, arguments, scratch.

Weights are float32 ``[OC, IC / groups * KH * KW]`` row-major, exactly as ONNX
stores them, or packed.  One-dimensional windows are those of height 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusion_search.codegen.rt.gemm import gemm_address, gemm_scratch_bytes
from fusion_search.codegen.rt.loader import load_own
from fusion_search.codegen.rt.panels import MOST_PIECES, PANEL_DEPTH, PANEL_ROW, PIECE
from fusion_search.codegen.rt.ukernels import NV

#: Kinds of pool.
POOL_MAX, POOL_SUM = 0, 1
#: How the weights of a convolution lie.
PLAIN, COLUMNS_PACKED = 0, 1
#: Arguments of "conv_tile", all int64: address of the descriptor; of the whole
#: input, of all the weights, of all the biases or 0; where the first output
#: goes; image; range of groups; range of output channels within each of them;
#: range of output rows; strides of the output in elements from group to group,
#: channel to channel and row to row (fastest where the last is the output's
#: width); address of `conv_scratch_bytes` bytes.
CONV_ARGUMENTS = 16
#: Arguments of "pool_tile", all int64: descriptor; whole input; where the first
#: output goes; image; range of channels; range of output rows; strides of the
#: output from channel to channel and row to row; `POOL_MAX` or `POOL_SUM`, for
#: which padding counts as -inf or 0; scratch.
POOL_ARGUMENTS = 12


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
    packed : int
        How each group's weights lie: `PLAIN`, or `COLUMNS_PACKED` as the right side of a product of pixels by filters, whose
        vectors are full whatever the size of the plane: ``[filter // 64, depth, filter % 64]``.
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
    packed: int = 0

    @property
    def filter_elements(self) -> int:
        """Elements from the weights of one group to those of the next."""
        filters, depth = self.out_channels // self.groups, self.in_channels // self.groups * self.kernel[0] * self.kernel[1]
        unit = 16 * NV if self.packed == COLUMNS_PACKED else 1
        return -(-filters // unit) * unit * depth

    def descriptor(self) -> NDArray[np.int64]:
        """Return the 20 numbers a tile function reads; keep the array alive."""
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
            self.packed,
            self.filter_elements,
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
    dense = 8 * PIECE * MOST_PIECES + 128 + channels * taps * PANEL_ROW
    if shape.packed == COLUMNS_PACKED:
        dense += PANEL_ROW * (shape.out_channels // shape.groups + 2 * 16 * NV)
    single = taps * 8 + max(65536, (halo + 3 * shape.strides[0]) * line)
    product = gemm_scratch_bytes(shape.in_channels // shape.groups, copies=False)
    return max(product, dense, single, 4 * shape.in_width) + 256


def conv_address(name: str = "conv_tile") -> int:
    """Return the address of "conv_tile" or "pool_tile"."""
    gemm_address()  # exports what the tiles call
    return load_own("conv_f32", f"{name}_f32")
