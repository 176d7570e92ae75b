"""What the text of every kernel has: places of values, items and blocks, addresses, and where operands come from."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from fusion_search.codegen.access import GroupAccess, Linear, group_access, row_major
from fusion_search.codegen.blocks import choose_blocks, is_reduce
from fusion_search.codegen.caches import exceeds_caches, streamed_bytes
from fusion_search.codegen.extents import Extent, actual
from fusion_search.codegen.lying import Lying
from fusion_search.codegen.packing import packed_forms
from fusion_search.codegen.shares import find_shares
from fusion_search.codegen.stages import absorbed, place
from fusion_search.codegen.walks import Walk, Walks, find_walks
from fusion_search.codegen.writer import Writer, code_of, load
from fusion_search.fusion.analysis import Analysis
from fusion_search.fusion.program import Operand, Program

NEUTRAL = {"sum": "-0.0", "mean": "-0.0", "max": "-np.inf", "min": "np.inf", "prod": "1.0"}


@dataclass(slots=True)
class Place:
    """Where a member's value lives: a tensor, scratch, a local variable, or nowhere outside its stage."""

    kind: str  # tensor, scratch, local, register
    code: str
    address: str = ""  # name of the address slot or expression
    strides: dict[int, int] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A part of a thread's scratch.

    Attributes
    ----------
    slot : int
        The slot of the argument table that holds its offset.
    nbytes : int
    first, last : int
        The stages that use it; parts that no stage uses both of may lie in one place.
    """

    slot: int
    nbytes: int
    first: int
    last: int


class Emitter:
    """One kernel in the making; the modules for the kinds of stage write with it."""

    def __init__(
        self,
        program: Program,
        analysis: Analysis,
        tiles: Mapping[int, int] | None = None,
        threads: int = 2,
        direct: bool = False,
        apart: bool = False,
    ) -> None:
        self.program, self.graph = program, program.graph
        self.group: GroupAccess = group_access(program, analysis)
        stored = set(analysis.live_outs)
        self.live_out = {i for i, m in enumerate(self.group.members) if stored.intersection(m.outputs)}
        #: Products and convolutions with an operand that is packed beforehand, and how they run.
        self.forms = packed_forms(program, self.group)
        chosen = choose_blocks(self.group, self.live_out, threads, self.forms)
        self.tiles, self.whole = chosen.tiles, chosen.whole
        if tiles:
            self.tiles = {a: _sized(tile, tiles[a]) if a in tiles and a not in self.whole else tile for a, tile in self.tiles.items()}
        self.w = Writer()
        #: Whether stages share nothing but the item, so that each can be a function of its own.
        self.apart = apart
        self.reserved: dict[str, Reservation] = {}
        self.now = 0  # the stage that is being written
        self.skip = absorbed(self.group, self.live_out)
        self.stages = place(self.group, set(self.tiles), self.skip, self.live_out)
        self.stage_of = {i: k for k, stage in enumerate(self.stages) for i in (*stage.members, *stage.inside)}
        codes = {i: code_of(self.graph.values[m.node.output].dtype) for i, m in enumerate(self.group.members)}
        #: Members whose result lies where that of another one will: it is written twice, and needs no scratch.
        lying = Lying(self.group, self.stages, self.stage_of, self.live_out, self.skip, codes)
        self.lands_in = lying.blocks() if direct else {}
        #: Where no cache holds what the kernel reads and writes, results pass the caches, and nothing can wait in their places.
        self.streamed_bytes = streamed_bytes(self.group, self.live_out)
        if not exceeds_caches(int(self.streamed_bytes)):
            self.lands_in |= lying.maps(set(self.lands_in.values()))
        self.places: dict[int, Place] = {}
        self.parameters: dict[int, str] = {}
        self.index: dict[int, str] = {}  # fixed indices and block starts, by atom
        self.sizes: dict[int, str] = {}  # block sizes of tiled loops
        self.original = self.group.original
        self.flag = ""
        self.shares = None if apart else find_shares(self.group, self.stages, self.live_out | set(self.lands_in), codes)
        if self.shares:  # what outer loops there are, each item takes whole
            self.tiles = {a: self.group.extents[a] for a in self.group.outer}
        self.shared_bytes = 0
        #: Which stages one loop over their rows walks together, and the variables of its loops while they are written.
        self.walks = [Walk(k, k) for k in range(len(self.stages))] if self.shares else find_walks(self.group, self.stages, self.skip)
        self.rows: dict[int, str] = {}
        reads: dict[int, set[tuple[int, int]]] = {}
        for (reader, _), producer in self.group.producers.items():
            if reader not in self.skip:
                reads.setdefault(producer, set()).update((reader, k) for k in self._stages_of(reader))
        self.walked = Walks(self.group, self.walks, self.stage_of, reads)

    def _stages_of(self, i: int) -> list[int]:
        """The stages that compute a member."""
        return [self.stage_of[i], *(k for k, stage in enumerate(self.stages) if i in stage.again)]

    # ------------------------------------------------------------------ before the stages

    def declare(self) -> int:
        """Decide where values live and load parameters; return the number of items."""
        self._assign_places()
        self._load_parameters()
        return self.shares.count if self.shares else prod(self._counts().values())

    def open(self) -> None:
        """Open the loop over items."""
        self.w.put("for item in range(lo, hi):")
        self.w.depth += 1
        self.locate("0" if self.shares else "item")

    def share(self, key: Hashable, nbytes: int) -> str:
        """Take a part of the memory that all items share; return the name of its address."""
        at, self.shared_bytes = self.shared_bytes, self.shared_bytes + nbytes
        return self.w.shared(key, at)

    def _assign_places(self) -> None:
        group = self.group
        for i, member in enumerate(group.members):
            if i in self.skip:
                continue
            code = code_of(self.graph.values[member.node.output].dtype)
            crossing = any(at not in self._stages_of(i) for _, at in self.walked.reads.get(i, ()))
            around = self.walked.around(i)
            spanned = [a for a in group.loops[i].parallel if (a not in group.outer or a in self.tiles) and a not in around]
            made_whole = is_reduce(member) or self.stages[self.stage_of[i]].kind not in ("loop", "parts")
            target = self.lands_in.get(i, i)
            if i in group.in_parts:
                self.places[i] = Place("register", code)
            elif target in self.live_out:
                name = self.graph.base(group.members[target].node.output)
                self.places[i] = Place("tensor", code, self.w.address(name), dict(group.writes[i].strides), name)
            elif not crossing and not made_whole:
                self.places[i] = Place("register", code)
            elif not spanned and self.stages[self.stage_of[i]].kind == "loop" and not self.apart and not self._addressed(i):
                self.places[i] = Place("local", code, self.w.name("v"))
            else:
                self.places[i] = self._scratch(i, spanned, code)

    def _addressed(self, i: int) -> bool:
        """True when a library kernel or a copy of parts reads a value: it needs an address even when it is one number."""
        readers = [reader for (reader, _), producer in self.group.producers.items() if producer == i and reader not in self.skip]
        return any(self.stages[self.stage_of[reader]].kind != "loop" for reader in readers)

    def _scratch(self, i: int, spanned: list[int], code: str) -> Place:
        strides, size = {}, self.group.members[i].itemsize
        step = 1
        for atom in reversed(spanned):
            strides[atom] = step
            length = self.tiles.get(atom, self.group.extents[atom])
            # of the same value, but marked as one that blocks decide: such a stride is no part of the text
            step *= Extent(1, 1) if atom in self.tiles and not isinstance(length, Extent) and length == 1 else length
        place = self._passed(i, code, strides) or Place("scratch", code, "", strides, f"scratch{i}")
        at = self.reserve(place.key, step * size, self.walked.lifetime(i))
        return replace(place, address=f"S + {at}")

    def _passed(self, i: int, code: str, strides: dict[int, int]) -> Place | None:
        """Where a value lies of whose rows nothing is needed once those of a member, as many and as long, are written."""
        for j in self.walked.passed(i, self.places):
            place = self.places[j]
            shared = any(other.key == place.key for k, other in self.places.items() if self.stage_of[k] > self.stage_of[j])
            if place.kind == "scratch" and not shared and (place.code, place.strides) == (code, strides):
                return place
        return None

    def reserve(self, key: Hashable, nbytes: int, stages: tuple[int, int] | None = None) -> str:
        """Take a part of the thread's scratch for the first to the last of some stages, or for the present one.

        Equal keys share a part. Returns the name of its offset, which is decided when all parts are known.
        """
        name = self.w.number(key, 0)
        first, last = stages or (self.now, self.now)
        known = self.reserved.get(name)
        if known is not None:
            first, last, nbytes = min(first, known.first), max(last, known.last), max(actual(nbytes), known.nbytes)
        self.reserved[name] = Reservation(int(name[1:]), actual(nbytes), first, last)
        return name

    def _load_parameters(self) -> None:
        for member in self.group.members:
            for operand in member.operands:
                if operand.parameter and operand.base not in self.parameters:
                    tensor = self.program.value_name[operand.base]
                    code = code_of(self.graph.values[tensor].dtype)
                    name = self.w.name("c")
                    self.w.put(f"{name} = {load(code, f'p_{code}({self.w.address(tensor)}, 0)[0]')}")
                    self.parameters[operand.base] = name
        if any(m.spec.kind in ("gather", "scatter") for m in self.group.members):
            self.flag = self.w.name("e")
            self.w.put(f"{self.flag} = table({self.w.address('')})")

    def _counts(self) -> dict[int, int]:
        """How many steps items take along each outer loop, outermost first: in the order of the largest result."""
        group = self.group
        lead = group.writes[max(range(len(group.members)), key=lambda i: (prod(group.extents[a] for a in group.loops[i].parallel), -i))]
        outer = sorted(group.outer, key=lambda a: (-lead.strides.get(a, 0), a))
        return {a: -(-group.extents[a] // self.tiles.get(a, 1)) if self.tiles.get(a, 1) else 0 for a in outer}

    def locate(self, item: str) -> None:
        """Find each outer loop's index or block for an item."""
        w, counts, left = self.w, self._counts(), item
        outer = list(counts)
        for k, atom in enumerate(reversed(outer)):
            if k == len(outer) - 1:
                b = left
            else:
                rest, b = w.name("q"), w.name("b")
                w.put(f"{rest} = {left} // {w.number(('count', atom), counts[atom])}")
                w.put(f"{b} = {left} - {rest} * {w.number(('count', atom), counts[atom])}")
                left = rest
            if atom in self.tiles:
                start, size = w.name("s"), w.name("m")
                tile = w.number(("tile", atom), self.tiles[atom])
                w.put(f"{start} = {b} * {tile}")
                w.put(f"{size} = min({tile}, {self.extent(atom)} - {start})")
                self.index[atom] = start
                self.sizes[atom] = size
            else:
                self.index[atom] = b

    # ------------------------------------------------------------------ numbers

    def extent(self, atom: int) -> str:
        """Name of a loop's extent."""
        return self.w.number(("extent", atom), self.group.extents[atom])

    def bound(self, atom: int) -> str:
        """How many steps a stage takes along a loop: the block's size, or the extent."""
        return self.sizes.get(atom) or self.extent(atom)

    def terms(self, i: int) -> str:
        """Name of the number of elements that one result of a reduction is made of."""
        return self.w.number(("count of", i), prod(self.group.extents[a] for a in self.group.loops[i].reduced))

    def base(self, key: str, place: Place, linear: Linear) -> str:
        """Offset of an address at this item; in scratch, the blocked loops that it spans count from the block's start."""
        strides, offset = linear.strides, linear.offset
        parts = [self.w.number(("offset", key), offset)] if offset else []
        for atom in sorted(strides):
            if atom in self.group.outer and not (place.kind == "scratch" and atom in self.tiles and atom in place.strides):
                parts.append(f"{self.index[atom]} * {self.step(key, atom, strides[atom])}")
            if atom in self.rows and strides[atom]:
                parts.append(f"{self.rows[atom]} * {self.step(key, atom, strides[atom])}")
        return " + ".join(parts) or "0"

    def step(self, key: str, atom: int, stride: int) -> str:
        """Name of a stride, or the text 1 or 0, which are part of a kernel's structure unless the run or its blocks decide them."""
        return str(stride) if stride in (0, 1) and not isinstance(stride, Extent) else self.w.number(("stride", key, atom), stride)

    # ------------------------------------------------------------------ reads

    def source_of(self, i: int, k: int) -> tuple[str, Place | str, Linear | None, str]:
        """Say where operand k of member i comes from.

        Returns
        -------
        how : str
            ``parameter``, ``register``, ``local`` or ``memory``.
        what : Place or str
            The place, or the parameter's name.
        linear : Linear or None
            The address, for memory.
        key : str
            Identifies the address among the kernel's numbers.
        """
        member = self.group.members[i]
        operand = member.operands[k]
        if operand.parameter:
            return "parameter", self.parameters[operand.base], None, ""
        producer = self.group.producers.get((i, k))
        key = f"r{i}.{k}"
        if producer is None:
            tensor = self.program.value_name[operand.base]
            code = code_of(self.graph.values[tensor].dtype)
            return "memory", Place("tensor", code, self.w.address(tensor), {}, tensor), self.group.reads[(i, k)], key
        place = self.places[producer]
        if place.kind == "local":
            return "local", place, None, ""
        if self.stage_of[producer] == self.stage_of[i] or producer in self.stages[self.stage_of[i]].again:
            return "register", place, None, ""
        if place.kind == "tensor":
            return "memory", place, self.group.reads[(i, k)], key
        return "memory", place, self._scratch_read(i, k, operand, producer, place), key

    def memory_of(self, i: int, k: int) -> tuple[Place, Linear, str]:
        """Where an operand lies in memory: its place, address and key.

        Raises
        ------
        TypeError
            When it does not: a defect of the placement.
        """
        operand = self.group.members[i].operands[k]
        if operand.parameter and (i, k) in self.group.reads:
            tensor = self.program.value_name[operand.base]
            return (
                Place("tensor", code_of(self.graph.values[tensor].dtype), self.w.address(tensor), {}, tensor),
                self.group.reads[(i, k)],
                f"r{i}.{k}",
            )
        how, place, linear, key = self.source_of(i, k)
        if not isinstance(place, Place) or linear is None:
            raise TypeError(f"operand {k} of {self.group.members[i].node.name!r} is no tensor in memory but a {how}")
        return place, linear, key

    def _scratch_read(self, i: int, k: int, operand: Operand, producer: int, place: Place) -> Linear:
        if self.group.identity[(i, k)]:
            return Linear(dict(place.strides))
        # Read elsewhere than at the reader's own index: by dimension, which then lies in scratch whole.
        linear = Linear({})
        access = self.group.members[i].domain.reads[k]
        steps = self.dimension_steps(producer, place)
        place_of = dimension_of(operand)
        mine = self.group.reads[(i, k)]
        full = row_major(operand.shape)
        for d, dim in enumerate(access.dims):
            if operand.shape[d] == 1:
                continue
            target = place_of[d]
            linear.offset += dim.offset * steps[target]
            if dim.loop is not None and set(atoms := self._atoms_of(i, dim.loop)) <= set(self._atoms_of(producer, target)):
                # at the reader's own index along this dimension, which may be cut, and lie there in blocks or in part
                linear.strides |= {a: linear.strides.get(a, 0) + place.strides[a] for a in atoms if a in place.strides}
                continue
            for loop, coefficient in dim.terms:
                for atom in self._atoms_of(i, loop):
                    ratio = mine.strides[atom] // (coefficient * full[d]) if coefficient * full[d] else 1
                    linear.strides[atom] = linear.strides.get(atom, 0) + coefficient * ratio * steps[target]
        return linear

    def _atoms_of(self, i: int, loop: int) -> list[int]:
        """Joined atoms of one loop of a member."""
        pieces = set(self.original[i][loop])
        return [a for a in (*self.group.loops[i].parallel, *self.group.loops[i].reduced) if set(self.group.pieces[a]) & pieces]

    def dimension_steps(self, producer: int, place: Place) -> dict[int, int]:
        """Scratch stride of each dimension of a member's result."""
        steps = {}
        for d in range(self.group.members[producer].domain.rank):
            atoms = [a for a in self._atoms_of(producer, d) if a in place.strides]
            steps[d] = min((place.strides[a] for a in atoms), default=0)
        return steps


def _sized(tile: int, size: int) -> Extent:
    """A tile of another size that leaves the kernel's text as it is; 1 is no generic size, since strides of 1 are text."""
    return Extent(max(int(tile), 2), size)


def dimension_of(operand: Operand) -> dict[int, int]:
    """Which stored dimension each dimension of a plain view is."""
    left = [d for d, n in enumerate(operand.base_shape) if n != 1]
    right = [d for d, n in enumerate(operand.shape) if n != 1]
    return dict(zip(right, left, strict=True))
