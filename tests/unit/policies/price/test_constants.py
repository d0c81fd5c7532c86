"""What the constants of `price` decide, in cases that another constant would decide otherwise."""

from __future__ import annotations

import pytest

from sublet.domain.budget import Limit
from sublet.domain.events import AvailabilityChanged
from sublet.domain.offer import Market
from sublet.perf.speedup import PowerLaw
from sublet.policies.price.policy import Price
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

WORK = 1e5


def shared(times):
    """Four GPUs that are paid for, and two jobs that scale as n ** 0.9, one with so many times as much left."""
    driver = Driver([an_offer("o", gpus=4, market=Market.ON_DEMAND)], limits={"o": Limit(min_nodes=1, max_nodes=1)})
    speed = PowerLaw(exponent=0.9)
    driver.submit(
        *(
            a_job(name, work=work, speed=speed, gpus=1, max_gpus=4)
            for name, work in (("short", WORK), ("long", times * WORK))
        )
    )
    driver.settle(Price())
    return {name: state.gpus for name, state in driver.kernel.active.items()}


@pytest.mark.parametrize(("times", "gpus"), [(1.7, 2), (1.85, 3)])
def test_the_powers_of_the_work_left_and_of_the_speed_say_from_when_on_the_shorter_job_gets_more(times, gpus):
    """Two such jobs want two GPUs each, not three, from a price p of 3.7 job-hours per GPU-hour on.

    (1 + 3 p) / 3 ** 0.9 = (1 + 2 p) / 2 ** 0.9 at p = 3.7. By that price the short one, for which a GPU is dearer by
    the power 0.35 of the median over what it has left (m), would have two, and the long one three. So they are worth
    1 + 2 p m and 1 + 3 p m, by the power 0.85 of the work done beside two and three: a third GPU for the short one adds
    more than it takes from the long one if that has 1.77 times as much left.
    """
    assert shared(times) == {"short": gpus, "long": 4 - gpus}


@pytest.mark.parametrize(("waited_s", "first"), [(80_000.0, "new"), (90_000.0, "old")])
def test_on_rented_gpus_too_who_has_waited_for_a_day_comes_first(waited_s, first):
    """Else whoever has the least work left."""
    driver = Driver([an_offer("o", gpus=4, market=Market.ON_DEMAND)], limits={"o": Limit(max_nodes=1)})
    driver.tell(AvailabilityChanged(0.0, "o", 0))
    rigid = {"gpus": 4, "min_gpus": 4, "max_gpus": 4}
    driver.submit(a_job("old", work=1e6, **rigid))
    driver.settle(Price())
    driver.now_s = waited_s
    driver.submit(a_job("new", submit_s=waited_s, work=1e3, **rigid))
    driver.tell(AvailabilityChanged(waited_s, "o", 1))
    driver.settle(Price())
    assert set(driver.kernel.active) == {first}
