"""The innermost loops of maps, in step with the cache lines that they write; what no cache will hold is stored past the caches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fusion_search.codegen.access import Linear
from fusion_search.codegen.caches import exceeds_caches, may_exceed_caches
from fusion_search.codegen.emit import Emitter
from fusion_search.codegen.extents import Extent
from fusion_search.codegen.lanes import LANES
from fusion_search.codegen.nest import Nest, Ready, define

#: Rows shorter than this have too few whole lines.
LEAST = 2 * LANES
#: Elements of a row whose first ones, before a line begins, may be computed one by one.
LONG = 1 << 14
#: Storage codes of buffers.
_BITS = {"f4": "f32", "f8": "f64"}


def write_row(nest: Nest, ready: Ready, count: str) -> None:
    """Write the definitions of a nest in its innermost loop of `count` steps."""
    e, w, members = nest.e, nest.e.w, nest.stage.members
    results = _passing(nest, ready)
    if not results:
        with _row(nest, ready.writes, count):
            define(nest, members, ready)
        return
    loaded, writes = dict(nest.loaded), dict(ready.writes)
    past = w.number("past the caches", exceeds_caches(e.streamed_bytes))
    first, size = writes[results[0]][0], e.group.members[results[0]].itemsize
    alike = "".join(f" and before_line({writes[i][0]}, {size}) == before_line({first}, {size})" for i in results[1:])
    with w.block(f"if {past} != 0 and {count} >= {LEAST}{alike}:"):
        pieces = Pieces(nest, ready, results, count)
        with w.block(f"while {pieces.at} < {count}:"):
            pieces.write()
    nest.loaded, nest.values, nest.buffers, ready.writes = loaded, {}, frozenset(), writes
    with w.block("else:"), _row(nest, writes, count):
        define(nest, members, ready)


class Pieces:
    """A row of `count` results that pass the caches: 64 elements or fewer at a time, in whole lines.

    Parameters
    ----------
    nest : Nest
    ready : Ready
        Its writes are those of `results`.
    results : sequence of int
        Their rows lie alike in cache lines.
    count : str

    Attributes
    ----------
    at : str
        Name of how many are written; all are once it is `count`.
    """

    def __init__(self, nest: Nest, ready: Ready, results: Sequence[int], count: str) -> None:
        self._nest, self._ready, self._results, self._count = nest, ready, results, count
        self._targets, self._loaded = dict(ready.writes), dict(nest.loaded)
        w = nest.e.w
        self._before, self._last, self.at = w.name("m"), w.name("m"), w.name("t")
        first, size = self._targets[results[0]][0], nest.e.group.members[results[0]].itemsize
        w.put(f"{self._before}, {self._last}, {self.at} = before_line({first}, {size}), last_line({first}, {count}, {size}), 0")

    def write(self) -> None:
        """Write the next piece; what is left before and behind whole lines is computed with elements beside it, 64 together."""
        nest, ready, at, e, w = self._nest, self._ready, self.at, self._nest.e, self._nest.e.w
        end, start = w.name("m"), w.name("t")
        w.put(f"{end} = piece_end({at}, {self._before}, {self._last}, {self._count})")
        w.put(f"{start} = max(0, min({at}, {end} - {LANES}))")
        buffers = {i: w.name("u") for i in self._results}
        for i, buffer in buffers.items():
            w.put(f"{buffer} = next_{e.places[i].code}()")
        nest.loaded, nest.buffers = dict(self._loaded), frozenset(buffers.values())
        ready.writes = {i: (buffers[i], linear) for i, (_, linear) in self._targets.items()}
        with w.block(f"for lane in range({LANES}):"):
            w.put(f"j = {start} + lane")
            define(nest, nest.stage.members, ready)
        for i, buffer in buffers.items():
            target = f"padd({self._targets[i][0]}, {start})"
            w.put(f"lanes_past_{_BITS[e.places[i].code]}({target}, {buffer}, {at} - {start}, {end} - {start})")
        w.put(f"{at} = {end}")


@contextmanager
def _row(nest: Nest, writes: Mapping[int, tuple[str, Linear]], count: str) -> Iterator[None]:
    """Open the innermost loop of `count` steps; a long row of simple maps comes in two pieces, so that its vectors are lines.

    A vector that lies across two lines is stored in two steps.
    """
    e, w = nest.e, nest.e.w
    first = _misplaced(nest, writes)
    if first is None:
        with w.block(f"for j in range({count}):"):
            yield
        return
    at, end = w.name("t"), w.name("m")
    w.put(f"{at}, {end} = 0, before_line({writes[first][0]}, {e.group.members[first].itemsize}) if {count} >= {LONG} else {count}")
    with w.block(f"while {at} < {count}:"):
        with w.block(f"for j in range({at}, {end}):"):
            yield
        w.put(f"{at}, {end} = {end}, {count}")


def _misplaced(nest: Nest, writes: Mapping[int, tuple[str, Linear]]) -> int | None:
    """Return a member whose long row, written one element beside the other, may begin within a line, unless other maps cost more."""
    e, inner = nest.e, nest.inner
    if inner is None or any(e.group.members[i].spec.flop_class not in ("none", "simple") for i in nest.stage.defined):
        return None
    steps = e.tiles.get(inner, e.group.extents[inner])
    for a in nest.joined:
        steps *= e.group.extents[a]
    if steps < LONG and not isinstance(steps, Extent):
        return None
    return next((i for i, (_, linear) in writes.items() if e.places[i].kind == "tensor" and linear.strides.get(inner, 0) == 1), None)


def _passing(nest: Nest, ready: Ready) -> list[int]:
    """Find the results of a nest that may pass the caches: all that it writes, contiguous, and read by nothing else in its group."""
    found = list(ready.writes)
    alike = len({nest.e.places[i].code for i in found}) == 1
    contiguous = all(nest.inner is not None and linear.strides.get(nest.inner, 0) == 1 for _, linear in ready.writes.values())
    return found if alike and contiguous and may_pass(nest.e, nest.stage.members, found) else []


def may_pass(e: Emitter, members: Collection[int], results: Iterable[int]) -> bool:
    """Whether results of a stage may pass the caches: tensors too large for them that no other stage reads."""
    read = {i for (reader, _), i in e.group.producers.items() if reader not in members and reader not in e.skip}
    again = {i for stage in e.stages for i in stage.again}
    for i in results:
        if e.places[i].kind != "tensor" or e.places[i].code not in _BITS or i in read | again or i in e.lands_in.values():
            return False
    return may_exceed_caches(e.streamed_bytes)
