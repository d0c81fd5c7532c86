"""What every dollar bought: the exact bill, split by purpose and job.

A node is paid for as a whole; each of its GPUs is a job's or idle. A job's share is rounded down to whole grains, and
what the ledger has beyond the shares of all jobs is unused, so the parts add up to the ledger to the grain. Dollars of
redone steps and of checkpoints are first booked as useful, like all training, and moved when the worker says how much
it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from sublet.domain.actions import Action
from sublet.domain.events import Event, JobChanged, JobSubmitted, NodeLost, PriceChanged, ProgressReported
from sublet.domain.money import Money, microseconds
from sublet.domain.offer import Market
from sublet.domain.shape import Placement
from sublet.kernel.kernel import Kernel

__all__ = ["Account", "Bill"]


@dataclass(slots=True)
class Account:
    """One job's grains by purpose, and its GPU time."""

    useful: int = 0
    redone: int = 0
    restart: int = 0
    idle: int = 0
    checkpoint: int = 0
    on_demand: int = 0  # what its training would have cost on demand, where there is such an offer
    training_gpu_us: int = 0

    @property
    def total(self) -> Money:
        """All of it."""
        return Money(self.useful + self.redone + self.restart + self.idle + self.checkpoint)

    def move(self, purpose: str, grains: int) -> None:
        """These of the useful grains were for something else."""
        grains = max(0, min(grains, self.useful))
        self.useful -= grains
        setattr(self, purpose, getattr(self, purpose) + grains)


@dataclass(slots=True)
class _Held:
    """What a job held since it was last looked at."""

    since_us: int
    placement: Placement
    leaving: Placement
    gpus: Counter[str]  # by offer
    trained: bool  # when it was looked at


@dataclass(slots=True)
class Bill:
    """Stands before the kernel: every event goes through `handle`, which books for those whose holdings change.

    Whoever changes whether a job trains books it first (`settle_job`); `settle` books everybody, for whoever looks.
    """

    kernel: Kernel
    trains: Callable[[str], bool]  # is this job making steps?
    replaying: bool = False  # a recorded life: only events say when a job began or ceased to train
    jobs: dict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    _at_us: int = 0
    _spent: int = 0  # grains of the ledger at the last `settle`
    _held: dict[str, _Held] = field(default_factory=dict)
    _list_price: dict[str, int] = field(default_factory=dict)

    def handle(self, event: Event) -> list[Action]:
        """Let the kernel hear it."""
        if isinstance(event, PriceChanged):
            self.settle(event.at_s)
        jobs = self._whose(event)
        try:
            return self.kernel.handle(event)
        finally:
            jobs.update(job_id for order in self.kernel.orders if (job_id := getattr(order, "job_id", "")))
            for job_id in jobs:
                self.settle_job(job_id, event.at_s)

    def settle(self, now_s: float) -> None:
        """Book everything up to now. The cost is in the jobs that hold something, not in the nodes."""
        tenancy = self.kernel.tenancy
        for job_id in self._held.keys() | tenancy.placement.keys() | tenancy.leaving.keys():
            self.settle_job(job_id, now_s)
        self._at_us = max(self._at_us, microseconds(now_s))
        self._spent = self.kernel.ledger.spent(self._at_us / 1e6).grains

    def settle_job(self, job_id: str, now_s: float, *, trained: bool | None = None) -> None:
        """Book what it held until now, and look what it holds from now on."""
        now_us = self._at_us = max(microseconds(now_s), self._at_us)
        tenancy, held = self.kernel.tenancy, self._held.get(job_id)
        if held is not None and now_us > held.since_us:
            if trained is None:
                trained = held.trained if self.replaying else self.trains(job_id)
            self._book(job_id, held, now_us - held.since_us, trains=trained)
            held.since_us = now_us
        placement, leaving = tenancy.placement.get(job_id, ()), tenancy.leaving.get(job_id, ())
        if not placement and not leaving:
            self._held.pop(job_id, None)
            return
        if held is None or held.placement is not placement or held.leaving is not leaving:
            gpus = Counter[str]()
            for node_id, count in (*placement, *leaving):
                gpus[self.kernel.cluster.nodes[node_id].offer.id] += count
            held = self._held[job_id] = _Held(now_us, placement, leaving, gpus, trained=False)
        held.trained = self.trains(job_id)

    def _book(self, job_id: str, held: _Held, passed_us: int, *, trains: bool) -> None:
        kernel, account = self.kernel, self.jobs[job_id]
        for offer_id, gpus in held.gpus.items():
            offer = kernel.supply.offers[offer_id]
            share = kernel.ledger.price(offer_id).micro_usd_per_h * passed_us * gpus // offer.gpus_per_node
            if trains:
                account.useful += share
                account.training_gpu_us += gpus * passed_us
                account.on_demand += self._on_demand(offer.gpu) * gpus * passed_us
            else:
                account.restart += share

    def _whose(self, event: Event) -> set[str]:
        """Jobs whose holdings an event may change by itself; those that orders follow for come on top."""
        if isinstance(event, NodeLost) and (node := self.kernel.cluster.nodes.get(event.node_id)) is not None:
            return set(node.jobs)
        if isinstance(event, JobSubmitted | JobChanged | ProgressReported):
            return set()
        job_id = getattr(event, "job_id", "")
        return {job_id} if job_id else set()

    @property
    def settled_s(self) -> float:
        """Up to when everything is booked: nothing may happen before that any more."""
        return self._at_us / 1e6

    @property
    def unused(self) -> int:
        """Grains that no job used: idle GPUs, boots, minimum bills, and what division leaves over."""
        return self._spent - sum(account.total.grains for account in self.jobs.values())

    def _on_demand(self, gpu: str) -> int:
        """Micro-dollars per GPU-hour of the cheapest on-demand offer of this kind; 0 without one."""
        if gpu not in self._list_price:
            self._list_price[gpu] = min(
                (
                    offer.price.micro_usd_per_h // offer.gpus_per_node
                    for offer in self.kernel.supply.offers.values()
                    if offer.gpu == gpu and offer.market is Market.ON_DEMAND
                ),
                default=0,
            )
        return self._list_price[gpu]

    def burn_usd_per_h(self, job_id: str) -> float:
        """The rent of what a job holds now."""
        held = self.kernel.tenancy.placement.get(job_id, ())
        nodes = self.kernel.cluster.nodes
        return sum(
            self.kernel.ledger.price(nodes[node_id].offer.id).usd_per_h * gpus / nodes[node_id].offer.gpus_per_node
            for node_id, gpus in held
            if node_id in nodes
        )

    def stood_still(self, job_id: str, cloud_s: float) -> None:
        """Training waited so long for a checkpoint."""
        micro_usd_per_h = self.burn_usd_per_h(job_id) * 1e6
        self.jobs[job_id].move("checkpoint", round(micro_usd_per_h * cloud_s * 1e6))

    def done_again(self, job_id: str, steps: int, of_steps: int) -> None:
        """So many of the steps made so far are lost."""
        account = self.jobs[job_id]
        account.move("redone", account.useful * steps // max(of_steps, steps, 1))

    @property
    def total(self) -> Money:
        """The ledger's bill at the time of the last `settle`."""
        return Money(self._spent)
