"""The simulator foretells a scenario from what is known beforehand, with an interval.

Each draw takes a speed that is off by as much as the profile says it may be, pauses and boots as they were seen, and
another seed for the market's choices. The median is the prediction, and 80 % of the draws are the interval.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.job import Change, Job
from sublet.domain.offer import Offer
from sublet.market.traces import load_trace
from sublet.perf.live.rows import StepRow, earlier
from sublet.perf.live.speed import LiveSpeed
from sublet.runtime.controller_api.assemble import budget_from, policy_from
from sublet.runtime.providers.local.build import local_offers, local_supply
from sublet.runtime.settings import Settings
from sublet.sim.simulator import Cloud, simulate
from sublet.sim.world import Physics
from sublet_lab.studies.live.known import Known
from sublet_lab.studies.live.scenarios import BATCH, BOOT_S, CHECKPOINT_S, LONG_S, SPEEDUP, Scenario

PART = 0.1  # of the draws below the interval, and above it


@dataclass(frozen=True, slots=True)
class RegroupPauses:
    """The cost of changes of a session's group, in cloud seconds.

    Newcomers load while the old group trains on: lost is what the wider group would have made more meanwhile.
    """

    start_s: float
    grow_s: float
    shrink_s: float
    lead_s: float = 0.0

    def pause_s(self, change: Change) -> float:
        """Seconds without training."""
        was = 0 if change.was is None else change.was.gpus - change.lost
        if was < 1:
            return self.start_s
        if change.now.gpus <= was:
            return self.shrink_s + change.left_s
        loading_s = max(0.0, self.grow_s - self.shrink_s)
        return self.shrink_s + loading_s * (1.0 - was / change.now.gpus) + change.left_s


@dataclass(frozen=True, slots=True)
class Draw:
    """One go of the simulator."""

    makespan_s: float
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """The middle, and the ends of the interval."""

    makespan_s: float
    usd: float
    makespan_range: tuple[float, float]
    usd_range: tuple[float, float]


def foretold_from(draws: Sequence[Draw]) -> Foretold:
    """Medians, and what 80 % of the draws are between."""
    times, usd = (np.array(each) for each in zip(*((d.makespan_s, d.usd) for d in draws), strict=True))

    def between(values: np.ndarray) -> tuple[float, float]:
        low, high = np.quantile(values, (PART, 1.0 - PART))
        return float(low), float(high)

    return Foretold(
        makespan_s=float(np.median(times)),
        usd=float(np.median(usd)),
        makespan_range=between(times),
        usd_range=between(usd),
    )


def foretell(scenario: Scenario, known: Known, draws: int) -> Foretold:
    """Before anything of it has run."""
    with tempfile.TemporaryDirectory(prefix="sublet-foretold-") as folder:
        settings = scenario.settings(Path(folder))
        traces = [load_trace(name, polarity=settings.polarity, repeat=True) for name in settings.market]
    offers = local_offers(settings, traces)
    supply = itertools.takewhile(lambda change: change.at_s < LONG_S / 2, local_supply(settings, traces, offers))
    world = _World(scenario, settings, offers, tuple(supply) if traces else ())
    return foretold_from([_draw(world, known, seed) for seed in range(draws)])


@dataclass(frozen=True, slots=True)
class _World:
    """The common part of all draws."""

    scenario: Scenario
    settings: Settings
    offers: Sequence[Offer]
    supply: Sequence[AvailabilityChanged]


def _draw(world: _World, known: Known, seed: int) -> Draw:
    rng, seen, settings = np.random.default_rng(seed), known.frictions, world.settings
    boot_s = BOOT_S + SPEEDUP * float(rng.choice(seen.boots))
    pauses = RegroupPauses(
        start_s=SPEEDUP * float(rng.choice(seen.starts)),
        grow_s=SPEEDUP * float(rng.choice(seen.grows)),
        shrink_s=SPEEDUP * float(rng.choice(seen.shrinks)),
    )
    error = max(row.error for row in known.rows)
    longer = float(np.exp(error * rng.standard_normal()))  # that all steps take
    cloud = Cloud(
        offers=[replace(offer, boot_s=boot_s) for offer in world.offers],
        limits={offer.id: Limit(max_nodes=settings.most_nodes) for offer in world.offers},
        budget=budget_from(settings),
        physics=Physics(
            provision_s=boot_s,
            notice_s=settings.notice_s,
            planning_s=SPEEDUP * float(rng.choice(seen.plans)),
        ),
        market=lambda: world.supply,
    )
    jobs = _jobs(world.scenario, known.rows, longer, pauses)
    run = simulate(jobs, policy_from(settings), cloud, seed=seed)
    return Draw(run.metrics.makespan_s, run.metrics.usd)


def _jobs(scenario: Scenario, rows: Sequence[StepRow], longer: float, pauses: RegroupPauses) -> list[Job]:
    before = tuple(earlier(row) for row in rows)
    return [
        Job(
            id=f"paced-{number}",
            submit_s=arrival.at_s,
            work=1.0,  # the whole job, as a controller counts
            speed=LiveSpeed(
                rows=before, batches=(BATCH,), initial=BATCH, batch_now=BATCH, unit=arrival.samples * SPEEDUP * longer
            ),
            gpus=arrival.most,
            min_gpus=1,
            max_gpus=arrival.most,
            restart_s=pauses.shrink_s,
            checkpoint_every_s=CHECKPOINT_S,
            pauses=pauses,
        )
        for number, arrival in enumerate(scenario.arrivals, 1)
    ]
