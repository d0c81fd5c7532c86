"""What an hour is worth where no budget says so: the choice of one job against every shape it could have."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.domain.budget import Budget
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.perf.speedup import Amdahl, Table
from sublet.planning.menu import menu_of
from sublet.planning.terms import Terms
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.sizes import examples

HURRY = math.inf  # an hour that is worth more than any rent
AMPLE = Budget(purse=Money.from_usd("100000"))
rents = st.sampled_from(["0.07", "0.29", "0.53", "1.58", "3.1"])
speeds = st.one_of(
    st.sampled_from([0.5, 0.9, 0.95, 1.0]).map(lambda part: Amdahl(parallel=part)),
    st.lists(st.sampled_from([0.0, 0.4, 1.0, 1.7, 2.5]), min_size=4, max_size=4)
    .filter(any)
    .map(lambda rates: Table(rates={"T4": dict(enumerate(rates, start=1))})),
)


@st.composite
def cases(draw):
    """A cheap and a dear market of the same GPU, and a job of one to four workers."""
    spot, steady = sorted([draw(rents), draw(rents)], key=float)
    offers = [
        an_offer("s", gpus=1, usd_per_h=spot, hazard_per_h=draw(st.sampled_from([0.0, 0.5, 4.0])), boot_s=60.0),
        an_offer("d", gpus=1, usd_per_h=steady, market=Market.ON_DEMAND, boot_s=30.0),
    ]
    low = draw(st.integers(1, 3))
    job = a_job(
        work=draw(st.sampled_from([60.0, 3600.0, 86_400.0])),
        speed=draw(speeds),
        gpus=low,
        min_gpus=low,
        max_gpus=4,
        restart_s=draw(st.sampled_from([0.0, 60.0])),
        checkpoint_every_s=600.0,
    )
    return offers, job


def choice(offers, job, policy, budget=AMPLE):
    """Shape, hours to the end and rent per hour of every shape it could have; which it takes."""
    driver = Driver(offers, budget=budget)
    driver.submit(job)
    snapshot = driver.kernel.snapshot()
    menu = menu_of(job, Terms.from_snapshot(snapshot).sites)
    taken = policy.decide(snapshot).shapes.get(job.id)
    usd = {
        site.pool: offer.price.usd_per_h
        for site, offer in zip(Terms.from_snapshot(snapshot).sites, offers, strict=True)
    }
    table = {}
    for at, shape in enumerate(menu.shapes):
        rate = menu.rate_EC[0][at]
        if rate > 0:
            table[shape] = (menu.start_C[at] + job.work / rate, shape.gpus * usd[shape.pool])
    return table, taken


def worth(table):
    """What the least that it can run on costs on demand; by hand."""
    return min(rent for shape, (_, rent) in table.items() if shape.pool.endswith("on-demand"))


@settings(max_examples=examples(150), deadline=None)
@given(cases())
def test_a_job_takes_what_time_and_rent_together_make_cheapest(case):
    offers, job = case
    table, taken = choice(offers, job, Price())
    if not table:
        assert taken is None
        return
    v = worth(table)
    cost = {shape: (v + rent) * hours for shape, (hours, rent) in table.items()}
    assert cost[taken] <= min(cost.values()) * (1 + 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(cases())
def test_it_never_pays_more_than_in_a_hurry_and_is_not_slowed_down_for_less_than_it_is_worth(case):
    offers, job = case
    table, taken = choice(offers, job, Price())
    _, quick = choice(offers, job, Price(hour_usd=HURRY))
    if not table:
        return
    (hours, rent), (least_h, most_rent) = table[taken], table[quick]
    assert least_h == min(h for h, _ in table.values())
    assert hours * rent <= least_h * most_rent * (1 + 1e-9)
    v = worth(table)
    assert hours / least_h <= (v + most_rent) / (v + rent) * (1 + 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(cases(), st.lists(st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 100.0, HURRY]), min_size=2, max_size=2))
def test_a_dearer_hour_never_takes_longer_and_never_costs_less(case, hours_usd):
    offers, job = case
    found = []
    for usd in sorted(hours_usd):
        table, taken = choice(offers, job, Price(hour_usd=usd))
        if not table:
            return
        hours, rent = table[taken]
        found.append((hours, hours * rent))
    (slow_h, cheap), (fast_h, dear) = found
    assert fast_h <= slow_h * (1 + 1e-9)
    assert dear >= cheap * (1 - 1e-9)


@settings(max_examples=examples(100), deadline=None)
@given(cases())
def test_a_job_in_a_hurry_chooses_as_if_all_were(case):
    offers, job = case
    one = choice(offers, replace(job, hurry=True), Price())
    all_of_them = choice(offers, job, Price(hour_usd=HURRY))
    assert one == all_of_them
