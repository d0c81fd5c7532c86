"""The question to the process that simulates futures, and its answer: quantiles over futures, and fans over time."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TypedDict

from sublet.runtime.controller_api.trials import Standing

__all__ = [
    "GRACE_S",
    "BranchView",
    "FanView",
    "JobFutureView",
    "Question",
    "Spread",
    "WhatIfView",
    "packed",
    "unpacked",
]

GRACE_S = 10.0  # beyond the limit of a question


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """How far to look, how often, over which record, and with how much more money."""

    hours: float
    futures: int
    market: str = ""  # "" = what the provider replays, else the longest record
    more_usd_per_h: float = 0.0
    more_usd: float = 0.0
    seed: int = 0
    limit_s: float = 30.0  # wall


def packed(standing: Standing, question: Question) -> bytes:
    """For the pipe to our own child: policies and speeds are objects, of plug-ins too."""
    return pickle.dumps((standing, question))


def unpacked(sent: bytes) -> tuple[Standing, Question]:
    """The message of our own parent, the only writer of that pipe."""
    standing, question = pickle.loads(sent)  # noqa: S301 - as above
    return standing, question


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
