"""The builder, the verifier and the printer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fusion_search.errors import ModelError
from fusion_search.ir.builder import GraphBuilder
from fusion_search.ir.evaluate import evaluate
from fusion_search.ir.graph import Graph, Node, Value
from fusion_search.ir.printer import print_graph
from fusion_search.ir.verify import verify_graph


def small() -> Graph:
    b = GraphBuilder("small")
    x = b.input("x", np.float32, (2, 3, 4))
    with b.origin("soft", "Softmax"):
        low = b.op("ReduceMax", b.reshape(x, (6, 4)), part="max", axes=(1,))
        shifted = b.op("Sub", b.reshape(x, (6, 4)), low, part="sub")
    product = b.op("MatMul", shifted, b.constant(np.ones((4, 5), np.float32), "w"), result="product")
    b.output("y", b.reshape(product, (2, 15)))
    b.output("shifted", shifted)
    return b.build()


GOLDEN = """\
graph small
  input x: float32[2x3x4]
  soft.max: float32[6x1] = ReduceMax(x[6x4]) axes=(1,)  # soft/max
  soft.sub: float32[6x4] = Sub(x[6x4], soft.max)  # soft/sub
  product: float32[6x5] = MatMul(soft.sub, w)  # MatMul_2
  output y: float32[2x15] = product
  output shifted: float32[6x4] = soft.sub
"""


def test_printer() -> None:
    assert print_graph(small()) == GOLDEN


def test_graph_indices() -> None:
    graph = small()
    verify_graph(graph)
    assert graph.base("y") == "product"
    assert graph.readers == {"x": (0, 1), "soft.max": (1,), "soft.sub": (2,), "w": (2,)}
    assert graph.producer == {"soft.max": 0, "soft.sub": 1, "product": 2}
    assert graph.output_bases == {"product", "soft.sub"}
    assert graph.index["soft/sub"] == 1
    assert graph.values["w"].nbytes == 80


def test_operators_on_constants_are_evaluated() -> None:
    b = GraphBuilder("g")
    b.input("x", np.float32, (1,))
    two = b.constant(np.float32(2))
    four = b.op("Mul", two, two)
    assert b.constants[four] == 4
    assert not b.nodes
    wide = b.op("Expand", four, shape=(2**25,))
    assert wide not in b.constants  # 128 MiB of the same number are not kept
    assert [node.op for node in b.nodes] == ["Expand"]


@pytest.mark.parametrize("rows", [7, 1500])
def test_large_transposed_constants_are_kept_once(rows: int) -> None:
    b = GraphBuilder("g")
    array = np.arange(rows * 900, dtype=np.float32).reshape(rows, 900)
    name = b.constant(array)
    turned = b.constants[b.op("Transpose", name, perm=(1, 0))]
    np.testing.assert_array_equal(turned, array.T)
    np.testing.assert_array_equal(b.constants[name], array)
    assert turned.flags.c_contiguous
    assert np.shares_memory(turned, b.constants[name]) == (rows == 1500)
    again = b.op("Transpose", name, perm=(1, 0))
    assert np.shares_memory(turned, b.constants[again]) == (rows == 1500)


def test_names_stay_unique() -> None:
    b = GraphBuilder("g")
    b.reserve(["taken"])
    x = b.input("x", np.float32, (2,))
    names = [b.op("Neg", x, result="v") for _ in range(3)] + [b.op("Neg", x, result="taken")]
    assert names == ["v", "v.2", "v.3", "taken.2"]
    with b.origin("node", "Op"):
        b.op("Abs", x)
        b.op("Abs", x)
    assert [node.name for node in b.nodes[-2:]] == ["node", "node.2"]
    with pytest.raises(ModelError, match="defined twice"):
        b.input("x", np.float32, (2,))


def test_rename_follows_every_reader() -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (2, 3))
    old = b.op("Neg", x)
    since = b.mark()
    first = b.op("Abs", old)
    second = b.op("Relu", b.reshape(first, (6,)))
    assert not b.rename(old, "early", since)
    assert not b.rename(first, "x", since)
    assert b.rename(first, "middle", since)
    b.output("y", second)
    b.output("middle", "middle")
    graph = b.build()
    verify_graph(graph)
    assert graph.nodes[1].outputs == ("middle",)
    assert graph.base(graph.nodes[2].inputs[0]) == "middle"


def test_renamed_constants_count_as_new() -> None:
    b = GraphBuilder("g")
    b.constant(np.float32(1), "old")
    since = b.mark()
    assert b.rename(b.constant(np.float32(2)), "new", since)
    assert b.new_constants(since) == ["new"]


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "text"),
    [
        ("Add", [(2, 3), (2,)], {}, "shapes do not broadcast: [2, 3], [2]"),
        ("MatMul", [(2, 3), (2, 3)], {}, "cannot multiply [2, 3] by [2, 3]"),
        ("Transpose", [(2, 3)], {"perm": (0, 0)}, "perm [0, 0] is no permutation of 2 dimensions"),
        ("Expand", [(2, 3)], {"shape": (3,)}, "cannot expand [2, 3] to [3]"),
        ("Concat", [(2, 3), (3, 3)], {"axis": 1}, "cannot join"),
        ("Where", [(2,), (2,), (2,)], {}, "condition must be bool"),
    ],
)
def test_operands_that_do_not_fit(op: str, shapes: list[tuple[int, ...]], attrs: dict[str, object], text: str) -> None:
    b = GraphBuilder("g")
    names = [b.input(f"x{k}", np.float32, shape) for k, shape in enumerate(shapes)]
    with b.origin("here", "Model"), pytest.raises(ModelError) as caught:
        b.op(op, *names, **attrs)
    assert str(caught.value).startswith("node 'here' (Model): ")
    assert text in str(caught.value)


def test_sizes_are_limited() -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (1,))
    with pytest.raises(ModelError, match="the limit is 16 GiB"):
        b.op("Expand", x, shape=(2**33,))
    with pytest.raises(ModelError, match="12 elements do not fit"):
        b.reshape(b.input("z", np.float32, (3, 4)), (5,))


def test_outputs_keep_their_names() -> None:
    b = GraphBuilder("g")
    x = b.input("x", np.float32, (2,))
    for _ in range(2):
        b.output("y", x)
    b.output("x", x)
    graph = b.build()
    assert [value.name for value in graph.outputs] == ["y", "y", "x"]
    assert set(evaluate(graph, {"x": np.ones(2, np.float32)})) == {"x", "y"}


BASE = small()
BREAKS = {
    "again": (replace(BASE, nodes=(*BASE.nodes, BASE.nodes[0])), "the name is used twice"),
    "unknown": (replace(BASE, nodes=(replace(BASE.nodes[0], op="Nope"), *BASE.nodes[1:])), "unknown core operator 'Nope'"),
    "order": (replace(BASE, nodes=BASE.nodes[::-1]), "before it is defined"),
    "defines": (replace(BASE, nodes=(*BASE.nodes, Node("n", "Neg", ("x",), ("product",)))), "defines 'product' again"),
    "type": (
        replace(BASE, values={**BASE.values, "product": Value("product", np.dtype(np.float64), (6, 5))}),
        "declares float64[6, 5], infers float32[6, 5]",
    ),
    "view": (replace(BASE, values={**BASE.values, "y": replace(BASE.values["y"], shape=(7,))}), "is no view of 'product.view'"),
    "output": (replace(BASE, nodes=BASE.nodes[:-1]), "output 'y' is never computed"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_verifier_names_what_is_wrong(name: str) -> None:
    graph, text = BREAKS[name]
    with pytest.raises(ModelError) as caught:
        verify_graph(graph)
    assert text in str(caught.value)
