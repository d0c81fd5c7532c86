"""A choice that is made anew at every plan, though nothing changed, breaks a law; one that follows changes does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.domain.shape import Shape
from sublet.policies.price import choices
from sublet.policies.price.policy import Price
from sublet_lab.world.steady import moved_to_and_fro, unsteady
from sublet_lab.world.story import CHOICE, RELEASES_S, draw_story
from tests.rigs.shrunk import a_job, a_story, breaks

A_MOVE_S = 40.0
NEWS = (  # beside a loss and a refusal
    *("JobSubmitted", "JobCancelled", "JobChanged", "JobFinished", "JobFailed"),
    *("NodeNoticed", "NodeThreatened", "NodeSlow", "NodeSilent", "NodesFound"),
    *("PriceChanged", "PriceDoubted", "PriceHeardLate", "AvailabilityChanged", "OffersChanged"),
    *("BudgetChanged", "PurseSet"),
)


def rents(*nodes):
    """A plan, and what was ordered by it."""
    return "PlanMade", {}, [{"type": "RentNode", "node_id": node, "offer_id": "spot"} for node in nodes]


def released(node):
    return "NodeReleased", {"node_id": node}, []


def a_log(*rows):
    """As it is written, one event a second."""
    return {
        number: {"event": {"type": kind, "at_s": float(number), **facts}, "actions": actions}
        for number, (kind, facts, actions) in enumerate(rows, start=1)
    }


def moves(times):
    """From one node to the next, so many times; two are held at once."""
    found = [("JobSubmitted", {}, []), rents("n0")]
    for number in range(1, times + 1):
        found += [rents(f"n{number}"), released(f"n{number - 1}")]
    return found


def test_three_times_what_is_held_at_once_may_be_rented():
    assert not unsteady(a_log(*moves(5)), ())


def test_one_node_more_breaks_the_law():
    said = (
        "7 nodes were rented from 1.000 to 13.000 s of cloud time, never more than 2 at once, and nothing had changed"
    )
    assert unsteady(a_log(*moves(6)), ()) == said


@pytest.mark.parametrize("change", NEWS)
def test_after_a_change_it_may_be_another_choice(change):
    rows = moves(6)
    assert not unsteady(a_log(*rows[:8], (change, {}, []), *rows[8:]), ())


@pytest.mark.parametrize("news", ["JobStarted", "JobResized", "JobStopped", "NodeReady", "TimerFired", "PlanMade"])
def test_what_follows_from_the_choice_itself_is_no_change(news):
    rows = moves(6)
    assert unsteady(a_log(*rows[:8], (news, {}, []), *rows[8:]), ())


@pytest.mark.parametrize(("news", "wrong"), [("NodeLost", False), ("RentRefused", True)])
def test_what_was_lost_may_be_rented_once_more(news, wrong):
    """One is held at a time from then on: the fourth is too many, unless one of the four is for what was lost."""
    ends = [released("a"), (news, {"node_id": "b"}, [])]
    one_by_one = [row for number in range(4) for row in (rents(f"n{number}"), released(f"n{number}"))]
    assert bool(unsteady(a_log(("JobSubmitted", {}, []), rents("a", "b"), *ends, *one_by_one), ())) == wrong


def test_a_controller_that_starts_may_choose_anew():
    log = a_log(*moves(6))
    assert not unsteady(log, {8})
    assert unsteady(log, {0, 1, len(log)})


def given(seen, gpus, job="job", pool="T4x1", steady=0, grid=None):
    shape = {"pool": pool, "gpus": gpus, "steady": steady, "grid": grid} if gpus else None
    return "PlanMade", {"seen": seen, "plan": {"shapes": {job: shape}}}, []


def a_move_back(*between, **back):
    """From one GPU to two and back; `between` comes before the way back. The first row is number 1."""
    return [("JobSubmitted", {}, []), given(1, 1), given(2, 2), *between, given(3 + len(between), 1, **back)]


def test_a_plan_that_gives_back_what_another_took_away_breaks_the_law():
    said = "job left ('T4x1', 1, 0, 'None') at 3.000 s and is back at 4.000 s, and nothing had changed"
    assert moved_to_and_fro(a_log(*a_move_back()), ()) == said
    assert not moved_to_and_fro(a_log(*a_move_back()[:-1]), ())


@pytest.mark.parametrize("change", [*NEWS, "NodeLost", "RentRefused"])
def test_after_a_change_a_job_may_come_back(change):
    assert not moved_to_and_fro(a_log(*a_move_back((change, {}, []))), ())
    assert not moved_to_and_fro(a_log(*a_move_back()), {3})


def test_a_plan_that_had_not_seen_the_change_leaves_the_next_one_its_choice():
    begins = [("JobSubmitted", {}, []), given(1, 1), ("PriceChanged", {}, [])]
    assert not moved_to_and_fro(a_log(*begins, given(2, 2), given(4, 1)), ())
    assert moved_to_and_fro(a_log(*begins, given(3, 2), given(4, 1)), ())


@pytest.mark.parametrize(
    "other", [{"pool": "V100x1"}, {"steady": 1}, {"grid": {"copies": 1, "parts": 2}}, {"job": "another"}]
)
def test_another_place_and_another_job_are_no_way_back(other):
    assert not moved_to_and_fro(a_log(*a_move_back(**other)), ())


def test_who_waited_in_between_begins_anew_and_a_plan_that_is_refused_gives_nothing():
    assert not moved_to_and_fro(a_log(*a_move_back(given(3, 0))), ())
    spent = ("TimerFired", {}, [{"type": "StopJob", "job_id": "job"}])
    assert not moved_to_and_fro(a_log(*a_move_back(spent)), ())
    kind, facts, _ = given(3, 1)
    assert not moved_to_and_fro(a_log(*a_move_back()[:-1], (kind, facts, [{"type": "RefusePlan"}])), ())


def test_an_hour_later_a_job_may_come_back():
    events = a_log(*a_move_back())
    events[4]["event"]["at_s"] = events[3]["event"]["at_s"] + 3600.5
    assert not moved_to_and_fro(events, ())


ONE_JOB = a_story(1, [a_job("job0", 5.0, 1200, 0.5, 1.0, 0.5)], [], policy="price", average_usd_per_h=1.0)


@pytest.mark.parametrize(("to_and_fro", "law"), [(True, "S"), (False, "")])
def test_a_policy_that_moves_a_job_between_two_markets_at_every_plan_is_seen(monkeypatch, to_and_fro, law):
    decide = Price.decide

    def at_every_plan(self, snapshot):
        plan = decide(self, snapshot)
        there = int(snapshot.now_s // A_MOVE_S) % 2 if to_and_fro else 0
        taken, left = ("on-demand", "spot") if there else ("spot", "on-demand")
        jobs = [*snapshot.active, *(state.job.id for state in snapshot.waiting.by(lambda state: state.seq))]
        return replace(
            plan,
            shapes=dict.fromkeys(jobs, Shape(f"T4x1:{taken}", 1)),
            hold={taken: len(jobs), left: 0},
            reasons=dict.fromkeys(jobs, "it is its turn"),
            ask_again_s=(snapshot.now_s // A_MOVE_S + 1.0) * A_MOVE_S,
        )

    monkeypatch.setattr(Price, "decide", at_every_plan)
    assert breaks(ONE_JOB) == law


def test_an_average_and_both_markets_in_one_pool_are_drawn_where_prices_are_weighed():
    stories = [draw_story(seed) for seed in range(300)]
    weighed = [story for story in stories if story.policy == "price"]
    drawn = [story for story in weighed if story.mixed or story.average_usd_per_h is not None]
    assert 0.4 < len(drawn) / len(weighed) <= CHOICE + 0.05
    assert any(story.mixed and story.average_usd_per_h and story.purse_usd for story in weighed)
    assert not any(story.mixed or story.average_usd_per_h for story in stories if story.policy != "price")


def test_a_plan_beyond_what_is_left_breaks_the_law(monkeypatch):
    """The total is out of the way of the policy, as it was once."""
    dear = draw_story(20074, policy="price", cloud="plain")
    assert breaks(dear) == ""
    monkeypatch.setattr(choices, "_within_total", lambda *_: None)
    assert breaks(dear) == "U"


def test_slow_releases_are_drawn_where_prices_are_weighed_with_money_for_what_they_keep_back():
    stories = [draw_story(seed, policy="price", cloud="plain") for seed in range(300)]
    assert {story.release_s for story in stories} == set(RELEASES_S)
    assert any(story.release_s and story.mixed and story.average_usd_per_h and story.purse_usd for story in stories)
    assert not any(draw_story(seed, policy="price", cloud="aws").release_s for seed in range(50))
