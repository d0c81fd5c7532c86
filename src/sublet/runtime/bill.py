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
class Bill:
    """Watches the kernel: `settle` before every event that changes who holds what, and when a job begins to train."""

    kernel: Kernel
    trains: Callable[[str], bool]  # is this job making steps?
    jobs: dict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    _at_us: int = 0
    _spent: int = 0  # grains of the ledger at the last `settle`
    _held: dict[str, tuple[Placement, Placement, Counter[str]]] = field(default_factory=dict)  # job -> GPUs by offer
    _list_price: dict[str, int] = field(default_factory=dict)

    def settle(self, now_s: float) -> None:
        """Book everything up to now. The cost is in the jobs that hold something, not in the nodes."""
        kernel, now_us = self.kernel, microseconds(now_s)
        passed_us, self._at_us = now_us - self._at_us, max(now_us, self._at_us)
        if passed_us > 0:
            tenancy = kernel.tenancy
            for job_id in tenancy.placement.keys() | tenancy.leaving.keys():
                self._book(job_id, passed_us)
        self._spent = kernel.ledger.spent(self._at_us / 1e6).grains

    def _book(self, job_id: str, passed_us: int) -> None:
        kernel, account, trains = self.kernel, self.jobs[job_id], self.trains(job_id)
        for offer_id, gpus in self._gpus_by_offer(job_id).items():
            offer = kernel.supply.offers[offer_id]
            share = kernel.ledger.price(offer_id).micro_usd_per_h * passed_us * gpus // offer.gpus_per_node
            if trains:
                account.useful += share
                account.training_gpu_us += gpus * passed_us
                account.on_demand += self._on_demand(offer.gpu) * gpus * passed_us
            else:
                account.restart += share

    def _gpus_by_offer(self, job_id: str) -> Counter[str]:
        """What a job holds or is leaving; counted anew when it has moved."""
        tenancy, nodes = self.kernel.tenancy, self.kernel.cluster.nodes
        placement, leaving = tenancy.placement.get(job_id, ()), tenancy.leaving.get(job_id, ())
        known = self._held.get(job_id)
        if known is None or known[0] is not placement or known[1] is not leaving:
            gpus = Counter[str]()
            for node_id, count in (*placement, *leaving):
                gpus[nodes[node_id].offer.id] += count
            known = self._held[job_id] = (placement, leaving, gpus)
        return known[2]

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
