"""Pools of one block: calls of the library's tile kernel over planes."""

from __future__ import annotations

from contextlib import ExitStack

from fusion_search.codegen.convolution import block_range, target_address, whole_address
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.extents import actual
from fusion_search.codegen.rt.conv import POOL_MAX, POOL_SUM, WindowShape, conv_scratch_bytes
from fusion_search.fusion.program import Member


def pool_shape(member: Member) -> WindowShape:
    """Return the library's description of a pool over the last two of four dimensions."""
    x, out = member.operands[0].shape, member.shape
    kernel, strides, dilations, before = (
        tuple(actual(n) for n in member.node.attr(name)[2:]) for name in ("kernel", "strides", "dilations", "before")
    )
    h, w, out_h, out_w = (actual(n) for n in (*x[2:], *out[2:]))
    channels = actual(x[1])
    return WindowShape(
        channels,
        channels,
        h,
        w,
        out_h,
        out_w,
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilations[0], dilations[1]),
        before[0],
        before[1],
        channels,
    )


def emit_pool(e: Emitter, i: int) -> None:
    """Write a pool's stage."""
    w, member, result = e.w, e.group.members[i], e.places[i]
    shape = pool_shape(member)
    names = [w.number(("pool", i, k), int(value)) for k, value in enumerate(shape.descriptor())]
    image, channel, row, _ = (atoms[0] if atoms else None for atoms in e.original[i][:4])
    function, scratch = w.external("pool_tile_f32"), e.reserve(("pool scratch", i), conv_scratch_bytes(shape))
    kind = POOL_MAX if member.spec.combiner == "max" else POOL_SUM
    with ExitStack() as stack:
        inside: dict[int, str] = {}
        at = "np.int64(0)"
        if image is not None:
            if image not in e.group.outer or image in e.tiles:
                inside[image] = w.name("i")
                stack.enter_context(w.block(f"for {inside[image]} in range({e.bound(image)}):"))
            at = " + ".join(part[image] for part in (e.index, inside) if image in part)
        c0, c1 = block_range(e, channel, w.number(("pool channels", i), shape.in_channels))
        h0, h1 = block_range(e, row, names[4])
        steps = [
            w.number(("pool channel step", i), result.strides.get(channel, 0) if channel is not None else 0),
            w.number(("pool row step", i), result.strides.get(row, 0) if row is not None else shape.out_width),
        ]
        x = whole_address(e, i, 0, inside)
        # the descriptor lies in the argument table itself
        call = [f"A + {8 * int(names[0][1:])}", x, target_address(e, i, result, inside), at, c0, c1, h0, h1, *steps]
        w.put(f"call_address({function}, ({', '.join(call)}, np.int64({kind}), S + {scratch}))")
