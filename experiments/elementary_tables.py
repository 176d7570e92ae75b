"""Make the numbers of ``fusion_search/codegen/rt/tables.py``; needs mpmath, which nothing else here does.

``python -m experiments.elementary_tables`` prints the tables with the largest error of each interval in ulp, rounding of the
result left out. For each interval the point that a polynomial counts from is the float32 near the middle where the function is
nearest to a float32 (Gal's accurate tables), so that the constant term needs no second one. Coefficients are minimax by iteratively
reweighted least squares, rounded to float32 from the lowest on, the higher ones fitted again to what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

Real = Any
#: Relative to the result: half an ulp where the mantissa is near 2.
ULP = 2.0**-24
POINTS = 400
ROUNDS = 60


def best_point(function: Callable[[Real], Real], middle: float, within: float, enough: float = 0.004) -> tuple[np.float32, np.float32]:
    """Return the float32 near `middle` whose value is nearest to a float32, and that one; the nearest good one when several are."""
    below = above = np.float32(middle)
    found: list[tuple[float, np.float32, np.float32]] = []
    while abs(float(above) - middle) <= within and len(found) < 8000:
        for at in (below, above):
            exact = function(mpmath.mpf(float(at)))
            value = np.float32(float(exact))
            found.append((abs(float(exact - mpmath.mpf(float(value)))) / float(np.spacing(value)), at, value))
            if found[-1][0] < enough:
                return at, value
        below, above = np.nextafter(below, np.float32(-1)), np.nextafter(above, np.float32(100))
    _, at, value = min(found)
    return at, value


def coefficients(
    function: Callable[[Real], Real],
    rest: Callable[[Real], Real],
    at: float,
    ends: tuple[float, float],
    fixed: dict[int, float],
    powers: Sequence[int],
) -> tuple[list[np.float32], float]:
    """Fit `rest` by powers of x - `at`, relative to `function`; return the coefficients of the powers 1 to 5 and the error in ulp."""
    low, high = ends
    xs = [low + (high - low) * (1 - mpmath.cos(mpmath.pi * (i + mpmath.mpf(1) / 2) / POINTS)) / 2 for i in range(POINTS)]
    d = np.array([float(x - at) for x in xs])
    size, wanted = (np.array([float(f(x)) for x in xs]) for f in (function, rest))
    known = {power: np.float32(value) for power, value in fixed.items()}
    todo = [power for power in powers if power not in known]
    while todo:
        left = (wanted - sum(float(v) * d**k for k, v in known.items())) / size
        columns = np.stack([d**k for k in todo], 1) / size[:, None]
        scale, weight = np.abs(columns).max(0), np.ones(POINTS)
        for _ in range(ROUNDS):
            root = np.sqrt(weight)
            found = np.linalg.lstsq(columns / scale * root[:, None], left * root, rcond=None)[0] / scale
            weight = weight * (np.abs(columns @ found - left) + 1e-30)
            weight /= weight.sum()
        known[todo.pop(0)] = np.float32(found[0])
    error = np.abs((sum(float(v) * d**k for k, v in known.items()) - wanted) / size).max()
    return [known.get(k, np.float32(0)) for k in range(1, 6)], float(error) / ULP


def interval(function: Callable[[Real], Real], low: float, high: float, near: float) -> tuple[list[np.float32], float]:
    """Return a row of a table and its error."""
    at, value = best_point(function, (low + high) / 2, near)
    found, error = coefficients(function, lambda x: function(x) - mpmath.mpf(float(value)), float(at), (low, high), {}, range(1, 6))
    return [at, value, *found], error


def tanh_rows() -> list[tuple[list[np.float32], float]]:
    """Below 1/16 an odd polynomial; then four intervals an octave up to 8; then one up to where the result is 1."""
    first, error = coefficients(mpmath.tanh, mpmath.tanh, 0.0, (0.0, 2**-4), {1: 1.0}, (1, 3, 5))
    rows = [([np.float32(0), np.float32(0), *first], error)]
    for k in range(29):
        low, high = (2.0 ** (k // 4 - 4) * (1 + (k % 4 + step) / 4) for step in (0, 1))
        rows.append(interval(mpmath.tanh, low, min(high, 9.02), (high - low) / 16))
    return rows + rows[-1:] * 2


def erf_rows() -> list[tuple[list[np.float32], float]]:
    """Around every eighth; up to 3/16 the polynomial is of erf(x) - x."""
    first, error = coefficients(mpmath.erf, lambda x: mpmath.erf(x) - x, 0.0, (0.0, 3 / 16), {}, range(1, 6))
    rows = [([np.float32(0), np.float32(0), *first], error)] * 2
    return rows + [interval(mpmath.erf, k / 8 - 1 / 16, k / 8 + 1 / 16, 1 / 128) for k in range(2, 32)]


def main() -> None:
    """Print all tables."""
    mpmath.mp.prec = 160
    for name, rows in (("TANH", tanh_rows()), ("ERF", erf_rows())):
        print(f"{name} = (")
        for row, error in rows:
            print(f"    ({', '.join(str(value) for value in row)}),  # {error:.3f} ulp")
        print(")")
    roots = [mpmath.mpf(2) ** (mpmath.mpf(j) / 16) for j in range(16)]
    high = [np.float32(float(root)) for root in roots]
    print("ROOTS =", [str(value) for value in high])
    print("ROOTS_LOW =", [str(np.float32(float(root - mpmath.mpf(float(value))))) for root, value in zip(roots, high, strict=True)])


if __name__ == "__main__":
    main()
