"""Long kernels in pieces: functions of some stages each, which the kernel calls one after the other for each item.

Compiling a function takes more than twice the time when it is twice as long: a group of 250 nodes with a reduction in every fourth
took 19 s as one function. What passes between stages lies in scratch then, so that stages share nothing but the item.
It is for what would compile for many seconds only: a network of gates and normalisations, 370 lines over rows of 56, ran 1.4 times as
long in pieces, since each of them reads its numbers again for every item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fusion_search.codegen.writer import Writer

#: Lines of the loop over items from which on it is cut, and of one piece.
LONG_LINES, PIECE_LINES = 800, 120
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEFINED = re.compile(r"\s*([A-Za-z_]\w*) = ")


def is_long(w: Writer, marks: Sequence[int]) -> bool:
    """Whether a kernel had better be in pieces; `marks` are the lines at which its stages begin."""
    return len(marks) > 1 and len(w.lines) > LONG_LINES


def piece_name(k: int) -> str:
    """Return the name of a piece, which is also that of its address in the argument table."""
    return f"piece{k}"


def source_in_pieces(w: Writer, name: str, marks: Sequence[int]) -> str:
    """Return the text of a kernel whose stages begin at some lines: its pieces, and a loop over items that calls them."""
    head, starts = w.lines[: marks[0]], [marks[0]]
    ends = [*marks[1:], len(w.lines)]
    for start, end in zip(marks, ends, strict=True):
        if end - starts[-1] > PIECE_LINES and start > starts[-1]:
            starts.append(start)
    bodies = [w.lines[a:b] for a, b in zip(starts, [*starts[1:], len(w.lines)], strict=True)]
    given = {found[1]: line for line in head if (found := _DEFINED.match(line))}
    functions = [w.external(piece_name(k)) for k in range(len(bodies))]
    texts = [_piece(w, piece_name(k), body, head, given) for k, body in enumerate(bodies)]
    calls = [f"        call_address({function}, (A, S, item, item + 1))" for function in functions]
    texts.append("\n".join([*_opening(w, name), *_numbers(functions), "    for item in range(lo, hi):", *calls]) + "\n")
    return "\n".join(texts)


def _piece(w: Writer, name: str, body: Sequence[str], head: Sequence[str], given: Mapping[str, str]) -> str:
    """A kernel of some stages: of the lines before the stages, those that these stages need."""
    needed = _names(body)
    while more := {n for known in needed & given.keys() for n in _names([given[known]])} - needed:
        needed |= more
    lines = [line for line in head if not (found := _DEFINED.match(line)) or found[1] in needed]
    numbers = [n for n in needed | _names(lines) if re.fullmatch(r"n\d+", n)]
    return "\n".join([*_opening(w, name), *_numbers(numbers), *lines, *body]) + "\n"


def _opening(w: Writer, name: str) -> list[str]:
    return [w.decorator(), f"def {name}(A, S, lo, hi):", "    T = table(A)"]


def _numbers(names: Sequence[str]) -> list[str]:
    return [f"    {name} = T[{name[1:]}]" for name in sorted(names, key=lambda n: int(n[1:]))]


def _names(lines: Sequence[str]) -> set[str]:
    return {name for line in lines for name in _NAME.findall(line)}
