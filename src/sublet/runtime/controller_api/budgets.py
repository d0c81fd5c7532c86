"""The tree of budgets: set by those that may, shown level by level, or as much of it as a user is to see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from sublet.domain.budget import ORG, SET_BY_USERS, Holder, Level, Period, calendar_text, named_owner
from sublet.domain.events import BudgetChanged, PurseSet
from sublet.domain.job import Job
from sublet.domain.money import Money, microseconds
from sublet.errors import InvalidValue
from sublet.kernel.kernel import Kernel
from sublet.kernel.shares import payers
from sublet.runtime.controller_api.directory import Directory
from sublet.runtime.controller_api.tokens import Scope, Tokens


class PurseRow(TypedDict):
    """One budget, or a holder that spends without one. Rows come in the order of the tree, parents first."""

    level: str  # org, team, user or job
    name: str  # "" of the organisation
    depth: int  # 0 = the organisation
    limit_usd: float | None  # in all, or in each period; None = none of its own
    period: str | None  # day, week, month; None = in all
    ends: str | None  # when the period does, in words, UTC
    spent_usd: float  # in this period; in all, since purses are counted
    reserved_usd: float  # kept back to leave in time
    left_usd: float | None  # limit - spent - reserved
    burn_usd_per_h: float  # now
    exhausted: bool  # nobody starts until there is more
    by_file: bool  # of a job: it came with it, and the controller stops the job in time to save
    kept_by: str  # kernel: never a grain over, at any moment; controller: of jobs of an earlier version, about


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBudget:
    """The budget in the file of a job, and what is spent of it."""

    limit_usd: float
    spent_usd: float
    reserved_usd: float
    burn_usd_per_h: float
    exhausted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Of one controller, which is told what was set, and its author."""

    kernel: Callable[[], Kernel]
    now_s: Callable[[], float]
    unix_s: Callable[[], float]
    tell: Callable[[PurseSet | BudgetChanged, str], None]
    started: Callable[[], Awaitable[None]]
    tokens: Tokens
    directory: Directory
    own: Callable[[], Mapping[str, OwnBudget]] = dict  # of the jobs that have one

    def rows(self, by: str = "") -> list[PurseRow]:
        """The tree; for a user without the right to set any, their own part."""
        mine = next((each for each in self.tokens.list() if each["name"] == by and each["scope"] == Scope.USER), None)
        only = None if mine is None else (mine["user"], mine["team"])
        return purse_rows(self.kernel(), self.tokens.teams(), self.now_s(), only=only, own=self.own())

    async def set(
        self, *, level: str, name: str = "", amount_usd: float | None = None, period: str | None = None, by: str = ""
    ) -> list[PurseRow]:
        """Limit what the organisation, a team, a user or a job may spend, in all or in each period; None = no limit."""
        await self.started()
        if level == Level.JOB:
            name = self.directory.find(name)
        now_s, unix_s = self.now_s(), self.unix_s()
        event = purse_set(
            self.kernel(), level=level, name=name, amount_usd=amount_usd, period=period, at_s=now_s, unix_s=unix_s
        )
        self.tell(event, by)
        if event.holder == ORG and event.period is None:  # a budget like any other, and remembered as one
            self.tell(BudgetChanged(now_s, self.kernel().supply.budget), by)
        return self.rows()


def purse_set(
    kernel: Kernel, *, level: str, name: str, amount_usd: float | None, period: str | None, at_s: float, unix_s: float
) -> PurseSet:
    """A request of a user as an event; InvalidValue names what is wrong with it."""
    if level not in SET_BY_USERS:
        raise InvalidValue("level", level, f"one of {', '.join(SET_BY_USERS)}")
    if period is not None and period not in list(Period):
        raise InvalidValue("period", period, f"one of {', '.join(Period)}, or none for all time")
    kind = Level(level)
    if kind in (Level.TEAM, Level.USER):
        named_owner(level, name)
    if kind is Level.JOB and name not in kernel.jobs:
        live = ", ".join(list(kernel.jobs)[:5]) or "there is none"
        raise InvalidValue("job", name, f"a job that has not ended: {live}")
    amount = None if amount_usd is None else Money.from_usd(amount_usd)
    return PurseSet(at_s, Holder(kind, name), amount, None if period is None else Period(period), unix_s)


def purse_rows(
    kernel: Kernel,
    teams: Mapping[str, str],
    now_s: float,
    *,
    only: tuple[str, str] | None = None,
    own: Mapping[str, OwnBudget] | None = None,
) -> list[PurseRow]:
    """All of the tree; `teams` says of which team a user is. `only` = what this user of this team is to see.

    `own` are budgets of jobs' files: each is the last level of the tree, where the kernel has no other there.
    """
    team_of = dict(teams)
    for state in kernel.jobs.values():
        if state.job.user:
            team_of.setdefault(state.job.user, state.job.team)
    known = {holder.account for holder in (*kernel.budgets.allowed, *kernel.budgets.shares.ended)}
    known |= {holder for state in kernel.jobs.values() for holder in payers(state.job)}
    known |= {Holder(Level.USER, user) for user in team_of} | {Holder(Level.TEAM, t) for t in team_of.values() if t}
    owners = {Holder(Level.JOB, job_id): state.job for job_id, state in kernel.jobs.items()}
    if only is not None:
        known = {holder for holder in known if _is_own(holder, owners.get(holder), only)}
    files = {Holder(Level.JOB, job_id): each for job_id, each in (own or {}).items()}
    told = {holder for holder in known if holder in files or _is_told(kernel, holder)}
    shown = {holder: _place(holder, owners.get(holder), team_of) for holder in told}
    rows = [_row(kernel, ORG, 0, now_s)]
    for holder, place in sorted(shown.items(), key=lambda each: each[1]):
        by_file = holder in files and holder not in kernel.budgets.allowed
        row = _row(kernel, holder, len(place), now_s)
        rows.append(_own_row(kernel, row, files[holder], now_s) if by_file else row)
    return rows


def _is_told(kernel: Kernel, holder: Holder) -> bool:
    """Jobs without a budget of their own have `ps`; teams and users are always told of."""
    return holder.level in (Level.TEAM, Level.USER) or (holder.level is Level.JOB and holder in kernel.budgets.allowed)


def _own_row(kernel: Kernel, row: PurseRow, own: OwnBudget, now_s: float) -> PurseRow:
    """Charged is what the kernel has counted: what comes too late is the organisation's."""
    kept = kernel.budgets.allowed.get(file := Holder(Level.FILE, row["name"]))
    left = None if kept is None else Money(kept.limit - kernel.budgets.spent(file, microseconds(now_s)))
    spent_usd = own.spent_usd if left is None else own.limit_usd - left.usd
    return {
        **row,
        "limit_usd": own.limit_usd,
        "spent_usd": spent_usd,
        "reserved_usd": own.reserved_usd,
        "left_usd": own.limit_usd - spent_usd - own.reserved_usd,
        "burn_usd_per_h": own.burn_usd_per_h,
        "exhausted": own.exhausted,
        "by_file": True,
        "kept_by": "controller" if kept is None else "kernel",
    }


def _is_own(holder: Holder, job: Job | None, only: tuple[str, str]) -> bool:
    user, team = only
    if holder.level is Level.JOB:
        return job is not None and job.user == user
    return holder in (Holder(Level.USER, user), *([Holder(Level.TEAM, team)] if team else []))


def _place(holder: Holder, job: Job | None, team_of: Mapping[str, str]) -> tuple[tuple[int, str], ...]:
    """Where it stands: the names from the team down; those without a team, or user, come after those with one."""
    if holder.level is Level.TEAM:
        return ((0, holder.name),)
    if holder.level is Level.USER:
        team = team_of.get(holder.name, "")
        return (*([(0, team)] if team else []), (1, holder.name))
    above = () if job is None else _place(Holder(Level.USER, job.user), None, team_of) if job.user else ()
    return (*above, (2, holder.name))


def _row(kernel: Kernel, holder: Holder, depth: int, now_s: float) -> PurseRow:
    tree, now_us = kernel.budgets, microseconds(now_s)
    allowance = tree.allowed.get(holder)
    spent = Money(tree.spent(holder, now_us) - (0 if allowance is None else allowance.opening))
    limit = None if allowance is None else allowance.amount
    if holder == ORG:
        purse = kernel.supply.purse
        limit = kernel.supply.budget.purse if limit is None else limit
        reserved = Money() if limit is None else purse.reserved(now_s)
        burn_usd_per_h, exhausted = kernel.ledger.outflow().usd_per_h, purse.broke
    else:
        reserved = Money(tree.reserved(holder, now_us))
        burn_usd_per_h = tree.shares.burn(holder, now_us) / 1e6
        exhausted = allowance is not None and allowance.spent
    return {
        "level": str(holder.level),
        "name": holder.name,
        "depth": depth,
        "limit_usd": None if limit is None else limit.usd,
        "period": None if allowance is None or allowance.period is None else str(allowance.period),
        "ends": None if allowance is None or allowance.ends is None else calendar_text(allowance.ends),
        "spent_usd": spent.usd,
        "reserved_usd": reserved.usd,
        "left_usd": None if limit is None else (limit - spent - reserved).usd,
        "burn_usd_per_h": burn_usd_per_h,
        "exhausted": exhausted,
        "by_file": False,
        "kept_by": "kernel",
    }


def purse_reason(kernel: Kernel, job_id: str, now_s: float) -> str:
    """Why a job that holds nothing does not start, if a budget is to blame; "" = none is."""
    state = kernel.jobs.get(job_id)
    if not kernel.budgets.allowed or state is None or state.gpus or state.shape is not None:
        return ""
    if (holder := kernel.budgets.held_by(state.job, now_s)) is None:
        return ""
    spent = kernel.budgets.words(holder)
    by_file = holder.level is Level.FILE
    advice = f"sublet budget top-up --job {holder.name} USD" if by_file else _advice(holder)
    return f"{spent}; it goes on {kernel.budgets.resumes(holder)}; next: {advice}"


def _advice(holder: Holder) -> str:
    return f"sublet budget set --{holder.level} {holder.name} USD[/month]"
