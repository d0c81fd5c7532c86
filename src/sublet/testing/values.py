"""Jobs, offers and markets to test with: valid values whose facts do not matter, except those that a test gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sublet.domain.events import AvailabilityChanged, PriceChanged
from sublet.domain.job import Change, Job
from sublet.domain.money import Price
from sublet.domain.offer import Market, Offer
from sublet.perf.speedup import Linear


def a_job(job_id: str = "a", submit_s: float = 0.0, work: float = 100.0, **fields: Any) -> Job:
    """A job whose facts do not matter, except those given; linear unless told otherwise."""
    return Job(id=job_id, submit_s=submit_s, work=work, **{"speed": Linear(), **fields})


def an_offer(offer_id: str = "spot", gpus: int = 4, usd_per_h: str | float = "1", **fields: Any) -> Offer:
    """An offer of spot nodes with `gpus` GPUs at a round price, billed from the first second."""
    facts: dict[str, Any] = {"gpu": "T4", "market": Market.SPOT, "minimum_billing_s": 0.0, **fields}
    return Offer(id=offer_id, gpus_per_node=gpus, price=Price.from_usd_per_h(usd_per_h), **facts)


@dataclass(frozen=True, slots=True)
class EvenPauses:
    """The same for every change, but for those of spares alone; a leaving worker is needed for `lead_s` of it."""

    every_s: float = 10.0
    lead_s: float = 0.0

    def pause_s(self, change: Change) -> float:
        """The rest of the pause before is spared."""
        return change.left_s if change.is_of_spares else self.every_s


class Changes(tuple[AvailabilityChanged | PriceChanged, ...]):
    """A market that is the same in every run, and that a failing example can show."""

    __slots__ = ()

    def __call__(self) -> Changes:
        """The changes, for the `market` of a simulated cloud."""
        return self
