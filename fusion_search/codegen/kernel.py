"""One kernel from one group: its stages in order, each written by the module for its kind."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from fusion_search.codegen.access import library_kernel
from fusion_search.codegen.blocks import is_reduce
from fusion_search.codegen.convolution import emit_convolution
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.extents import actual
from fusion_search.codegen.generic import emit_generic
from fusion_search.codegen.nest import emit_loops
from fusion_search.codegen.parts import emit_parts
from fusion_search.codegen.pooling import emit_pool
from fusion_search.codegen.product import emit_product
from fusion_search.codegen.reductions import emit_reductions
from fusion_search.codegen.scan import emit_scan
from fusion_search.codegen.scatter import emit_scatter
from fusion_search.codegen.stages import Stage
from fusion_search.codegen.writer import Slot
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.program import Member, Program
from fusion_search.ir.spec import OpSpec


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and what a step of a plan needs to run it.

    Attributes
    ----------
    source : str
        The text, whose function is called ``kernel``.
    slots : tuple of Slot
        The argument table.
    items : int
        Work items; any range of them may run on any thread.
    scratch_bytes : int
        What one thread needs.
    work_ns : float
        A rough serial time, from which the runtime chooses the items a task.
    """

    source: str
    slots: tuple[Slot, ...]
    items: int
    scratch_bytes: int
    work_ns: float


def build(program: Program, analysis: Analysis) -> Kernel:
    """Generate the kernel of a legal group that the generator can emit."""
    e = Emitter(program, analysis)
    items = e.open()
    e.w.compiler = _compiler(e)
    for stage in e.stages:
        _emit(e, stage)
    work = sum(_points(m) * _nanoseconds(m.spec) for m in e.group.members)
    return Kernel(e.w.source("kernel"), tuple(e.w.finished()), actual(items), actual(e.scratch), work)


#: A loop from here on has enough whole vectors for what is left over not to matter.
LONG = 512


def _compiler(e: Emitter) -> str:
    """Choose hints by the shortest loop that computes special functions: none without, whole rows masked when short."""
    special = [stage for stage in e.stages if any(e.group.members[i].spec.flop_class == "special" for i in stage.members)]
    lengths = [e.tiles.get(stage.order[-1], e.group.extents[stage.order[-1]]) for stage in special if stage.order]
    if not lengths:
        return ""
    return "Folded" if any(n < LONG and n % 64 for n in lengths) else "Interleaved"


def _emit(e: Emitter, stage: Stage) -> None:
    if stage.kind == "parts":
        emit_parts(e, stage)
    elif stage.kind == "loop" and any(is_reduce(e.group.members[i]) for i in stage.members):
        emit_reductions(e, stage)
    elif stage.kind == "scatter":
        emit_scatter(e, stage, stage.members[0])
    elif stage.kind == "loop":
        emit_loops(e, stage)
    else:
        (i,) = stage.members
        kernel = library_kernel(e.group.members[i])
        if kernel == "product":
            emit_product(e, i)
        elif kernel == "tile":
            emit_convolution(e, i)
        elif kernel == "pool":
            emit_pool(e, i)
        elif e.group.members[i].domain.serial:
            emit_scan(e, stage, i)
        else:
            emit_generic(e, stage, i)


def _points(member: Member) -> int:
    """How often a member's body runs; a scatter copies, and writes each update once."""
    if member.spec.kind == "scatter":
        return actual(prod(member.shape)) + actual(prod(member.operands[2].shape))
    return actual(prod(member.domain.extents))


def _nanoseconds(spec: OpSpec) -> float:
    return {"none": 0.15, "simple": 0.15, "special": 0.6, "contract": 0.02}[spec.flop_class] * max(spec.flops, 1)
