"""Loops whose vectors are worked on several at a time, and short ones without a remainder.

A vector of a polynomial is one long chain: each step waits for the one before. LLVM interleaves the chains of several vectors only in
small loops or in sums, so the scheduler of the processor fills up with what cannot start yet. And what is left of a short row after
its last whole vectors costs as much an element as a vector. The compilers below put LLVM's own hints on every loop of a function,
``llvm.loop.interleave.count`` and ``llvm.loop.vectorize.predicate.enable``; bits do not depend on them. What the vectoriser then
calls for whole vectors (`lookup`) is inlined behind it.
"""

from llvmlite import ir
from llvmlite.binding.newpassmanagers import create_new_module_pass_manager
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

#: Vectors at a time: more would not fit the registers beside the constants.
COUNT = 4
#: Vectors at a time of a loop whose last vectors are masked.
FOLDED_COUNT = 2


def _back_edges(function):
    """Return the blocks of a function that jump back to one on the way to them."""
    following = {
        block: [operand for operand in block.terminator.operands if isinstance(operand, ir.Block)] if block.is_terminated else []
        for block in function.blocks
    }
    open_blocks, seen, found = set(), set(), []
    for start in function.blocks:  # the entry has no jump yet
        if start in seen:
            continue
        walk = [(start, iter(following[start]))]
        seen.add(start)
        open_blocks.add(start)
        while walk:
            block, rest = walk[-1]
            for target in rest:
                if target in open_blocks:
                    found.append(block)
                elif target not in seen:
                    seen.add(target)
                    open_blocks.add(target)
                    walk.append((target, iter(following[target])))
                    break
            else:
                walk.pop()
                open_blocks.discard(block)
    return found


def _inline_vector_forms(library):
    """Inline what vectorising made calls of: Numba vectorises last, and inlines before it only."""
    optimize = library._optimize_final_module

    def optimize_and_inline():
        optimize()
        builder = library._codegen._pass_builder(loop_vectorize=False, slp_vectorize=False)
        passes = create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_instruction_combine_pass()
        passes.run(library._final_module, builder)

    library._optimize_final_module = optimize_and_inline


class _Lower(Lower):
    count, fold = COUNT, False

    def post_lower(self):
        super().post_lower()
        _inline_vector_forms(self.library)
        module = self.module
        number, flag = ir.IntType(32), ir.IntType(1)
        hints = [module.add_metadata([ir.MetaDataString(module, "llvm.loop.interleave.count"), number(self.count)])]
        if self.fold:
            hints.append(module.add_metadata([ir.MetaDataString(module, "llvm.loop.vectorize.predicate.enable"), flag(1)]))
        for block in _back_edges(self.function):
            # the metadata of a loop is known by naming itself; the number only makes llvmlite give each loop its own
            loop = module.add_metadata([*hints, number(len(module.metadata))])
            loop.operands = (loop, *hints)
            block.terminator.set_metadata("llvm.loop", loop)


class _FoldedLower(_Lower):
    count, fold = FOLDED_COUNT, True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "native_lowering_of_interleaved_loops"

    @property
    def lowering_class(self):
        return _Lower


@register_pass(mutates_CFG=True, analysis_only=False)
class _FoldedLowering(NativeLowering):
    _name = "native_lowering_of_folded_loops"

    @property
    def lowering_class(self):
        return _FoldedLower


class Interleaved(CompilerBase):
    """Numba's compiler for long loops of special functions: several vectors at a time; for ``pipeline_class``."""

    lowering = _Lowering

    def define_pipelines(self):
        """Return the usual passes with another lowering."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(self.lowering if step is NativeLowering else step, text) for step, text in manager.passes]
        manager.finalize()
        return [manager]


class Folded(Interleaved):
    """The same for short loops: the last vectors are masked, nothing is left over for a slower loop."""

    lowering = _FoldedLowering
