"""The short way from a call to the kernels, for runs on arrays that need no closer look."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fusion_search.codegen.rt.driver import launch
from fusion_search.codegen.rt.ports import admit
from fusion_search.errors import FeedError
from fusion_search.runtime.ports import Array
from fusion_search.runtime.waking import awake
from fusion_search.runtime.workspace import Workspaces, several_threads_may_run


def outside() -> FeedError:
    """Return the error of a run in which a kernel raised the flag."""
    return FeedError("an index is outside its tensor", hint="check the fed indices")


class Express:
    """Runs a plan in two compiled calls: one looks at the arrays, one binds them and runs all kernels.

    A small plan spends more time in Python than in its kernels, so nothing is done here that the arrays do not decide.

    Parameters
    ----------
    spaces : Workspaces
        Of a plan that is kernels alone.
    inputs, results : sequence of str
        In the order of the bases.
    threads : int
        That share a step; 1 where none is shared.
    """

    __slots__ = ("_back", "_inputs", "_launch", "_names", "_pack", "_results", "_take")

    def __init__(self, spaces: Workspaces, inputs: Sequence[str], results: Sequence[str], threads: int) -> None:
        self._take, self._back = spaces.take, spaces.idle.append
        self._inputs, self._results, self._names = tuple(inputs), tuple(results), frozenset(results)
        self._launch = awake(threads, launch)
        self._pack = struct.Struct(f"{len(self._inputs) + len(self._results)}q").pack_into

    def __call__(self, feeds: Any, out: Any) -> dict[str, Array] | None:
        """Run the plan, or return None, with nothing written, where the feeds or `out` need a closer look."""
        if type(feeds) is not dict or len(feeds) != len(self._inputs) or not several_threads_may_run():
            return None
        try:
            arrays = [feeds[name] for name in self._inputs]
        except KeyError:
            return None
        space = self._take()
        try:
            if out is None:
                made = space.results.fresh_all()
            elif type(out) is dict and self._names.issuperset(out):
                fresh = space.results.fresh
                made = [out[name] if name in out else fresh(k) for k, name in enumerate(self._results)]
            else:
                return None
            self._pack(space.objects.data, 0, *map(id, arrays), *map(id, made))
            misfit = admit(*space.admission)
            if misfit >= 0:
                k = misfit - len(arrays)
                if k >= 0 and (out is None or self._results[k] not in out):
                    space.results.forget(k)
                return None
            if self._launch(space.launch):
                raise outside()
            return dict(zip(self._results, made))  # noqa: B905  a keyword costs more than the call
        finally:
            self._back(space)
