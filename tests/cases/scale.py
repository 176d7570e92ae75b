"""Models that are large in one way each."""

from __future__ import annotations

import onnx

from tests.cases.harness import model, node, value

UNARY = ("Relu", "Abs", "Neg", "Sqrt", "Tanh")


def chain(n: int, width: int = 64) -> onnx.ModelProto:
    """x times 1.0, n times."""
    return model([node("Mul", f"v{i} one", f"v{i + 1}") for i in range(n)], [value("v0", (width,))], f"v{n}", {"one": 1.0})


def mixed(n: int, width: int = 64) -> onnx.ModelProto:
    """A chain of unary operators, with every fifth a sum or a product with a second input."""
    nodes = []
    for i in range(n):
        op = UNARY[i % 4] if i % 5 else ("Mul", "Add")[i // 5 % 2]
        nodes.append(node(op, f"v{i}" if op in UNARY else f"v{i} w", f"v{i + 1}"))
    return model(nodes, [value("v0", (width,)), value("w", (width,))], f"v{n}")


def consumers(n: int, width: int = 64) -> onnx.ModelProto:
    """One value that n operators read, each result an output."""
    constants = {f"c{i}": float(i) for i in range(n)}
    return model(
        [node("Mul", f"x c{i}", f"y{i}") for i in range(n)], [value("x", (width,))], " ".join(f"y{i}" for i in range(n)), constants
    )


def variadic(n: int, width: int = 64) -> onnx.ModelProto:
    """One Sum of n inputs."""
    names = [f"x{i}" for i in range(n)]
    return model([node("Sum", " ".join(names), "y")], [value(name, (width,)) for name in names])


def additions(n: int, width: int = 64) -> onnx.ModelProto:
    """n inputs, added one after the other."""
    nodes = [node("Add", f"{f's{i - 1}' if i > 1 else 'x0'} x{i}", f"s{i}") for i in range(1, n)]
    return model(nodes, [value(f"x{i}", (width,)) for i in range(n)], f"s{n - 1}")


def doublings(k: int, parallel: int = 1, width: int = 64) -> onnx.ModelProto:
    """K steps of v = v * v + v, several side by side."""
    nodes = []
    for q in range(parallel):
        for i in range(k):
            v, m = f"v{q}_{i}", f"m{q}_{i}"
            nodes += [node("Mul", f"{v} {v}", m), node("Add", f"{m} {v}", f"v{q}_{i + 1}")]
    return model(nodes, [value(f"v{q}_0", (width,)) for q in range(parallel)], " ".join(f"v{q}_{k}" for q in range(parallel)))


def choices(n: int, width: int = 64) -> onnx.ModelProto:
    """n nodes, Where (with its comparison) and Clip in turn."""
    nodes = []
    for i in range(n):
        if i % 2:
            nodes.append(node("Clip", f"v{i} lo hi", f"v{i + 1}"))
        else:
            nodes += [node("Greater", f"v{i} lo", f"g{i}"), node("Where", f"g{i} v{i} w", f"v{i + 1}")]
    return model(nodes, [value("v0", (width,)), value("w", (width,))], f"v{n}", {"lo": -1.0, "hi": 1.0})
