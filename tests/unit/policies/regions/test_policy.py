"""Several jobs look for places: each in turn, and asked again when the first of them wants it."""

from __future__ import annotations

import math

import pytest

from sublet.domain.budget import Limit
from sublet.domain.offer import Market
from sublet.domain.plan import JobState, Phase
from sublet.domain.shape import Shape
from sublet.policies.regions.places import Place
from sublet.policies.regions.policy import WAITS, Clock, choose, clock_of, last_call, serve_by_place
from sublet.testing.driver import Driver
from sublet.testing.values import a_job, an_offer

SURE = an_offer("sure", gpus=1, pool="sure", market=Market.ON_DEMAND)
HOUR_S = 3600.0
SECOND_H = 1.0 / HOUR_S
NO_HURRY = Clock(slack_h=math.inf)


def job(job_id, deadline_s=None, gpus=1):
    return a_job(job_id, work=3600.0 * gpus, gpus=gpus, deadline_s=deadline_s, restart_s=0.0, checkpoint_every_s=1.0)


def asked(choose, *jobs, limit=None):
    driver = Driver([SURE], limits={"sure": Limit(max_nodes=limit)})
    driver.submit(*jobs)
    return serve_by_place(driver.kernel.snapshot(), choose)


@pytest.mark.parametrize(
    ("deadlines_s", "again_s"),
    [((None, None), 300.0), ((None, 3701.0), 100.0), ((3701.0, 3651.0), 50.0), ((99_999.0, 99_999.0), 300.0)],
)
def test_who_waits_looks_again_in_five_minutes_or_at_its_last_call(deadlines_s, again_s):
    """An hour of work is left, and a second is at risk."""
    jobs = [job(name, deadline_s) for name, deadline_s in zip("ab", deadlines_s, strict=True)]
    plan = asked(lambda *_: [], *jobs)
    assert plan.shapes == {}
    assert plan.ask_again_s == pytest.approx(again_s)


def test_who_has_a_place_is_not_looked_at_again_and_takes_it_from_the_next():
    seen = []

    def first_with_room(places, here, region, clock):
        seen.append(([place.has_room for place in places], here, region, clock.slack_h))
        return [place for place in places if place.has_room]

    plan = asked(first_with_room, job("a"), job("b"), job("c"), limit=2)
    assert {job_id: shape.pool for job_id, shape in plan.shapes.items()} == {"a": "sure", "b": "sure"}
    assert [room for room, *_ in seen] == [[True], [True], [False]]
    assert seen[0][1:] == (None, "", math.inf)
    assert plan.ask_again_s == 300.0  # for the third, which waits
    assert plan.hold == {"sure": 2}
    assert WAITS not in plan.reasons.values()  # it had nothing to give back


def test_who_asks_for_a_better_place_beside_takes_both_from_the_next():
    """The first stays where it is and has a node of the other region come: nothing of either is left to the second."""
    offers = [an_offer(name, gpus=1, pool=name, market=Market.ON_DEMAND) for name in ("here", "there")]
    driver = Driver(offers, limits={"here": Limit(max_nodes=1), "there": Limit(max_nodes=1)})
    driver.submit(job("a"))
    driver.settle(Only("here"))
    driver.submit(job("b"))
    seen = []

    def better(places, here, region, clock):
        room = {place.shape.pool: place.has_room for place in places}
        seen.append((room, None if here is None else here.shape.pool))
        return [place for place in places if place.has_room and place.shape.pool == "there"] if room["there"] else []

    plan = serve_by_place(driver.kernel.snapshot(), better)
    assert plan.shapes == {}
    assert plan.hold == {"here": 1, "there": 1}
    assert plan.ask_again_s == driver.now_s + 1.0
    assert seen[0] == ({"here": True, "there": True}, "here")
    assert seen[1] == ({"here": False, "there": False}, None)


class Only:
    """Everybody in one pool."""

    def __init__(self, pool):
        self._pool = pool

    def decide(self, snapshot):
        return serve_by_place(snapshot, lambda places, *_: [each for each in places if each.shape.pool == self._pool])


def place(name="spot", usd_per_h=1.0, *, region="east", **facts):
    told = {"steady": False, "left_h": 10.0, "pause_h": 0.5, "lost_per_h": 0.1, "up": 0.5, "back_h": 1.0}
    told |= {"has_room": True, "is_own": False, "is_here": False, **facts}
    return Place(shape=Shape(name, 1), region=region, usd_per_h=usd_per_h, **told)


def sure(name="sure", usd_per_h=5.0, **facts):
    return place(name, usd_per_h, **{"steady": True, "lost_per_h": 0.0, "up": 1.0, **facts})


def names(places):
    return [each.shape.pool for each in places]


def chosen(places, clock=NO_HURRY, here=None, region="", egress_usd=0.0):
    return names(choose(places, here, region, clock, egress_usd))


# ---------------------------------------------------------------------- how a job stands with its deadline


@pytest.mark.parametrize(("over_h", "is_last"), [(-1.0, True), (0.75 * SECOND_H, True), (1.5 * SECOND_H, False)])
def test_the_last_call_leaves_two_pauses_what_may_be_lost_and_a_second(over_h, is_last):
    clock = Clock(slack_h=1.0 + over_h, pause_h=0.25, at_risk_h=0.5)
    assert clock.is_last_call is is_last


@pytest.mark.parametrize(("over_h", "must"), [(-1.0, True), (0.75 * SECOND_H, True), (1.5 * SECOND_H, False)])
def test_who_has_a_pause_and_what_may_be_lost_left_has_to_be_on_demand(over_h, must):
    clock = Clock(slack_h=0.75 + over_h, pause_h=0.25, at_risk_h=0.5)
    assert clock.must_be_steady is must


def test_the_very_second_counts_as_the_last():
    clock = Clock(slack_h=SECOND_H)
    assert clock.is_last_call
    assert clock.must_be_steady


@pytest.mark.parametrize(("slack_h", "waits_h"), [(10.0, 9.0), (0.9, 0.0), (math.inf, math.inf)])
def test_one_waits_until_two_pauses_and_what_may_be_lost_are_left_and_never_for_less_than_nothing(slack_h, waits_h):
    assert Clock(slack_h=slack_h, pause_h=0.25, at_risk_h=0.5).waits_h == waits_h


def state_of(work_h=12.0, done_h=2.0, **facts):
    job = a_job(submit_s=HOUR_S, work=work_h * HOUR_S, **{"checkpoint_every_s": 900.0, **facts})
    return JobState(job=job, seq=0, phase=Phase.WAITING, done=done_h * HOUR_S)


def test_slack_is_the_time_to_the_deadline_less_the_work_left_on_demand():
    """Of 12 hours 2 are done; on demand the other 10 take 5, so that what is done would have taken 1 there."""
    state = state_of(deadline_s=23 * HOUR_S)
    assert clock_of(state, [place(left_h=2.0), sure(left_h=5.0, pause_h=0.25)], 3 * HOUR_S) == Clock(
        slack_h=15.0, left_h=5.0, done_h=1.0, passed_h=2.0, at_risk_h=0.25, pause_h=0.25
    )


def test_no_more_is_at_risk_than_all_of_the_work():
    state = state_of(deadline_s=23 * HOUR_S, checkpoint_every_s=math.inf)
    assert clock_of(state, [sure(left_h=5.0)], 0.0).at_risk_h == 6.0


@pytest.mark.parametrize("facts", [{"work_h": 12.0, "done_h": 0.0}, {"work_h": math.inf, "done_h": 2.0}])
def test_where_nothing_is_done_or_there_is_no_end_no_hour_was_done(facts):
    assert clock_of(state_of(**facts, deadline_s=23 * HOUR_S), [sure()], 0.0).done_h == 0.0


def test_the_clock_goes_by_the_place_on_demand_that_is_done_first_pause_and_all():
    state = state_of(deadline_s=23 * HOUR_S)
    quick, far = sure("quick", left_h=5.0, pause_h=3.0), sure("far", left_h=7.0, pause_h=0.5)
    full = sure("full", left_h=1.0, has_room=False)
    assert clock_of(state, [place(left_h=2.0), full, quick, far], 0.0).left_h == 7.0
    assert clock_of(state, [place(left_h=2.0), full], 0.0).left_h == 1.0  # no room anywhere that is sure: by any
    assert clock_of(state, [place(left_h=3.0), place(left_h=2.0)], 0.0).left_h == 2.0


def test_without_a_deadline_or_a_place_slack_has_no_end():
    nothing = Clock(slack_h=math.inf, left_h=0.0, done_h=0.0, passed_h=0.0, at_risk_h=0.0, pause_h=0.0)
    assert clock_of(state_of(), [sure()], 0.0) == nothing
    assert clock_of(state_of(deadline_s=HOUR_S), [], 0.0) == nothing


# ---------------------------------------------------------------------- the last call


LATE = Clock(slack_h=0.9, pause_h=0.5, at_risk_h=0.2)  # two pauses and a fifth of an hour do not fit, one does
TIGHT = Clock(slack_h=0.6, pause_h=0.5, at_risk_h=0.2)  # a loss does not fit any more
LAST = Clock(slack_h=0.5, pause_h=0.5, at_risk_h=0.2)  # one more pause, and nothing beyond
OVER = Clock(slack_h=0.4, pause_h=0.5, at_risk_h=0.2)  # not even a pause fits


def test_there_is_no_last_call_with_slack_for_two_pauses():
    clock = Clock(slack_h=2.0, pause_h=0.5, at_risk_h=0.2)
    assert last_call([sure()], None, "", clock, 0.0) is None


def test_at_the_last_call_it_goes_on_demand_where_all_that_is_left_costs_least():
    """5 x 10.5 with a move for 4, 5.1 x 10.5 without one, 20 x 2.25: 56.5, 53.55 and 45 USD."""
    far, near, quick = sure("far", region="west"), sure("near", 5.1), sure("quick", 20.0, left_h=2.0, pause_h=0.25)
    full = sure("full", 0.1, has_room=False)
    for clock in (LATE, TIGHT, OVER):
        assert last_call([place(), full, far, near], None, "east", clock, 4.0) is near
        assert last_call([place(), full, far, near], None, "", clock, 4.0) is far  # nothing to carry
        assert last_call([place(), full, far, near, quick], None, "east", clock, 4.0) is quick
        assert last_call([place(), full], None, "east", clock, 4.0) is None
        slow_start = sure("slow start", 5.0, pause_h=0.8)  # 54 USD
        assert last_call([slow_start, near], None, "east", clock, 4.0) is near


def test_who_is_on_demand_at_the_last_call_stays():
    here, cheaper = sure("here"), sure("cheaper", 1.0)
    for clock in (LATE, TIGHT, OVER):
        assert last_call([here, cheaper], here, "east", clock, 0.0) is here


@pytest.mark.parametrize(("clock", "stays"), [(LATE, True), (TIGHT, False), (LAST, False), (OVER, True)])
def test_who_trains_on_spot_leaves_it_when_a_loss_would_be_too_much_and_a_pause_is_not(clock, stays):
    here, other = place("here", is_own=True, is_here=True), sure()
    assert (last_call([here, other], here, "east", clock, 0.0) is here) is stays
    assert chosen([here, other], clock, here, "east") == ["here" if stays else "sure"]


# ---------------------------------------------------------------------- places by what an hour of work costs there


def test_an_hour_where_it_goes_slower_costs_as_much_more():
    """Twice as long for 0.9 is dearer than 1, and for 0.4 it is not. Neither loses anything, nor takes a start."""
    calm = {"lost_per_h": 0.0, "pause_h": 0.0}
    fast = place("fast", **calm)
    assert chosen([place("slow", 0.9, left_h=20.0, **calm), fast]) == ["fast", "slow"]
    assert chosen([fast, place("slow", 0.4, left_h=20.0, **calm)]) == ["slow", "fast"]


def test_losses_cost_their_pauses():
    """Once an hour, half an hour of 1 USD: 1.5 an hour, once started for 0.5 an hour more; that is 2."""
    flaps = place("flaps", lost_per_h=1.0)
    calm = {"lost_per_h": 0.0, "pause_h": 0.0}
    assert chosen([flaps, place("calm", 1.99, **calm)]) == ["calm", "flaps"]
    assert chosen([flaps, place("calm", 2.01, **calm)]) == ["flaps", "calm"]
    assert chosen([flaps, place("calm", 1.51, **calm)], here=flaps) == ["flaps"]
    assert chosen([flaps, place("calm", 1.49, **calm)], here=flaps) == ["calm", "flaps"]


def test_a_loss_costs_carriage_where_no_neighbour_is_up():
    """Two neighbours that are up half of the time: a quarter of 8 USD, every ten hours, is 0.2 an hour."""
    calm = {"lost_per_h": 0.0, "pause_h": 0.0, "region": "west"}
    here = place("here", pause_h=0.0)
    two = [place(name, 9.0) for name in ("one", "two")]
    others = [sure(), place("far", 9.0, region="west")]  # who is on demand, or elsewhere, is no neighbour
    for usd_per_h, goes in ((1.19, True), (1.21, False)):
        west = place("calm", usd_per_h, **calm)
        wanted = chosen([here, *two, *others, west], here=here, egress_usd=8.0)
        assert wanted == (["calm", "here"] if goes else ["here"])
    alone = [here, place("calm", 1.79, **calm)]
    assert chosen(alone, here=here, egress_usd=8.0) == ["calm", "here"]
    assert chosen([here, place("calm", 1.81, **calm)], here=here, egress_usd=8.0) == ["here"]


def test_a_start_costs_its_pause_and_carriage_over_the_hours_that_it_lasts():
    """Half an hour of 1 USD and 1.5 USD of carriage: over the ten hours left 0.2 an hour, over a stay of four 0.5."""
    calm = {"lost_per_h": 0.0, "region": "west"}
    here = place("here", 1.19, lost_per_h=0.0)
    west = place("west", **calm)
    assert chosen([here, west], here=here, region="east", egress_usd=1.5) == ["here"]
    assert chosen([here, west], here=here, region="east", egress_usd=1.3) == ["west", "here"]  # 1.18
    assert chosen([here, west], here=here, region="west", egress_usd=9.0) == ["west", "here"]
    stays_four = place("west", lost_per_h=0.25, region="west", pause_h=0.5)  # 1 + 0.25 x (0.5 + 1.5) + 2 / 4 = 2
    here = place("here", 1.99, lost_per_h=0.0)
    assert chosen([here, stays_four], here=here, region="east", egress_usd=1.5) == ["here"]
    here = place("here", 2.01, lost_per_h=0.0)
    assert chosen([here, stays_four], here=here, region="east", egress_usd=1.5) == ["west", "here"]


def test_where_it_goes_slower_what_a_start_costs_is_spread_over_more_hours_and_less_work():
    """Twice as slow for 0.4, half an hour of that and 4 USD of carriage: 0.8 and 4.2 / 20 hours x 2, which is 1.22."""
    slow = place("slow", 0.4, left_h=20.0, lost_per_h=0.0, region="west")
    for usd_per_h, goes in ((1.21, False), (1.23, True)):
        here = place("here", usd_per_h, lost_per_h=0.0)
        wanted = chosen([here, slow], here=here, region="east", egress_usd=4.0)
        assert wanted == (["slow", "here"] if goes else ["here"])


def test_at_the_very_end_a_start_is_spread_over_a_second():
    """With no work left nothing is divided by nothing, and who is somewhere stays."""
    here = place("here", left_h=0.0)
    assert chosen([here, place("other", 0.1, left_h=0.0)], here=here) == ["here"]


def test_losses_and_starts_cost_slack_too():
    """Slack of 4 hours beyond 5 pauses: 2 x (3 - 1) / e = 1.4715 USD an hour of it, of a start or a loss half as much.

    Every hour a loss: 1 + 0.5 x (1 + 1.4715) = 2.2358. Without slack, half as fast for 0.5: (0.5 + 0.25) x 2.
    """
    clock = Clock(slack_h=6.5, left_h=10.0, pause_h=0.5)
    on_demand = sure(usd_per_h=3.0, has_room=False)
    calm = {"lost_per_h": 0.0, "pause_h": 0.0}
    here = place("here", lost_per_h=1.0)
    for usd_per_h, goes in ((2.22, True), (2.25, False)):
        wanted = chosen([here, on_demand, place("calm", usd_per_h, **calm)], clock, here)
        assert wanted == (["calm", "here"] if goes else ["here"])
    slow = place("slow", 0.5, left_h=20.0, lost_per_h=1.0)
    for usd_per_h, goes in ((1.49, True), (1.51, False)):
        wanted = chosen([slow, place("calm", usd_per_h, **calm)], NO_HURRY, slow)
        assert wanted == (["calm", "slow"] if goes else ["slow"])
    start = place("start", lost_per_h=0.0)  # 1 + 0.5 x 2.4715 / 10 = 1.1236
    for usd_per_h, goes in ((1.11, False), (1.14, True)):
        stays = place("stays", usd_per_h, **calm)
        wanted = chosen([stays, on_demand, start], clock, stays)
        assert wanted == (["start", "stays"] if goes else ["stays"])


def test_nobody_moves_to_what_costs_the_same_nor_waits_for_it():
    calm = {"lost_per_h": 0.0, "pause_h": 0.0}
    here = place("here", **calm)
    assert chosen([here, place("twin", **calm)], here=here) == ["here"]
    clock = Clock(slack_h=3.0, left_h=10.0)
    assert chosen([place("full", has_room=False, **calm), place("twin", **calm)], clock) == ["twin"]


def test_only_places_with_room_are_asked():
    full, spot, dear = place("full", 0.1, has_room=False), place("spot"), place("dear", 3.0)
    assert chosen([full, spot, dear]) == ["spot", "dear"]
    assert chosen([full, spot, dear], here=dear) == ["spot", "dear"]
    assert chosen([]) == []


# ---------------------------------------------------------------------- what an hour of slack is worth


FULL = {"has_room": False, "back_h": math.inf}  # and never has room again


def waits(slack_h, dear_usd, *, back_h=1.0, pause_h=0.0):
    """Whether it waits for a place at 1 USD that is not up, where another is, and on demand costs 3."""
    calm = {"lost_per_h": 0.0, "pause_h": pause_h}
    places = [place("cheap", has_room=False, back_h=back_h, **calm), place("dear", dear_usd, **calm)]
    dearer = sure("dearer", 30.0, **FULL, pause_h=pause_h)  # what counts is the cheapest on demand
    wanted = chosen(
        [*places, sure(usd_per_h=3.0, **FULL, pause_h=pause_h), dearer],
        Clock(slack_h=slack_h, left_h=10.0, pause_h=pause_h),
    )
    assert wanted in ([], ["dear"])
    return not wanted


@pytest.mark.parametrize(
    ("slack_h", "worth_usd"),
    [
        (0.001, 4.0),  # hardly any: twice the 2 USD that on demand costs more
        (4.0, 4.0 / math.e),
        (8.0, 4.0 / math.e**2),
    ],
)
def test_an_hour_of_slack_is_worth_twice_what_on_demand_costs_more_and_falls_by_e_every_four_hours(slack_h, worth_usd):
    """To be in the dear place for the hour until the cheap one is back costs what it is dearer by."""
    assert not waits(slack_h, 1.0 + 0.99 * worth_usd)
    assert waits(slack_h, 1.0 + 1.01 * worth_usd)
    assert not waits(slack_h, 1.0 + 0.99 * worth_usd, back_h=3.0)  # both last as long
    assert waits(slack_h, 1.0 + 1.01 * worth_usd, back_h=3.0)


def test_slack_counts_from_five_pauses_on_and_a_start_there_or_here_costs_a_pause():
    """Slack of 4 hours beyond 5 pauses of 0.4: 4 / e = 1.4715 an hour of it. To be there costs x more for an hour, and
    the pause 0.4 x more: 1.4 x is worth an hour of slack at 1.0511 USD more.
    """
    assert not waits(6.0, 1.0 + 1.04, pause_h=0.4)
    assert waits(6.0, 1.0 + 1.06, pause_h=0.4)


def test_where_it_goes_slower_an_hour_of_work_is_dearer_and_a_start_is_not():
    """Half as fast at u USD: for the hour until the cheap one is back 2 u - 1 more, and 0.4 (u - 1) for the pauses.

    With slack of 4 hours beyond 5 pauses that is worth 4 / e = 1.4715 up to u = 1.1965.
    """
    cheap = place("cheap", has_room=False, lost_per_h=0.0, pause_h=0.4)
    for usd_per_h, wanted in ((1.19, ["dear"]), (1.20, [])):
        dear = place("dear", usd_per_h, left_h=20.0, lost_per_h=0.0, pause_h=0.4)
        places = [cheap, dear, sure(usd_per_h=3.0, **FULL, pause_h=0.4)]
        assert chosen(places, Clock(slack_h=6.0, left_h=10.0, pause_h=0.4)) == wanted


def test_what_is_dearer_is_paid_for_no_longer_than_the_work_lasts():
    """For the 10 hours of work, not for the 20 of waiting: 20 x 4 / e / 10 = 2.943 USD an hour more."""
    assert not waits(4.0, 1.0 + 2.93, back_h=20.0)
    assert waits(4.0, 1.0 + 2.95, back_h=20.0)


def test_several_better_places_are_back_sooner():
    """Two that are each back in two hours, by chance: one of them in one."""
    calm = {"lost_per_h": 0.0, "pause_h": 0.0}
    better = [place(name, 1.0, has_room=False, back_h=2.0, **calm) for name in ("one", "two")]
    for more_usd, wanted in ((1.46, ["dear"]), (1.48, [])):  # an hour of slack is worth 4 / e = 1.4715
        places = [*better, place("dear", 1.0 + more_usd, **calm), sure(usd_per_h=3.0, **FULL)]
        assert chosen(places, Clock(slack_h=4.0, left_h=10.0)) == wanted


def test_where_nothing_is_sure_slack_is_worth_nothing():
    cheap, dear = place("cheap", 0.1, has_room=False), place("dear", 0.11)
    assert chosen([cheap, dear], Clock(slack_h=3.0, left_h=10.0, pause_h=0.5)) == []
    assert chosen([cheap, dear]) == ["dear"]


def test_where_on_demand_is_no_dearer_slack_is_worth_nothing_either():
    calm = {"lost_per_h": 0.0, "pause_h": 0.0}
    cheap = sure("cheap", 1.0, has_room=False, **calm)
    assert chosen([cheap, place("dear", 1.01, **calm)], Clock(slack_h=3.0, left_h=10.0)) == []
    assert chosen([cheap, sure("dear", 1.01, **calm)], Clock(slack_h=3.0, left_h=10.0)) == []


def test_the_best_place_with_room_is_never_waited_for():
    clock = Clock(slack_h=100.0, left_h=10.0, pause_h=0.5)
    assert chosen([place("cheap"), place("dear", 50.0)], clock) == ["cheap"]
