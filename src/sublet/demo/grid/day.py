"""The same day in the simulator, by the same kernel: with live changes, and with a checkpoint and a restart at each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Change, Job, Pauses
from sublet.domain.plan import Policy
from sublet.market.traces import load_trace
from sublet.perf.gridded import Gridded, LivePauses
from sublet.runtime.controller_api.assemble import budget_from
from sublet.runtime.providers.local.build import local_offers, local_supply, strike_from_text
from sublet.runtime.providers.local.market import Strike
from sublet.runtime.settings import Settings
from sublet.sim.simulator import Cloud, Run, simulate
from sublet.sim.world import Physics

MOST_S = 200_000.0  # of the record: a job that does not end by then never does


def same_day(settings: Settings, job: Job, policy: Policy, *, boot_s: float, until_s: float = math.inf) -> Run:
    """A job as a controller knows it, on the market of these settings.

    A node that a script kills without a word has its notice here: the simulator has one notice for all. That gives time
    to jobs that must save before a node goes.
    """
    traces = [load_trace(name, polarity=settings.polarity, repeat=True) for name in settings.market]
    offers = [replace(offer, boot_s=boot_s) for offer in local_offers(settings, traces)]
    most = settings.most_nodes or 1
    cloud = Cloud(
        offers=offers,
        limits={offer.id: Limit(max_nodes=most) for offer in offers},
        budget=budget_from(settings),
        physics=Physics(provision_s=boot_s, notice_s=settings.notice_s),
        market=lambda: struck_supply(settings, local_supply(settings, traces, offers)),
    )
    return simulate([job], policy, cloud, seed=settings.seed, until_s=until_s)


@dataclass(frozen=True, eq=False)
class Started:
    """Changes as they are, and a start that takes as long as one took: processes, imports, a first meeting."""

    changes: Pauses
    start_s: float

    @property
    def lead_s(self) -> float:
        """As of the changes."""
        return self.changes.lead_s

    def pause_s(self, change: Change) -> float:
        """Pause of a change; a start if it is in no grid yet."""
        return self.start_s if change.was is None else self.changes.pause_s(change)


def at_rates(job: Job, rates: Mapping[tuple[int, int], float]) -> Job:
    """The same job, as fast as it was over a whole run: its controller goes by how fast it was of late."""
    speed = job.speed
    if not isinstance(speed, Gridded):
        return job
    known = [rates.get(grid, float(rate)) for grid, rate in zip(speed.profile.grids, speed.profile.rate_C, strict=True)]
    profile = replace(speed.profile, rate_C=np.array(known))
    return replace(job, speed=Gridded(profile), pauses=LivePauses(profile))


def starting(job: Job, start_s: float) -> Job:
    """The same job, with what its first start takes: a controller learns what changes of a grid cost, and not that."""
    return job if job.pauses is None else replace(job, pauses=Started(job.pauses, start_s))


def restarting(job: Job, start_s: float) -> Job:
    """The same job, were each change but of spares a start of all of its workers; to save takes no time."""
    return replace(job, pauses=None, restart_s=start_s, lead_s=None)


def struck_supply(settings: Settings, supply: Iterator[AvailabilityChanged]) -> Iterator[AvailabilityChanged]:
    """Supply of the record, less the nodes that the script has taken and not given back."""
    strikes = sorted((strike_from_text(text) for text in settings.strikes), key=lambda strike: strike.at_s)
    last: AvailabilityChanged | None = None
    gone = 0
    for change in supply:
        while strikes and last is not None and strikes[0].at_s < change.at_s:
            gone, last = _struck(strikes.pop(0), gone, last)
            yield replace(last, nodes=max(0, (last.nodes or 0) - gone))
        if change.at_s > MOST_S:
            return
        last = change
        yield replace(change, nodes=None if change.nodes is None else max(0, change.nodes - gone))


def _struck(strike: Strike, gone: int, last: AvailabilityChanged) -> tuple[int, AvailabilityChanged]:
    nodes = strike.nodes if isinstance(strike.nodes, int) else len(strike.nodes)
    return gone + (-nodes if strike.verb == "restore" else nodes), replace(last, at_s=strike.at_s)
