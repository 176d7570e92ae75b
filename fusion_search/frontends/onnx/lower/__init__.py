"""The lowering rules: one ordered dict from the model's operators to functions, built from the modules in this folder."""

from __future__ import annotations

from fusion_search.frontends.onnx.lower import (
    contraction,
    elementwise,
    indexing,
    layout,
    normalisation,
    reduction,
    resize,
    sequence,
    window,
)
from fusion_search.frontends.onnx.lower.context import Rule

RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **reduction.RULES,
    **contraction.RULES,
    **window.RULES,
    **normalisation.RULES,
    **layout.RULES,
    **indexing.RULES,
    **resize.RULES,
    **sequence.RULES,
}
