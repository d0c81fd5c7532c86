"""What a job's file says that it may spend: a purse to the last cent, of which nothing is kept back to leave."""

from __future__ import annotations

import pytest

from sublet.domain.actions import StopJob, TellUser
from sublet.domain.budget import Holder, Level, Limit
from sublet.domain.events import JobChanged, JobFinished, JobStopped, NodeLost, PurseSet, TimerFired
from sublet.domain.money import Money, microseconds
from sublet.domain.plan import Phase
from sublet.domain.timers import CheckPurse
from sublet.errors import InvalidValue
from sublet.kernel.journal import replay
from sublet.kernel.snapshots import kernel_from_snapshot
from sublet.policies.fifo import Fifo
from sublet.runtime.controller_api.budgets import purse_reason, purse_set
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

OWN, FILE, VISION = Holder(Level.JOB, "a"), Holder(Level.FILE, "a"), Holder(Level.TEAM, "vision")
WIND_DOWN_S = 10.0
JOB = a_job("a", work=1e9, gpus=4, user="ann", team="vision")


def purse(holder, amount, at_s=0.0):
    return PurseSet(at_s, holder, Money.from_usd(amount), None, 1_796_000_000.0 + at_s)


def town(*purses):
    """The job has a node, which costs a dollar per 1000 s and takes ten seconds to be left."""
    driver = Driver(
        [an_offer("o", usd_per_h="3.6", wind_down_s=WIND_DOWN_S, pool="p")], limits={"o": Limit(max_nodes=2)}
    )
    driver.submit(JOB)
    for each in purses:
        driver.tell(each)
    driver.settle(Fifo())
    return driver


def spent(driver, holder=FILE):
    return Money(driver.kernel.budgets.spent(holder, microseconds(driver.now_s)))


def usd(driver, holder=FILE):
    return pytest.approx(spent(driver, holder).usd, abs=1e-6)


def look(driver, at_s):
    driver.tell(TimerFired(at_s, CheckPurse()))


def stop_of(driver):
    (found,) = (order for order in driver.open if isinstance(order, StopJob))
    return found


def test_a_job_runs_to_the_last_cent_and_is_told_to_go():
    driver = town(purse(FILE, 1))
    driver.ring([CheckPurse()])
    assert driver.now_s == pytest.approx(1000.0, abs=1e-3)
    assert stop_of(driver).job_id == "a"
    told = [order.text for order in driver.last if isinstance(order, TellUser)]
    assert told == ["job a has spent the budget of its file: it stops, and goes on when it is given more"]
    look(driver, 1008.0)  # it leaves, and its team pays for that
    assert (usd(driver), usd(driver, VISION)) == (1.0, 1.008)
    assert spent(driver) <= Money.from_usd(1)


def test_however_little_it_is_the_job_starts():
    driver = town(purse(FILE, "0.001"))
    assert driver.kernel.jobs["a"].phase is Phase.RUNNING
    assert driver.kernel.budgets.left(FILE, 0) == Money.from_usd("0.001").grains


@pytest.mark.parametrize("late_s", [0.01, 5.0, 3600.0])
def test_nobody_is_there_at_the_last_cent(late_s):
    driver = town(purse(FILE, 1), purse(VISION, 50))
    look(driver, 1000.0 + late_s)
    assert stop_of(driver).job_id == "a"
    assert (usd(driver), usd(driver, VISION)) == (1.0, 1.0 + late_s / 1000.0)
    assert spent(driver) <= Money.from_usd(1)


def test_who_was_stopped_in_time_and_does_not_leave_is_charged_no_more_than_that():
    driver = town(purse(FILE, 1))
    driver.tell(JobChanged(995.0, a_job("a", work=1e9, gpus=4, user="ann", team="vision", paused=True)))
    assert stop_of(driver)
    driver.ring([CheckPurse()])
    assert not any(isinstance(order, StopJob | TellUser) for order in driver.last)
    look(driver, 1200.0)
    assert usd(driver) == 1.0
    assert spent(driver) <= Money.from_usd(1)


def test_with_more_it_goes_on():
    driver = town(purse(FILE, 1))
    driver.ring([CheckPurse()])
    stop = stop_of(driver)
    driver.open.remove(stop)
    driver.tell(JobStopped(1001.0, "a", stop.generation, 1.0))
    driver.settle(Fifo())
    kernel = driver.kernel
    assert kernel.budgets.held_by(JOB, driver.now_s) == FILE
    assert len(kernel.snapshot().waiting) == 0
    assert "next: sublet budget top-up --job a USD" in purse_reason(kernel, "a", driver.now_s)
    driver.tell(purse(FILE, 2, at_s=2000.0))
    driver.settle(Fifo())
    assert kernel.jobs["a"].phase is Phase.RUNNING
    driver.ring([CheckPurse()])
    assert driver.now_s == pytest.approx(3000.0, abs=1e-3)


@pytest.mark.parametrize(("own", "due_s"), [(3, 1000.0), ("0.5", 500.0 - 5 * WIND_DOWN_S)])
def test_what_its_owner_sets_holds_beside_it(own, due_s):
    """That purse keeps back what leaving may cost at the dearest price, five times today's."""
    driver = town(purse(FILE, 1), purse(OWN, own))
    driver.ring([CheckPurse()])
    assert driver.now_s == pytest.approx(due_s, abs=1e-3)
    assert stop_of(driver)


def test_a_node_that_was_gone_before_anybody_heard_of_it_is_paid_for_until_then():
    driver = town(purse(FILE, 10))
    (node,) = driver.kernel.cluster.nodes
    driver.tell(NodeLost(900.0, node, None, 600.0))
    assert usd(driver) == usd(driver, VISION) == 0.6


def test_it_ends_with_its_job():
    driver = town(purse(FILE, 10))
    driver.tell(JobFinished(10.0, "a"))
    assert FILE not in driver.kernel.budgets.allowed


def test_a_life_with_one_replays_and_rests_the_same():
    driver = town(purse(FILE, 1))
    look(driver, 5000.0)
    assert replay(driver.journal).budgets.facts() == driver.kernel.budgets.facts()
    assert kernel_from_snapshot(driver.kernel.facts()).facts() == driver.kernel.facts()


def test_users_set_no_files():
    with pytest.raises(InvalidValue, match="one of org, team, user, job"):
        purse_set(town().kernel, level="file", name="a", amount_usd=1.0, period=None, at_s=0.0, unix_s=0.0)
