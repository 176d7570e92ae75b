"""Maps distributed over concats where the cost model says that it pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusion_search.errors import UsageError
from fusion_search.fusion.demands import Constraint
from fusion_search.ir.graph import Graph
from fusion_search.search.distribution import TriedSite, decide
from fusion_search.spaces import space_of
from hardware_profiles import Profile


def distribute(
    graph: Graph,
    profile: Profile,
    *,
    cost_model: str = "weighted",
    weights: Mapping[str, float] | None = None,
    constraints: Sequence[Constraint] = (),
    time_limit_s: float = 60.0,
    progress: Callable[[TriedSite], None] | None = None,
) -> Graph:
    """Apply maps to the parts of a concat instead of its result, where J of the best plan falls.

    ``relu(concat(p, q))`` equals ``concat(relu(p), relu(q))`` to the last bit. Where producers write the parts of a concat in place, they
    can apply the map as well, and its kernel is gone; where the concat's reader takes the map in, nothing is to be had.

    Parameters
    ----------
    graph : Graph
    profile : Profile
        The machine that J is counted for.
    cost_model, weights, constraints
        As for :func:`fusion_search.search`.
    time_limit_s : float
        Budget of the search without; each search with maps distributed gets an eighth of it, or eight times what that one took, if
        that is more, and never more than all.
    progress : callable, optional
        Is told of each concat with such maps behind it, once: `.maps`, `.before_s`, `.after_s`, `.adopted`, `.why`. ``str()`` is a line
        for a person.

    Returns
    -------
    Graph
        The same inputs, outputs and values; the graph itself when nothing is adopted. Plans for other extents, plan files, and whatever
        else binds the model again, distribute the same maps.

    Raises
    ------
    UsageError
        For an unknown cost model, term, constraint or name; for constraints that contradict each other, or that no plan keeps to.

    Notes
    -----
    What is proved: maps are adopted only if the best plan found with them costs less than the *lower bound* of the search without
    them, and only if the search with them closes where that without did. So every adoption lowers the least J, strictly, and no proof
    is lost; where both searches close, nothing is refused that would have lowered it.

    What is not: the choice is greedy, site by site, those that promise most first, until no site tried is adopted. Sites in parts of
    the graph that no group joins add up, so among those tried the choice is then the best; others may depend on each other. And
    heuristics pass over sites without a search: those from which the best plan so far gains nothing, or less than its own gap, if its
    groups stay as they are and the producers of the parts take the maps in; those that look like one that was not adopted; and those
    of more than half as many maps as a search did not close with. Of a chain of maps the first ones
    that spare most are tried, as one. Sites that look alike are adopted together if J falls by the same for each.

    One search, and two for each kind of site that is tried, where sites of a kind gain alike.
    """
    if not time_limit_s > 0:
        raise UsageError(f"time_limit_s: expected a number > 0, got {time_limit_s}")
    return decide(
        graph,
        lambda other: space_of(other, profile, cost_model, weights),
        constraints,
        time_limit_s=time_limit_s,
        progress=progress or (lambda tried: None),
    )
