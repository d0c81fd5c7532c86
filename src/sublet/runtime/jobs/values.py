"""How money, durations, ranges, moments and accelerators are written: the same in a job file and on the command line.

Each function gives the value, or raises ValueError with what is allowed, to be said after "it must be"; `parse_field`
turns that into the error of a field or an option.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Final, TypeVar

from sublet.domain.money import Money, Price
from sublet.domain.units import DAY_S, MINUTE_S, SECONDS_PER_H
from sublet.errors import InvalidValue
from sublet.runtime.jobs.bounds import MOST_WORKERS

Value = TypeVar("Value")
UNIT_S: Final = {"d": DAY_S, "h": SECONDS_PER_H, "min": MINUTE_S, "m": MINUTE_S, "s": 1.0, "ms": 0.001}
PART: Final = re.compile(r"(\d+(?:\.\d+)?)(min|ms|[dhms])")
DURATION: Final = "a duration such as 30s, 10m, 4h30m or 2d"
MOMENT: Final = f"a moment in the future such as 2026-12-01T08:00Z, or {DURATION}"
RANGE: Final = f"a number of workers such as 4, or a range such as 2..16, from 1 to {MOST_WORKERS}"
MONEY: Final = "dollars above 0, such as 120 USD, USD 120 or 120"
PRICE: Final = "dollars per hour, a finite number of at least 0 such as 60 or 3.912"
FRACTION: Final = re.compile(r"\s*\d*\.\d+\s*", re.ASCII)
KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9._ -]*")

# The same languages for editors, as JSON Schema's patterns.
RANGE_PATTERN: Final = r"\d+(\.\.\d+)?"
DURATION_PATTERN: Final = r"(\d+(\.\d+)?(min|ms|[dhms]) ?)+"
DOLLARS_PATTERN: Final = r"(USD ?|\$)?\d+(\.\d+)?( ?USD)?"


def parse_field(field: str, value: object, parse: Callable[[object], Value], *, allowed: str = "") -> Value:
    """The result of `parse`, or InvalidValue with the field's name; `allowed` replaces the words of `parse`."""
    try:
        return parse(value)
    except ValueError as error:
        raise InvalidValue(field, value, allowed or str(error)) from None


def parse_range(value: object) -> tuple[int, int]:
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


def parse_duration_s(value: object, *, unit: str = "") -> float:
    """Seconds above 0: `4h30m`, `90 min`; `unit` is meant where none is written, and without it one must be."""
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if unit and re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        text += unit
    parts = PART.findall(text)
    if not parts or "".join(number + each for number, each in parts) != text:
        raise ValueError(DURATION + (": say the unit" if isinstance(value, int | float) else ""))
    seconds = sum(float(number) * UNIT_S[each] for number, each in parts)
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{DURATION}, above 0")
    return seconds


def parse_dollars(value: object, *, unit: str = "") -> Decimal:
    """A finite number of dollars, of either sign: `120`, `120 USD`, `USD 120`, `$120`; with `unit`, `60/h` as well."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(MONEY)  # noqa: TRY004 - pydantic collects ValueErrors
    try:
        text = str(value).strip().removesuffix(unit).strip()
        usd = Decimal(text.removeprefix("USD").removeprefix("$").removesuffix("USD").strip())
    except (InvalidOperation, ValueError):  # a whole number of too many digits is not even written out
        raise ValueError(MONEY) from None
    if not usd.is_finite():
        raise ValueError(MONEY)
    return usd


def parse_money(value: object) -> Money:
    """Dollars above 0."""
    usd = parse_dollars(value)
    try:
        money = Money.from_usd(usd)
    except InvalidValue:  # more than anybody has
        raise ValueError(MONEY) from None
    if money <= Money():
        raise ValueError(MONEY)
    return money


def parse_price(value: object) -> Price:
    """Dollars per hour, of at least 0: `60`, `USD 60`, `$60/h`."""
    try:
        return Price.from_usd_per_h(parse_dollars(value, unit="/h"))
    except ValueError:  # InvalidValue is one too
        raise ValueError(PRICE) from None


def parse_attempts(value: object) -> int | None:
    """A number of retries; None for `unlimited`."""
    if value == "unlimited":
        return None
    if type(value) is int and value >= 0:
        return value
    raise ValueError("a whole number of at least 0, or unlimited")


def parse_accelerators(value: object) -> tuple[tuple[str, tuple[int, int] | None], ...]:
    """Kinds, any of which will do, each with how many: `L4`, `A100:8`, `A100:1..8`, `{A100: 8}`, `[A100, L4]`.

    `{A100:8, L4:8}` is a set in YAML: a mapping of keys without values.
    """
    if isinstance(value, dict):
        texts = [str(kind) if count is None else f"{kind}:{count}" for kind, count in value.items()]
    elif isinstance(value, list):
        texts = [text if isinstance(text, str) else "" for text in value]
    else:
        texts = [value if isinstance(value, str) else ""]
    allowed = "a kind and how many, such as L4, A100:8 or A100:1..8"
    if not texts:
        raise ValueError(allowed)
    found: list[tuple[str, tuple[int, int] | None]] = []
    for text in texts:
        kind, colon, count = text.partition(":")
        if not KIND.fullmatch(kind.strip()):
            raise ValueError(allowed)
        if FRACTION.fullmatch(count):
            raise ValueError(f"whole GPUs, such as {kind.strip()}:1: no two processes share one")
        found.append((kind.strip(), parse_range(count) if colon else None))
    if any(count for _, count in found):
        return tuple((kind, count or (1, 1)) for kind, count in found)
    return tuple(found)


def parse_moment(value: object) -> str | date:
    """A value that may become a deadline."""
    if isinstance(value, str | date):
        return value
    raise ValueError(MOMENT)


def parse_deadline_s(value: object, *, now: datetime) -> float:
    """Seconds from now: a duration, or a moment such as 2026-12-01T08:00Z."""
    moment = parse_moment(value)
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment.strip())
        except ValueError:
            return _duration_or(parse_moment(value))
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
        return parse_duration_s(value)
    except ValueError:
        raise ValueError(MOMENT) from None
