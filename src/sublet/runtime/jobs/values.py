"""The small languages of a job file: ranges `2..16`, durations `4h30m`, money `120 USD`, accelerators `A100:1..8`.

Each function gives the value, or raises ValueError with what is allowed, to be said after "it must be".
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime

from sublet.domain.money import Money
from sublet.errors import InvalidValue
from sublet.runtime.jobs.bounds import MOST_WORKERS

__all__ = [
    "accelerators_from",
    "attempts_from",
    "deadline_from",
    "duration_from",
    "moment_from",
    "money_from",
    "range_from",
]

UNIT_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
DURATION = "a duration such as 30s, 10m, 4h30m or 2d"
MOMENT = f"a moment in the future such as 2026-12-01T08:00Z, or {DURATION}"
RANGE = f"a number of workers such as 4, or a range such as 2..16, from 1 to {MOST_WORKERS}"
MONEY = "dollars above 0, such as 120 USD, USD 120 or 120"
KIND = re.compile(r"[A-Za-z][A-Za-z0-9._ -]*")


def range_from(value: object) -> tuple[int, int]:
    """`4` or `2..16`."""
    if type(value) is int:
        low = high = value
    elif isinstance(value, str) and (
        found := re.fullmatch(r"\s*(\d{1,9})\s*(?:\.\.\s*(\d{1,9})\s*)?", value, re.ASCII)
    ):
        low = int(found[1])
        high = int(found[2]) if found[2] is not None else low
    else:
        raise ValueError(RANGE)
    if not 1 <= low <= high <= MOST_WORKERS:
        raise ValueError(RANGE + (", the smaller number first" if low > high else ""))
    return low, high


def duration_from(value: object) -> float:
    """Seconds; the unit is part of what is written."""
    text = value.replace(" ", "") if isinstance(value, str) else ""
    parts = PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(DURATION + (": say the unit" if isinstance(value, int | float) else ""))
    seconds = sum(float(number) * UNIT_S[unit] for number, unit in parts)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{DURATION}, above 0")
    return seconds


def money_from(value: object) -> float:
    """Dollars."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(MONEY)  # noqa: TRY004 - pydantic collects ValueErrors
    text = str(value).strip()
    text = text.removeprefix("USD").removeprefix("$").removesuffix("USD").strip()
    try:
        usd = Money.from_usd(text).usd
    except (InvalidValue, ValueError):
        raise ValueError(MONEY) from None
    if usd <= 0:
        raise ValueError(MONEY)
    return usd


def attempts_from(value: object) -> int | None:
    """A number of retries; None for `unlimited`."""
    if value == "unlimited":
        return None
    if type(value) is int and value >= 0:
        return value
    raise ValueError("a whole number of at least 0, or unlimited")


def accelerators_from(value: object) -> tuple[tuple[str, ...], tuple[int, int] | None]:
    """Kinds, and how many of them: `L4`, `A100:8`, `A100:1..8`, `{A100: 8}` or `[A100, L4]` (any of them)."""
    if isinstance(value, dict):
        texts = [f"{kind}:{count}" for kind, count in value.items()]
    elif isinstance(value, list):
        texts = [text if isinstance(text, str) else "" for text in value]
    else:
        texts = [value if isinstance(value, str) else ""]
    allowed = "a kind and how many, such as L4, A100:8 or A100:1..8"
    if not texts:
        raise ValueError(allowed)
    kinds: list[str] = []
    counts: list[tuple[int, int]] = []
    for text in texts:
        kind, colon, count = text.partition(":")
        if not KIND.fullmatch(kind.strip()):
            raise ValueError(allowed)
        kinds.append(kind.strip())
        if colon:
            counts.append(range_from(count))
    if counts and len(counts) < len(kinds):
        raise ValueError(f"{allowed}; all with a number, or none")
    wide = (min(low for low, _ in counts), max(high for _, high in counts)) if counts else None
    return tuple(kinds), wide


def moment_from(value: object) -> str | date:
    """What may become a deadline."""
    if isinstance(value, str | date):
        return value
    raise ValueError(MOMENT)


def deadline_from(value: object, *, now: datetime) -> float:
    """Seconds from now: a duration, or a moment such as 2026-12-01T08:00Z."""
    moment = moment_from(value)
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment.strip())
        except ValueError:
            return _duration_or(moment_from(value))
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = (moment - now).total_seconds()
    if seconds <= 0:
        raise ValueError(MOMENT)
    return seconds


def _duration_or(value: object) -> float:
    try:
        return duration_from(value)
    except ValueError:
        raise ValueError(MOMENT) from None
