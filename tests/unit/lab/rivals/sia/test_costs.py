"""What each choice costs a job under `sia`: worked out by hand."""

from __future__ import annotations

import math

import pytest

from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer
from sublet_lab.rivals.fitness import KEEP
from sublet_lab.rivals.sia.choices import PAUSED_COST, _costs

RATES = {("t", 1): 1.0, ("t", 2): 4.0, ("a", 1): 9.0, ("a", 2): 16.0}


def costs(*, rates=None, capacity=(2, 2), now_s=100.0, power=-0.5, growth=math.inf, pools=(), **facts):
    """By pool and width, of a job of one or two GPUs of either kind; a move is discounted by a quarter."""
    told, driver = RATES if rates is None else rates, Driver([an_offer(name, gpus=2, pool=name) for name in ("t", "a")])
    state = JobState(job=a_job("j", gpus=1, max_gpus=2, pools=pools), seq=0, **facts)
    found = _costs(
        state,
        driver.kernel.pools,
        dict(zip(("t", "a"), capacity, strict=True)),
        now_s,
        lambda _state, pool, gpus, _now: told.get((pool.name, gpus), 0.0),
        lambda _state, _now: 0.25,
        power,
        growth,
    )
    return {(shape.pool, shape.gpus): cost for shape, cost in found.items()}


def held(pool="t", gpus=2, **facts):
    shape = Shape(pool, gpus)
    return {"shape": shape, "runs_in": shape, "phase": Phase.RUNNING, "gpus": gpus, "spread": (gpus,), **facts}


def test_the_worst_choice_costs_1_and_the_others_less_by_the_power_of_how_much_faster_they_are():
    assert costs() == {("t", 1): 1.0, ("t", 2): 0.5, ("a", 1): pytest.approx(1 / 3), ("a", 2): 0.25}
    assert costs(power=-1.0)["a", 2] == 1 / 16
    slow = {key: speed / 8 for key, speed in RATES.items()}
    assert costs(rates=slow) == costs()  # units do not matter


def test_whoever_has_a_place_pays_for_a_move_and_next_to_nothing_less_for_staying():
    found = costs(**held())
    assert found["t", 2] == pytest.approx((4.0 * (1.0 + KEEP)) ** -0.5)
    assert found["t", 1] == pytest.approx(0.25**-0.5)
    assert found["a", 2] == pytest.approx((16.0 * 0.25) ** -0.5)


def test_what_makes_no_progress_or_cannot_be_had_is_no_choice():
    assert costs(rates={("t", 2): 5.0, ("a", 1): 0.0}) == {("t", 2): 1.0}
    assert set(costs(capacity=(1, 0))) == {("t", 1)}
    assert set(costs(pools=("a",))) == {("a", 1), ("a", 2)}
    assert costs(rates={}) == {}
    gone = costs(rates={("t", 1): 1.0}, **held("a", 2))  # where it is it makes no progress: a move costs nothing more
    assert gone == {("t", 1): 1.0}


@pytest.mark.parametrize(("now_s", "alone"), [(99.0, True), (100.0, False), (101.0, False)])
def test_in_its_pause_it_is_left_alone_where_it_is(now_s, alone):
    found = costs(now_s=now_s, **held(as_of_s=100.0))
    assert (found == {("t", 2): PAUSED_COST}) is alone
    assert len(costs(now_s=now_s, capacity=(1, 2), **held(as_of_s=100.0))) == 3  # there is no room for that any more
