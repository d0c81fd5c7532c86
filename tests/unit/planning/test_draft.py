"""A plan in the making: only changes are written down, and room is what is left to give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.budget import UNLIMITED, Budget, Limit
from sublet.domain.money import Price
from sublet.domain.offer import Market
from sublet.domain.plan import Plan, arrival
from sublet.domain.shape import Shape
from sublet.planning.draft import Draft
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer


@pytest.fixture
def driver():
    """Two nodes of four in pool p, one of eight in pool q; job "a" runs on four, "b" and "c" wait."""
    offers = [an_offer("o", pool="p"), an_offer("w", gpus=8, pool="q", gpu="A100")]
    made = Driver(offers, limits={"o": Limit(max_nodes=2), "w": Limit(max_nodes=1)})
    made.submit(a_job("a", gpus=4), a_job("b", gpus=20, min_gpus=2), a_job("c", gpus=12, min_gpus=12))
    made.plan(Plan(shapes={"a": Shape("p", 4)}, hold={"o": 1}))
    return made


def state(driver, job_id):
    return driver.kernel.jobs[job_id]


def test_room_is_what_could_be_held_less_what_is_promised(driver):
    draft = Draft(driver.kernel.snapshot())
    assert draft.most == {"p": 8, "q": 8}
    assert draft.room == {"p": 4, "q": 8}


def test_a_width_is_cut_to_the_largest_pool_but_not_below_the_smallest(driver):
    draft = Draft(driver.kernel.snapshot())
    widths = {each.job.id: draft.width(each.job) for each in driver.kernel.waiting.by(arrival)}
    assert widths == {"b": 8, "c": 0}


def test_the_first_pool_with_room_is_taken(driver):
    draft, job = Draft(driver.kernel.snapshot()), state(driver, "b").job
    assert [draft.pool_with_room(job, gpus) for gpus in (1, 4, 5, 8, 9)] == ["p", "p", "q", "q", None]
    only = replace(job, pools=("q",))
    assert [draft.pool_with_room(only, gpus) for gpus in (1, 9)] == ["q", None]


def test_giving_and_taking_moves_room_and_notes_the_change(driver):
    draft = Draft(driver.kernel.snapshot())
    draft.take(state(driver, "a"), "because")
    assert draft.room == {"p": 8, "q": 8}
    draft.give(state(driver, "b"), "q", 6)
    assert draft.room == {"p": 8, "q": 2}
    plan = draft.plan(ask_again_s=7.0)
    assert plan.shapes == {"a": None, "b": Shape("q", 6)}
    assert plan.hold == {"o": 0, "w": 1}
    assert plan.reasons == {"a": "because"}
    assert plan.ask_again_s == 7.0


def test_what_a_job_has_already_is_no_change(driver):
    draft = Draft(driver.kernel.snapshot())
    draft.give(state(driver, "a"), "p", 4)
    draft.take(state(driver, "b"))
    assert draft.plan().shapes == {}
    assert draft.plan().hold == {"o": 1, "w": 0}


def test_a_second_thought_replaces_the_first(driver):
    draft = Draft(driver.kernel.snapshot())
    draft.give(state(driver, "b"), "p", 4)
    draft.give(state(driver, "b"), "q", 8)
    assert draft.room == {"p": 4, "q": 0}
    assert draft.plan().shapes == {"b": Shape("q", 8)}


# ---------------------------------------------------------------------- cores


def town(budget=UNLIMITED, **limits):
    offers = [
        an_offer("s", gpus=1, pool="p", usd_per_h="1"),
        an_offer("d", gpus=1, pool="p", usd_per_h="3", market=Market.ON_DEMAND),
        an_offer("t", gpus=1, pool="t", usd_per_h="1"),
    ]
    made = Driver(offers, limits={name: Limit(max_nodes=nodes) for name, nodes in limits.items()}, budget=budget)
    made.submit(a_job("a", gpus=4, min_gpus=1, min_on_demand=1), a_job("b", gpus=4, min_gpus=2, min_on_demand=2))
    return made


def given(driver, pool="p", gpus=4):
    draft = Draft(driver.kernel.snapshot())
    for each in driver.kernel.waiting.by(arrival):
        draft.give(each, pool, gpus)
    return draft.plan()


def test_who_knows_no_markets_gives_a_job_its_core_and_holds_nodes_for_it():
    plan = given(town())
    assert plan.shapes == {"a": Shape("p", 4, steady=1), "b": Shape("p", 4, steady=2)}
    assert plan.hold == {"s": 5, "d": 3, "t": 0}


def test_what_spot_lacks_beside_cores_is_on_demand():
    assert given(town(s=2)).hold == {"s": 2, "d": 6, "t": 0}


def test_a_job_for_whose_core_nothing_is_on_demand_waits_and_the_first_comes_first():
    plan = given(town(d=2))
    assert plan.shapes == {"a": Shape("p", 4, steady=1)}
    assert plan.hold == {"s": 3, "d": 1, "t": 0}
    assert "core" in plan.reasons["b"]
    assert given(town(), pool="t").shapes == {}


def test_where_money_does_not_pay_for_width_and_core_a_job_is_narrower():
    """Eight on spot would be paid for; beside three on demand only three are."""
    plan = given(town(budget=Budget(burn=Price.from_usd_per_h(13))))
    assert plan.shapes == {"a": Shape("p", 4, steady=1), "b": Shape("p", 2, steady=2)}
    assert plan.hold == {"s": 3, "d": 3, "t": 0}
