"""Kernels for another processor than the one at hand: what Numba is told, kernels follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_search.codegen.rt import target

#: What covers lanes, tables, scaling, stores past the caches, products and convolutions.
CODE = """
import numpy as np
from fusion_search.codegen import caches
from fusion_search.codegen.rt import lookup
from fusion_search.ir.builder import GraphBuilder
from fusion_search.runtime.program import BoundPlan
from fusion_search.testing.graphs import random_feeds
from tests.codegen.agree import differences

caches.last_level_bytes = lambda: 0
b = GraphBuilder("g")
x = b.input("x", np.float32, (5, 300))
e = b.op("Exp", b.op("Tanh", x))
b.output("y", b.op("Div", e, b.op("ReduceSum", e, axes=(1,))))
b.output("z", b.op("MatMul", e, b.input("w", np.float32, (300, 70))))
graph = b.build()
feeds = random_feeds(graph, 1)
groups = [[node.name for node in graph.nodes if node.op != "MatMul"], [node.name for node in graph.nodes if node.op == "MatMul"]]
assert differences(graph, feeds, BoundPlan(graph, groups)(feeds)) == []
print(lookup.HOST_WIDTH)
"""


@pytest.mark.parametrize(
    ("variables", "width"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, "0"),
        ({"NUMBA_ENABLE_AVX": "0"}, "0"),
        ({"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+sse4.2"}, "8"),
    ],
    ids=["generic", "no_avx", "avx2"],
)
def test_kernels_keep_to_the_processor_that_numba_is_told(variables: dict[str, str], width: str, tmp_path: Path) -> None:
    if width != "0" and not target.has("avx2"):
        pytest.skip("the processor has no AVX2")
    environment = {**os.environ, **variables, "XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [width]


def test_features_are_those_of_the_machine_by_default() -> None:
    assert target.has("sse2") == ("+sse2" in target.feature_flags())
    assert not target.has("a feature of no processor")
