"""Programs of concats: growing lists, nested ones, shared, repeated and returned parts, views, and axes that are not outermost."""

from __future__ import annotations

import random

import numpy as np

from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.graph import Graph

F32 = np.float32
WIDTH = 4


def random_concats(seed: int, most: int = 14) -> Graph:
    """A program of at most so many nodes: float maps, sums and products, and concats of some of them; what nobody reads is returned."""
    rng = random.Random(seed)
    b = GraphBuilder(f"concats{seed}")
    lead = rng.choice([(), (1,), (1, 1), (2,)])
    inputs = [b.input(f"x{k}", F32, (*lead, rng.choice([1, 2, 20, 300]), WIDTH)) for k in range(rng.randint(1, 2))]
    pool, listed = list(inputs), []
    unread: list[str] = []

    def made(op: str, *reads: str, **attrs: object) -> str:
        for name in reads:
            base = b.values[name].view_of or name
            if base in unread:
                unread.remove(base)
        value = b.op(op, *reads, **attrs)
        unread.append(value)
        pool.append(value)
        return value

    for _ in range(rng.randint(min(4, most), most)):
        kind = rng.choice(["part"] * 3 + ["growing"] * 4 + ["concat", "map", "product", "sum"])
        near = pool[-4:]
        axis = len(lead) if rng.random() < 0.85 else rng.randrange(len(lead) + 2)
        if kind == "growing" and len(listed) > 1:
            start = rng.choice([0, 0, 0, rng.randrange(len(listed) - 1)])
            made("Concat", *listed[start : rng.randint(start + 2, len(listed))], axis=len(lead))
        elif kind == "concat":
            first = rng.choice(near)
            fits = [v for v in pool if all(m == n for d, (m, n) in enumerate(zip(b.shape(v), b.shape(first), strict=True)) if d != axis)]
            made("Concat", *rng.sample(fits, min(len(fits), rng.randint(1, 3))), axis=axis)
        elif kind == "product":
            x = rng.choice(near)
            made("MatMul", x, b.constant(np.full((b.shape(x)[-1], WIDTH), 0.25, F32)))
        elif kind == "sum":
            x = rng.choice(near)
            made("Add", x, rng.choice([v for v in near if b.shape(v) == b.shape(x)]))
        elif kind == "map":
            made(rng.choice(["Relu", "Tanh", "Neg"]), rng.choice(near))
        else:
            part = made("Relu", rng.choice(inputs))
            half = (*lead, 2 * b.shape(part)[-2], WIDTH // 2)
            listed.append(b.reshape(b.reshape(part, half), b.shape(part)) if rng.random() < 0.3 else part)
    if not unread:
        made("Relu", inputs[0])
    for k, value in enumerate(unread):
        b.output(f"y{k}", value)
    if rng.random() < 0.3:
        b.output("again", rng.choice([v for v in pool if v not in inputs]))
    return b.build()


def features(b: GraphBuilder, layers: int = 3, rows: int = 20) -> None:
    """Each layer joins everything before it, one flat and growing list, for more readers than one kernel holds."""
    x = b.op("Relu", b.input("x", F32, (1, rows, WIDTH)))
    found = [x]
    for _ in range(layers):
        joined = b.op("Concat", *found, axis=1) if len(found) > 1 else x
        shape = (rows, b.shape(joined)[1])
        one, two, three = (b.op("MatMul", b.constant(np.full(shape, k / 100, F32)), joined) for k in range(3))
        found.append(b.op("Tanh", b.op("Add", b.op("Add", one, two), three)))
    b.output("y", b.op("Exp", b.op("Concat", *found, axis=1)))
