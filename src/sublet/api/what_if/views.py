"""The answer to "what if": quantiles over futures, and fans over time. Seconds and dollars count from now."""

from __future__ import annotations

from typing import TypedDict


class Spread(TypedDict):
    """10, 50 and 90 of 100 futures are below; None where so many had not ended within the hours that were looked at."""

    p10: float | None
    p50: float | None
    p90: float | None


class JobFutureView(TypedDict):
    """One job."""

    job_id: str
    name: str
    finished: float  # share of the futures in which it ended
    finish_s: Spread


class FanView(TypedDict):
    """Over time, each a list as long as `hours`."""

    hours: list[float]
    usd_p10: list[float]
    usd_p50: list[float]
    usd_p90: list[float]
    done_p10: list[float]  # share of the work of all jobs
    done_p50: list[float]
    done_p90: list[float]


class BranchView(TypedDict):
    """The futures under one budget."""

    label: str
    burn_limit_usd_per_h: float | None
    average_usd_per_h: float | None
    purse_usd: float | None
    finished: float  # share of the futures in which all jobs ended
    finish_s: Spread  # of the last job
    cost_usd: Spread
    losses: float  # nodes that the cloud took, on average
    jobs: list[JobFutureView]
    fan: FanView


class WhatIfView(TypedDict):
    """All of it."""

    now_s: float
    hours: float  # how far was looked
    futures: int  # that were lived; fewer than asked for where time was up
    market: str  # the record
    as_is: BranchView
    otherwise: BranchView | None  # with more money, over the same draws
    notes: list[str]
