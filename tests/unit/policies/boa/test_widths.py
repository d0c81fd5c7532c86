"""The widths of the published system: within the budget with all rescales, and never better than theory allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Budget, Limit
from sublet.domain.demand import Demand, kind_of
from sublet.domain.money import Price as Usd
from sublet.domain.offer import Market
from sublet.domain.plan import Phase
from sublet.errors import Infeasible
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, Linear, PowerLaw
from sublet.planning.terms import Terms
from sublet.policies.boa.policy import Boa, _rounded, boa_widths
from sublet.solve.curves import Curves
from sublet.solve.phases import Phases
from sublet.solve.price import frontier
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.plan_search import best_for_budget

OFFER = an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)
SITES = Terms.from_snapshot(Kernel([OFFER]).snapshot()).sites
WIDEST = 8
WIDTHS = np.arange(1, WIDEST + 1)


@dataclass(frozen=True)
class App:
    """An application whose epochs scale each by its own power, so many jobs of it per hour."""

    exponents: tuple[float, ...]
    epoch_h: float
    restart_s: float
    per_h: int

    def hours(self, epoch, gpus):
        return self.epoch_h / gpus ** self.exponents[epoch]

    def job(self, name):
        ends = tuple(3600 * self.epoch_h * (1 + epoch) for epoch in range(len(self.exponents)))
        speed = Phased(ends=ends, rates=lambda gpu, spread: [sum(spread) ** x for x in self.exponents])
        return a_job(name, work=ends[-1], speed=speed, gpus=1, max_gpus=WIDEST, restart_s=self.restart_s, model=name)

    def bill(self, widths):
        """USD and hours of one job: the start and every change are a rescale, at the new width."""
        usd = hours = 0.0
        for epoch, gpus in enumerate(widths):
            pause_h = self.restart_s / 3600 if epoch == 0 or gpus != widths[epoch - 1] else 0.0
            time_h = pause_h + self.hours(epoch, gpus)
            usd, hours = usd + gpus * time_h, hours + time_h
        return usd, hours


apps = st.builds(
    App,
    exponents=st.lists(st.sampled_from([0.0, 0.3, 0.6, 0.9]), min_size=1, max_size=25).map(tuple),
    epoch_h=st.sampled_from([0.02, 0.1, 0.5]),
    restart_s=st.sampled_from([0.0, 30.0, 300.0]),
    per_h=st.integers(1, 3),
)


def widths_of(drawn, usd_per_h):
    jobs = [app.job(f"app{at}") for at, app in enumerate(drawn)]
    arriving = [job for job, app in zip(jobs, drawn, strict=True) for _ in range(app.per_h)]
    found = boa_widths(Demand.from_jobs(arriving, 1.0), SITES, 1.0, usd_per_h, 0)
    return None if found is None else [found[kind_of(job)] for job in jobs]


def theory(drawn, usd_per_h):
    """The mean number of jobs in the system under the best plans of all, restarts included."""
    tables = []
    most = max(len(app.exponents) for app in drawn)
    for app in drawn:
        table = [[app.hours(epoch, int(k)) for k in WIDTHS] for epoch in range(len(app.exponents))]
        tables.append(table + [[0.0] * WIDEST] * (most - len(table)))
    restart = [app.restart_s / 3600 for app in drawn]
    phases = Phases.from_tables(tables, np.tile(WIDTHS, (len(drawn), 1)), restart=restart, start=restart)
    return best_for_budget(phases, [app.per_h for app in drawn], usd_per_h)


def floor(drawn):
    """The least that can be spent."""
    return theory(drawn, 1e9).least


cases = st.tuples(st.lists(apps, min_size=1, max_size=3), st.sampled_from([0.9, 1.05, 1.5, 3.0]))


@settings(max_examples=25, deadline=None)
@given(cases)
def test_what_is_planned_is_spent_within_the_budget_with_every_rescale(case):
    drawn, factor = case
    budget = factor * floor(drawn)
    found = widths_of(drawn, budget)
    if found is None:
        return
    assert [len(widths) for widths in found] == [len(app.exponents) for app in drawn]
    assert all(1 <= gpus <= WIDEST for widths in found for gpus in widths)
    spend = sum(app.per_h * app.bill(widths)[0] for app, widths in zip(drawn, found, strict=True))
    assert spend <= budget * (1 + 1e-9)
    jobs = sum(app.per_h * app.bill(widths)[1] for app, widths in zip(drawn, found, strict=True))
    assert jobs >= theory(drawn, budget).jobs * (1 - 1e-9)  # and nothing is better than the best


@settings(max_examples=20, deadline=None)
@given(st.lists(apps, min_size=1, max_size=2), st.sampled_from([0.1, 0.9, 0.999]))
def test_a_budget_that_nothing_fits_gives_no_plan(drawn, factor):
    assert widths_of(drawn, factor * floor(drawn)) is None
    with pytest.raises(Infeasible):
        theory(drawn, factor * floor(drawn))


@settings(max_examples=20, deadline=None)
@given(st.lists(apps.filter(lambda app: len(set(app.exponents)) == 1), min_size=1, max_size=3))
def test_a_budget_beyond_all_needs_gives_everybody_the_fastest_width(drawn):
    for app, widths in zip(drawn, widths_of(drawn, 1e9), strict=True):
        fastest = app.bill([WIDEST] * len(app.exponents))[1]
        assert app.bill(widths)[1] == pytest.approx(fastest)


def test_the_published_example_gets_its_published_widths():
    """Amdahl 0.8 and a square root, 0.4 jobs of an hour per hour each, 2 GPUs on average: 6 and 9."""
    amdahl, root = (
        a_job(name, work=3600.0, speed=speed, gpus=1, max_gpus=30, model=name)
        for name, speed in (("amdahl", Amdahl(parallel=0.8)), ("root", PowerLaw(exponent=0.5)))
    )
    found = boa_widths(Demand.from_jobs([amdahl, root], 2.5), SITES, 1.0, 2.0, 0)
    (six,), (nine,) = found[kind_of(amdahl)], found[kind_of(root)]
    assert abs(six - 6) <= 1
    assert abs(nine - 9) <= 1
    spend = 0.4 * six * (0.2 + 0.8 / six) + 0.4 * nine / nine**0.5
    assert 1.9 <= spend <= 2.0


def test_the_same_seed_gives_the_same_widths_and_rates_scale_with_the_budget():
    drawn = [App((0.1,) * 6 + (0.9,) * 14, 0.1, 60.0, 1), App((0.5,) * 12, 0.2, 10.0, 2)]
    twice = [App(app.exponents, app.epoch_h, app.restart_s, 2 * app.per_h) for app in drawn]
    budget = 1.7 * floor(drawn)
    assert widths_of(drawn, budget) == widths_of(drawn, budget) == widths_of(twice, 2 * budget)


def test_late_epochs_that_scale_get_more_than_early_ones_that_do_not():
    (widths,) = widths_of([App((0.0,) * 10 + (0.95,) * 10, 0.1, 1.0, 1)], 3.0)
    assert set(widths[:10]) == {1}
    assert min(widths[11:]) > 1


# ---------------------------------------------------------------------- what the policy makes of them


def plan_with(jobs, offers, usd_per_h):
    budget = Budget(average=Usd.from_usd_per_h(usd_per_h))
    driver = Driver(offers, budget=budget)
    driver.kernel = Kernel(offers, budget=budget, expected=Demand.from_jobs(jobs, 1.0))
    driver.submit(*jobs)
    driver.settle(Boa())
    return driver.kernel


def test_a_forecast_of_jobs_that_cannot_run_on_the_cheapest_kind_gives_no_plan():
    job = a_job(speed=Linear(kinds={"A100": 1.0}))
    assert boa_widths(Demand.from_jobs([job], 1.0), SITES, 1.0, 50.0, 0) in (None, {})


def test_no_job_is_started_on_a_kind_on_which_it_cannot_run():
    offers = [OFFER, an_offer("a", gpus=1, usd_per_h="4", gpu="A100", market=Market.ON_DEMAND)]
    driver = Driver(offers, budget=Budget(average=Usd.from_usd_per_h("50")))
    driver.submit(a_job(speed=Linear(kinds={"A100": 1.0})))
    driver.settle(Boa())
    for state in driver.kernel.jobs.values():
        assert state.phase is Phase.WAITING or state.job.speed.rate(state.gpu, state.spread, 0.0) > 0


def test_epochs_that_run_on_different_widths_only_are_not_glued():
    """Memory may forbid few GPUs early and many late; blocks of one epoch are then the only plan."""
    ends = tuple(100.0 * (1 + epoch) for epoch in range(20))
    speed = Phased(ends=ends, rates=lambda gpu, spread: [float(sum(spread) == 1 + epoch % 2) for epoch in range(20)])
    job = a_job(work=2000.0, speed=speed, gpus=1, max_gpus=2)
    found = boa_widths(Demand.from_jobs([job], 1.0), SITES, 1.0, 50.0, 0)
    assert found == {kind_of(job): [1, 2] * 10}


def test_a_job_in_the_forecast_that_gets_stuck_does_not_stop_the_others():
    stuck = a_job("stuck", work=200.0, speed=Phased(ends=(100.0, 200.0), rates=lambda gpu, spread: (1.0, 0.0)))
    assert "fine" in plan_with([stuck, a_job("fine")], [OFFER], "50").active


def test_jobs_get_the_widths_of_their_kind_and_the_others_what_they_asked_for():
    known = a_job("known", work=3600.0, speed=PowerLaw(exponent=0.5), gpus=2, max_gpus=30)
    other = a_job("other", work=3600.0, speed=PowerLaw(exponent=0.6), gpus=3, max_gpus=30)
    budget = Budget(average=Usd.from_usd_per_h("3"))
    driver = Driver([OFFER], budget=budget)
    driver.kernel = Kernel([OFFER], budget=budget, expected=Demand.from_jobs([known], 1.0))
    driver.submit(known, other)
    driver.settle(Boa())
    assert driver.kernel.active["known"].shape.gpus == 9  # sqrt(9) hours of one GPU cost 3
    assert driver.kernel.active["other"].shape.gpus == 3


@pytest.mark.parametrize("budget", [5.97, 6.53, 7.03, 7.69])
def test_a_budget_that_rounding_overspends_is_shrunk_by_a_hundredth_at_a_time(budget):
    """A square root on up to 64 GPUs: k of them cost the root of k, and neighbours are less than 2 % apart."""
    job = a_job(work=3600.0, speed=PowerLaw(exponent=0.5), gpus=1, max_gpus=64)
    ((gpus,),) = boa_widths(Demand.from_jobs([job], 1.0), SITES, 1.0, budget, 0).values()
    assert 0.98 * budget <= gpus**0.5 <= budget


@pytest.mark.parametrize(("usd_per_h", "columns"), [(4.0, [0]), (7.5, [0]), (7.6, [1]), (8.0, [1])])
def test_a_mixture_is_rounded_to_the_width_whose_speed_is_nearer(usd_per_h, columns):
    """Four hours for 4 USD or half of one for 8, one job an hour. With the share s of the second: 4 - 3.5 s hours.

    Half way between the speeds 0.25 and 2 is 1.125, which is 0.889 hours: s is 0.889 there, for 7.556 USD.
    """
    hours_XC = np.array([[4.0, 0.5]])
    line = frontier(Curves.from_tables(hours_XC, [[4.0, 8.0]]), [1.0])
    assert _rounded(line, usd_per_h, hours_XC).tolist() == columns


@pytest.mark.parametrize(("most", "pool"), [(8, "cheap"), (0, "dear")])
def test_of_several_kinds_it_knows_the_cheapest_of_which_there_is_any(most, pool):
    offers = [
        an_offer("dear", gpus=1, usd_per_h="4", gpu="A100", pool="dear", market=Market.ON_DEMAND),
        an_offer("cheap", gpus=1, usd_per_h="1", pool="cheap", market=Market.ON_DEMAND),
    ]
    driver = Driver(offers, limits={"cheap": Limit(max_nodes=most)}, budget=Budget(average=Usd.from_usd_per_h("50")))
    driver.submit(a_job(speed=Linear()))
    driver.settle(Boa())
    assert driver.kernel.jobs["a"].shape.pool == pool


@pytest.mark.parametrize("first", [2, 6])
def test_kinds_that_may_be_differently_wide_are_planned_together(first):
    """With money enough each has all that it may."""
    jobs = [
        a_job(f"to{most}", work=3600.0, gpus=1, max_gpus=most, speed=PowerLaw(exponent=0.9), model=f"to{most}")
        for most in (first, 8 - first)
    ]
    found = boa_widths(Demand.from_jobs(jobs, 1.0), SITES, 1.0, 100.0, 0)
    assert {kind: list(widths) for kind, widths in found.items()} == {kind_of(job): [job.max_gpus] for job in jobs}
