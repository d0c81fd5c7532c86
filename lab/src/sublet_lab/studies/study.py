"""A study: a function that runs everything anew and answers with tables, pictures and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Tell = Callable[[str], None]  # the present run, for progress messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim: what this run gave, what it had to be, and what others had.

    `published` is what a paper says, or what its authors' own code gives; `prototype` is what a trial of ours gave
    before this code was written, and proves nothing about anybody else. None = there is no such figure.
    """

    name: str
    ours: float
    goal: str
    ok: bool
    published: float | None = None
    prototype: float | None = None
    off: float = math.nan  # half the width of the 95 % interval of `ours`; NaN = it was not estimated
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTable:
    """Rows for people; the first `texts` columns are words, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of a study. `plots` are PNG files by caption."""

    checks: Sequence[Check]
    tables: Sequence[StudyTable] = ()
    plots: Mapping[str, bytes] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A claim that anyone can run again. A quick run takes under a minute on two cores, with wider goals if need be."""

    name: str
    title: str  # one line, for the list
    run: Callable[[bool, Tell], Findings]  # (quick, tell)


# ---------------------------------------------------------------------- the usual goals


def at_most(
    name: str,
    ours: float,
    limit: float,
    *,
    published: float | None = None,
    prototype: float | None = None,
    off: float = math.nan,
    unit: str = "",
) -> Check:
    """`ours` must not be above `limit`."""
    return Check(
        name=name,
        ours=ours,
        goal=f"<= {limit:g}",
        ok=ours <= limit,
        published=published,
        prototype=prototype,
        off=off,
        unit=unit,
    )


def at_least(
    name: str,
    ours: float,
    limit: float,
    *,
    published: float | None = None,
    prototype: float | None = None,
    off: float = math.nan,
    unit: str = "",
) -> Check:
    """`ours` must not be below `limit`."""
    return Check(
        name=name,
        ours=ours,
        goal=f">= {limit:g}",
        ok=ours >= limit,
        published=published,
        prototype=prototype,
        off=off,
        unit=unit,
    )


def equals(
    name: str,
    ours: float,
    expected: float,
    *,
    published: float | None = None,
    prototype: float | None = None,
    unit: str = "",
) -> Check:
    """`ours` must be `expected`, exactly."""
    return Check(
        name=name,
        ours=ours,
        goal=f"== {expected:g}",
        ok=ours == expected,
        published=published,
        prototype=prototype,
        unit=unit,
    )


def within(
    name: str,
    ours: float,
    of: float,
    tolerance: float,
    *,
    published: float | None = None,
    prototype: float | None = None,
    unit: str = "",
) -> Check:
    """`ours` must be within a share `tolerance` of `of`: 0.05 is five percent either way."""
    ok = math.isfinite(ours) and abs(ours - of) <= tolerance * abs(of)
    goal = f"{of:.6g} +- {100 * tolerance:g} %"
    return Check(name=name, ours=ours, goal=goal, ok=ok, published=published, prototype=prototype, unit=unit)
