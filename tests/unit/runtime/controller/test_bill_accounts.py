"""What a job's grains were for, and how they change their purpose: worked out by hand."""

from __future__ import annotations

import json

import pytest

from sublet.domain.actions import MakePlan
from sublet.domain.events import JobFailed, JobFinished, NodeLost, PriceChanged, PriceHeardLate
from sublet.domain.money import Money, Price
from sublet.domain.offer import Market
from sublet.domain.plan import Plan
from sublet.domain.shape import Shape
from sublet.kernel.journal import steps_from
from sublet.kernel.kernel import Kernel
from sublet.runtime.controller.inbox import Ending
from sublet.runtime.controller.money.bill import Account, Bill, Purpose
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from tests.rigs.booking import booked

HOUR_S = 3600.0


def account(**grains):
    return Account(**{"useful": 60, "unknown": 40, "on_demand": 200, **grains})


def parts(of):
    return (of.useful, of.unknown, of.redone, of.restart, of.checkpoint, of.on_demand)


# ---------------------------------------------------------------------- one account


def test_all_purposes_make_the_total_and_what_on_demand_would_have_cost_is_none_of_them():
    told = Account(useful=1, unknown=2, redone=4, restart=8, idle=16, checkpoint=32, on_demand=64, training_gpu_us=128)
    assert told.total == Money(63)
    split = {"useful": 1, "unknown": 2, "redone": 4, "restart": 8, "idle": 16, "checkpoint": 32, "on_demand": 64}
    assert told.split() == split


@pytest.mark.parametrize(
    ("purpose", "grains", "found"),
    [
        (Purpose.REDONE, 10, (60, 30, 10, 0, 0, 180)),  # of the unknown first; a tenth would not have cost anything
        (Purpose.REDONE, 70, (30, 0, 70, 0, 0, 60)),
        (Purpose.RESTART, 70, (30, 0, 0, 70, 0, 60)),
        (Purpose.CHECKPOINT, 70, (30, 0, 0, 0, 70, 200)),  # a checkpoint is written on demand, too
        (Purpose.REDONE, 999, (0, 0, 100, 0, 0, 0)),
        (Purpose.REDONE, -5, (60, 40, 0, 0, 0, 200)),
    ],
)
def test_training_turns_out_to_have_been_for_something_else(purpose, grains, found):
    made = account()
    made.move(purpose, grains)
    assert parts(made) == found


def test_where_nothing_was_trained_nothing_is_moved():
    made = Account(restart=9, on_demand=5)
    made.move(Purpose.REDONE, 3)
    assert parts(made) == (0, 0, 0, 9, 0, 5)


@pytest.mark.parametrize(
    ("grains", "found"),
    [
        (5, (60, 40, 5, 7, 0, 200)),
        (-5, (60, 40, 0, 2, 0, 200)),  # there is nothing of it: of what restarts took
        (-9, (60, 38, 0, 0, 0, 200)),  # then of what is unknown, and of what was useful
        (-50, (57, 0, 0, 0, 0, 200)),
    ],
)
def test_what_is_taken_back_comes_from_where_there_is_some(grains, found):
    made = account(restart=7)
    made.book(Purpose.REDONE, grains)
    assert parts(made) == found
    assert made.total == Money(107 + grains)


@pytest.mark.parametrize(("grains", "kept"), [(15, 15), (40, 40), (99, 40), (-3, 0)])
def test_what_is_saved_is_useful(grains, kept):
    made = account()
    made.keep(grains)
    assert parts(made) == (60 + kept, 40 - kept, 0, 0, 0, 200)


@pytest.mark.parametrize(("grains", "lost", "on_demand"), [(15, 15, 170), (99, 60, 80), (-3, 0, 200)])
def test_what_was_thrown_away_is_of_the_useful_alone(grains, lost, on_demand):
    made = account()
    made.throw_away(grains)
    assert parts(made) == (60 - lost, 40, lost, 0, 0, on_demand)
    nothing = Account(on_demand=3)
    nothing.throw_away(5)
    assert parts(nothing) == (0, 0, 0, 0, 0, 3)


def test_a_split_that_was_noted_is_taken_over_and_what_came_since_was_training():
    """The log has 130 grains of training, 390 on demand; 100 of them were noted, with another purpose in part."""
    for training, found in ((Purpose.USEFUL, (80, 30, 20, 0, 0, 250)), (Purpose.UNKNOWN, (50, 60, 20, 0, 0, 250))):
        made = Account(useful=130, on_demand=390)
        made.restore_split({"useful": 50, "unknown": 30, "redone": 20, "on_demand": 160}, training)
        assert parts(made) == found  # 30 more, and three times as much on demand
        assert made.total == Money(130)


def test_what_the_log_lacks_of_a_split_comes_again():
    made = Account(useful=90, on_demand=270)
    made.restore_split({"useful": 3, "unknown": 50, "redone": 60, "on_demand": 160}, Purpose.USEFUL)
    assert parts(made) == (0, 30, 60, 0, 0, 160)  # 23 too many: the training first, then the others in their order
    assert made.total == Money(90)


def test_a_version_that_noted_only_what_it_had_moved_is_understood():
    made = account()
    made.restore_split({"redone": 10, "checkpoint": 40}, Purpose.USEFUL)
    assert parts(made) == (50, 0, 10, 0, 40, 180)


# ---------------------------------------------------------------------- a bill beside a kernel


OFFERS = (
    an_offer("spot", gpus=4, usd_per_h="4", pool="p"),
    an_offer("sure", gpus=4, usd_per_h="12", pool="p", market=Market.ON_DEMAND),
)


class World:
    """A job that runs from 0 s on, a bill before its kernel, and what the bill is told of the job."""

    def __init__(self, gpus, hold, **told):
        self.trains, self.working = True, None
        self.kernel = Kernel(OFFERS)
        self.bill = Bill(self.kernel, trains=lambda _: self.trains, working=lambda _: self.working, **told)
        driver = Driver(OFFERS)
        driver.submit(a_job("a", work=1e9, gpus=gpus, min_gpus=1, max_gpus=8))
        driver.plan(Plan(shapes={"a": Shape("p", gpus)}, hold=hold))
        while orders := [order for order in driver.open if not isinstance(order, MakePlan)]:
            driver.answer(orders[0])
        for step in steps_from(driver.journal[1:], first=2):
            booked(self.bill, step.event, step.orders)

    @property
    def account(self):
        return self.bill.jobs["a"]

    def usd(self, *purposes):
        return tuple(Money(getattr(self.account, purpose)).usd for purpose in purposes)


def test_a_job_pays_for_its_gpus_and_the_rest_of_the_node_is_unused():
    world = World(3, {"spot": 1})
    world.bill.settle(HOUR_S)
    assert world.usd("useful", "on_demand") == (3.0, 9.0)  # three GPUs for an hour: of 4 USD for four, of 12 on demand
    assert (Money(world.bill.unused).usd, world.bill.total.usd) == (1.0, 4.0)
    assert world.account.training_gpu_us == 3 * HOUR_S * 1e6
    assert (world.bill.burn_usd_per_h("a"), world.bill.burn_usd_per_h("nobody")) == (3.0, 0.0)
    assert world.bill.settled_s == HOUR_S
    world.bill.settle(0.5 * HOUR_S)  # what is booked is booked
    assert (world.bill.settled_s, world.bill.total.usd) == (HOUR_S, 4.0)


def test_while_it_does_not_train_it_restarts():
    world = World(4, {"spot": 1})
    world.bill.settle(HOUR_S)
    world.trains = False
    world.bill.settle(3 * HOUR_S)
    assert world.usd("useful", "restart", "on_demand") == (4.0, 8.0, 12.0)
    world.bill.settle_job("a", 4 * HOUR_S, trained=True)  # as who knows better says
    assert world.usd("useful", "restart") == (8.0, 8.0)


def test_gpus_on_which_nobody_makes_steps_yet_are_a_restart():
    """Two GPUs on demand, which come first, and four on spot: those without steps are taken in this order."""
    world = World(6, {"spot": 1, "sure": 1})
    world.working = 4
    world.bill.settle(HOUR_S)
    assert world.usd("useful", "restart") == (4.0, 6.0)
    assert world.account.training_gpu_us == 4 * HOUR_S * 1e6
    assert world.usd("on_demand") == (12.0,)
    world.working = 1
    world.bill.settle(2 * HOUR_S)
    assert world.usd("useful", "restart") == (4.0 + 1.0, 6.0 + 9.0)
    world.working = 9
    world.bill.settle(3 * HOUR_S)
    assert world.usd("useful", "restart") == (5.0 + 10.0, 15.0)


def test_of_a_script_without_a_session_training_is_unknown_until_it_ends():
    for ending, found in ((JobFinished(HOUR_S, "a"), (4.0, 0.0, 0.0)), (JobFailed(HOUR_S, "a", ""), (0.0, 0.0, 4.0))):
        world = World(4, {"spot": 1}, tells=lambda _: False)
        world.bill.settle(HOUR_S)
        assert world.usd("useful", "unknown", "redone") == (0.0, 4.0, 0.0)
        booked(world.bill, ending)
        assert world.usd("useful", "unknown", "redone") == found
    world = World(4, {"spot": 1}, tells=lambda _: False, doubts=lambda _: True)
    booked(world.bill, JobFinished(HOUR_S, "a"))
    assert world.usd("useful", "unknown") == (0.0, 4.0)  # nobody knows what that is worth


def test_what_was_saved_some_time_ago_leaves_what_came_since_unknown():
    world = World(4, {"spot": 1}, tells=lambda _: False)
    world.bill.settle(HOUR_S)
    world.bill.keep_work("a", 0.25 * HOUR_S)
    assert world.usd("useful", "unknown") == (3.0, 1.0)
    world.bill.lose_unsaved("a")
    assert world.usd("useful", "redone") == (3.0, 1.0)


def test_checkpoints_and_hangs_cost_the_rent_of_their_time():
    world = World(4, {"spot": 1})
    world.bill.settle(HOUR_S)
    assert Money(world.bill.book_checkpoint("a", 900.0)).usd == 1.0
    assert Money(world.bill.book_checkpoint("a", 900.0)).usd == 1.0
    world.bill.book_hang("a", 450.0)
    assert world.usd("useful", "checkpoint", "restart") == (1.5, 2.0, 0.5)


def test_steps_that_are_thrown_away_take_their_share_of_what_was_useful():
    world = World(4, {"spot": 1})
    world.bill.settle(HOUR_S)
    world.bill.book_thrown_away("a", steps=25, of_steps=100)
    assert world.usd("useful", "redone") == (3.0, 1.0)
    world.bill.book_thrown_away("a", steps=5, of_steps=0)
    assert world.usd("useful", "redone") == (0.0, 4.0)


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Ending.FINISHED, (4.0, 0.0, 0.0)),
        (Ending.FAILED, (1.0, 0.0, 3.0)),
        (Ending.CANCELLED, (1.0, 0.0, 3.0)),
        (None, (1.0, 3.0, 0.0)),
    ],
)
def test_a_later_controller_takes_over_what_was_noted_and_how_it_ended(outcome, found):
    world = World(4, {"spot": 1}, tells=lambda _: False)
    world.bill.settle(HOUR_S)
    world.bill.take_over("a", {"useful": Money.from_usd(1).grains, "unknown": 0}, outcome)
    assert world.usd("useful", "unknown", "redone") == found
    doubted = World(4, {"spot": 1}, tells=lambda _: False, doubts=lambda _: True)
    doubted.bill.settle(HOUR_S)
    doubted.bill.take_over("a", {"useful": 0}, Ending.FINISHED)
    assert doubted.usd("useful", "unknown") == (0.0, 4.0)


def test_a_price_counts_from_when_it_is_set():
    world = World(2, {"spot": 1})
    booked(world.bill, PriceChanged(HOUR_S, "spot", Price.from_usd_per_h("8")))
    assert world.usd("useful") == (2.0,)
    world.bill.settle(2 * HOUR_S)
    assert world.usd("useful") == (6.0,)
    assert Money(world.bill.unused).usd == 6.0


def test_a_price_that_is_heard_late_counts_from_when_it_began_for_who_is_still_there():
    """It doubled after an hour, and that is heard after three: two hours of 2 USD more for half of the node."""
    world = World(2, {"spot": 1})
    world.bill.settle(2 * HOUR_S)
    booked(world.bill, PriceHeardLate(3 * HOUR_S, "spot", Price.from_usd_per_h("8"), HOUR_S))
    assert world.usd("useful") == (2.0 + 4.0 + 4.0,)
    assert (world.bill.total.usd, Money(world.bill.unused).usd) == (20.0, 10.0)
    other = World(2, {"spot": 1})
    other.bill.settle(2 * HOUR_S)
    booked(other.bill, PriceHeardLate(3 * HOUR_S, "sure", Price.from_usd_per_h("60"), HOUR_S))
    assert other.usd("useful") == (6.0,)  # it has nothing of that


@pytest.mark.parametrize(("billed_to_h", "spot_usd"), [(2.0, 5.0), (1.0, 4.0), (0.5, 2.0), (9.0, 6.0)])
def test_of_a_node_that_ended_before_it_was_known_what_was_booked_since_is_paid_back(billed_to_h, spot_usd):
    """A whole node of spot and two GPUs on demand. After an hour the spot node costs 3 USD less, and after two more, in
    which it had ended, it is heard of. What was paid on demand, 6 USD an hour for three of them, is none of that.
    """
    world = World(6, {"spot": 1, "sure": 1})
    booked(world.bill, PriceChanged(HOUR_S, "spot", Price.from_usd_per_h("1")))
    (spot_node,) = (node.id for node in world.kernel.cluster.nodes.values() if node.offer.id == "spot")
    world.bill.settle(3 * HOUR_S)
    assert world.account.total.usd == 4.0 + 2.0 + 18.0
    booked(world.bill, NodeLost(3 * HOUR_S, spot_node, billed_to_s=billed_to_h * HOUR_S))
    assert world.account.total.usd == pytest.approx(18.0 + spot_usd)


def test_a_bill_goes_on_from_a_snapshot():
    world = World(3, {"spot": 1})
    world.bill.settle(HOUR_S)
    facts = json.loads(json.dumps(world.bill.snapshot()))
    twin = Bill(world.kernel, trains=lambda _: True)
    twin.restore(facts)
    assert json.loads(json.dumps(twin.snapshot())) == facts
    twin.settle(2 * HOUR_S)
    world.bill.settle(2 * HOUR_S)
    assert twin.jobs == world.bill.jobs
    assert (twin.unused, twin.total) == (world.bill.unused, world.bill.total)
    older = {**facts, "held": {"a": facts["held"]["a"][:2]}, "jobs": {"a": {**facts["jobs"]["a"], "new": 1}}}
    twin.restore(older)
    twin.settle(2 * HOUR_S)
    assert twin.jobs == world.bill.jobs


def test_nothing_is_booked_while_the_time_is_not_known():
    world = World(4, {"spot": 1})
    world.bill.settle(HOUR_S)
    world.bill.waits = True
    world.bill.settle(9 * HOUR_S)
    assert (world.bill.settled_s, world.usd("useful"), world.bill.total.usd) == (HOUR_S, (4.0,), 4.0)


def test_however_many_prices_there_were_before_the_last_one_is_what_was_heard_late():
    """At 4, 8 and then 2 USD an hour for half of a node; after five hours it is heard that from 3 h on it was 6."""
    world = World(2, {"spot": 1})
    for hour, price in ((1.0, "8"), (2.0, "2")):
        booked(world.bill, PriceChanged(hour * HOUR_S, "spot", Price.from_usd_per_h(price)))
    world.bill.settle(4 * HOUR_S)
    booked(world.bill, PriceHeardLate(5 * HOUR_S, "spot", Price.from_usd_per_h("6"), 3 * HOUR_S))
    assert world.usd("useful") == (2.0 + 4.0 + 1.0 + 3.0 + 3.0,)


def test_of_one_step_that_is_thrown_away_nothing_is_left():
    world = World(4, {"spot": 1})
    world.bill.settle(HOUR_S)
    world.bill.book_thrown_away("a", steps=1, of_steps=1)
    assert world.usd("useful", "redone") == (0.0, 4.0)
