"""Claims and results as a table of the README, between two marks; what is missed is marked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sublet.errors import BadInput
from sublet_lab.studies.claims.claim import Claim, Figure, Take
from sublet_lab.studies.claims.results import Result, Shown

MISSED, NOT_RUN = "**missed**", "not run"
COLUMNS = (
    *("claim", "over", "knowledge, ours first", "the other's figure", "data", "measured (+- 95 %)", "goal"),
    *("command", "commit"),
)


def table(claims: Sequence[Claim], results: Mapping[str, Result]) -> str:
    """In Markdown."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line(_cells(claim, results.get(claim.study))) for claim in claims]
    return "\n".join(lines)


def with_table(page: str, name: str, text: str) -> str:
    """The page with this between `<!-- name: ... -->` and `<!-- end of name -->`."""
    marks = re.compile(rf"(<!-- {re.escape(name)}: [^>]*-->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
    if len(marks.findall(page)) != 1:
        raise BadInput("the page", f"it does not have the marks of {name!r} once", hint="put both marks back")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def not_shown(claims: Sequence[Claim], results: Mapping[str, Result]) -> list[str]:
    """Claims that no check of a full run shows, and why."""
    told = []
    for claim in claims:
        result = results.get(claim.study)
        if result is None or result.missing:
            told.append(f"{claim.what}: {claim.study} was not run" + (f": {result.missing}" if result else ""))
        else:
            lost = [each.check for each in claim.figures if not _told(each, result)[1]]
            told += [f"{claim.what}: {claim.study} has no check {check!r}" for check in lost]
    return told


def _cells(claim: Claim, result: Result | None) -> list[str]:
    told = [claim.what, claim.over, claim.knows, str(claim.source), str(claim.data)]
    if result is None or result.missing:
        return [*told, NOT_RUN, "", f"`{claim.command}`", ""]
    told_of = [_told(each, result) for each in claim.figures]
    measured = "; ".join(text for text, _ in told_of)
    goals = "; ".join(dict.fromkeys(goal for _, goal in told_of if goal))
    return [*told, measured, goals, f"`{claim.command}{' --quick' * result.quick}`", result.commit]


def _told(figure: Figure, result: Result) -> tuple[str, str]:
    """The figure, and its goal; no goal where no check shows it. A missed figure is marked, of any kind."""
    checks = [check for check in result.checks if figure.matches(check.name)]
    if not checks or (figure.take is Take.ONLY and len(checks) > 1):
        return f"{figure.label} {NOT_RUN}".strip(), ""
    held = sum(check.ok for check in checks)
    if figure.take is Take.HELD:
        value, goal = f"{held} of {len(checks)}", "all"
    else:
        one = _one_of(checks, figure.take)
        value, goal = _value(one, figure.digits), f"{one.goal}{_unit(one.unit)}"
    return f"{figure.label} {value}{'' if held == len(checks) else f' {MISSED}'}".strip(), goal


def _one_of(checks: Sequence[Shown], take: Take) -> Shown:
    """The one that is told; a check without a number is the worst there is."""
    without = [check for check in checks if check.ours is None]
    if without:
        return without[0]
    worst = max if take is Take.MOST else min
    return worst(checks, key=lambda check: check.ours or 0.0)


def _value(check: Shown, digits: int) -> str:
    if check.ours is None:
        return "none"
    off = "" if check.off is None else f" +- {check.off:.{digits}f}"
    return f"{check.ours:,.{digits}f}{off}{_unit(check.unit)}"


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
