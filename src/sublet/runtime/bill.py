"""What every dollar bought: the exact bill, split by purpose and job.

A node is paid for as a whole; each of its GPUs is a job's or idle. Shares are whole grains and what division leaves
over is idle, so the parts add up to the ledger to the grain. Dollars of redone steps and of checkpoints are first
booked as useful, like all training, and moved when the worker says how much it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from sublet.domain.money import Money, microseconds
from sublet.domain.offer import Market
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
    unused: int = 0  # grains that no job used
    _at_us: int = 0
    _accrued: dict[str, int] = field(default_factory=dict)  # open node -> grains booked
    _closed: int = 0  # leases of the ledger seen

    def settle(self, now_s: float) -> None:
        """Book everything up to now."""
        kernel, now_us = self.kernel, microseconds(now_s)
        passed_us, self._at_us = now_us - self._at_us, max(now_us, self._at_us)
        if passed_us > 0:
            for lease in kernel.ledger.open_leases():
                self._book(lease.node_id, lease.offer_id, min(passed_us, now_us - lease.start_us))
        for lease in kernel.ledger.closed[self._closed :]:
            self.unused += lease.cost.grains - self._accrued.pop(lease.node_id, 0)  # a minimum, or never ours
        self._closed = len(kernel.ledger.closed)

    def _book(self, node_id: str, offer_id: str, passed_us: int) -> None:
        kernel, node = self.kernel, self.kernel.cluster.nodes[node_id]
        grains = kernel.ledger.price(offer_id).micro_usd_per_h * passed_us
        self._accrued[node_id] = self._accrued.get(node_id, 0) + grains
        each = grains // node.offer.gpus_per_node
        for job_id, gpus in node.jobs.items():
            account, share = self.jobs[job_id], each * gpus
            grains -= share
            if self.trains(job_id):
                account.useful += share
                account.training_gpu_us += gpus * passed_us
                account.on_demand += self._on_demand(node.offer.gpu) * gpus * passed_us
            else:
                account.restart += share
        self.unused += grains

    def _on_demand(self, gpu: str) -> int:
        """Micro-dollars per GPU-hour of the cheapest on-demand offer of this kind; 0 without one."""
        prices = [
            offer.price.micro_usd_per_h // offer.gpus_per_node
            for offer in self.kernel.supply.offers.values()
            if offer.gpu == gpu and offer.market is Market.ON_DEMAND
        ]
        return min(prices, default=0)

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
        """Everything booked; equals the ledger's bill at the time of the last `settle`."""
        return Money(self.unused + sum(account.total.grains for account in self.jobs.values()))
