"""Loops whose vectors are worked on four at a time.

A vector of a polynomial is one long chain: each step waits for the one before. LLVM interleaves the chains of several vectors only in
small loops or in sums, so the scheduler of the processor fills up with what cannot start yet. The compiler below puts LLVM's own hint,
``llvm.loop.interleave.count``, on every loop of a function; bits do not depend on it.
"""

from llvmlite import ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

#: Vectors at a time: more would not fit the registers beside the constants.
COUNT = 4


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


class _Lower(Lower):
    def post_lower(self):
        super().post_lower()
        module = self.module
        count = module.add_metadata([ir.MetaDataString(module, "llvm.loop.interleave.count"), ir.Constant(ir.IntType(32), COUNT)])
        for block in _back_edges(self.function):
            # the metadata of a loop is known by naming itself; the number only makes llvmlite give each loop its own
            loop = module.add_metadata([count, ir.Constant(ir.IntType(32), len(module.metadata))])
            loop.operands = (loop, count)
            block.terminator.set_metadata("llvm.loop", loop)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "native_lowering_of_interleaved_loops"

    @property
    def lowering_class(self):
        return _Lower


class Interleaved(CompilerBase):
    """Numba's compiler, with the hint on every loop; for ``pipeline_class``."""

    def define_pipelines(self):
        """Return the usual passes with another lowering."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(_Lowering if step is NativeLowering else step, text) for step, text in manager.passes]
        manager.finalize()
        return [manager]
