"""The registry of core operators: one ordered dict, built from the modules in this folder."""

from __future__ import annotations

from fusion_search.ir.ops import bitwise, gathers, layouts, maps, reduces, scatters, windows
from fusion_search.ir.spec import OpSpec

OPS: dict[str, OpSpec] = {
    spec.name: spec
    for spec in (
        *maps.SPECS,
        *bitwise.SPECS,
        *reduces.SPECS,
        *windows.SPECS,
        *layouts.SPECS,
        *gathers.SPECS,
        *scatters.SPECS,
    )
}
