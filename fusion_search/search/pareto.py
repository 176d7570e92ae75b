"""Plans that trade traffic, launches and spill against each other: the supported points of the Pareto front.

A plan is a point with three coordinates: seconds of traffic (with those of recomputation, which is work done to save traffic),
launches, and seconds of spill. For weights on them, the least weighted sum over all plans is a concave function, the lower envelope of one
plane for each plan. Keep the planes found so far; search at every vertex of their envelope; a plan that is lower there adds its plane. When
nothing is lower at any vertex, the envelopes are equal, and every plan that is the only best one for some weights has been found. What no
weights make best (an unsupported point) is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodels import model
from fusion_search.fusion.constraints import constrain
from fusion_search.fusion.demands import Constraint, check_fixed
from fusion_search.fusion.space import GroupSpace
from fusion_search.search.methods import METHODS
from fusion_search.search.plan import Plan

__all__ = ["ParetoPoint", "pareto"]

#: Costs that differ by less than this share are one.
_SAME = 1e-9


@dataclass(frozen=True)
class ParetoPoint:
    """A plan that is best for some weights.

    Attributes
    ----------
    traffic_s : float
        Traffic and recomputation.
    launches : int
    spill_s : float
    weights : tuple of float
        Weights on the three terms, in seconds each, for which it was found.
    plan : Plan
        J is by those weights.
    """

    traffic_s: float
    launches: int
    spill_s: float
    weights: tuple[float, float, float]
    plan: Plan


def pareto(space: GroupSpace, demands: Sequence[Constraint] = (), *, time_limit_s: float = 60.0) -> tuple[ParetoPoint, ...]:
    """Return the supported points, by falling number of launches.

    Parameters
    ----------
    space : GroupSpace
        On the model ``weighted``.
    demands : sequence of Constraint
    time_limit_s : float
        Budget of each search.

    Notes
    -----
    One search for each vertex of the envelope, at most about twice as many as points. Supported points only.
    """
    check_fixed(demands, "pareto")
    scale = _scale(space)
    points: list[ParetoPoint] = []
    planes = np.empty((0, 3))
    tried: set[tuple[float, ...]] = set()
    todo = [np.array(corner) for corner in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1 / 3, 1 / 3, 1 / 3))]
    while todo:
        weights = todo.pop()
        tried.add(_rounded(weights))
        point, plane = _best(space, demands, weights, scale, time_limit_s)
        known = float((planes @ weights).min()) if len(planes) else np.inf
        if float(plane @ weights) < known * (1 - _SAME) or not len(planes):
            points.append(point)
            planes = np.vstack((planes, plane))
        if not todo:
            todo = [vertex for vertex in _vertices(planes) if _rounded(vertex) not in tried]
    worth = [point for point in points if not any(_beats(other, point) for other in points)]
    distinct = {(point.traffic_s, point.launches, point.spill_s): point for point in worth}
    return tuple(sorted(distinct.values(), key=lambda point: (-point.launches, point.traffic_s, point.spill_s)))


def _scale(space: GroupSpace) -> npt.NDArray[np.float64]:
    """Seconds of each term when nothing is fused, so that the three are of one size; a launch is never free here."""
    alone = METHODS["unfused"](space, 1.0).terms
    traffic = alone["traffic"] or 1e-6
    return np.array([traffic, alone["launch"] or 1.0, traffic])


def _best(
    space: GroupSpace, demands: Sequence[Constraint], weights: npt.NDArray[np.float64], scale: npt.NDArray[np.float64], time_limit_s: float
) -> tuple[ParetoPoint, npt.NDArray[np.float64]]:
    traffic, launch, spill = (float(w) for w in weights / scale * scale[0])
    chosen = {"traffic": traffic, "launch": launch, "spill": spill, "recompute": traffic}
    other = space.repriced(space.profile, model("weighted", chosen))
    plan = METHODS["exact"](constrain(other, demands), time_limit_s)
    terms: dict[str, Any] = plan.terms
    moved = terms["traffic"] + terms["recompute"]
    point = ParetoPoint(moved, plan.launches, terms["spill"], (traffic, launch, spill), plan)
    return point, np.array([moved, terms["launch"], terms["spill"]]) / scale


def _rounded(weights: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(w) for w in np.round(weights, 9))


def _beats(a: ParetoPoint, b: ParetoPoint) -> bool:
    mine, theirs = (a.traffic_s, a.launches, a.spill_s), (b.traffic_s, b.launches, b.spill_s)
    return mine != theirs and all(x <= y for x, y in zip(mine, theirs, strict=True))


def _vertices(planes: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
    """Vertices of the lower envelope of planes over the triangle of weights that add up to 1.

    A vertex is where three of the planes and sides meet; all triples are tried, which is quick for the few planes there are.
    """
    # Unknowns: the weights w and the height z. Planes: p.w - z = 0; sides: one weight is 0.
    rows = [np.append(plane, -1.0) for plane in planes] + [np.append(np.eye(3)[k], 0.0) for k in range(3)]
    count = len(planes)
    systems = np.array(
        [[*(rows[k] for k in triple), [1.0, 1.0, 1.0, 0.0]] for triple in combinations(range(len(rows)), 3) if triple[0] < count]
    )
    if not len(systems):
        return []
    systems = systems[np.abs(np.linalg.det(systems)) > 1e-12]
    found = np.linalg.solve(systems, np.broadcast_to([[0.0], [0.0], [0.0], [1.0]], (len(systems), 4, 1)))[:, :, 0]
    weights, heights = found[:, :3], found[:, 3]
    inside = (weights > -1e-9).all(axis=1)
    lowest = (weights @ planes.T).min(axis=1)
    kept = weights[inside & (lowest >= heights - 1e-9 * np.maximum(1.0, np.abs(heights)))]
    distinct = {_rounded(w): w for w in np.clip(kept, 0.0, None)}
    return list(distinct.values())
