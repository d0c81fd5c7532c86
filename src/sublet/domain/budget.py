"""Limits on spending and holding; and owners of money: budgets in a tree, for all time or a period of the calendar."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sublet.domain.money import Money, Price
from sublet.domain.quantity import at_least, named, whole
from sublet.errors import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A cap on the burn rate at every instant, what to spend per hour in the long run, and a budget. None = no limit.

    `burn` and `purse` are promises, kept by the kernel: what is spent and what is reserved to give every node up safely
    never exceed the budget. `average` is an aim, for policies that weigh time against money; `until_s` is how long the
    budget is to last. `besides` is what an hour costs whether nodes are held or not, as of a controller host: it is
    paid out of the same budget.
    """

    burn: Price | None = None
    average: Price | None = None
    purse: Money | None = None
    until_s: float | None = None
    besides: Price = field(default=Price(0), repr=False)  # stores remember a budget by how it is shown

    def __post_init__(self) -> None:
        if self.purse is not None and self.purse.grains < 0:
            raise InvalidValue("purse", str(self.purse), "at least USD 0")
        if self.until_s is not None:
            if self.purse is None:
                raise InvalidValue("until_s", self.until_s, "only beside a total budget")
            at_least("until_s", self.until_s, 0.0)


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many nodes of one offer may be held, and how many are held whatever happens (owned or reserved)."""

    min_nodes: int = 0
    max_nodes: int | None = None  # None = the cloud gives as many as we ask for

    def __post_init__(self) -> None:
        whole("min_nodes", self.min_nodes)
        if self.max_nodes is not None:
            whole("max_nodes", self.max_nodes)
            if self.max_nodes < self.min_nodes:
                raise InvalidValue("max_nodes", self.max_nodes, f"at least min_nodes {self.min_nodes}")


OWNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


class Level(StrEnum):
    """Level of the tree, from the root on: spending of one is spending of all above it."""

    ORG = "org"
    TEAM = "team"
    USER = "user"
    JOB = "job"
    FILE = "file"  # of a job: what it was submitted with, beside what its owner sets for it


SET_BY_USERS = (Level.ORG, Level.TEAM, Level.USER, Level.JOB)


class Period(StrEnum):
    """Period of the calendar, in UTC; weeks begin on Mondays."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def ends(self, unix_s: float) -> int:
        """When the one ends that this instant is in, in Unix time; the end itself is in the next one.

        >>> Period.MONTH.ends(0.0) == 31 * 86_400
        True
        """
        then = datetime.fromtimestamp(int(unix_s // 1), UTC)
        day = then.replace(hour=0, minute=0, second=0)
        if self is Period.MONTH:
            end = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
        else:
            end = day + timedelta(days=1 if self is Period.DAY else 7 - day.weekday())
        return int(end.timestamp())


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """Owner of a budget: `team vision`."""

    level: Level
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.level, Level):
            raise InvalidValue("level", self.level, " or ".join(Level))
        if self.level is Level.ORG:
            if self.name:
                raise InvalidValue("org", self.name, "without a name: there is one")
        else:
            named(str(self.level), self.name)

    def __str__(self) -> str:
        if self.level is Level.FILE:
            return f"job {self.name}"
        return f"{self.level} {self.name}" if self.name else str(self.level)

    @property
    def account(self) -> Holder:
        """The account that notes its spending: a job's file pays for all of the job."""
        return Holder(Level.JOB, self.name) if self.level is Level.FILE else self


ORG = Holder(Level.ORG)


def named_owner(field: str, name: str) -> str:
    """The name of a user or a team, refused where it could be mistaken for something else."""
    if not OWNER_NAME.fullmatch(name):
        raise InvalidValue(field, name, "up to 40 letters, digits, _ . or -, the first a letter or digit")
    return name


def calendar_text(unix_s: float) -> str:
    """As people read it, to the minute: `2026-12-01 00:00 UTC`."""
    return datetime.fromtimestamp(int(unix_s // 1), UTC).strftime("%Y-%m-%d %H:%M UTC")


def amount_text(amount: Money, period: Period | None) -> str:
    """`USD 500.00 a month`, `USD 20.00 in all`."""
    return f"{amount} in all" if period is None else f"{amount} a {period}"
