"""The lowering rules: one ordered dict from the model's operators to functions, built from the modules in this folder."""

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
    scan,
    sequence,
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
    **scan.RULES,
    **sequence.RULES,
}
