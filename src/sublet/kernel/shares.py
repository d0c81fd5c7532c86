"""Shares of the cost of a node: a job pays for the GPUs that it holds, its user and its team with it.

The same as on the bill: a share of the rent, rounded down to whole grains, from the order that gives the GPUs to it
until it has left them. Idle GPUs, boots, minimum times and the rest of rounding are the organisation's.

It is paid at the price that was believed then, up to the dearest that the offer could cost as the job came; and once
the job was told to leave, only for as long as leaving may take. So are the later costs of a price that is heard late,
or of a job that stays on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sublet.domain.budget import Holder, Level
from sublet.domain.job import Job
from sublet.domain.money import microseconds
from sublet.domain.offer import Offer
from sublet.domain.plan import JobState, Phase
from sublet.kernel.cluster import Cluster
from sublet.kernel.ledger import Ledger
from sublet.kernel.values_json import from_plain, to_plain


def payers(job: Job) -> tuple[Holder, ...]:
    """Budgets it is paid from, besides that of all: from the widest to its own."""
    found = ((Level.TEAM, job.team), (Level.USER, job.user), (Level.JOB, job.id))
    return tuple(Holder(level, name) for level, name in found if name)


def ending_grains(offer: Offer, gpus: int) -> int:
    """The highest cost of these GPUs of a node until their job has left."""
    return _part(offer.dearest.micro_usd_per_h * microseconds(offer.wind_down_s), gpus, offer.gpus_per_node)


def _part(grains: int, gpus: int, size: int) -> int:
    """A part of the cost of a node; rounded up: it is kept back."""
    return -(-grains * gpus // size)


@dataclass(slots=True)
class Share:
    """The GPUs of one node that one job holds."""

    payers: tuple[Holder, ...]
    offer_id: str
    gpus: int
    size: int  # GPUs of the node
    cap: int  # micro-dollars per hour of the node, at the most
    wind_down_us: int
    paid: int  # grains of the whole node, from when it was taken up to `paid_us`
    paid_us: int
    until_us: int | None = None  # the job was told to leave: its latest end

    def cost(self, price: int, now_us: int) -> int:
        """Grains so far."""
        return self._whole(price, now_us) * self.gpus // self.size

    def settle(self, price: int, now_us: int) -> None:
        """The price may be another one from now on."""
        self.paid, self.paid_us = self._whole(price, now_us), now_us

    def ending(self, now_us: int) -> int:
        """Grains that leaving may still cost."""
        lasts_us = self.wind_down_us if self.until_us is None else max(0, self.until_us - now_us)
        return _part(self.cap * lasts_us, self.gpus, self.size)

    def resized(self, gpus: int, now_us: int) -> Share:
        """Another number of GPUs of the same node from now on, on the same terms."""
        return replace(self, gpus=gpus, paid=0, paid_us=now_us, until_us=None)

    def burn(self, price: int, now_us: int) -> int:
        """Micro-dollars per hour."""
        if self.until_us is not None and self.until_us <= now_us:
            return 0
        return _part(min(price, self.cap), self.gpus, self.size)

    def _whole(self, price: int, now_us: int) -> int:
        end_us = now_us if self.until_us is None else min(now_us, self.until_us)
        passed_us = end_us - self.paid_us if self.until_us is None else max(0, end_us - self.paid_us)
        return self.paid + min(price, self.cap) * passed_us


def _taken(job: Job, offer: Offer, gpus: int, now_us: int) -> Share:
    return Share(
        payers=payers(job),
        offer_id=offer.id,
        gpus=gpus,
        size=offer.gpus_per_node,
        cap=offer.dearest.micro_usd_per_h,
        wind_down_us=microseconds(offer.wind_down_s),
        paid=0,
        paid_us=now_us,
    )


class Shares:
    """All that are open, and the sum of those that have ended, by payer. Counts from `begin` on."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.counts = False
        self.changed = True  # a job holds other GPUs, or pays another price, than at the last look
        self.open: dict[str, dict[str, Share]] = {}  # by job, by node
        self.ended: dict[Holder, int] = defaultdict(int)  # grains
        self._of: dict[Holder, dict[tuple[str, str], Share]] = defaultdict(dict)
        self._cluster, self._ledger = cluster, ledger

    def begin(self, jobs: Iterable[JobState], held: Callable[[str], Mapping[str, int]], now_s: float) -> None:
        """From now on the shares are counted."""
        if not self.counts:
            self.counts = True
            for state in jobs:
                self.look(state.job, held(state.job.id), now_s)

    def look(self, job: Job, held: Mapping[str, int], now_s: float) -> None:
        """It holds so many GPUs of these nodes from now on."""
        shares, now_us = self.open.setdefault(job.id, {}), microseconds(now_s)
        self.changed = True
        before = {node_id: share for node_id, share in shares.items() if held.get(node_id, 0) != share.gpus}
        for node_id, share in before.items():
            grains = share.cost(self._price(share), now_us)
            for holder in share.payers:
                self.ended[holder] += grains
                self._of[holder].pop((job.id, node_id))
            del shares[node_id]
        for node_id, gpus in held.items():
            if node_id not in shares:
                offer, known = self._cluster.nodes[node_id].offer, before.get(node_id)
                self._add(job.id, node_id, known.resized(gpus, now_us) if known else _taken(job, offer, gpus, now_us))
        if not shares:
            del self.open[job.id]

    def _add(self, job_id: str, node_id: str, share: Share) -> None:
        self.open[job_id][node_id] = share
        for holder in share.payers:
            self._of[holder][job_id, node_id] = share

    def tell_to_leave(self, jobs: Mapping[str, JobState], now_s: float) -> None:
        """A job told to stop by now is paid for until its latest end; any other goes on."""
        now_us = microseconds(now_s)
        for job_id, shares in self.open.items():
            stopping = jobs[job_id].phase is Phase.STOPPING
            for share in shares.values():
                if stopping and share.until_us is None:
                    share.until_us = now_us + share.wind_down_us
                elif not stopping and share.until_us is not None:
                    share.settle(self._price(share), now_us)
                    share.until_us = None

    def settle(self, now_s: float) -> None:
        """Prices are about to change."""
        self.changed = True
        now_us = microseconds(now_s)
        for share in self._all():
            share.settle(self._price(share), now_us)

    def end_by(self, node_id: str, end_us: int) -> None:
        """A node was gone before that was heard: so it is on record, and no job pays for longer."""
        for shares in self.open.values():
            if (share := shares.get(node_id)) is not None:
                share.until_us = end_us if share.until_us is None else min(share.until_us, end_us)

    def forget(self, holder: Holder) -> None:
        """It is not asked for any more: the job has ended."""
        self.ended.pop(holder, None)
        self._of.pop(holder, None)

    # ------------------------------------------------------------------ sums by payer; O(shares) each

    def spent(self, holder: Holder, now_us: int) -> int:
        """Grains since it counts."""
        running = sum(share.cost(self._price(share), now_us) for share in self._of[holder.account].values())
        return self.ended.get(holder.account, 0) + running

    def ending(self, holder: Holder, now_us: int) -> int:
        """Grains that giving all of it up may still cost, at the most."""
        return sum(share.ending(now_us) for share in self._of[holder].values())

    def burn(self, holder: Holder, now_us: int) -> int:
        """Micro-dollars per hour."""
        return sum(share.burn(self._price(share), now_us) for share in self._of[holder.account].values())

    def any_leaves(self) -> bool:
        """A job was told to leave, and has not left."""
        return any(share.until_us is not None for shares in self.open.values() for share in shares.values())

    def jobs(self, holder: Holder) -> list[str]:
        """Jobs with GPUs that it pays for."""
        return list(dict.fromkeys(job_id for job_id, _ in self._of[holder.account]))

    def _all(self) -> Iterable[Share]:
        return (share for shares in self.open.values() for share in shares.values())

    def _price(self, share: Share) -> int:
        return self._ledger.price(share.offer_id).micro_usd_per_h

    # ------------------------------------------------------------------ snapshots

    def facts(self) -> dict[str, Any]:
        """For a snapshot."""
        return {
            "counts": self.counts,
            "changed": self.changed,
            "ended": [[to_plain(holder), grains] for holder, grains in self.ended.items()],
            "open": [[j, n, to_plain(share)] for j, shares in self.open.items() for n, share in shares.items()],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.counts, self.changed = facts["counts"], facts["changed"]
        for holder, grains in facts["ended"]:
            self.ended[from_plain(Holder, holder)] = grains
        for job_id, node_id, share in facts["open"]:
            self.open.setdefault(job_id, {})
            self._add(job_id, node_id, from_plain(Share, share))
