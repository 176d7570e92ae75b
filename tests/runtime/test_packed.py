"""Packed constants at run time: one copy for all bindings, and none beside it that no step reads."""

from __future__ import annotations

import gc

import numpy as np

from fusion_search.codegen.packing import Packing
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.packed import PackedConstants
from fusion_search.runtime.program import BoundPlan
from fusion_search.runtime.steps import KernelStep
from tests.frontends.modeling import info, model, node, random
from tests.runtime.plans import classifier, classify, compiled


def test_a_constant_is_packed_once_while_it_is_in_use() -> None:
    store, packing = PackedConstants(), Packing(64, (), ((100, 1),), ((20, 100),))
    constant = random((20, 100), 0)
    first = store.of(constant, packing)
    assert store.of(constant, packing) is first
    assert store.of(constant.copy(), packing) is not first
    assert store.of(constant, Packing(32, (), ((100, 1),), ((20, 100),))).size == 20 * 128
    del first
    gc.collect()
    again = store.of(constant, packing)
    np.testing.assert_array_equal(again.reshape(2, 20, 64)[0], constant[:, :64])


def test_bindings_share_packed_weights() -> None:
    run = compiled(classifier(), {"batch": 4})
    for rows in (4, 3, 60):
        x = random((rows, 24), rows)
        np.testing.assert_allclose(run({"x": x})["y"], classify(x), rtol=1e-5, atol=1e-6)
    copies = [array for bound in run._bound.values() for array in bound._packed.values()]
    assert len(copies) == 3
    assert len({id(array) for array in copies}) == 1


def test_a_constant_that_is_only_read_packed_is_not_held_as_it_was() -> None:
    b = GraphBuilder("tied")
    x, w, v = b.input("x", np.float32, (20, 30)), b.constant(random((30, 40), 1)), b.constant(random((20, 40), 2))
    b.output("y", b.op("MatMul", x, w))
    b.output("z", b.op("Add", b.op("MatMul", x, w), v))
    graph = b.build()
    run = BoundPlan(graph, [[n.name] for n in graph.nodes])
    weights = next(name for name, array in graph.constants.items() if array.shape == (30, 40))
    assert weights not in run.constants
    assert {array.shape for array in run.constants.values()} == {(20, 40)}
    assert len({id(array) for array in run._packed.values()}) == 1


def test_equal_products_with_a_constant_and_with_a_fed_right_side_have_kernels_of_their_own() -> None:
    b = GraphBuilder("both")
    x, w = b.input("x", np.float32, (20, 30)), b.input("w", np.float32, (30, 40))
    b.output("y", b.op("MatMul", x, b.constant(random((30, 40), 1))))
    b.output("z", b.op("MatMul", x, w))
    graph = b.build()
    run = BoundPlan(graph, [[n.name] for n in graph.nodes])
    feeds = {"x": random((20, 30), 2), "w": random((30, 40), 3)}
    got = run(feeds)
    np.testing.assert_allclose(got["y"], feeds["x"] @ random((30, 40), 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got["z"], feeds["x"] @ feeds["w"], rtol=1e-5, atol=1e-5)


def test_a_batch_of_one_leaves_its_rows_to_be_shared() -> None:
    """Heads lie apart in the result, so that batch and rows are no single loop; with one sequence the rows are cut instead."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("MatMul", ["r", "w"], ["m"]),
        node("Reshape", ["m", "shape"], ["s"]),
        node("Transpose", ["s"], ["y"], perm=[0, 2, 1, 3]),
    ]
    constants = {"w": random((48, 64), 1), "shape": np.array([0, 0, 4, 16])}
    proto = model(nodes, [info("x", ["batch", "rows", 48])], constants=constants)
    run = compiled(proto, {"batch": 1, "rows": 128})
    first = run.compilations
    for batch, rows in ((1, 128), (1, 7), (2, 128), (8, 5), (3, 1)):
        x = random((batch, rows, 48), rows)
        want = (np.maximum(x, 0) @ constants["w"]).reshape(batch, rows, 4, 16).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(run({"x": x})["y"], want, rtol=1e-5, atol=1e-5)
    (heavy,) = (
        s for s in run.planned.steps if isinstance(s, KernelStep) and "gemm_packed" in {v.value[:11] for v in s.kernel.slots if v.value}
    )
    assert heavy.kernel.items >= 2
    assert run.compilations == first


def test_weights_that_lie_the_other_way_round() -> None:
    """Packed, as an operand of maps, in another shape, and rounded: in whatever order the model keeps them."""
    b = GraphBuilder("turned")
    x, v, array = b.input("x", np.float32, (20, 600)), b.input("v", np.float32, (600, 500)), random((500, 600), 1)
    weights = b.constant(array.T)
    b.output("product", b.op("MatMul", x, weights))
    b.output("sum", b.op("Add", v, weights))
    b.output("flat", b.op("Mul", b.reshape(v, (300000,)), b.reshape(weights, (300000,))))
    graph = b.build()
    assert not graph.constants[weights].flags.c_contiguous
    run = BoundPlan(graph, [[n.name] for n in graph.nodes])
    feeds = {"x": random((20, 600), 2), "v": random((600, 500), 3)}
    got = run(feeds)
    np.testing.assert_allclose(got["product"], feeds["x"] @ array.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(got["sum"], feeds["v"] + array.T)
    np.testing.assert_array_equal(got["flat"], (feeds["v"] * array.T).reshape(-1))
