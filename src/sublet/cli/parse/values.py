"""One text of a command line to one value: money, durations, counts, names. A bad one is refused by its option's name.

How money, durations and ranges are written is known to `runtime.jobs.values` alone, which job files use, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sublet.errors import InvalidValue, UnknownName

if TYPE_CHECKING:
    from sublet.domain.events import PurseSet
    from sublet.domain.job import Speed
    from sublet.domain.money import Money, Price
    from sublet.perf.live.stored import StoredProfile
    from sublet.runtime.profiles.store import ProfileStore

SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def parse_price(option: str, text: str) -> Price:
    """`60`, `USD 60`, `$60` or `60/h`: dollars per hour."""
    from sublet.runtime.jobs import values

    return values.parse_field(option, text, values.parse_price)


def parse_money(option: str, text: str) -> Money:
    """`300`, `USD 300` or `$300`: dollars."""
    from sublet.runtime.jobs import values

    return values.parse_field(option, text, values.parse_money, allowed="dollars, a finite number above 0 such as 300")


def parse_total(option: str, text: str) -> tuple[float | None, str | None]:
    """`500/month`, `50/week`, `20/day`, `500` in all, or `none`: dollars, and in which period."""
    from sublet.domain.budget import Period

    amount, slash, period = text.strip().partition("/")
    if amount == "none" and not slash:
        return None, None
    if slash and period not in list(Period):
        raise InvalidValue(option, text, f"USD/{', USD/'.join(Period)}, USD alone for all time, or none")
    return parse_money(option, amount).usd, period or None


def parse_budget_of(option: str, text: str) -> PurseSet:
    """`team:vision=500/month`, `user:ann=50/week`, `job:bert-3=20`, `org=1000/month`: a budget from the start."""
    from sublet.domain.budget import SET_BY_USERS, Holder, Level, Period
    from sublet.domain.events import PurseSet
    from sublet.domain.money import Money

    whose, equals, amount = text.strip().partition("=")
    level, _, name = whose.partition(":")
    if not equals or level not in SET_BY_USERS or bool(name) is (level == Level.ORG):
        raise InvalidValue(option, text, "org=USD, team:NAME=USD, user:NAME=USD or job:ID=USD, each also USD/month")
    usd, period = parse_total(option, amount)
    if usd is None:
        raise InvalidValue(option, text, "an amount: a name left out here has no limit")
    return PurseSet(0.0, Holder(Level(level), name), Money.from_usd(usd), None if period is None else Period(period))


def parse_dollars(option: str, text: str, *, allowed: str, unit: str = "", above_0: bool = False) -> float:
    """Dollars of any size, as small as those of a sample; with `unit`, `60/h` as well."""
    from sublet.runtime.jobs import values

    usd = values.parse_field(option, text, lambda value: values.parse_dollars(value, unit=unit), allowed=allowed)
    if above_0 and not usd > 0:
        raise InvalidValue(option, text, allowed)
    return float(usd)


def parse_duration_s(option: str, text: str, *, allowed: str, unit: str = "") -> float:
    """`8h`, `90m` or `1h30m`, in seconds; `unit` is meant where none is written."""
    from sublet.runtime.jobs import values

    return values.parse_field(option, text, lambda value: values.parse_duration_s(value, unit=unit), allowed=allowed)


def parse_workers(text: str) -> tuple[int, int]:
    """`4` or `2..8`."""
    from sublet.runtime.jobs import values

    return values.parse_field("--workers", text, values.parse_range)


def parse_count(option: str, text: str) -> float:
    """`50M`, `2.5G` or `300000`."""
    number = text.strip().rstrip("kKMGB")
    try:
        count = float(number) * SCALES[text.strip()[len(number) :]]
    except (ValueError, KeyError):
        count = math.nan
    if not 0 < count < math.inf:
        raise InvalidValue(option, text, "a number above 0, such as 50M, 2.5G or 300000")
    return count


def parse_counts(option: str, text: str) -> list[int]:
    """`1,2,4`: whole numbers of at least 1, in the order in which they were written."""
    numbers = []
    for word in parse_names(option, text):
        if not (word.isascii() and word.isdigit()) or int(word) < 1:
            raise InvalidValue(option, text, "whole numbers of at least 1, such as 1,2,4")
        numbers.append(int(word))
    return numbers


def parse_kind(name: str) -> str:
    """A kind of GPU that is recorded; "" = none is named."""
    from sublet.market.catalogue import load_gpus

    if name and name not in load_gpus():
        raise UnknownName("GPU kind", name, load_gpus())
    return name


def parse_names(option: str, text: str) -> list[str]:
    """`T4,A100`: names between commas, each once."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InvalidValue(option, text, "different names with commas between them, such as T4,A100")
    return names


def parse_quotas(texts: Sequence[str]) -> dict[str, float]:
    """`A100=64` each."""
    quotas: dict[str, float] = {}
    for text in texts:
        kind, _, number = text.partition("=")
        try:
            most = float(number)
        except ValueError:
            most = math.nan
        if not kind or not 0 <= most < math.inf or kind in quotas:
            raise InvalidValue("--quota", text, "a kind of GPU and how many, once for each kind, such as A100=64")
        quotas[kind] = most
    return quotas


def parse_variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidValue("--env", name, "NAME=VALUE")
    return name, value


def parse_speedup(text: str) -> Speed:
    """`linear`, `amdahl:0.95` or `power:0.8`."""
    from sublet.perf.speedup import Amdahl, Linear, PowerLaw

    model, _, number = text.partition(":")
    known = {"linear": "linear", "amdahl": "amdahl:0.95", "power": "power:0.8"}
    if model not in known:
        raise UnknownName("speedup", model, known, hint="give " + ", ".join(known.values()))
    if model == "linear" and not number:
        return Linear()
    try:
        value = float(number)
        if model == "amdahl":
            return Amdahl(parallel=value)
        if model == "power":
            return PowerLaw(exponent=value)
    except ValueError:  # InvalidValue is one too
        pass
    raise InvalidValue("--speedup", text, f"{known[model]}" + ("" if model == "linear" else ", a number from 0 to 1"))


def measured_profiles(text: str) -> list[StoredProfile]:
    """Profiles of one job, on each kind of GPU on which it was measured."""
    from sublet.perf.profiles import PROFILES

    if text in {each.name for each in PROFILES}:
        allowed = "one that was measured here; jobs take bundled tables by their model, and 'sublet advise' by --model"
        raise InvalidValue("--profile", text, allowed)
    return _store().find(text)


def measured_names() -> list[str]:
    """Names of all jobs that were measured here."""
    return sorted({each.name for each in _store().all()})


def _store() -> ProfileStore:
    from sublet.runtime.profiles.store import ProfileStore
    from sublet.runtime.settings import default_state_dir

    return ProfileStore(default_state_dir() / "profiles")
