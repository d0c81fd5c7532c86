"""Events of the kernel. Past tense, closed union: a driver feeds these to the kernel, in order of time.

`generation` counts the orders (start, resize, stop) that the kernel has given for a job. An answer to an older order is
late news and is ignored, so a slow world cannot undo a newer decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.domain.budget import Budget, Holder, Limit, Period
from sublet.domain.job import Job
from sublet.domain.money import Money, Price
from sublet.domain.offer import Offer
from sublet.domain.plan import Plan
from sublet.domain.quantity import finite, whole, within
from sublet.domain.timers import Timer
from sublet.errors import InvalidValue

LATEST_UNIX_S = 2e11  # some thousand years on: calendars end somewhere


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user brought a job."""

    at_s: float
    job: Job


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """The user no longer wants it."""

    at_s: float
    job_id: str


@dataclass(frozen=True, slots=True)
class JobChanged:
    """Other facts about a job: its speed was measured, its owner set other worker counts, paused it or let it go on."""

    at_s: float
    job: Job


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The job has its GPUs and trains from `resumes_s` on, with `done` work behind it."""

    at_s: float
    job_id: str
    generation: int
    done: float
    resumes_s: float


@dataclass(frozen=True, slots=True)
class JobResized:
    """The job has left its old GPUs and trains on the new ones from `resumes_s` on."""

    at_s: float
    job_id: str
    generation: int
    done: float
    resumes_s: float


@dataclass(frozen=True, slots=True)
class JobStopped:
    """The job has left all its GPUs and can be resumed from `done`."""

    at_s: float
    job_id: str
    generation: int
    done: float


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """The job says how far it is; may be less than before when work was lost."""

    at_s: float
    job_id: str
    done: float


@dataclass(frozen=True, slots=True)
class JobFinished:
    """All its work is done."""

    at_s: float
    job_id: str


@dataclass(frozen=True, slots=True)
class JobFailed:
    """It ended by an error of its own."""

    at_s: float
    job_id: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeReady:
    """A rented node can take work."""

    at_s: float
    node_id: str


@dataclass(frozen=True, slots=True)
class NodeNoticed:
    """The cloud will take the node back at `lost_s`."""

    at_s: float
    node_id: str
    lost_s: float


@dataclass(frozen=True, slots=True)
class NodeThreatened:
    """The cloud says that it may take the node, more likely than before. It stays, and is used as before."""

    at_s: float
    node_id: str


@dataclass(frozen=True, slots=True)
class NodeSlow:
    """It keeps its job waiting, and another is cheaper than to wait: it takes no more work, and goes when left."""

    at_s: float
    node_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """It is cut off, and those on it go on without it. It is paid for as before, and ready again when it is heard."""

    at_s: float
    node_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The cloud took the node; it is no longer paid for.

    `billed_from_s` and `billed_to_s` are the cloud's own record of what it charges for, where it tells: the order came
    before the launch, and the news of the end comes after it. `void` = it never was there, and nothing is paid. `why`:
    it ended from inside, the cloud had no part in it; "" = the cloud took it, as far as anybody knows.
    """

    at_s: float
    node_id: str
    billed_from_s: float | None = None
    billed_to_s: float | None = None
    void: bool = False
    why: str = ""

    def __post_init__(self) -> None:
        for name in ("billed_from_s", "billed_to_s"):
            if (billed_s := getattr(self, name)) is not None:
                finite(name, billed_s)


@dataclass(frozen=True, slots=True)
class NodeReleased:
    """The node that we gave back is gone; it is no longer paid for. The rest as in NodeLost."""

    at_s: float
    node_id: str
    billed_from_s: float | None = None
    billed_to_s: float | None = None
    void: bool = False

    def __post_init__(self) -> None:
        for name in ("billed_from_s", "billed_to_s"):
            if (billed_s := getattr(self, name)) is not None:
                finite(name, billed_s)


@dataclass(frozen=True, slots=True)
class RentRefused:
    """The cloud has no such node for us now; nothing is paid.

    `paid`: it gave no clear answer and keeps no records, so that the node may have been there until now: it is charged.
    """

    at_s: float
    node_id: str
    why: str = "no capacity"
    paid: bool = False


@dataclass(frozen=True, slots=True)
class NodesFound:
    """The cloud has nodes that we do not know, with numbers up to this one: we forgot, and none is given out again."""

    at_s: float
    highest: int

    def __post_init__(self) -> None:
        whole("highest", self.highest, 1)


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """From now on every node of this offer costs `price`."""

    at_s: float
    offer_id: str
    price: Price


@dataclass(frozen=True, slots=True)
class PriceHeardLate(PriceChanged):
    """... and has since `since_s`: later things were heard before it."""

    since_s: float


@dataclass(frozen=True, slots=True)
class PriceDoubted:
    """The market says this price, and it is not believed yet: charged where it is more, and no plan is made on it.

    The next PriceChanged ends the doubt; what was charged meanwhile stays.
    """

    at_s: float
    offer_id: str
    price: Price


@dataclass(frozen=True, slots=True)
class AvailabilityChanged:
    """At most `nodes` of this offer can be held from now on; None = as many as we ask for."""

    at_s: float
    offer_id: str
    nodes: int | None

    def __post_init__(self) -> None:
        if self.nodes is not None:
            whole("nodes", self.nodes)


@dataclass(frozen=True, slots=True)
class OffersChanged:
    """From now on this can be rented, within these limits: another price list, other quotas, another `--nodes`.

    Offers that are not named any more cannot be rented; nodes of it that are held stay until they are given back.
    """

    at_s: float
    offers: tuple[Offer, ...]
    limits: Mapping[str, Limit] = field(default_factory=dict)  # by offer id
    quotas: Mapping[str, int] = field(default_factory=dict)  # GPUs, by pool


@dataclass(frozen=True, slots=True)
class BudgetChanged:
    """The user set another budget."""

    at_s: float
    budget: Budget


@dataclass(frozen=True, slots=True)
class PurseSet:
    """The limit of a team, a user, a job or all together from now on, in all or in each period; None = no limit.

    `unix_s` is what the calendar says at `at_s`: periods go by it.
    """

    at_s: float
    holder: Holder
    amount: Money | None
    period: Period | None = None
    unix_s: float = 0.0

    def __post_init__(self) -> None:
        if self.amount is not None and self.amount.grains < 0:
            raise InvalidValue(f"budget of {self.holder}", str(self.amount), "at least USD 0")
        within("unix_s", self.unix_s, 0.0, LATEST_UNIX_S)


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The moment that SetTimer asked for."""

    at_s: float
    timer: Timer


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The policy's answer to MakePlan; `seen` says how many events its snapshot had seen."""

    at_s: float
    plan: Plan
    seen: int


Event = (
    JobSubmitted
    | JobCancelled
    | JobChanged
    | JobStarted
    | JobResized
    | JobStopped
    | ProgressReported
    | JobFinished
    | JobFailed
    | NodeReady
    | NodeNoticed
    | NodeSlow
    | NodeThreatened
    | NodeSilent
    | NodeLost
    | NodeReleased
    | RentRefused
    | NodesFound
    | PriceChanged
    | PriceDoubted
    | PriceHeardLate
    | AvailabilityChanged
    | OffersChanged
    | BudgetChanged
    | PurseSet
    | TimerFired
    | PlanMade
)
# What became of one node.
NodeNews = NodeReady | NodeNoticed | NodeThreatened | NodeSlow | NodeSilent | NodeLost | NodeReleased | RentRefused
