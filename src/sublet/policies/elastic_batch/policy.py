"""Elastic scaling with batch sizes that grow with the GPUs (Saxena et al., arXiv 2006.13878)."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.domain.plan import Plan, Snapshot
from sublet.domain.quantity import at_least, positive
from sublet.policies.elastic_batch.admission import Mode, batch_plan

__all__ = ["ElasticBatch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticBatch:
    """Everyone that fits runs; GPUs and batches go where jobs scale best: the greatest sum of scaling factors."""

    every_s: float = 600.0  # decide at multiples of this, and at once only if nothing runs or supply fell
    stickiness: float = (
        0.0  # keeping its width adds this share to a job's scaling factor; restarts are not weighed else
    )
    drop: bool = False  # who does not fit when it comes is dropped, instead of waiting

    def __post_init__(self) -> None:
        positive("every_s", self.every_s)
        at_least("stickiness", self.stickiness, 0.0)

    def decide(self, snapshot: Snapshot) -> Plan:
        """Admit first come first served, then split all GPUs among those, which may grow, shrink and re-batch."""
        return batch_plan(snapshot, Mode(every_s=self.every_s, drop=self.drop, stickiness=self.stickiness))
