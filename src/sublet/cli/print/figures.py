"""How figures of a controller read: dollars, times, shares. A dash where something is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sublet.domain.units import DAY_S, MINUTE_S, SECONDS_PER_H

NOTHING = "-"
FINE_USD = 0.01  # below a cent, cents say nothing
EXIT_CODES = {"finished": 0, "failed": 100, "cancelled": 103, "out-of-budget": 110}
NOT_FINISHED = 101


def exit_code_of(job: Mapping[str, Any]) -> int:
    """Exit code for a job, as SkyPilot defines it."""
    return EXIT_CODES.get(job["phase"], NOT_FINISHED)


def phase_of(job: Mapping[str, Any]) -> str:
    """Its phase; of one that failed, with how its process ended: `failed (exit code 3)`. Not with a 0."""
    from sublet.runtime.group.failures import ending_of

    code = job.get("exit_code")
    return f"failed ({ending_of(code)})" if job["phase"] == "failed" and code else str(job["phase"])


def verdict(job: Mapping[str, Any]) -> str:
    """State of a job, and why."""
    told = job["reason"] and job["reason"] != job["phase"]
    return f"job {job['id']} ({job['name']}) is {phase_of(job)}" + (f": {job['reason']}" if told else "")


def money(usd: float | None) -> str:
    """`USD 1.23`; more digits below a cent."""
    if usd is None:
        return NOTHING
    if float(fine(usd)) == 0:
        return "USD 0.00"
    return f"USD {usd:.2f}" if abs(usd) >= FINE_USD else f"USD {fine(usd)}"


def fine(usd: float) -> str:
    """Dollars to the hundredth of a cent; what rounds to nothing has no sign."""
    text = f"{usd:.4f}"
    return text.removeprefix("-") if float(text) == 0 else text


def labels(jobs: Iterable[Mapping[str, Any]], key: str = "id") -> dict[str, str]:
    """One-word labels for jobs: the name, or the id where others have the name too."""
    rows = list(jobs)
    times = Counter(job["name"] for job in rows)
    return {job[key]: job["name"] if job["name"] and times[job["name"]] == 1 else job[key] for job in rows}


def span(seconds: float | None) -> str:
    """`42s`, `12m05s`, `1h59m`, `3d04h`."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole}s" if whole or seconds <= 0 else "<1s"
    if whole < SECONDS_PER_H:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 2 * DAY_S:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def percent(share: float | None) -> str:
    """Rounded down: 100% is when all of it is done."""
    return NOTHING if share is None else f"{int(share * 100)}%"


def rate(per_s: float | None) -> str:
    """Samples per second."""
    return NOTHING if per_s is None else f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2f}"  # noqa: PLR2004 - digits


def loss(value: float | None, *, digits: int = 4) -> str:
    """As many figures as anyone reads."""
    return NOTHING if value is None else f"{value:.{digits}g}"


def quantiles(found: Mapping[str, float] | None, text: Callable[[float | None], str]) -> str:
    """`2m00s (1m40s to 3m00s)`: the median, and 8 of 10 outcomes."""
    if found is None:
        return NOTHING
    return f"{text(found['p50'])} ({text(found['p10'])} to {text(found['p90'])})"
