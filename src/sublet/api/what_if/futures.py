"""Live the futures of a controller, and sum them up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from sublet.api.what_if.question import Question
from sublet.api.what_if.views import BranchView, FanView, Spread, WhatIfView
from sublet.domain.budget import Budget
from sublet.domain.job import Job, Pauses, Speed
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.domain.units import SECONDS_PER_H
from sublet.errors import Infeasible, SubletError
from sublet.kernel.kernel import Kernel
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.kernel.values_json import Unrecorded
from sublet.machine.wall import WALL
from sublet.market.spot import SpotTrace
from sublet.market.traces import load_trace
from sublet.runtime.controller_api.trials import Standing
from sublet.sim.forward import Future, MarketDays, Moment, go_forward
from sublet.sim.world import MarketChange, Physics
from sublet.solve.arrays import Floats

DEFAULT_MARKET = "skynomad-h100"  # ten days of October 2025: the longest record that is bundled
POINTS = 61  # of a fan
QUANTILES = (0.1, 0.5, 0.9)


class _TimeUp(Exception):
    pass


def with_more(budget: Budget, *, usd_per_h: float, usd: float) -> Budget:
    """The same limits, each that there is by so much higher."""

    def higher(price: Price | None) -> Price | None:
        return None if price is None else Price.from_usd_per_h(price.usd_per_h + usd_per_h)

    purse = None if budget.purse is None else Money.from_usd(budget.purse.usd + usd)
    return replace(budget, burn=higher(budget.burn), average=higher(budget.average), purse=purse)


def answer(standing: Standing, asked: Question) -> WhatIfView:
    """Branch by branch over the same draws; as many futures as there is time for."""
    end_s, text = WALL.monotonic() + asked.limit_s, json.dumps(standing.kernel)
    kernel = _kernel(standing, text)
    supply = kernel.supply
    days = MarketDays(
        _trace(standing, asked),
        list(supply.offers.values()),
        {offer_id: supply.offering.state(offer_id).held for offer_id in supply.offers},
        {offer_id: kernel.ledger.price(offer_id) for offer_id in supply.offers},
    )
    more = with_more(supply.budget, usd_per_h=asked.more_usd_per_h, usd=asked.more_usd)
    budgets = [supply.budget, *([more] if more != supply.budget else [])]
    found, refused = _live(standing, asked, text, days, budgets, end_s)
    notes = [*days.notes, "what jobs have done counts as saved; no job is submitted, paused or cancelled"]
    if len(found[-1]) + refused < asked.futures:
        notes.append(f"time was up after {asked.limit_s:g} s: {len(found[-1])} of {asked.futures} futures were lived")
    if refused:
        notes.append(f"in {refused} futures the policy's plan was refused: they are left out")
    if (asked.more_usd_per_h or asked.more_usd) and more == supply.budget:
        notes.append("there is no such limit, so that more money changes nothing")
    branches = [_branch(standing, asked, budget, each) for budget, each in zip(budgets, found, strict=True)]
    return {
        "now_s": standing.now_s,
        "hours": asked.hours,
        "futures": len(found[-1]),
        "market": days.trace.name if days.spot else "",
        "as_is": branches[0],
        "otherwise": branches[1] if len(branches) > 1 else None,
        "notes": notes,
    }


def _live(
    standing: Standing, asked: Question, text: str, days: MarketDays, budgets: Sequence[Budget], end_s: float
) -> tuple[list[list[Future]], int]:
    """Futures of each budget, as many of each; and how many were refused."""
    found: list[list[Future]] = [[] for _ in budgets]
    refused = 0
    for number in range(asked.futures):
        try:
            lived = [_future(standing, asked, text, days, budget, number, end_s) for budget in budgets]
        except _TimeUp:
            break
        except SubletError:
            refused += 1
            continue
        for each, future in zip(found, lived, strict=True):
            each.append(future)
    if not found[0]:
        raise Infeasible(
            "not one future could be lived",
            binding="seconds",
            needed=asked.limit_s,
            available=0.0,
            hint="ask for fewer hours",
        )
    return found, refused


def _future(
    standing: Standing, asked: Question, text: str, days: MarketDays, budget: Budget, number: int, end_s: float
) -> Future:
    kernel, until_s = _kernel(standing, text), standing.now_s + asked.hours * SECONDS_PER_H
    rng = np.random.default_rng([asked.seed, number])
    return go_forward(
        kernel,
        standing.policy,
        _within(days.changes(rng, standing.now_s, until_s), end_s),
        Moment(now_s=standing.now_s, timers=standing.timers, doomed_s=standing.doomed_s),
        physics=_physics(standing, kernel),
        until_s=until_s,
        budget=None if budget == kernel.supply.budget else budget,
        seed=number,
        every_s=asked.hours * SECONDS_PER_H / (POINTS - 1),
    )


def _within(changes: Iterator[MarketChange], end_s: float) -> Iterator[MarketChange]:
    for change in changes:
        if WALL.monotonic() > end_s:
            raise _TimeUp
        yield change


def _kernel(standing: Standing, text: str) -> Kernel:
    unknown = (Unrecorded(), None)  # of jobs that ended long ago

    def known(job: Job) -> tuple[Speed, Pauses | None]:
        return standing.speeds.get(job.id, unknown)

    return kernel_from_snapshot(
        json.loads(text), speed_of=lambda job: known(job)[0], pauses_of=lambda job: known(job)[1]
    )


def _trace(standing: Standing, asked: Question) -> SpotTrace:
    if asked.market or not standing.market:
        return load_trace(asked.market or DEFAULT_MARKET)
    return load_trace(standing.market[0])


def _physics(standing: Standing, kernel: Kernel) -> Physics:
    offers = list(kernel.supply.offers.values())
    notices = [offer.notice_s for offer in offers if offer.market is Market.SPOT]
    return Physics(
        provision_s=median(offer.boot_s for offer in offers),
        release_s=median(offer.wind_down_s for offer in offers),
        notice_s=max(notices, default=standing.notice_s),
        says_supply=standing.says_supply,
    )


# ---------------------------------------------------------------------- in figures


def _branch(standing: Standing, asked: Question, budget: Budget, futures: Sequence[Future]) -> BranchView:
    names = standing.names
    all_ended = [len(each.finish_s) == len(names) for each in futures]
    last = [
        max(each.finish_s.values(), default=0.0) if ended else None
        for each, ended in zip(futures, all_ended, strict=True)
    ]
    more = [f"USD {asked.more_usd_per_h:g}/h more"] if asked.more_usd_per_h else []
    more += [f"USD {asked.more_usd:g} more"] if asked.more_usd else []
    as_is = budget == _kernel(standing, json.dumps(standing.kernel)).supply.budget
    return {
        "label": "as it is" if as_is else f"with {' and '.join(more)}",
        "burn_limit_usd_per_h": None if budget.burn is None else budget.burn.usd_per_h,
        "average_usd_per_h": None if budget.average is None else budget.average.usd_per_h,
        "purse_usd": None if budget.purse is None else budget.purse.usd,
        "finished": sum(all_ended) / len(futures),
        "finish_s": _spread(last),
        "cost_usd": _spread([each.looks[-1][1] for each in futures]),
        "losses": sum(each.losses for each in futures) / len(futures),
        "jobs": [
            {
                "job_id": job_id,
                "name": names[job_id],
                "finished": sum(job_id in each.finish_s for each in futures) / len(futures),
                "finish_s": _spread([each.finish_s.get(job_id) for each in futures]),
            }
            for job_id in names
        ],
        "fan": _fan(futures, asked.hours),
    }


def _spread(values: Sequence[float | None]) -> Spread:
    """Unknown values lie above all known ones."""
    known = np.sort([np.inf if value is None else value for value in values])
    at = [float(known[min(len(known) - 1, int(share * len(known)))]) for share in QUANTILES]
    p10, p50, p90 = (value if np.isfinite(value) else None for value in at)
    return {"p10": p10, "p50": p50, "p90": p90}


def _fan(futures: Sequence[Future], hours: float) -> FanView:
    """Values of a future stay, once it is over."""
    hours_T = np.linspace(0.0, hours, POINTS)  # T points of time
    looks = [np.array(each.looks) for each in futures]
    usd_FT = np.array([np.interp(hours_T, each[:, 0] / SECONDS_PER_H, each[:, 1]) for each in looks])  # F futures
    done_FT = np.array([np.interp(hours_T, each[:, 0] / SECONDS_PER_H, each[:, 2]) for each in looks])
    usd_p10, usd_p50, usd_p90 = (_rounded(np.quantile(usd_FT, share, axis=0)) for share in QUANTILES)
    done_p10, done_p50, done_p90 = (_rounded(np.quantile(done_FT, share, axis=0)) for share in QUANTILES)
    return {
        "hours": _rounded(hours_T),
        "usd_p10": usd_p10,
        "usd_p50": usd_p50,
        "usd_p90": usd_p90,
        "done_p10": done_p10,
        "done_p50": done_p50,
        "done_p90": done_p90,
    }


def _rounded(values: Floats) -> list[float]:
    return [round(float(value), 6) for value in values]
