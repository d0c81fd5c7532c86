"""Input (Snapshot) and output (Plan) of a policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sublet.domain.budget import Budget, Limit
from sublet.domain.demand import Demand, Ended
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market, Offer
from sublet.domain.quantity import finite, whole
from sublet.domain.shape import Shape, Spread
from sublet.domain.weighed import Weighing


class Phase(StrEnum):
    """Phase of a job."""

    WAITING = "waiting"  # holds nothing; with a shape: GPUs are promised, not there yet
    STARTING = "starting"
    RUNNING = "running"
    RESIZING = "resizing"
    STOPPING = "stopping"
    BROKEN = "broken"  # lost a node; holds what survived, makes no progress until it is resized or stopped


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobState:
    """A job that has not ended, as the kernel knows it. `seq` is its place in the order of arrival."""

    job: Job
    seq: int
    phase: Phase = Phase.WAITING
    shape: Shape | None = None  # what it holds or has been promised; None = it waits
    runs_in: Shape | None = None  # the last it was ordered into; `shape` is ahead of it while GPUs are on their way
    gpu: str = ""  # kind it runs on
    gpus: int = 0  # GPUs it holds right now
    spread: Spread = ()  # over which nodes
    done: float = 0.0  # work done as of `as_of_s`
    as_of_s: float = 0.0
    gpu_s: float = 0.0  # attained service up to `held_since_s`
    held_since_s: float = 0.0
    stints: tuple[tuple[float, float, int], ...] = ()  # before that: (from, to, GPUs) of each time it held some
    generation: int = 0
    left_s: float = 0.0  # of a pause that a loss or an order cut short, as of then
    lies_in: str = ""  # the pool where it is or was last: there its state lies; "" = it has not begun

    @property
    def batch(self) -> int:
        """That it was last ordered to train with; 0 = its own."""
        return 0 if self.runs_in is None else self.runs_in.batch or 0

    def done_at(self, now_s: float) -> float:
        """Work done by `now_s`, estimated from the speed model since the last report."""
        if self.phase is not Phase.RUNNING or now_s <= self.as_of_s:
            return self.done
        reached = self.job.speed_on(self.runs_in).work(self.gpu, self.spread, self.done, now_s - self.as_of_s)
        return min(reached, self.job.work)

    def pause_left_s(self, now_s: float) -> float:
        """The rest of the pause for its last change; losing a node does not spare it the rest."""
        return max(0.0, self.as_of_s - now_s) if self.phase is Phase.RUNNING else self.left_s

    def remaining_at(self, now_s: float) -> float:
        """Work left at `now_s`."""
        return self.job.work - self.done_at(now_s)

    def attained_gpu_s(self, now_s: float) -> float:
        """GPU-seconds held so far, the attained service of least-attained-service policies."""
        return self.gpu_s + self.gpus * (now_s - self.held_since_s)


def arrival(_state: JobState) -> float:
    """First come, first served: all rank alike, and ties go by arrival."""
    return 0.0


class Packing(StrEnum):
    """Which nodes a job gets beyond those it keeps."""

    TIGHT = "tight"  # whole nodes, then the tightest fit: leaves room for wide jobs
    EMPTIEST = "emptiest"  # always the node with the most free GPUs, the oldest among equals


class WaitingJobs(Protocol):
    """The jobs that no GPU is promised to. Walking the first few costs the same however many wait."""

    def __len__(self) -> int: ...

    def by(self, key: Callable[[JobState], float]) -> Iterator[JobState]:
        """Smallest `key` first, ties by arrival.

        The key must not depend on the time, and be hashable by value (a function, or a frozen dataclass that can be
        called): the order is kept up to date from the first time that this key is seen.
        """
        ...

    def orders(self, *keys: Callable[[JobState], float]) -> tuple[Sequence[JobState], ...]:
        """All of them in several such orders, valid until the next event."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferState:
    """One offer now: its price, what we hold of it and what more could be had."""

    offer: Offer
    price: Price
    limit: Limit
    held: int  # nodes ready or on their way, without those that are being given back or were noticed
    available: int | None  # nodes that could be held at once, as far as we know; None = no end seen
    lost: float = 0.0  # nodes that the cloud took from us; what is long ago counts less (spot with a hazard only)
    held_h: float = 0.0  # node-hours in which it did, counted alike
    coming: int = 0  # of those held, on their way
    refused: int = 0  # times in a row that the cloud had none when asked, without word since
    capacity: tuple[tuple[float, int | None], ...] = ()  # (from when on, nodes) as the market told, of the last day
    prices: tuple[tuple[float, Price], ...] = ()  # (from when on, price), alike
    falls: tuple[tuple[float, int], ...] = ()  # (when, nodes) that the cloud will take; no longer among the available

    @property
    def most(self) -> float:
        """How many nodes could be held: the smaller of the limit and the supply."""
        limit, available = self.limit.max_nodes, self.available
        if available is None:
            return math.inf if limit is None else limit
        return available if limit is None else min(limit, available)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that one job may span, of one market or of both."""

    name: str
    gpu: str
    gpus_per_node: int
    offer_ids: tuple[str, ...]
    max_gpus: int | None = None  # a quota over all its offers; None = no quota
    markets: Mapping[Market, tuple[str, ...]] = field(default_factory=dict)  # its offers by market
    max_of: Mapping[Market, int] = field(default_factory=dict)  # GPUs: quotas over its offers of one market

    @property
    def is_mixed(self) -> bool:
        """It has offers of both markets."""
        return len(self.markets) > 1

    def core_of(self, job: Job) -> int:
        """GPUs that a shape of this job has to say are steady here: none where all are on demand."""
        return job.min_on_demand if Market.SPOT in self.markets else 0

    @property
    def quotas(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Offers, and the GPUs that may be held of them together."""
        over_all = () if self.max_gpus is None else ((self.offer_ids, self.max_gpus),)
        return (*over_all, *((self.markets[market], gpus) for market, gpus in self.max_of.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a policy may know.

    Its mappings are views, valid until the kernel's next event, so that taking a snapshot costs the same however many
    jobs there are; a driver that plans aside asks the kernel for a frozen one.
    """

    now_s: float
    seen: int  # events that the kernel had handled
    waiting: WaitingJobs
    active: Mapping[str, JobState]  # jobs with a shape
    offers: Mapping[str, OfferState]
    pools: Mapping[str, Pool]
    promised: Mapping[str, int]  # pool -> GPUs held by, or promised to, jobs
    steady: Mapping[str, int]  # pool -> of these, GPUs that were promised on demand
    budget: Budget
    spent: Money
    most_nodes: int | None  # over all offers, once the budget runs out; None = no such limit
    reserved: Money  # kept back so that every node can be given up within the budget; zero without one
    woken: bool  # a plan asked to be asked again, and the time has come
    began_s: float  # when the budget began to count
    allowed: Money | None  # what the aim of the budget has come to since then; None without one
    falling: Mapping[str, int]  # job -> of its GPUs, those about to be taken, which it may train on until then
    expected: Demand | None  # a forecast that every policy may use, if there is one
    arrived: Demand  # the jobs counted so far; may lag a little behind
    ended: Ended = field(default_factory=Ended)  # those of them that are done

    @property
    def left(self) -> Money | None:
        """The money neither spent nor reserved: each new node takes its reserve from it. None without a budget."""
        return None if self.unspent is None else self.unspent - self.reserved

    @property
    def unspent(self) -> Money | None:
        """The money not spent, reserved or not: it does not hang on what is held now. None without a budget."""
        return None if self.budget.purse is None else self.budget.purse - self.spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A list of changes. A job or an offer that is not named keeps what it has, so an empty plan is "all is well".

    The order of `shapes` is the order in which jobs get GPUs as they become free.
    """

    shapes: Mapping[str, Shape | None] = field(default_factory=dict)  # None = give the GPUs back and wait
    hold: Mapping[str, int] = field(default_factory=dict)  # offer id -> nodes to hold
    reasons: Mapping[str, str] = field(default_factory=dict)  # job id -> why
    value_of_time_usd_per_h: float | None = None  # v: the price of an hour of a job's time
    congestion_usd_per_gpu_h: Mapping[str, float] = field(default_factory=dict)  # nu: per pool
    ask_again_s: float | None = None  # plan again at this time even if nothing happens
    packing: Packing = Packing.TIGHT  # until the next plan
    warnings: Mapping[str, str] = field(default_factory=dict)  # job id -> what its owner should know; told once
    weighed: Mapping[str, Weighing] = field(default_factory=dict, compare=False, repr=False)  # for people, not the log

    def __post_init__(self) -> None:
        for offer_id, nodes in self.hold.items():
            whole(f"hold[{offer_id}]", nodes)
        if self.ask_again_s is not None:
            finite("ask_again_s", self.ask_again_s)


class Policy(Protocol):
    """A value with one verb. Its knobs are its fields; it keeps no memory between decisions."""

    def decide(self, snapshot: Snapshot) -> Plan:
        """The change to make now."""
        ...
