"""The market is read once, and all that weigh it get that reading."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sublet.domain.budget import Budget, Limit
from sublet.domain.money import Money
from sublet.domain.money import Price as Rent
from sublet.domain.offer import Market
from sublet.domain.shape import Shape
from sublet.kernel.kernel import Kernel
from sublet.perf.preemption import read_reclaims
from sublet.planning import terms as module
from sublet.planning.terms import Row, Terms, most_gpus, most_gpus_alone
from sublet.policies.boa.policy import Boa
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.boa_ideal import BoaIdeal

SPOT = an_offer("s", gpus=4, usd_per_h="2", pool="spot", hazard_per_h=0.5, notice_s=60.0)
STEADY = an_offer("d", gpus=8, usd_per_h="16", pool="steady", market=Market.ON_DEMAND)


class Watched(dict):
    """Offers that count who looks at all of them, or at one."""

    looks = 0

    def __getitem__(self, key):
        self.looks += 1
        return super().__getitem__(key)

    def __iter__(self):
        return super().__iter__()  # so that who copies it looks at each


def snapshot(**facts):
    driver = Driver([SPOT, STEADY], **facts)
    driver.submit(a_job("a", gpus=4, work=36_000.0), a_job("b", gpus=4, max_gpus=8, work=36_000.0))
    return driver.kernel.snapshot()


def test_terms_say_pool_by_pool_what_can_be_had_and_for_how_much():
    terms = Terms.from_snapshot(snapshot(limits={"s": Limit(max_nodes=3)}))
    assert [site.pool for site in terms.sites] == ["spot", "steady"]
    assert [site.reclaims for site in terms.sites] == [read_reclaims(SPOT), read_reclaims(STEADY)]
    assert terms.rent_R == terms.listed_R == (0.5, 2.0)
    assert terms.on_demand_R == (math.inf, 2.0)
    assert terms.alone_R.tolist() == [12.0, math.inf]
    assert terms.limited
    assert terms.refusals is None


def test_what_a_purse_pays_for_is_less_together_than_alone():
    now = snapshot(budget=Budget(burn=Rent.from_usd_per_h("20"), purse=Money.from_usd("500")))
    terms = Terms.from_snapshot(now)
    assert dict(terms.most) == most_gpus(now)
    assert terms.rows == (Row("spot", "spot", ("s",)), Row("steady", "steady", ("d",)))
    assert dict(zip(now.pools, terms.alone_R.tolist(), strict=True)) == most_gpus_alone(now, terms.rows)
    assert terms.alone_R[1] == 8.0
    held_P = terms.obtainable(np.array([40.0, 8.0]))
    assert held_P @ np.array(terms.rent_R) <= 20.0


def test_what_no_limit_allows_is_never_had_and_what_is_sold_out_may_be_back():
    none, sold_out = {"s": Limit(max_nodes=0)}, snapshot()
    offers = {**sold_out.offers, "s": replace(sold_out.offers["s"], available=0)}
    assert Terms.from_snapshot(snapshot(limits=none)).ever_R.tolist() == [False, True]
    assert Terms.from_snapshot(replace(sold_out, offers=offers)).ever_R.tolist() == [True, True]


def test_what_is_sold_out_counts_for_the_long_run_and_not_for_now():
    """Else what time is worth would change as the last node of it is given back."""
    cheap, dear = (an_offer(name, gpus=1, usd_per_h=usd, pool="p") for name, usd in (("a", "1"), ("b", "2")))
    seen = Kernel([cheap, dear]).snapshot()
    none_left = replace(seen, offers={**seen.offers, "a": replace(seen.offers["a"], available=0)})
    now, then = (Terms.from_snapshot(each) for each in (seen, none_left))
    assert (now.rent_R, then.rent_R) == ((1.0,), (2.0,))
    assert now.listed_R == then.listed_R == (1.0,)
    never = replace(seen, offers={**seen.offers, "a": replace(seen.offers["a"], limit=Limit(max_nodes=0))})
    assert Terms.from_snapshot(never).listed_R == (2.0,)


def test_what_is_refused_is_noted_with_what_there_is_without_asking():
    now = snapshot()
    offers = {**now.offers, "s": replace(now.offers["s"], refused=2, held=1)}
    terms = Terms.from_snapshot(replace(now, offers=offers))
    refusals = terms.refusals
    assert refusals.refused_R.tolist() == [True, False]
    assert refusals.free_R.tolist() == [4.0, 0.0]
    assert [terms.rows_used(Shape(pool, 4)) for pool in ("spot", "steady", "gone")] == [[0], [1], []]


@pytest.mark.parametrize("policy", [Price(), BoaIdeal(), Boa()])
def test_the_market_is_read_once_per_decision(policy, monkeypatch):
    reads = []
    read = module.Terms.from_snapshot.__func__
    monkeypatch.setattr(
        module.Terms, "from_snapshot", classmethod(lambda cls, now: reads.append(now) or read(cls, now))
    )
    now = snapshot(limits={"s": Limit(max_nodes=3)})
    offers = Watched(now.offers)
    plan = policy.decide(replace(now, offers=offers))
    assert plan.shapes
    assert len(reads) == 1
    assert offers.looks == len(now.offers)  # each offer of each pool, once


def test_a_kernel_without_jobs_has_terms_too():
    terms = Terms.from_snapshot(Kernel([SPOT]).snapshot())
    assert not terms.limited
