"""Tables and lines for a terminal: a plan with its certificate, its baselines, what running it gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fusion_search.search.plan import Plan, PlanGroup
from fusion_search.search.wording import names, seconds, signed, size
from hardware_profiles.errors import one_line

_PIPE_WIDTH = 160


def console() -> Console:
    """Return a console on stdout, wide enough for a table where stdout is no terminal."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def show_plan(out: Console, plan: Plan, *, title: str, baselines: Mapping[str, Plan], violations: Sequence[str], top: int = 0) -> None:
    """Print the groups, the terms, the certificate and the baselines.

    Parameters
    ----------
    out : rich.console.Console
    plan : Plan
    title : str
    baselines : mapping of str to Plan
        Other plans of the same graph on the same cost, by method.
    violations : sequence of str
        What the checker found.
    top : int
        Show only so many groups, those that cost most; 0 shows all.
    """
    _show_groups(out, plan, title, top)
    sound = "check finds nothing" if not violations else f"check finds {len(violations)} violations"
    proof = f"lower bound {seconds(plan.lower_bound_s)}, gap {plan.gap:.2%}, {plan.space.get('name', 'unnamed')} space"
    _line(out, "certificate", f"{plan.status}: J {seconds(plan.cost_s)}, {proof}; {sound}")
    for violation in violations:
        _line(out, "violation", violation)
    refused = plan.space.get("refused")
    if refused:
        _line(out, "refused", ", ".join(f"{rule} {count}" for rule, count in refused.items()))
    if baselines:
        table = _table("method", "J", "times this", "launches", "moved")
        for method, other in baselines.items():
            ratio = f"{other.cost_s / plan.cost_s:.2f}" if plan.cost_s else "-"
            table.add_row(method, seconds(other.cost_s), ratio, str(other.launches), size(other.bytes_moved))
        out.print(table)


def _show_groups(out: Console, plan: Plan, title: str, top: int) -> None:
    operator = {node.name: node.origin_op or node.op for node in plan.graph.nodes}
    # A term that no group has would be a column of zeros.
    shown = [term for term, total in plan.terms.items() if total]
    table = _table("group", "operators", "origin", "nodes", "cost", "share", *shown, title=title, long=("operators", "origin"))
    numbered = list(enumerate(plan.groups))
    if 0 < top < len(numbered):
        numbered = sorted(sorted(numbered, key=lambda pair: (-pair[1].cost_as, pair[0]))[:top])
    for number, group in numbered:
        table.add_row(str(number), *_cells(group, operator, plan.cost_as), *(seconds(group.terms.get(term, 0.0)) for term in shown))
    table.add_section()
    left = len(plan.groups) - len(numbered)
    rest = f"and {left} groups that cost less" if left else ""
    nodes = str(sum(len(group.nodes) for group in plan.groups))
    whole = (f"{plan.launches} launches", f"{size(plan.bytes_moved)} moved", nodes, seconds(plan.cost_s), "100%")
    table.add_row("all", *whole, *(seconds(plan.terms[term]) for term in shown))
    out.print(table)
    if rest:
        _line(out, "not shown", rest)


def _cells(group: PlanGroup, operator: Mapping[str, str], whole: int) -> list[Text]:
    share = f"{group.cost_as / whole:.1%}" if whole else "-"
    operators = dict.fromkeys(operator.get(name, "?") for name in group.nodes)
    ran = f"{names(operators)}, written by its producers" if group.alias else names(operators)
    words = [ran, names(group.origin), str(len(group.nodes)), seconds(group.cost_s), share]
    return [Text(word) for word in words]


def show_distributed(out: Console, tried: Sequence[Mapping[str, Any]]) -> None:
    """Print where maps could be applied to the parts of concats: what was searched for as a table, the rest counted by its reason.

    Parameters
    ----------
    out : rich.console.Console
    tried : sequence of mapping
        Fields of `TriedSite`, site by site.
    """
    searched = [site for site in tried if site["before_s"] is not None]
    if searched:
        table = _table("concat", "parts", "maps", "J before", "J after", "change", "outcome", long=("concat", "maps"))
        for site in searched:
            after = "-" if site["after_s"] is None else seconds(site["after_s"])
            change = "-" if site["after_s"] is None else signed(site["after_s"] - site["before_s"])
            outcome = "adopted" if site["adopted"] else site["why"]
            cells = (site["concat"], str(site["parts"]), names(site["maps"]), seconds(site["before_s"]), after, change, outcome)
            table.add_row(*(Text(one_line(cell)) for cell in cells))
        table.title, table.title_justify = Text("maps on the parts of concats"), "left"
        out.print(table)
    passed = Counter(site["why"].removeprefix("not tried: ") for site in tried if site["before_s"] is None)
    adopted = sum(site["adopted"] for site in searched)
    _line(out, "distributed", f"{adopted} of {len(tried)} concats with maps behind them; {len(searched)} tried")
    for why, count in sorted(passed.items(), key=lambda pair: (-pair[1], pair[0])):
        _line(out, "not tried", f"{count}: {why}")


def show_run(out: Console, verified: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Print what verifying and measuring gave."""
    outcome = "agrees with" if verified["ok"] else "DIFFERS from"
    most = f"{verified['max_abs']:.3g} absolute, {verified['max_rel']:.3g} of the largest magnitude"
    _line(out, "verified", f"{outcome} {verified['reference']}, at most {most}")
    for kind in ("fused", "unfused"):
        launches, peak = measured[f"{kind}_launches"], measured[f"{kind}_peak_bytes"]
        _line(out, kind, f"{seconds(measured[f'{kind}_s'])} measured in {launches} launches, {size(peak)} at peak")
    low, high = measured["speedup_range"]
    _line(out, "speed-up", f"{measured['speedup']:.2f} times, from {low:.2f} to {high:.2f} over {measured['pairs']} pairs")


def show_records(out: Console, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print some columns of flat records as a table."""
    table = _table(*columns)
    for column in table.columns:
        column.no_wrap, column.overflow, column.justify = False, "fold", "left"
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    out.print(table)


def _line(out: Console, label: str, text: str) -> None:
    out.print(Text(f"{label:<13} {one_line(text)}"), soft_wrap=True)


def _table(*columns: str, title: str | None = None, long: Sequence[str] = ()) -> Table:
    table = Table(title=Text(one_line(title)) if title else None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        if column in long:  # names give way, so that a group stays one line
            table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=8)
        else:
            table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    return table


def _cell(value: object) -> Text:
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, (list, tuple, frozenset)):
        return Text(", ".join(sorted(map(str, value))))
    return Text(f"{value:g}" if isinstance(value, float) else one_line(str(value)))
