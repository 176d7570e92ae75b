"""Programs of pads and concats over chains of maps and slices."""

from __future__ import annotations

import random

import numpy as np

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph

F32 = np.float32


def random_padded(seed: int, most: int = 9) -> Graph:
    """Maps, slices, pads (of negative amounts too), concats of two to five parts, sums, and a reduction here and there."""
    rng = random.Random(seed)
    b = GraphBuilder(f"padded{seed}")
    rank = rng.randint(1, 3)
    pool = [b.input(f"x{k}", F32, tuple(rng.choice([1, 3, 8, 20]) for _ in range(rank))) for k in range(rng.randint(1, 2))]
    unread: list[str] = []

    def made(op: str, *reads: str, **attrs: object) -> str:
        for name in reads:
            if name in unread:
                unread.remove(name)
        unread.append(b.op(op, *reads, **attrs))
        pool.append(unread[-1])
        return unread[-1]

    while len(pool) < rng.randint(3, most):
        x = pool[-1] if rng.random() < 0.7 else rng.choice(pool[-3:])
        shape = b.shape(x)
        axis = rng.randrange(rank)
        kind = rng.choice(["map", "map", "scaled", "slice", "pad", "pad", "pad", "concat", "concat", "concat", "sum", "turn"])
        if kind == "map":
            made(rng.choice(["Relu", "Tanh", "Neg"]), x)
        elif kind == "scaled":
            one = tuple(n if d == axis else 1 for d, n in enumerate(shape))
            made("Mul", x, b.constant(np.arange(1, 1 + np.prod(one), dtype=F32).reshape(one)))
        elif kind == "slice":
            step = rng.choice([1, 1, 2, -1])
            size = max(1, (shape[axis] + abs(step) - 1) // abs(step) - rng.randint(0, 2))
            start = shape[axis] - 1 if step < 0 else rng.randint(0, max(0, shape[axis] - 1 - (size - 1) * step))
            starts, steps, sizes = ([v if d == axis else o for d in range(rank)] for v, o in ((start, 0), (step, 1), (size, 0)))
            made("Slice", x, starts=tuple(starts), steps=tuple(steps), sizes=tuple(s or n for s, n in zip(sizes, shape, strict=True)))
        elif kind == "pad":
            before, after = ([rng.randint(-1 if n > 2 else 0, 3) if rng.random() < 0.7 else 0 for n in shape] for _ in range(2))
            x = made("Tanh", x) if rng.random() < 0.5 else x
            made("Pad", x, before=tuple(before), after=tuple(after), value=float(rng.choice([0, 1])))
        elif kind == "concat":
            fits = [v for v in pool if all(m == n for d, (m, n) in enumerate(zip(b.shape(v), shape, strict=True)) if d != axis)]
            parts = [x, *(rng.choice(fits) for _ in range(rng.choice([1, 1, 1, 2, 4])))]
            rng.shuffle(parts)
            made("Concat", *(made("Neg", v) if rng.random() < 0.5 and len(parts) < 4 else v for v in parts), axis=axis)
        elif kind == "sum":
            made("Add", x, rng.choice([v for v in pool if b.shape(v) == shape]))
        else:
            made("Sub", x, b.op("ReduceMax", x, axes=(axis,)))
    for k, value in enumerate(unread or [made("Relu", pool[0])]):
        b.output(f"y{k}", value)
    if rng.random() < 0.3:
        b.output("again", rng.choice([v for v in pool if not v.startswith("x")]))
    return b.build()
