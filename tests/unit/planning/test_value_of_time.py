"""The value of time, against the exact frontier of what is known to come."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Budget
from sublet.domain.demand import Arrivals, Demand, kind_of
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.domain.plan import JobState
from sublet.errors import InvalidValue
from sublet.kernel.kernel import Kernel
from sublet.perf.phased import Phased
from sublet.perf.speedup import Amdahl, PowerLaw
from sublet.planning.terms import Terms
from sublet.planning.value_of_time import TimePrice, constant_price, price_of_time, spending_rate
from sublet.solve.curves import Curves
from sublet.solve.price import frontier
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

WIDEST = 16
WIDTHS = np.arange(1, WIDEST + 1)
OFFER = an_offer("o", gpus=1, usd_per_h="1", market=Market.ON_DEMAND)
NOTHING = Demand()


def job_like(speed, hours=1.0, **fields):
    """A job of so many hours on one GPU."""
    return a_job(work=hours * 3600, speed=speed, gpus=1, max_gpus=WIDEST, **fields)


def demand(per_h, hours=1000.0):
    """Jobs per hour, by what they are like."""
    kinds = {kind_of(like): Arrivals(like=like, jobs=rate * hours, work=like.work) for like, rate in per_h.items()}
    return Demand(kinds=kinds, hours=hours)


def theory(per_h, usd_per_h):
    """The point of the frontier that this much money buys, worked out from the speeds alone."""
    hours_IC = [[like.work / 3600 / like.speed.speedup(int(k)) for k in WIDTHS] for like in per_h]
    weights = [like.weight for like in per_h]
    line = frontier(Curves.from_tables(hours_IC, np.array(hours_IC) * WIDTHS, weights), list(per_h.values()))
    if usd_per_h < line.least:
        return 0.0
    return line.at(usd_per_h).value_of_time


def snapshot(usd_per_h=None, *, now_h=0.0, spent="0", allowed=None, purse=None, until_h=None, **facts):
    """An instant with no job in sight."""
    budget = Budget(
        average=None if usd_per_h is None else Price.from_usd_per_h(usd_per_h),
        purse=None if purse is None else Money.from_usd(purse),
        until_s=None if until_h is None else until_h * 3600,
    )
    if allowed is None and usd_per_h is not None:
        allowed = spent  # neither surplus nor debt
    return replace(
        Kernel([OFFER], budget=budget).snapshot(),
        now_s=now_h * 3600,
        spent=Money.from_usd(spent),
        allowed=None if allowed is None else Money.from_usd(allowed),
        **{"arrived": NOTHING, "expected": None, **facts},
    )


def price(seen):
    return price_of_time(Terms.from_snapshot(seen)).usd_per_h


def bounded(value):
    """As good as nothing and as good as infinite are a millionth of the rent and a million times it."""
    return min(max(value, 1e-6), 1e6)


speeds = st.one_of(
    st.sampled_from([0.5, 0.8, 0.95]).map(lambda p: Amdahl(parallel=p)),
    st.sampled_from([0.3, 0.5, 0.9]).map(lambda e: PowerLaw(exponent=e)),
)
kinds = st.builds(job_like, speeds, st.sampled_from([0.5, 1.0, 7.0]), weight=st.sampled_from([1.0, 1.0, 3.0]))
mixes = st.lists(
    st.tuples(kinds, st.sampled_from([0.1, 0.4, 3.0])), min_size=1, max_size=4, unique_by=lambda k: kind_of(k[0])
).map(dict)
budgets = st.integers(1, 4000).map(lambda n: n / 20 + 0.0137)  # no sum of costs, so that no rounding decides


# ---------------------------------------------------------------------- a known demand


@settings(max_examples=examples(60))
@given(mixes, budgets)
def test_without_debt_the_price_is_that_of_the_exact_frontier(mix, usd_per_h):
    seen = snapshot(usd_per_h, expected=demand(mix))
    expected = pytest.approx(bounded(theory(mix, usd_per_h)), rel=1e-9)
    assert price(seen) == expected
    assert constant_price(Terms.from_snapshot(seen)).usd_per_h == expected


def test_the_published_example_has_its_published_price():
    """Amdahl 0.8 and a square root, 0.4 jobs per hour each, 2 GPUs on average: widths 6 and 9, time worth 9 GPUs."""
    mix = {job_like(Amdahl(parallel=0.8)): 0.4, job_like(PowerLaw(exponent=0.5)): 0.4}
    assert price(snapshot("2", expected=demand(mix))) == pytest.approx(9.0, abs=0.6)


@given(mixes, budgets, budgets)
def test_more_budget_never_makes_time_cheaper(mix, one, other):
    expected = demand(mix)
    low, high = sorted((one, other))
    assert price(snapshot(low, expected=expected)) <= price(snapshot(high, expected=expected))


@given(mixes, budgets, st.integers(-2000, 2000))
def test_a_surplus_raises_the_price_and_a_debt_lowers_it(mix, usd_per_h, over):
    expected = demand(mix)
    even = price(snapshot(usd_per_h, expected=expected, spent="5000"))
    now = price(snapshot(usd_per_h, expected=expected, spent=str(5000 - over), allowed="5000"))
    assert now >= even if over >= 0 else now <= even


def test_a_surplus_is_spent_within_five_days():
    def rate(now_h, spent):
        return spending_rate(snapshot("10", now_h=now_h, spent=spent, allowed="1000"))

    assert rate(1.0, "520") == pytest.approx(10 + 480 / 120)
    assert rate(1e4, "160") == pytest.approx(10 + 840 / 120)
    assert rate(1.0, "1240") == pytest.approx(10 - 240 / 120)
    assert rate(1.0, "9999") == 0.0


def test_without_any_limit_time_is_priceless():
    assert spending_rate(snapshot()) == math.inf
    assert price(snapshot(expected=demand({job_like(Amdahl(parallel=0.5)): 1.0}))) == 1e6
    assert price(snapshot()) == 1e6


# ---------------------------------------------------------------------- forecast and counts


@given(mixes, budgets, st.sampled_from([0.1, 0.5, 1.0, 2.0]), st.sampled_from([1.0, 20.0, 300.0, 5000.0]))
def test_a_forecast_and_what_was_counted_are_weighed_by_the_hours_they_stand_for(mix, usd_per_h, truth, now_h):
    """The forecast counts as three days, or as long as fifty jobs take to come if that is more."""
    forecast_h = max(72.0, 50.0 / sum(mix.values()))
    seen = snapshot(
        usd_per_h,
        now_h=now_h,
        expected=demand(mix),
        arrived=demand({like: truth * rate for like, rate in mix.items()}, hours=now_h),
    )
    share = (forecast_h + truth * now_h) / (forecast_h + now_h)
    blended = {like: share * rate for like, rate in mix.items()}
    assert price(seen) == pytest.approx(bounded(theory(blended, usd_per_h)), rel=1e-9)


@given(mixes, budgets)
def test_what_was_counted_for_long_outweighs_any_forecast(mix, usd_per_h):
    wrong = {like: 5 * rate for like, rate in mix.items()}
    facts = {"expected": demand(wrong), "arrived": demand(mix, hours=1e7), "now_h": 1e7}
    seen = snapshot(usd_per_h, **facts)
    around = [bounded(theory(mix, factor * usd_per_h)) for factor in (0.998, 1.002)]
    assert around[0] * (1 - 1e-9) <= price(seen) <= around[1] * (1 + 1e-9)


@given(mixes, budgets, st.sampled_from([1.0, 9.0, 500.0]))
def test_without_a_forecast_the_count_is_taken_as_if_a_silent_hour_had_gone_before(mix, usd_per_h, now_h):
    seen = snapshot(usd_per_h, now_h=now_h, arrived=demand(mix, hours=now_h))
    slower = {like: rate * now_h / (now_h + 1) for like, rate in mix.items()}
    expected = pytest.approx(bounded(theory(slower, usd_per_h)), rel=1e-9)
    assert price(seen) == expected
    assert constant_price(Terms.from_snapshot(seen)).usd_per_h == expected


def test_the_constant_price_does_not_look_at_what_is_spent_or_counted():
    mix = {job_like(Amdahl(parallel=0.8)): 0.4, job_like(PowerLaw(exponent=0.5)): 0.4}
    plain = snapshot("2", expected=demand(mix))
    later = snapshot(
        "2",
        now_h=500.0,
        spent="9000",
        allowed="1000",
        expected=demand(mix),
        arrived=demand({next(iter(mix)): 9.0}, 500.0),
    )
    assert constant_price(Terms.from_snapshot(plain)) == constant_price(Terms.from_snapshot(later))


def test_a_forecast_of_no_jobs_at_all_is_no_forecast():
    silent = demand({job_like(Amdahl(parallel=0.8)): 0.0})
    arrived = demand({job_like(Amdahl(parallel=0.8)): 2.0}, hours=1.0)
    alone, told = (snapshot("2", now_h=1.0, expected=each, arrived=arrived) for each in (None, silent))
    assert price(told) == price(alone)


def test_a_kind_of_which_none_is_expected_changes_nothing():
    comes, stays_away = job_like(Amdahl(parallel=0.8)), job_like(PowerLaw(exponent=0.5))
    plain, more = (snapshot("2", expected=demand(mix)) for mix in ({comes: 1.0}, {comes: 1.0, stays_away: 0.0}))
    assert price(more) == price(plain)


@pytest.mark.parametrize("facts", [{"jobs": -1.0}, {"jobs": math.nan}, {"work": 0.0}, {"work": -2.0}])
def test_arrivals_that_cannot_be_are_refused(facts):
    with pytest.raises(InvalidValue):
        Arrivals(**{"like": a_job(), "jobs": 1.0, "work": 1.0, **facts})


def test_a_forecast_without_hours_is_no_forecast_for_the_constant_price_either():
    arrived = demand({job_like(Amdahl(parallel=0.8)): 2.0}, hours=1.0)
    timeless = Demand.from_jobs([job_like(Amdahl(parallel=0.8))], 0.0)
    alone, told = (snapshot("2", now_h=1.0, expected=each, arrived=arrived) for each in (None, timeless))
    assert price(told) == price(alone)
    constant = [constant_price(Terms.from_snapshot(each)).usd_per_h for each in (told, alone)]
    assert constant[0] == pytest.approx(constant[1])


@pytest.mark.parametrize("price_at", [price_of_time, constant_price])
def test_a_job_that_gets_stuck_in_one_of_its_phases_has_no_say(price_at):
    """Such a job may come at any time: a quota may leave it no width that can run its last phase."""
    fine = job_like(Amdahl(parallel=0.8))
    stuck = a_job(work=200.0, speed=Phased(ends=(100.0, 200.0), rates=lambda gpu, spread: (1.0, 0.0)))
    jobs = [fine, replace(fine, id="b")]
    plain, more = (snapshot("3", expected=Demand.from_jobs(each, 1.0)) for each in (jobs, [*jobs, stuck]))
    found = [price_at(Terms.from_snapshot(each)).usd_per_h for each in (plain, more)]
    assert found[1] == pytest.approx(found[0])


# ---------------------------------------------------------------------- a purse


def present(count, like, purse, *, now_h=0.0, expected=None):
    """A kernel in which so many such jobs wait."""
    driver = Driver([OFFER], budget=Budget(purse=Money.from_usd(purse)))
    driver.submit(*(replace(like, id=f"j{n}") for n in range(count)))
    return replace(driver.kernel.snapshot(), now_s=now_h * 3600, expected=expected)


@given(st.integers(0, 20), speeds, st.integers(1, 400), st.sampled_from([0.0, 0.25, 1.0, 3.0]))
def test_a_purse_without_an_end_has_to_do_for_the_jobs_that_are_here_and_those_forecast(count, speed, usd, part):
    like, usd = job_like(speed, hours=2.0), usd + 0.137
    seen = present(count, like, usd, now_h=100 * part, expected=demand({like: 0.3}, hours=100.0))
    assert seen.left == Money.from_usd(usd)
    jobs = max(1.0, count + 30 * max(0.0, 1 - part))
    assert price(seen) == pytest.approx(bounded(theory({like: jobs}, usd)), rel=1e-9)


@given(st.integers(1, 20), st.integers(0, 20), speeds, st.integers(1, 400))
def test_the_more_jobs_a_purse_has_to_do_for_the_cheaper_their_time(count, more, speed, usd):
    like = job_like(speed, hours=2.0)
    assert price(present(count + more, like, usd)) <= price(present(count, like, usd))


@given(speeds, st.integers(1, 400), st.sampled_from([1.0, 10.0, 200.0]))
def test_a_purse_that_must_last_is_spent_evenly_until_then(speed, usd, hours):
    mix, usd = {job_like(speed): 2.0}, usd + 0.137
    seen = snapshot(purse=usd, until_h=hours + 5.0, now_h=5.0, expected=demand(mix), arrived=demand(mix, hours=5.0))
    assert spending_rate(seen) == pytest.approx(usd / hours)
    assert price(seen) == pytest.approx(bounded(theory(mix, usd / hours)), rel=1e-9)


@given(speeds, st.integers(1, 400), st.integers(1, 400))
def test_of_a_purse_and_an_average_the_tighter_counts(speed, purse, usd_per_h):
    mix = {job_like(speed): 2.0}
    both = snapshot(usd_per_h, purse=purse, until_h=10.0, expected=demand(mix))
    alone = (snapshot(usd_per_h, expected=demand(mix)), snapshot(purse=purse, until_h=10.0, expected=demand(mix)))
    assert price(both) == min(map(price, alone))


def test_when_the_time_of_a_purse_is_over_only_rent_counts():
    seen = snapshot(purse=100, until_h=1.0, now_h=2.0, expected=demand({job_like(Amdahl(parallel=0.5)): 1.0}))
    assert spending_rate(seen) == 0.0
    assert price(seen) == 1e-6


# ---------------------------------------------------------------------- jobs at this price


@given(st.floats(0.0, 1.0), st.integers(1, 400), st.integers(0, 1000), st.sampled_from([1, 2, 3, 5]))
def test_of_any_jobs_in_a_row_the_share_acts_as_if_time_were_dearer(share, count, first, step):
    """The multiples of the golden ratio are spread so evenly that no stretch is off by more than a few jobs."""
    found = TimePrice(10.0, share)
    values = [found.of(JobState(job=a_job(), seq=first + step * n)) for n in range(count)]
    assert all(value == pytest.approx(10.0, rel=1e-8) for value in values)
    assert sum(value > 10.0 for value in values) == pytest.approx(share * count, abs=6.0)


@given(st.floats(0.0, 1.0), st.integers(0, 1000), st.sampled_from([0.5, 1.0, 8.0]))
def test_a_job_stays_on_its_side_and_its_weight_multiplies_its_time(share, seq, weight):
    found = TimePrice(10.0, share)
    light, heavy = (JobState(job=a_job(weight=each), seq=seq) for each in (1.0, weight))
    assert found.of(heavy) == pytest.approx(weight * found.of(light), rel=1e-15)
    assert TimePrice(20.0, share).of(light) == pytest.approx(2 * found.of(light), rel=1e-15)
