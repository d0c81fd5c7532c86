"""A batch of which little is known is tried by the rule for widths: where what may be gained pays for the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import JobChanged, ProgressReported
from sublet.domain.shape import Shape, Spread
from sublet.perf.learned import MEASURED_DOUBT
from sublet.perf.speedup import ConstantRate
from sublet.planning import options
from sublet.planning.options import LEARNS_H
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

OFFER = an_offer("s", gpus=1, usd_per_h="1", boot_s=0.0)
BATCHES = (64, 128, 256, 512)
HOUR_USD, RESTART_S = 6.0, 60.0


@dataclass(frozen=True)
class Believed(ConstantRate):
    """On one GPU: (batch / 64) ** power, until it was measured; then a power law through the first and the last."""

    power: float
    error: float
    measured: tuple[tuple[int, float], ...] = ((64, 1.0),)
    batch: int = 64

    def bound_to(self, shape: Shape) -> Believed:
        return replace(self, batch=shape.batch or 64)

    def ways(self, gpus: int) -> list[tuple[None, int]]:
        del gpus
        return [(None, batch) for batch in BATCHES]

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        del gpu, spread, done
        power = self.power
        if len(self.measured) > 1:
            power = math.log(self.measured[-1][1]) / math.log(self.measured[-1][0] / 64)
        return dict(self.measured).get(self.batch, (self.batch / 64) ** power) / 3600.0

    def doubt(self, gpu: str, spread: Spread) -> float:
        del gpu, spread
        return MEASURED_DOUBT

    def doubts(self, gpu, spread, batches):
        del gpu, spread
        off = [min(abs(math.log2((batch or 64) / known)) for known, _ in self.measured) for batch in batches]
        return np.array([math.hypot(MEASURED_DOUBT, self.error * min(1.0, each)) for each in off])


class Life:
    """One job on one GPU, at the true speeds: what it costs in all, and which batches it had."""

    def __init__(self, true_power: float, believed: Believed, hours: float) -> None:
        self.true, self.driver = true_power, Driver([OFFER], limits={"s": Limit(max_nodes=1)})
        self.policy = Price(hour_usd=HOUR_USD)
        self.job = a_job("a", work=hours, speed=believed, max_gpus=1, gpus=1, restart_s=RESTART_S)
        self.usd = self.done = 0.0
        self.batches: list[int] = []
        self.reasons: list[str] = []

    def run(self) -> Life:
        self.driver.submit(replace(self.job, speed=replace(self.job.speed, error=0.0, power=-1.0)))  # begins with 64
        self.driver.settle(self.policy)
        self.driver.tell(JobChanged(self.driver.now_s, self.job))
        quiet = 0
        while self.done < self.job.work:
            if self.batches:
                self.reasons += self.policy.decide(self.driver.kernel.snapshot()).reasons.values()
                self.driver.settle(self.policy)
            batch = self.driver.kernel.jobs["a"].shape.batch
            quiet += 1
            if self.batches[-1:] != [batch]:
                quiet = 0
                self.batches.append(batch)
                self.pay(RESTART_S / 3600.0, 0.0)
            self.train(batch, (LEARNS_H, self.job.work / 4.0, math.inf)[min(quiet, 2)])
        return self

    def train(self, batch: int, hours: float) -> None:
        rate = (batch / 64) ** self.true
        left_h = (self.job.work - self.done) / rate
        self.pay(left_h if left_h <= 2.0 * LEARNS_H else min(left_h, hours), rate)
        known = {**dict(self.job.speed.measured), batch: rate}
        self.job = replace(self.job, speed=replace(self.job.speed, measured=tuple(sorted(known.items()))))
        self.driver.tell(ProgressReported(self.driver.now_s, "a", min(self.done, self.job.work)))
        self.driver.tell(JobChanged(self.driver.now_s, self.job))

    def pay(self, hours: float, rate: float) -> None:
        self.driver.now_s += hours * 3600.0
        self.done += hours * rate
        self.usd += hours * (HOUR_USD + 1.0)


def best_usd(true_power: float, hours: float) -> float:
    """Who knows all takes the best batch at once."""
    return min((HOUR_USD + 1.0) * (hours / (batch / 64) ** true_power + RESTART_S / 3600.0) for batch in BATCHES)


THOUGHT_WORTHLESS = Believed(power=-0.1, error=0.4)  # a larger batch is believed to be slower


def test_a_batch_that_is_thought_slower_is_tried_and_found_to_be_faster(monkeypatch):
    tried = Life(0.5, THOUGHT_WORTHLESS, 20.0).run()
    assert tried.batches[0] == 64
    assert tried.batches[-1] == 512
    assert any(reason.startswith("tried to learn: ") for reason in tried.reasons)
    assert tried.usd < 1.1 * best_usd(0.5, 20.0)
    monkeypatch.setattr(options, "trial_costs", lambda *_: None)
    stayed = Life(0.5, THOUGHT_WORTHLESS, 20.0).run()
    assert stayed.batches == [64]
    assert stayed.usd > 1.5 * best_usd(0.5, 20.0)


@pytest.mark.parametrize("true_power", [-0.4, -0.1, 0.2])
@pytest.mark.parametrize("power", [-0.1, 0.1])
def test_no_batch_is_tried_twice_and_who_found_it_slower_returns(true_power, power):
    hours = 12.0
    life = Life(true_power, Believed(power=power, error=0.4), hours).run()
    new = [batch for at, batch in enumerate(life.batches) if batch not in life.batches[:at]]
    assert len(life.batches) <= 2 * len(new)
    stay = min((HOUR_USD + 1.0) * hours / (batch / 64) ** true_power for batch in life.batches)
    trial_h = RESTART_S / 3600.0 + 2.0 * LEARNS_H
    assert life.usd <= stay * (1.0 + MEASURED_DOUBT) + len(life.batches) * trial_h * (HOUR_USD + 1.0)


@pytest.mark.parametrize(("hours", "error"), [(0.1, 0.4), (20.0, 0.0)])
def test_near_its_end_or_where_all_is_known_no_batch_is_tried(hours, error):
    assert Life(0.5, Believed(power=-0.1, error=error), hours).run().batches == [64]
