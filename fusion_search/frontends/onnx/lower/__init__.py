"""The lowering rules: one ordered dict from the model's operators to functions, built from the modules in this folder.

Operators of another domain than the standard's own have its name and a dot before theirs.
"""

from __future__ import annotations

from fusion_search.frontends.onnx.lower import (
    bits,
    contraction,
    einsum,
    elementwise,
    indexing,
    layout,
    normalisation,
    quantisation,
    reduction,
    resize,
    sampling,
    scan,
    scatter,
    sequence,
    spectral,
    training,
    window,
)
from fusion_search.frontends.onnx.lower.context import Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **bits.RULES,
    **reduction.RULES,
    **contraction.RULES,
    **einsum.RULES,
    **quantisation.RULES,
    **window.RULES,
    **normalisation.RULES,
    **layout.RULES,
    **indexing.RULES,
    **resize.RULES,
    **sampling.RULES,
    **scatter.RULES,
    **spectral.RULES,
    **training.RULES,
    **scan.RULES,
    **sequence.RULES,
}
