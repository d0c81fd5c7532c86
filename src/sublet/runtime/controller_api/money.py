"""Limits and costs: the budget, the bill of one job, the bill of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sublet.domain.budget import ORG, Budget
from sublet.domain.money import Money, Price
from sublet.errors import InvalidValue
from sublet.kernel.kernel import Kernel
from sublet.runtime.archive import ShelfSums
from sublet.runtime.controller.memory import OUTWARD, Tally, Tiers
from sublet.runtime.controller.money import PURPOSES, Account, Bill
from sublet.runtime.controller_api.views import BillView, BudgetView, CostView, DayView, JobView, MoveView, TierView


def budget_view(kernel: Kernel, now_s: float, lease_s: float) -> BudgetView:
    """The limits, and what is spent; a node whose controller is silent for `lease_s` of cloud time ends itself."""
    budget, spent = kernel.supply.budget, kernel.ledger.spent(now_s)
    reserved = Money() if budget.purse is None else kernel.supply.purse.reserved(now_s)
    return {
        "burn_limit_usd_per_h": None if budget.burn is None else budget.burn.usd_per_h,
        "average_usd_per_h": None if budget.average is None else budget.average.usd_per_h,
        "purse_usd": None if budget.purse is None else budget.purse.usd,
        "spent_usd": spent.usd,
        "reserved_usd": reserved.usd,
        "left_usd": None if budget.purse is None else (budget.purse - spent - reserved).usd,
        "burn_usd_per_h": kernel.ledger.outflow().usd_per_h,
        "exhausted": kernel.supply.purse.most_nodes == 0,
        "unattended_usd": _unattended(kernel, spent, lease_s).usd,
    }


def _unattended(kernel: Kernel, spent: Money, lease_s: float) -> Money:
    """The most that nodes can cost until they have ended themselves, as far as the budget does not pay for it."""
    if (purse := kernel.supply.budget.purse) is None:
        return Money()
    nodes = kernel.cluster.nodes.values()
    ending = sum(node.offer.ending(lease_s + node.offer.wind_down_s).grains for node in nodes)
    return Money(max(0, spent.grains + ending - purse.grains)) if ending else Money()


def change_budget(
    old: Budget, *, burn_limit_usd_per_h: float | None, average_usd_per_h: float | None, purse_usd: float | None
) -> Budget:
    """With the limits that are given; None leaves one as it is."""
    return Budget(
        burn=old.burn if burn_limit_usd_per_h is None else Price.from_usd_per_h(burn_limit_usd_per_h),
        average=old.average if average_usd_per_h is None else Price.from_usd_per_h(average_usd_per_h),
        purse=old.purse if purse_usd is None else Money.from_usd(purse_usd),
        until_s=old.until_s if purse_usd is None else None,
        besides=old.besides,
    )


def top_up_purse(budget: Budget, usd: float) -> float:
    """The budget, in dollars, with so much more in it."""
    if budget.purse is None:
        raise InvalidValue("purse", None, "set before it is topped up: sublet budget set --purse USD")
    if not usd > 0:
        raise InvalidValue("usd", usd, "above 0")
    return (budget.purse + Money.from_usd(usd)).usd


def bill_view(account: Account) -> BillView:
    """Dollars by what they bought."""
    return {
        "usd_useful": Money(account.useful).usd,
        "usd_unknown": Money(account.unknown).usd,
        "usd_redone": Money(account.redone).usd,
        "usd_restart": Money(account.restart).usd,
        "usd_idle": Money(account.idle).usd,
        "usd_checkpoint": Money(account.checkpoint).usd,
        "usd_total": account.total.usd,
    }


def tier_views(tiers: Iterable[Tiers]) -> list[TierView]:
    """Of one job, or of several together: the tiers that were used, nearest first."""
    tiers = list(tiers)
    found = [(tier, [each.tallies[tier] for each in tiers if tier in each.tallies]) for tier in OUTWARD]
    newest = [each.newest for each in tiers]
    return [_tier_view(tier, tallies, newest.count(tier)) for tier, tallies in found if tallies]


def _tier_view(tier: str, tallies: Sequence[Tally], newest: int) -> TierView:
    return {
        "tier": tier,
        "commits": sum(tally.commits for tally in tallies),
        "size_bytes": sum(tally.size_bytes for tally in tallies),
        "blocked_s": sum(tally.blocked_s for tally in tallies),
        "usd_blocked": Money(sum(tally.grains for tally in tallies)).usd,
        "resumes": sum(tally.resumes for tally in tallies),
        "steps_kept": sum(tally.kept_steps for tally in tallies),
        "usd_kept": Money(sum(tally.kept_grains for tally in tallies)).usd,
        "newest": newest,
    }


def job_cost_view(job: JobView, account: Account, tiers: Tiers) -> CostView:
    """The bill of one job."""
    return {
        **bill_view(account),
        "job_id": job["id"],
        "name": job["name"],
        "usd_on_demand": job["usd_on_demand"],
        "usd_per_h": job["usd_per_h"],
        "steps_lost": job["steps_lost"],
        "preemptions_noticed": job["preemptions_noticed"],
        "preemptions_unnoticed": job["preemptions_unnoticed"],
        "forecast_usd": job["forecast_usd"],
        "tiers": tier_views([tiers]),
        "moves": job["moves"],
        "jobs": [],
        "days": [],
        "usd_besides": 0.0,
    }


def _summed(moves: Iterable[MoveView]) -> list[MoveView]:
    """Of all jobs, by kind."""
    found: dict[str, MoveView] = {}
    for move in moves:
        known = found.setdefault(move["kind"], MoveView(kind=move["kind"], count=0, size_bytes=0, seconds=0.0))
        known["count"] += move["count"]
        known["size_bytes"] += move["size_bytes"]
        known["seconds"] += move["seconds"]
    return list(found.values())


def earlier_cost_view(sums: ShelfSums, account: Account) -> CostView:
    """The bill of the jobs that are on the shelf, as one."""
    return {
        **bill_view(account),
        "job_id": "",
        "name": f"{sums.jobs} earlier jobs",
        "usd_on_demand": Money(account.on_demand).usd or None,
        "usd_per_h": 0.0,
        "steps_lost": sums.steps_lost,
        "preemptions_noticed": sums.noticed,
        "preemptions_unnoticed": sums.unnoticed,
        "forecast_usd": None,
        "tiers": [],
        "moves": [],
        "jobs": [],
        "days": [],
        "usd_besides": 0.0,
    }


def total_cost_view(
    jobs: Sequence[CostView],
    bill: Bill,
    burn: Price,
    tiers: Iterable[Tiers],
    besides: Money,
    days: Sequence[DayView],
) -> CostView:
    """The bill of all jobs, and of what no job used; `besides` of it was paid for no node, as a controller host."""
    whole = Account(idle=bill.unused)
    for account in bill.jobs.values():
        for purpose in (*PURPOSES, "on_demand"):
            setattr(whole, purpose, getattr(whole, purpose) + getattr(account, purpose))
    return {
        **bill_view(whole),
        "job_id": "",
        "name": "all",
        "usd_on_demand": Money(whole.on_demand).usd or None,
        "usd_per_h": burn.usd_per_h,
        "steps_lost": sum(job["steps_lost"] for job in jobs),
        "preemptions_noticed": sum(job["preemptions_noticed"] for job in jobs),
        "preemptions_unnoticed": sum(job["preemptions_unnoticed"] for job in jobs),
        "forecast_usd": None,
        "tiers": tier_views(tiers),
        "moves": _summed(move for job in jobs for move in job["moves"]),
        "jobs": list(jobs),
        "days": list(days),
        "usd_besides": besides.usd,
    }


def refuse_second_purse(kernel: Kernel, usd: float | None) -> None:
    """Where the organisation has a budget for each period, there is none in all beside it."""
    if usd is not None and ORG in kernel.budgets.allowed:
        allowed = "left out: all have a budget for each period; next: sublet budget set --org USD[/month]"
        raise InvalidValue("purse", usd, allowed)
