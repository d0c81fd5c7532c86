"""What a job's training would have cost on demand, and which part of it was made again: worked out by hand."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Limit
from sublet.domain.money import Money
from sublet.domain.offer import Market
from sublet.kernel.journal import steps_from
from sublet.kernel.kernel import Kernel
from sublet.policies.fifo import Fifo
from sublet.runtime.controller.money.bill import Bill
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.booking import booked

OFFERS = (
    an_offer("spot", gpus=4, usd_per_h="2", pool="p"),
    an_offer("dear", gpus=4, usd_per_h="12", market=Market.ON_DEMAND),
    an_offer("listed", gpus=4, usd_per_h="8", market=Market.ON_DEMAND),
    an_offer("other", gpus=1, usd_per_h="0.1", market=Market.ON_DEMAND, gpu="A100"),
)
LIMITS = {"spot": Limit(min_nodes=1, max_nodes=1)} | {name: Limit(max_nodes=0) for name in ("dear", "listed", "other")}


@pytest.fixture
def bill():
    """A job has trained on two of four GPUs for an hour: USD 1 of spot."""
    driver = Driver(OFFERS, limits=LIMITS)
    driver.submit(a_job("a", gpus=2, max_gpus=2, work=1e9))
    driver.settle(Fifo())
    kernel = Kernel(OFFERS, limits=LIMITS)
    made = Bill(kernel, trains=lambda _: True)
    for step in steps_from(driver.journal[1:], first=2):
        booked(made, step.event, step.orders)
    made.settle(3600.0)
    return made


def test_on_demand_is_the_cheapest_offer_of_the_same_kind_for_the_gpus_that_it_had(bill):
    assert Money(bill.jobs["a"].useful) == Money.from_usd("1")
    assert Money(bill.jobs["a"].on_demand) == Money.from_usd("4")  # two of the four GPUs of USD 8


def test_of_what_was_useful_the_share_of_the_steps_that_are_lost_is_redone(bill):
    bill.book_redone("a", steps=30, of_steps=120)
    account = bill.jobs["a"]
    assert (Money(account.redone), Money(account.useful)) == (Money.from_usd("0.25"), Money.from_usd("0.75"))
    assert Money(account.on_demand) == Money.from_usd("3")  # what was made again would not be paid for there


@pytest.mark.parametrize(("steps", "of_steps"), [(120, 120), (200, 120), (5, 0)])
def test_no_more_is_redone_than_there_was(bill, steps, of_steps):
    bill.book_redone("a", steps=steps, of_steps=of_steps)
    assert (Money(bill.jobs["a"].redone), bill.jobs["a"].useful) == (Money.from_usd("1"), 0)
