"""A job whose speeds are believed, not known, tries a width where what it may gain pays for the way, and only then."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import JobChanged, ProgressReported
from sublet.domain.shape import Spread
from sublet.perf.learned import MEASURED_DOUBT
from sublet.perf.speedup import ConstantRate
from sublet.planning import options
from sublet.planning.options import LEARNS_H
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

OFFER = an_offer("s", gpus=1, usd_per_h="1", boot_s=0.0)
HOUR_USD, RESTART_S = 6.0, 60.0
WIDTHS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Believed(ConstantRate):
    """Width ** power, until it was measured; from then on a power law through the narrowest and the last measured."""

    power: float
    error: float
    measured: tuple[tuple[int, float], ...] = ((1, 1.0),)

    def rate(self, gpu: str, spread: Spread, done: float) -> float:
        del gpu, done
        width, seen = sum(spread), dict(self.measured)
        power = self.power
        if len(seen) > 1:
            power = math.log(self.measured[-1][1]) / math.log(self.measured[-1][0])
        return seen.get(width, float(width) ** power) / 3600.0

    def doubt(self, gpu: str, spread: Spread) -> float:
        del gpu
        doublings = min(abs(math.log2(sum(spread) / width)) for width, _ in self.measured)
        return math.hypot(MEASURED_DOUBT, self.error * min(1.0, doublings))

    def with_measured(self, width: int, rate: float) -> Believed:
        return replace(self, measured=tuple(sorted({**dict(self.measured), width: rate}.items())))


class Life:
    """One job on the true speeds: what it costs in all, and which widths it had."""

    def __init__(self, true_power: float, believed: Believed, hours: float) -> None:
        self.true, self.driver = true_power, Driver([OFFER], limits={"s": Limit(max_nodes=8)})
        self.policy = Price(hour_usd=HOUR_USD)
        self.job = a_job("a", work=hours, speed=believed, max_gpus=8, gpus=1, restart_s=RESTART_S)
        self.reasons = []
        self.usd = self.done = 0.0

    def run(self) -> Life:
        self.driver.submit(replace(self.job, max_gpus=1))
        self.driver.settle(self.policy)
        self.driver.tell(JobChanged(self.driver.now_s, self.job))
        self.widths, quiet = [1], 0
        self.pay(1, RESTART_S / 3600.0, 0.0)
        while self.done < self.job.work:
            self.plan()
            width = self.driver.kernel.jobs["a"].gpus
            quiet += 1
            if self.widths[-1:] != [width]:
                quiet = 0
                self.widths.append(width)
                self.pay(width, RESTART_S / 3600.0, 0.0)
            self.train(width, (LEARNS_H, self.job.work / 4.0, math.inf)[min(quiet, 2)])
        return self

    def plan(self) -> None:
        self.reasons += self.policy.decide(self.driver.kernel.snapshot()).reasons.values()
        self.driver.settle(self.policy)

    def train(self, width: int, hours: float) -> None:
        rate = float(width) ** self.true
        left_h = (self.job.work - self.done) / rate
        self.pay(width, left_h if left_h <= 2.0 * LEARNS_H else min(left_h, hours), rate)
        self.job = replace(self.job, speed=self.job.speed.with_measured(width, rate))
        self.driver.tell(ProgressReported(self.driver.now_s, "a", min(self.done, self.job.work)))
        self.driver.tell(JobChanged(self.driver.now_s, self.job))

    def pay(self, width: int, hours: float, rate: float) -> None:
        self.driver.now_s += hours * 3600.0
        self.done += hours * rate
        self.usd += hours * (HOUR_USD + width)


def best_usd(true_power: float, hours: float) -> float:
    """Who knows all goes to the best width at once."""
    return min((HOUR_USD + w) * (hours / w**true_power + RESTART_S / 3600.0) for w in WIDTHS)


def without_trials(monkeypatch):
    monkeypatch.setattr(options, "trial_costs", lambda *_: None)


SCALES_POORLY = Believed(power=0.1, error=0.4)


def test_a_job_that_is_thought_not_to_scale_finds_that_it_does(monkeypatch):
    tried = Life(0.9, SCALES_POORLY, 20.0).run()
    assert tried.widths[-1] >= 4
    assert any(reason.startswith("tried to learn: ") for reason in tried.reasons)
    best = best_usd(0.9, 20.0)
    assert tried.usd < 1.1 * best
    without_trials(monkeypatch)
    stayed = Life(0.9, SCALES_POORLY, 20.0).run()
    assert stayed.widths == [1]
    assert stayed.usd > 1.5 * best


@pytest.mark.parametrize("true_power", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("power", [0.1, 0.6])
def test_no_width_is_tried_twice_and_trials_cost_no_more_than_they_may(true_power, power):
    """Beyond the best that it ever had: the ways, the time until each is known, and what keeps it where it is."""
    hours, believed = 12.0, Believed(power=power, error=0.4)
    life = Life(true_power, believed, hours).run()
    assert len(life.widths) <= 2 * len(WIDTHS)
    news = [width for at, width in enumerate(life.widths) if width not in life.widths[:at]]
    back = [width for at, width in enumerate(life.widths) if width in life.widths[:at]]
    assert len(back) <= len(news), "it went back to what is known more often than it had tried something"
    stay = min((HOUR_USD + w) * hours / w**true_power for w in life.widths)
    trial_h = RESTART_S / 3600.0 + 2.0 * LEARNS_H
    allowed = len(life.widths) * trial_h * (HOUR_USD + 8.0) + MEASURED_DOUBT * math.hypot(1.0, 1.2) * stay
    assert life.usd <= stay + allowed


@pytest.mark.parametrize(("hours", "tries"), [(20.0, True), (0.1, False)])
def test_a_job_near_its_end_tries_nothing(hours, tries):
    life = Life(0.9, SCALES_POORLY, hours).run()
    assert (len(life.widths) > 1) == tries


def test_over_many_truths_trying_costs_less_than_not_trying(monkeypatch):
    """Truths drawn as wide as the error says: the regret against who knows all, in the mean."""
    truths = [(0.5 + 0.12 * at, 0.5) for at in range(-2, 3)]

    def regret() -> float:
        return sum(Life(true, Believed(p, 0.3), 10.0).run().usd - best_usd(true, 10.0) for true, p in truths)

    tried = regret()
    without_trials(monkeypatch)
    assert tried < 0.5 * regret()
